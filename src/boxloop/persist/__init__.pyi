from .atomic import open_temporary as open_temporary, write_atomic
from .checkpoint import Checkpoint as Checkpoint, CheckpointWriter, is_checkpoint, read_checkpoint
from .constraints import (
    ANY as ANY,
    COUNTS as COUNTS,
    LOCATION as LOCATION,
    LOG_SIMPLEX as LOG_SIMPLEX,
    LOGARITHM as LOGARITHM,
    LOWER_FACTOR as LOWER_FACTOR,
    NOT_NEGATIVE as NOT_NEGATIVE,
    PLACES as PLACES,
    POSITIVE as POSITIVE,
    POSITIVE_DEFINITE as POSITIVE_DEFINITE,
    PROBABILITY as PROBABILITY,
    REAL as REAL,
    SCALE as SCALE,
    SHARE as SHARE,
    SIMPLEX as SIMPLEX,
    Array as Array,
    Axes as Axes,
    Constraints as Constraints,
    Nested as Nested,
    Number as Number,
    Table as Table,
    Values as Values,
    check_types as check_types,
    describe_type as describe_type,
    is_of_type as is_of_type,
    match_axis as match_axis,
)
from .container import SUFFIX, ModelFileError, read_container as read_container
from .registry import (
    PROGRESS as PROGRESS,
    Check as Check,
    FileMixin as FileMixin,
    Labels as Labels,
    MetaSaveMixin as MetaSaveMixin,
    ModelFile as ModelFile,
    SaveMixin as SaveMixin,
    Wrapped as Wrapped,
    get_model_file as get_model_file,
    load_model as load_model,
    load_registered as load_registered,
)
from .trees import Saved, load_tree, save_tree

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
