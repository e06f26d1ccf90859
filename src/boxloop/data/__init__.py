"""Sources of rows: where they live and how to reduce them."""

from boxloop.data.array import ArraySource, tile_rows
from boxloop.data.bundled import Bundled, bundled
from boxloop.data.dask import DaskSource, dask_source
from boxloop.data.device import on_device
from boxloop.data.exchanged import Exchanged
from boxloop.data.mapped import Mapped, shuffled, within
from boxloop.data.marks import At, Folds, InFold, Marks, Mask
from boxloop.data.moments import moment_source, summarise_moments
from boxloop.data.open import open_source, stays
from boxloop.data.paired import Paired
from boxloop.data.pairing import paired
from boxloop.data.sample import Both, Gathered, Kept, Lot, kept_rows
from boxloop.data.some import SomeRows, some_rows
from boxloop.data.sparse import SparseSource
from boxloop.data.standard import Frame, Standardised, identity_frame, survey
from boxloop.data.stream import StreamSource
from boxloop.data.table import open_table
from boxloop.data.tasks import ClusterError, watched
from boxloop.data.tiles import Tiled, View, WeightedSum
from boxloop.data.write import escape_formulas, table_writer, write_table, write_text

__all__ = [
    "ArraySource",
    "At",
    "Both",
    "Bundled",
    "ClusterError",
    "DaskSource",
    "Exchanged",
    "Folds",
    "Frame",
    "Gathered",
    "InFold",
    "Kept",
    "Lot",
    "Mapped",
    "Marks",
    "Mask",
    "Paired",
    "SomeRows",
    "SparseSource",
    "Standardised",
    "StreamSource",
    "Tiled",
    "View",
    "WeightedSum",
    "bundled",
    "dask_source",
    "escape_formulas",
    "identity_frame",
    "kept_rows",
    "moment_source",
    "on_device",
    "open_source",
    "open_table",
    "paired",
    "shuffled",
    "some_rows",
    "stays",
    "summarise_moments",
    "survey",
    "table_writer",
    "tile_rows",
    "watched",
    "within",
    "write_table",
    "write_text",
]
