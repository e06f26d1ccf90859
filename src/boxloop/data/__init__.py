"""Sources of rows: where they live and how to reduce them."""

from boxloop.data.array import ArraySource, tile_rows
from boxloop.data.mapped import Mapped, on_device, shuffled, within
from boxloop.data.moments import moment_source, summarise_moments
from boxloop.data.open import open_source
from boxloop.data.sparse import SparseSource
from boxloop.data.standard import Frame, Standardised, identity_frame, survey
from boxloop.data.stream import StreamSource
from boxloop.data.write import write_table

__all__ = [
    "ArraySource",
    "Frame",
    "Mapped",
    "SparseSource",
    "Standardised",
    "StreamSource",
    "identity_frame",
    "moment_source",
    "on_device",
    "open_source",
    "shuffled",
    "summarise_moments",
    "survey",
    "tile_rows",
    "within",
    "write_table",
]
