"""Model files and checkpoints: safetensors and JSON, nothing executable, old or new but never half."""

from boxloop.exports import export_lazily

export_lazily(__name__)
