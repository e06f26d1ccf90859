"""Model files and checkpoints: safetensors and JSON, nothing executable, old or new but never half."""

from boxloop.persist.atomic import write_atomic
from boxloop.persist.checkpoint import CheckpointWriter, read_checkpoint
from boxloop.persist.container import SUFFIX, ModelFileError
from boxloop.persist.files import Saved, load_tree, save_tree

__all__ = [
    "SUFFIX",
    "CheckpointWriter",
    "ModelFileError",
    "Saved",
    "load_tree",
    "read_checkpoint",
    "save_tree",
    "write_atomic",
]
