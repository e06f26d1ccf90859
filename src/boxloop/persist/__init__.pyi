from .annotations import check_types as check_types, describe_type as describe_type, is_of as is_of
from .atomic import open_temporary as open_temporary, write_atomic
from .checkpoint import Checkpoint as Checkpoint, CheckpointWriter, is_checkpoint, read_checkpoint
from .constraints import Array as Array, Axes as Axes, COUNTS as COUNTS, Constraints as Constraints, LOCATION as LOCATION, LOGARITHM as LOGARITHM, LOG_SIMPLEX as LOG_SIMPLEX, LOWER_FACTOR as LOWER_FACTOR, NOT_NEGATIVE as NOT_NEGATIVE, Nested as Nested, Number as Number, PLACES as PLACES, POSITIVE as POSITIVE, POSITIVE_DEFINITE as POSITIVE_DEFINITE, PROBABILITY as PROBABILITY, REAL as REAL, SCALE as SCALE, SHARE as SHARE, SIMPLEX as SIMPLEX, Table as Table, Values as Values, match as match
from .container import ModelFileError, SUFFIX, read_container as read_container
from .files import Saved, load_tree, save_tree

__all__ = ['CheckpointWriter', 'ModelFileError', 'SUFFIX', 'Saved', 'is_checkpoint', 'load_tree', 'read_checkpoint', 'save_tree', 'write_atomic']
