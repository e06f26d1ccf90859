"""Opening tables: arrays, frames, sparse matrices, files, folders, URLs, Dask collections and bundled data sets."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from boxloop.data.csv import CsvReader
from boxloop.data.datasets import CATALOGUE, load_dataset
from boxloop.data.folder import is_glob, join_readers, missing_path_error, natural_sort_key
from boxloop.data.npy import MapReader, NpyReader, npy_source
from boxloop.data.parquet import ParquetReader
from boxloop.data.remote import SUBFOLDERS_HINT, is_remote, list_remote_files
from boxloop.data.source import AnySource, ArraySource
from boxloop.data.sparse import sparse_source
from boxloop.data.stream import Reader, StreamSource, load_small, stream_source
from boxloop.data.validation import (
    as_frame,
    check_array_type,
    check_column_names,
    check_no_paths,
    check_shape,
    choose_columns,
    dense_source,
    is_dask_collection,
    numeric_column,
    suggest_names,
    to_array,
)
from boxloop.types import Source

MEMORY = 1 << 27
"""Files that take at most this many bytes as float64 are read once and held."""


def open_source(
    data: object, weight: object = None, columns: Sequence[str] | None = None, memory: int = MEMORY
) -> Source:
    """Open any kind of table as a source of checked float64 rows; NaN marks what is missing, and so does a mask.

    Args:
        data: a NumPy array, tensor, list of rows, data frame (pandas, polars, Arrow), SciPy sparse matrix of
            counts, or the path of a ``.npy``, ``.csv``, ``.csv.gz`` or ``.parquet`` file or of a folder of files
            of one of these kinds, or the URL of Parquet files (``s3://bucket/folder``); or a Dask DataFrame or array,
            whose rows stay on their cluster. Files are read in order of their names, in which digits count as numbers,
            as Dask does: ``part.2`` before ``part.10``. A source is returned as it is.
        weight: one non-negative weight per row; for files and frames also the name of a column.
        columns: for files and frames the columns to use, in this order; for arrays, tensors, sparse matrices and
            ``.npy`` files names for all columns.
        memory: most bytes that the values of a file may take to be read once and held; 0 reads it in every pass.

    Returns:
        A source. Larger files stay on disk and are read batch by batch in every pass.

    Raises:
        ValueError: no rows or columns, an infinite value, a column that is not numeric, a malformed or corrupt
            file, unusable weights; the message names the column, row or file at fault.
        TypeError: not a table.

    Example:
        >>> import numpy as np
        >>> source = open_source(np.ones((4, 2)), weight=[1, 2, 0, 1], columns=["height", "width"])
        >>> source.n_rows, source.names
        (4, ('height', 'width'))
    """
    if isinstance(data, str | PathLike):
        return load_small(_open_file(data, weight, columns), memory)
    if isinstance(data, list | tuple):
        check_no_paths(data)
        data = to_array(data, "a list")
    if isinstance(data, np.ndarray):
        needs_copy = data.dtype.kind != "O" and data.dtype != np.float64
        if not isinstance(data, np.memmap) and not (needs_copy and data.size * 8 > memory):
            return dense_source(data, weight, columns)
        check_array_type(data.dtype, data.shape)
        check_shape(*data.shape)
        reader = MapReader(data, check_column_names(columns, data.shape[1]))
        return load_small(stream_source(reader, weight), memory)
    if is_dask_collection(data):
        from boxloop.data.dask.source import dask_source

        return dask_source(data, weight, columns)
    if isinstance(data, Tensor):
        if data.is_meta:
            raise ValueError("a tensor on the meta device holds no values; give one that does")
        if data.layout != torch.strided:
            raise ValueError(
                f"a tensor of layout {data.layout} cannot be read; give a SciPy sparse array instead"
            )
        return dense_source(data, weight, columns)
    if sparse.issparse(data):
        return sparse_source(data, weight, columns)
    frame = as_frame(data)
    if frame is not None:
        return frame_source(frame, weight, columns)
    if not isinstance(data, AnySource):
        raise TypeError(
            f"a table is needed: an array, data frame, sparse matrix or path, not a {type(data).__name__}"
        )
    if weight is not None or columns is not None:
        raise ValueError("a source has its own weights and columns; give them where it is made")
    return data


def check_source(data: object, name: str) -> None:
    """Refuse rows that are not opened yet."""
    if not isinstance(data, AnySource):
        raise TypeError(
            f"{name} must be a source of rows, got a {type(data).__name__}: boxloop.data.open_source({name}) makes one"
        )


def _open_file(data: str | PathLike[str], weight: object, columns: Sequence[str] | None) -> StreamSource:
    path = Path(data)
    if path.suffix.lower() == ".npy" and path.is_file():
        return npy_source(path, weight, columns)
    return stream_source(open_reader(data), weight, columns)


def open_table(
    data: str | PathLike[str],
    weight: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    cluster: bool = False,
) -> Source:
    """Open a file, a folder or a bundled data set, and choose among its columns by name.

    Columns that are not used are not read, so they may hold text. The columns of a ``.npy`` file are
    ``x0, x1, ...``.

    Args:
        data: a path, the URL of Parquet files, or the name of a bundled data set; a path that exists comes first.
        weight: the column that holds one non-negative weight per row.
        columns: the columns to use, in this order; all others when omitted.
        drop: columns to leave out.
        cluster: whether the workers of the current Dask client read and sum the rows.

    Raises:
        ValueError: a column that is not there, none that is left, or a table that cannot be read.

    Example:
        >>> open_table("iris", drop=["sepal length (cm)", "sepal width (cm)"]).names
        ('petal length (cm)', 'petal width (cm)')
    """
    reader = open_named_reader(absolute_path(data) if cluster and Path(data).exists() else data)
    choose_columns(reader.names, drop, weight, reader.label)
    left = tuple(name for name in reader.names if name not in drop)
    names = choose_columns(left, columns, weight, reader.label)
    if not names:
        raise ValueError(f"{reader.label}: no column is left to use")
    if not cluster:
        return load_small(stream_source(reader, weight, names), MEMORY)
    from boxloop.data.dask.source import partition_reader

    return partition_reader(reader, weight, names)


def open_named_reader(data: str | PathLike[str]) -> Reader:
    """The reader of a path or of a bundled data set; a path that exists comes first."""
    path = Path(data)
    if path.exists() or is_remote(data) or is_glob(str(data)):
        return open_reader(data)
    if str(data) in CATALOGUE:
        found = load_dataset(str(data))
        return MapReader(found.rows, found.names, str(data))
    beside = [str(path.with_name(p.name)) for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = suggest_names(str(data), [*CATALOGUE, *beside])
    raise FileNotFoundError(
        f"{path}: no such file or folder, nor a bundled data set{near}; `boxloop datasets` lists what is bundled"
    )


def open_reader(data: str | PathLike[str]) -> Reader:
    """The reader of a file, a folder or a URL, whose columns are known before any row is read."""
    if is_remote(data):
        return join_readers(str(data), [ParquetReader(url) for url in list_remote_files(str(data))])
    path = Path(data)
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise missing_path_error(str(path))
    reader = _reader_by_suffix(path)
    if reader is None:
        model = " and not a model file" if path.suffix == ".boxloop" else ""
        raise ValueError(
            f"{path}: a .npy, .csv, .csv.gz or .parquet file or a folder of them is needed{model}"
        )
    return reader


def absolute_path(data: str | PathLike[str]) -> str | PathLike[str]:
    """An absolute path, as workers that run in another folder need it; a URL as it is."""
    return data if is_remote(data) else Path(data).absolute()


def _open_folder(path: Path) -> Reader:
    """All tables of a folder; files without a byte and those that begin with a dot or underscore are left out."""
    found = sorted(path.iterdir(), key=lambda p: natural_sort_key(p.name))
    files = [p for p in found if p.is_file() and p.name[0] not in "._" and p.stat().st_size]
    readers = [reader for reader in map(_reader_by_suffix, files) if reader is not None]
    if not readers:
        within = next((p for p in path.rglob("*") if p.is_file() and _reader_by_suffix(p) is not None), path)
        deeper = "" if within.parent == path or within == path else SUBFOLDERS_HINT
        raise ValueError(
            f"{path}: the folder holds no .npy, .csv, .csv.gz or .parquet file with any content{deeper}"
        )
    kinds = {type(reader).__name__ for reader in readers}
    if len(kinds) > 1:
        raise ValueError(f"{path}: the folder holds tables of more than one kind")
    return join_readers(path, readers)


def _reader_by_suffix(path: Path) -> Reader | None:
    name = path.name.lower()
    if name.endswith((".parquet", ".pq")):
        return ParquetReader(path)
    if name.endswith((".csv", ".csv.gz")):
        return CsvReader(path)
    return NpyReader(path) if name.endswith(".npy") else None


def frame_source(frame: Any, weight: object = None, columns: Sequence[str] | None = None) -> ArraySource:
    """Numeric and boolean columns of a narwhals frame as one table; nulls become NaN."""
    series = {str(column.name): column for column in frame.iter_columns()}
    names = choose_columns(tuple(series), columns, weight)
    rows = np.empty((frame.shape[0], len(names)), order="F")
    for j, name in enumerate(names):
        rows[:, j] = numeric_column(name, series[name])
    if isinstance(weight, str):
        weight = numeric_column(weight, series[weight])
    return dense_source(rows, weight, names)
