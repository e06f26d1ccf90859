"""Model files and checkpoints: safetensors and JSON, nothing executable, old or new but never half."""

from boxloop.persist.atomic import write_atomic
from boxloop.persist.checkpoint import CheckpointWriter, is_checkpoint, read_checkpoint
from boxloop.persist.container import SUFFIX, ModelFileError
from boxloop.persist.files import Saved, load_tree, save_tree

__all__ = [
    "SUFFIX",
    "CheckpointWriter",
    "ModelFileError",
    "Saved",
    "is_checkpoint",
    "load_tree",
    "read_checkpoint",
    "save_tree",
    "write_atomic",
]
