"""Rows in partitions on a Dask cluster: only parameters travel out, only statistics travel back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, TypeVar

import torch
from torch import Tensor

from boxloop.data.dask.partitions import (
    WEIGHT,
    CollectionPartition,
    FilePartition,
    Partition,
    count_rows,
    split_weight,
)
from boxloop.data.dask.pickling import PickledAsStub
from boxloop.data.dask.reduce import iterate_partial_sums, map_partitions, name_partition, sum_partitions
from boxloop.data.folder import MERGED_VALUES, file_readers, merge_pieces
from boxloop.data.source import Tile, tile_rows
from boxloop.data.standardise import FIRST_ROWS
from boxloop.data.stream import Reader, retile
from boxloop.data.validation import (
    check_column_names,
    check_no_paths,
    check_shape,
    check_weight,
    choose_columns,
    is_dask_collection,
)
from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)

PART_VALUES = 1 << 24
"""Values of a part of a file: 128 MB of float64, which a worker reads batch by batch."""

GROWTH = 16
"""How many times more rows of the first partition are fetched, each time that more are asked for."""


@dataclass(frozen=True)
class DaskSource(PickledAsStub):
    """Partitions of one table, summed by the workers of a Dask cluster.

    A pass sends the function out and brings its sum back, added in a tree whose shape depends on the partitions alone:
    the same bits whatever the number of workers. It runs on the current :class:`distributed.Client`, else on Dask's
    scheduler of this machine. Made by :func:`dask_source`.

    Args:
        parts: in order.
        counts: rows of each.
        names: of the columns.
    """

    parts: tuple[Partition, ...]
    counts: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return sum(self.counts)

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.names)

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield tiles in row order, fetched one partition after the other: to inspect, or for mini-batches."""
        step, d = size or tile_rows(self.n_columns), self.n_columns
        for tile in retile(self.fetch_rows(step), step):
            yield tile[:, :d], tile[:, d]

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all rows, where they live."""
        return self.reduce_at(lambda rows, weight, start: function(rows, weight))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)`` over all rows, where they live."""
        total = sum_partitions(self.parts, self.counts, function)
        if total.weight == 0.0:
            raise ValueError("the weights are all zero")
        if total.value is None:
            raise ValueError("the source has no rows")
        value: T = total.value
        return value

    def map_tiles(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield sums over one partition after the other; some are computed ahead, and wait on the workers."""
        total_weight = 0.0
        for partial in iterate_partial_sums(self.parts, self.counts, function):
            total_weight += partial.weight
            if partial.value is not None:
                yield partial.value
        if total_weight == 0.0:
            raise ValueError("the weights are all zero")

    def stub_arguments(self) -> tuple[Any, ...]:
        """Its shape: a function that refers to the source does not take the partitions along."""
        return (), self.counts, self.names

    def fetch_rows(self, first: int) -> Iterator[Tensor]:
        """Rows beside their weights; of the first partition at first no more than were asked for, then ever more."""
        head, *others = (i for i, count in enumerate(self.counts) if count)
        start, stop = 0, first
        while start < self.counts[head]:
            yield from map_partitions(_FetchRows(start, stop), [self.parts[head]])
            start, stop = stop, max(GROWTH * stop, FIRST_ROWS)
        some: list[int] = []
        for i in others:
            some.append(i)
            if i == others[-1] or sum(self.counts[j] for j in some) >= max(first, FIRST_ROWS):
                yield from map_partitions(_FetchRows(0, self.n_rows), [self.parts[j] for j in some])
                some = []


@dataclass(frozen=True)
class _FetchRows:
    """Some rows of a partition, beside their weights."""

    start: int
    stop: int

    def __call__(self, part: Partition, content: Any) -> Tensor:
        tiles, left, skip = [], self.stop - self.start, self.start
        with name_partition(part):
            for rows, weight in part.open(content).chunks():
                both = torch.cat([rows, weight[:, None].to(rows)], 1)[skip : skip + left]
                skip = max(0, skip - len(weight))
                left -= len(both)
                tiles.append(both)
                if left <= 0:
                    break
        return torch.cat(tiles)


def dask_source(
    data: object,
    weight: object = None,
    columns: Sequence[str] | None = None,
    *,
    part_rows: int | None = None,
) -> DaskSource:
    """Open a table whose rows stay where they are: on the workers of a cluster, or in files that these read.

    Args:
        data: a Dask DataFrame or two-dimensional Dask array; or the path of a file or folder (Parquet, CSV, ``.npy``;
            Parquet also by a URL such as ``s3://bucket/folder``), which every worker must be able to read. A pass
            over a collection makes its partitions anew, unless it was persisted.
        weight: one non-negative weight per row: the name of a column; a Dask series, whose weights meet the rows of a
            DataFrame by label, as Dask aligns them; or a Dask array or values at hand, by position.
        columns: the columns to use, in this order; for arrays, names for all columns.
        part_rows: about how many rows one task reads; Parquet is cut between its row groups, CSV between files only.
            Where there are many small files, up to sixteen of them share a task.

    Returns:
        A source for any ``fit`` or ``criticise``. It runs on the current client's cluster.

    Raises:
        ValueError: no rows, partitions of different columns; the message names the file or partition.
        TypeError: neither a Dask collection of rows nor a path.

    Example:
        >>> import dask.array as da
        >>> source = dask_source(da.ones((6, 2), chunks=(4, 2)), columns=["a", "b"])
        >>> source.n_rows, source.counts, source.names
        (6, (4, 2), ('a', 'b'))
    """
    check_no_paths(data)
    if isinstance(data, str | PathLike):
        from boxloop.data.read import absolute_path, open_reader

        return partition_reader(open_reader(absolute_path(data)), weight, columns, part_rows)
    source = _collection_source(data, weight, columns)
    check_shape(source.n_rows, source.n_columns)
    return source


def partition_reader(
    reader: Reader, weight: object = None, columns: Sequence[str] | None = None, part_rows: int | None = None
) -> DaskSource:
    """A source over what a reader reads, in pieces that workers read."""
    if part_rows is not None and part_rows < 1:
        raise ValueError(f"part_rows must be at least 1, not {part_rows}")
    names = choose_columns(reader.names, columns, weight, reader.label)
    most, few = (max(1, values // max(1, len(names))) for values in (PART_VALUES, MERGED_VALUES))
    files = map_partitions(
        _SplitFile(part_rows or most), [FilePartition(file, names) for file in file_readers(reader)]
    )
    pieces = merge_pieces([piece for file in files for piece in file], part_rows or few)
    counts = tuple(count for _, count in pieces)
    weights = _check_weights(weight, sum(counts))
    parts = (
        FilePartition(p, names, w) for (p, _), w in zip(pieces, split_weight(weights, counts), strict=True)
    )
    check_shape(sum(counts), len(names))
    return DaskSource(tuple(parts), counts, names)


@dataclass(frozen=True)
class _SplitFile:
    """A file cut into pieces, where it is read."""

    rows: int

    def __call__(self, part: FilePartition, content: Any) -> list[tuple[Reader, int]]:
        with name_partition(part):
            return part.reader.pieces(self.rows)


def _collection_source(data: Any, weight: object, columns: Sequence[str] | None) -> DaskSource:
    import dask.array as da

    if not isinstance(data, da.Array):
        return _frame_source(data, weight, columns)
    if data.ndim != 2:
        raise ValueError(f"Expected 2D array, got {data.ndim}D array instead (shape={data.shape})")
    if data.shape[1] != data.shape[1]:
        raise ValueError("the array does not know its number of columns: call compute_chunk_sizes() first")
    names = check_column_names(columns, data.shape[1]) or tuple(f"x{j}" for j in range(data.shape[1]))
    if isinstance(weight, str):
        raise ValueError(f"an array has no column {weight!r} of weights: give one weight per row")
    if isinstance(weight, da.Array):
        data, weight = append_weights(data, weight), WEIGHT
    data = data.rechunk({1: -1})
    blocks = [block for line in data.to_delayed() for block in line]
    return _task_source(data, blocks, data.chunks[0], names, weight)


def _frame_source(frame: Any, weight: object, columns: Sequence[str] | None) -> DaskSource:
    import dask.dataframe as dd

    if not isinstance(frame, dd.DataFrame):
        raise TypeError(
            "a Dask DataFrame (to_frame() makes one of a series), a two-dimensional Dask array or a path is needed, "
            f"not {type(frame)}"
        )
    if is_dask_collection(weight):
        frame, weight = assign_weights(frame, weight), WEIGHT
    names = choose_columns([str(name) for name in frame.columns], columns, weight)
    return _task_source(frame, frame.to_delayed(), None, names, weight)


def _task_source(
    data: Any, tasks: Sequence[Any], sizes: Sequence[float] | None, names: tuple[str, ...], weight: object
) -> DaskSource:
    """A source over tasks that make the partitions of a collection; rows are counted where that is not known."""
    bare = [CollectionPartition(i, names, None, task, data) for i, task in enumerate(tasks)]
    known = sizes is not None and all(size == size for size in sizes)
    counts = (
        tuple(int(n) for n in sizes)
        if known and sizes is not None
        else tuple(map_partitions(count_rows, bare))
    )
    weights = _check_weights(weight, sum(counts))
    parts = (replace(part, weight=w) for part, w in zip(bare, split_weight(weights, counts), strict=True))
    return DaskSource(tuple(parts), counts, names)


def _check_weights(weight: object, n_rows: int) -> Tensor | str | None:
    return weight if weight is None or isinstance(weight, str) else check_weight(weight, n_rows)


def append_weights(data: Any, weight: Any) -> Any:
    """A Dask array with its weights, another one, as last column."""
    import dask.array as da

    n, m = data.shape[0], weight.size
    known, unknown = n == n and m == m, n != n and m != m
    if weight.ndim != 1 or (known and n != m):
        raise _weight_length_error(n, weight)
    if known:
        weight = weight.rechunk((data.chunks[0],))
    elif not unknown or weight.numblocks[0] != data.numblocks[0]:
        raise ValueError(
            "rows and weights are in chunks of unknown sizes: call compute_chunk_sizes() of both"
        )
    return da.concatenate([data, weight[:, None]], axis=1, allow_unknown_chunksizes=True)


def assign_weights(frame: Any, weight: Any) -> Any:
    """A Dask DataFrame with a column of weights: a series meets it by label, an array by position."""
    import dask.array as da
    import dask.dataframe as dd

    if not isinstance(weight, dd.Series | da.Array) or weight.ndim != 1:
        raise ValueError(f"the weights must be one column: a Dask series or array, not {type(weight)}")
    if isinstance(weight, da.Array) and weight.size == weight.size:
        parts = [CollectionPartition(i, (), None, task) for i, task in enumerate(frame.to_delayed())]
        counts = tuple(map_partitions(count_rows, parts))
        if sum(counts) != weight.size:
            raise _weight_length_error(sum(counts), weight)
        weight = weight.rechunk((counts,))
    elif isinstance(weight, dd.Series) and frame.known_divisions and weight.known_divisions:
        return frame.assign(**{WEIGHT: weight})
    if weight.npartitions != frame.npartitions:
        raise ValueError(
            f"the rows are in {frame.npartitions} partitions and the weights in {weight.npartitions}, and it is not "
            "known which belong together: take both from one DataFrame, or give weights at hand"
        )
    if isinstance(weight, da.Array):
        return frame.assign(**{WEIGHT: weight})
    # Dask's own way without divisions is a shuffle, after which the rows are in another order.
    return frame.map_partitions(_assign_weight, weight, align_dataframes=False)


def _assign_weight(rows: Any, weight: Any) -> Any:
    return rows.assign(**{WEIGHT: weight})


def _weight_length_error(n_rows: float, weight: Any) -> ValueError:
    return ValueError(
        f"the weights must have one entry per row: shape ({n_rows},) is needed, {weight.shape} was given"
    )
