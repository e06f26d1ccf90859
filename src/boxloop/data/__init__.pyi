from .csv import MISSING as MISSING, CsvReader as CsvReader, read_records as read_records
from .dask.partitions import ArrayPartition as ArrayPartition
from .dask.pickling import (
    Broadcast as Broadcast,
    pickle_value as pickle_value,
    unpickle_value as unpickle_value,
)
from .dask.reduce import (
    FAN as FAN,
    PartialSum as PartialSum,
    map_on_cluster as map_on_cluster,
    map_partitions as map_partitions,
    sum_partitions as sum_partitions,
)
from .dask.source import PART_VALUES as PART_VALUES, DaskSource, dask_source
from .dask.tasks import (
    ClusterError,
    describe_killed_workers as describe_killed_workers,
    plan_contents as plan_contents,
    watch_partitions,
)
from .datasets import (
    CATALOGUE as CATALOGUE,
    Dataset,
    DiskAndRing as DiskAndRing,
    FactorProblem as FactorProblem,
    Topics as Topics,
    draw_factor_problem as draw_factor_problem,
    draw_overlapping_clusters as draw_overlapping_clusters,
    draw_topics as draw_topics,
    load_dataset,
)
from .device import (
    PREFETCHED_TILES as PREFETCHED_TILES,
    PrefetchedSource as PrefetchedSource,
    on_device,
    prefetch as prefetch,
)
from .fingerprint import (
    fingerprint_file as fingerprint_file,
    fingerprint_rows as fingerprint_rows,
    fingerprint_source as fingerprint_source,
    fingerprint_values as fingerprint_values,
    hash_tile as hash_tile,
    hash_to_text as hash_to_text,
    hash_values_of_rows as hash_values_of_rows,
)
from .folder import FolderReader as FolderReader, natural_sort_key as natural_sort_key
from .moments import (
    MOMENT_COLUMNS as MOMENT_COLUMNS,
    MomentSummary as MomentSummary,
    moment_source,
    summarise_moments,
)
from .npy import MapReader as MapReader, NpyReader as NpyReader, npy_source as npy_source
from .pairing import PairedSource, SwappedViews, pair_sources
from .parquet import ParquetReader as ParquetReader, open_parquet as open_parquet
from .read import (
    check_source as check_source,
    open_named_reader as open_named_reader,
    open_source,
    open_table,
)
from .selection import (
    Folds,
    FoldSelection,
    IndexSelection,
    MaskSelection,
    RowSelection,
    SelectedRows,
    has_equal_weights as has_equal_weights,
    select_rows,
    shuffle_rows,
)
from .source import (
    AnySource as AnySource,
    ArraySource,
    ConcatenatedRows,
    MappedSource,
    PlacedTile as PlacedTile,
    RowSample,
    RowSampler,
    SourceView,
    SumAndRows,
    Tile as Tile,
    TiledSource,
    WeightedSum,
    find_array as find_array,
    sample_rows,
    sum_tiles as sum_tiles,
    tile_rows,
)
from .sparse import SparseSource, csr_tensor as csr_tensor, sparse_source as sparse_source
from .standardise import (
    FIRST_ROWS as FIRST_ROWS,
    Standardisation,
    StandardisedSource,
    fit_standardisation,
    identity_standardisation,
    standardise_rows as standardise_rows,
)
from .stream import (
    BATCH_ROWS as BATCH_ROWS,
    Reader as Reader,
    StreamSource,
    load_small as load_small,
    retile as retile,
    stream_source as stream_source,
)
from .validation import (
    as_column as as_column,
    as_frame as as_frame,
    check_callable as check_callable,
    check_choice as check_choice,
    check_count as check_count,
    check_kind as check_kind,
    check_level as check_level,
    check_list as check_list,
    check_nested_parameters as check_nested_parameters,
    check_number as check_number,
    check_parameters as check_parameters,
    check_range,
    check_table as check_table,
    check_weight as check_weight,
    choose_columns as choose_columns,
    column_index as column_index,
    column_indices as column_indices,
    fill_masked as fill_masked,
    finite_source as finite_source,
    flatten_images as flatten_images,
    holds_numbers as holds_numbers,
    is_dask_collection as is_dask_collection,
    is_read_in_place,
    make_empty_frame as make_empty_frame,
    make_frame as make_frame,
    suggest_names as suggest_names,
    to_array as to_array,
    to_float_table as to_float_table,
    to_labels as to_labels,
    to_vector as to_vector,
    validate_rows as validate_rows,
    wrap_as_tensor as wrap_as_tensor,
)
from .write import escape_formulas, table_writer, write_table, write_text

__all__ = [
    "ArraySource",
    "ClusterError",
    "ConcatenatedRows",
    "DaskSource",
    "Dataset",
    "FoldSelection",
    "Folds",
    "IndexSelection",
    "MappedSource",
    "MaskSelection",
    "PairedSource",
    "RowSample",
    "RowSampler",
    "RowSelection",
    "SelectedRows",
    "SourceView",
    "SparseSource",
    "Standardisation",
    "StandardisedSource",
    "StreamSource",
    "SumAndRows",
    "SwappedViews",
    "TiledSource",
    "WeightedSum",
    "check_range",
    "dask_source",
    "escape_formulas",
    "fit_standardisation",
    "identity_standardisation",
    "is_read_in_place",
    "load_dataset",
    "moment_source",
    "on_device",
    "open_source",
    "open_table",
    "pair_sources",
    "sample_rows",
    "select_rows",
    "shuffle_rows",
    "summarise_moments",
    "table_writer",
    "tile_rows",
    "watch_partitions",
    "write_table",
    "write_text",
]
