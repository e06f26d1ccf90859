"""Model files and checkpoints: safetensors and JSON, nothing executable, old or new but never half."""

from boxloop.exports import lazy_exports

lazy_exports(__name__)
