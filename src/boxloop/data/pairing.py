"""Two tables whose rows belong together, as one source: in memory, in files or on a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from boxloop.data.dask.partitions import ArrayPartition, Partition
from boxloop.data.dask.source import DaskSource
from boxloop.data.selection import SelectedRows
from boxloop.data.source import ArraySource, PlacedTile, SourceView, Tile, TiledSource, tile_rows
from boxloop.types import Source

Transform = Callable[[Tensor, Tensor, int], PlacedTile]


def pair_sources(left: Source, right: Source, hold: bool = True) -> Source:
    """Two sources as one: in memory where both are, on the cluster where one is, else tile by tile.

    Args:
        left: the first columns, and the weights.
        right: the rest.
        hold: whether rows in memory are joined at once, which mini-batches want, or as they are read.
    """
    pair = PairedSource(left, right)
    if hold and isinstance(left, ArraySource) and isinstance(right, ArraySource):
        return ArraySource(torch.cat([left.rows, right.rows], 1), left.weight, pair.names)
    first, second = _split_views(left)[0], _split_views(right)[0]
    counts = next((source.counts for source in (first, second) if isinstance(source, DaskSource)), None)
    if counts is None:
        return pair
    parts = map(JoinedPartition, _split_partitions(first, counts), _split_partitions(second, counts))
    names = (*(f"x:{name}" for name in first.names), *(f"y:{name}" for name in second.names))
    source = DaskSource(tuple(parts), counts, names)
    return PairedPartitions(source, first.n_columns, left, right, pair.names)


@dataclass(frozen=True)
class PairedSource(TiledSource):
    """Row i of one source beside row i of another: the columns of the first, then those of the second.

    Whatever works on a source then works on pairs: passes, mini-batches, held-out rows. Weights are those of the first.

    Args:
        left: the first columns.
        right: the rest.

    Raises:
        ValueError: the two differ in their number of rows.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> pair = PairedSource(ArraySource(torch.zeros(3, 2)), ArraySource(torch.ones(3, 1)))
        >>> next(pair.chunks())[0][0]
        tensor([0., 0., 1.])
    """

    left: Source
    right: Source

    def __post_init__(self) -> None:
        if self.left.n_rows != self.right.n_rows:
            raise ValueError(
                f"the first view has {self.left.n_rows} rows and the second {self.right.n_rows}: row i of one "
                "must belong to row i of the other"
            )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.left.n_rows

    @property
    def n_columns(self) -> int:
        """Of both together."""
        return self.left.n_columns + self.right.n_columns

    @property
    def names(self) -> tuple[str, ...]:
        """Column names; where the views share one, each says which view it is of."""
        if not set(self.left.names) & set(self.right.names):
            return self.left.names + self.right.names
        return (*(f"x:{name}" for name in self.left.names), *(f"y:{name}" for name in self.right.names))

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield joined tiles in row order; the tiles of the two sources may end at different rows."""
        step = size or tile_rows(self.n_columns)
        others = self.right.chunks(step)
        rest: Tensor | None = None
        for rows, weight in self.left.chunks(step):
            parts, missing = ([] if rest is None else [rest]), len(rows) - (0 if rest is None else len(rest))
            while missing > 0:
                parts.append(next(others)[0])
                missing -= len(parts[-1])
            right = parts[0] if len(parts) == 1 else torch.cat(parts)
            rest = right[len(rows) :]
            yield torch.cat([rows, right[: len(rows)]], 1), weight


@dataclass(frozen=True)
class PairedPartitions(SourceView):
    """Views of the two tables that the partitions of one Dask source hold side by side."""

    source: Source  # the columns of both
    first: int  # number of columns of the first
    left: Source  # the first, with its views
    right: Source  # the second, with its views
    columns: tuple[str, ...]  # names of the columns of both views

    @property
    def n_columns(self) -> int:
        return len(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns

    def tile_transform(self) -> Transform:
        first = self.first
        left_transform, right_transform = _split_views(self.left)[1], _split_views(self.right)[1]

        def transform(rows: Tensor, weight: Tensor, start: int) -> PlacedTile:
            left, left_weight, _ = left_transform(rows[:, :first], weight, start)
            right, _, _ = right_transform(rows[:, first:], weight, start)
            return torch.cat([left, right], 1), left_weight, start

        return transform


@dataclass(frozen=True)
class SwappedViews(SourceView):
    """A source of two views in the other order: its first columns come last.

    Args:
        source: rows that hold one view beside the other.
        first: number of columns of the first.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> swapped = SwappedViews(ArraySource(torch.tensor([[1.0, 2.0, 3.0]])), 1)
        >>> swapped.names, next(swapped.chunks())[0]
        (('x1', 'x2', 'x0'), tensor([[2., 3., 1.]]))
    """

    source: Source
    first: int

    @property
    def names(self) -> tuple[str, ...]:
        """Column names, in their new order."""
        return self.source.names[self.first :] + self.source.names[: self.first]

    def tile_transform(self) -> Transform:
        """Tiles with their columns swapped."""
        first = self.first
        return lambda rows, weight, start: (torch.cat([rows[:, first:], rows[:, :first]], 1), weight, start)


@dataclass(frozen=True)
class JoinedPartition:
    """The rows of one partition beside those of another; weights are those of the first."""

    left: Partition
    right: Partition

    @property
    def label(self) -> str:
        same = self.left.label == self.right.label
        return self.left.label if same else f"{self.left.label} beside {self.right.label}"

    def is_named_in(self, message: str) -> bool:
        return self.left.is_named_in(message) or self.right.is_named_in(message)

    @property
    def content(self) -> Any:
        both = [self.left.content, self.right.content]
        return None if all(one is None for one in both) else both

    def open(self, content: Any) -> Source:
        first, second = content or (None, None)
        return PairedSource(self.left.open(first), self.right.open(second))

    def tasks(self) -> list[Any]:
        return [*self.left.tasks(), *self.right.tasks()]

    def without_content(self) -> JoinedPartition:
        return JoinedPartition(self.left.without_content(), self.right.without_content())


def _split_views(source: Source) -> tuple[Source, Transform]:
    """The source behind any views and the views as one transform; a selection of rows is a source of its own."""
    if not isinstance(source, SourceView) or isinstance(source, SelectedRows):
        return source, lambda rows, weight, start: (rows, weight, start)
    (inner, before), transform = _split_views(source.source), source.tile_transform()
    return inner, lambda rows, weight, start: transform(*before(rows, weight, start))


def _split_partitions(source: Source, counts: tuple[int, ...]) -> list[Partition]:
    """The partitions of a source, which must hold ``counts`` rows each; rows in memory are cut so."""
    if isinstance(source, DaskSource):
        if source.counts != counts:
            raise ValueError(
                "the two views are in partitions of different numbers of rows: repartition one of them"
            )
        return list(source.parts)
    if not isinstance(source, ArraySource):
        raise ValueError("one view is on a cluster and the other is not: open both with dask_source")
    parts: list[Partition] = []
    for i, (stop, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        here = slice(stop - count, stop)
        weight = None if source.weight is None else source.weight[here]
        parts.append(ArrayPartition(source.rows[here], weight, source.names, f"partition {i}"))
    return parts
