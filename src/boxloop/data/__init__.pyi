from .array import ArraySource, array_of as array_of, tile_rows
from .blame import killed as killed
from .bundled import Bundled, CATALOGUE as CATALOGUE, bundled
from .checks import check_callable as check_callable, check_choice as check_choice, check_count as check_count, check_level as check_level, check_list as check_list, check_weight as check_weight, choose_columns as choose_columns, column_place as column_place, column_places as column_places, near_misses as near_misses
from .cluster import FAN as FAN, spread as spread, summed as summed
from .csv import CsvReader as CsvReader, MISSING as MISSING, records as records
from .dask import DaskSource, PART_VALUES as PART_VALUES, dask_source
from .device import on_device
from .digest import as_digest as as_digest, digest as digest, row_words as row_words, rows_digest as rows_digest, rows_word as rows_word
from .even import even as even
from .exchanged import Exchanged
from .folder import FolderReader as FolderReader, by_number as by_number
from .frames import as_column as as_column, as_frame as as_frame, holds_numbers as holds_numbers, is_collection as is_collection, make_frame as make_frame, outline as outline
from .graph import contents as contents
from .mapped import Mapped, shuffled, within
from .marks import At, Folds, InFold, Marks, Mask
from .moments import MOMENT_COLUMNS as MOMENT_COLUMNS, Summary as Summary, moment_source, summarise_moments
from .npy import MapReader as MapReader, NpyReader as NpyReader, npy_source as npy_source
from .open import AnySource as AnySource, open_source, stays
from .paired import Paired
from .pairing import paired
from .parquet import ParquetReader as ParquetReader, open_parquet as open_parquet
from .parts import HeldPart as HeldPart
from .prefetch import AHEAD as AHEAD, Prefetched as Prefetched, ahead as ahead
from .sample import Both, Gathered, Kept, Lot, kept_rows
from .some import SomeRows, some_rows
from .sparse import SparseSource, csr_tensor as csr_tensor, sparse_source as sparse_source
from .standard import FIRST_ROWS as FIRST_ROWS, Frame, Standardised, identity_frame, survey
from .stream import BATCH_ROWS as BATCH_ROWS, Reader as Reader, StreamSource, hold as hold, retile as retile, stream as stream
from .synthetic import DiskAndRing as DiskAndRing, FactorProblem as FactorProblem, Topics as Topics, documents as documents, factor_problem as factor_problem, overlapping_clusters as overlapping_clusters
from .table import open_reader_of as open_reader_of, open_table
from .tasks import ClusterError, watched
from .tiles import Placed as Placed, Tile as Tile, Tiled, View, WeightedSum, total as total
from .travel import Carried as Carried, packed as packed, unpacked as unpacked
from .validated import check_table as check_table, to_array as to_array, to_labels as to_labels, to_numbers as to_numbers, to_vector as to_vector, unmasked as unmasked, validated as validated
from .write import escape_formulas, table_writer, write_table, write_text

__all__ = ['ArraySource', 'At', 'Both', 'Bundled', 'ClusterError', 'DaskSource', 'Exchanged', 'Folds', 'Frame', 'Gathered', 'InFold', 'Kept', 'Lot', 'Mapped', 'Marks', 'Mask', 'Paired', 'SomeRows', 'SparseSource', 'Standardised', 'StreamSource', 'Tiled', 'View', 'WeightedSum', 'bundled', 'dask_source', 'escape_formulas', 'identity_frame', 'kept_rows', 'moment_source', 'on_device', 'open_source', 'open_table', 'paired', 'shuffled', 'some_rows', 'stays', 'summarise_moments', 'survey', 'table_writer', 'tile_rows', 'watched', 'within', 'write_table', 'write_text']
