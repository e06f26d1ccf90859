"""Tables in memory, and what all sources share: sums over tiles, samples of rows, views that transform the tiles of
another source.

A source either reads tiles of its own (:class:`TiledSource`), or transforms those of another (:class:`SourceView`),
wherever these are summed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.numeric import seed
from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)
Tile = tuple[Tensor, Tensor]
PlacedTile = tuple[Tensor, Tensor, int]
"""Rows, their weights, and the number of the first row."""
TileTransform = Callable[[Tensor, Tensor, int], PlacedTile]

TILE_VALUES = 1 << 19
"""Values per tile: 2^19 float64 are four megabytes, so a tile and what is made from it stay in cache."""

WIDE_VALUES = 1 << 21
"""Values per tile of a wide table, whose d x d statistics cost as much to add as d rows cost to multiply."""

GPU_VALUES = 1 << 23
"""Values per tile on a GPU, where a tile must be large enough to hide the cost of starting a kernel."""


CONCATENATED_VALUES = 1 << 16
"""Values up to which parts are concatenated at once: few rows of each of many tiles, left among the tiles' temporaries,
would keep the memory between them from being used again."""


def tile_rows(n_columns: int) -> int:
    """Rows per tile for a table of this width: between 512 and 12288."""
    d = max(n_columns, 1)
    return max(512, min(12288, max(TILE_VALUES // d, min(2 * d, WIDE_VALUES // d))))


@dataclass(frozen=True)
class WeightedSum(Tree):
    """Sum of values times the weights of their rows, and the sum of these weights.

    Example:
        >>> import torch
        >>> found = WeightedSum.of(torch.tensor([1.0, 4.0]), torch.tensor([2.0, 1.0]))
        >>> found.value, found.weight, found.mean
        (tensor(6.), tensor(3.), 2.0)
    """

    value: Tensor
    weight: Tensor

    @classmethod
    def of(cls, values: Tensor, weight: Tensor) -> Self:
        """Of the rows of one tile, values (n, ...); the value of a row without weight need not be finite."""
        share = weight.reshape(-1, *[1] * (values.dim() - 1)).to(values)
        return cls(torch.where(share > 0.0, share * values, 0.0).sum(0), weight.sum())

    @classmethod
    def over(cls, source: Source, function: Callable[[Tensor], Tensor]) -> Self:
        """Of ``function(rows)``, one value per row, over all rows of a source."""
        return source.reduce(lambda rows, weight: cls.of(function(rows).double(), weight))

    @property
    def mean(self) -> float:
        """Weighted mean, of one value per row."""
        return float(self.value / self.weight)


@runtime_checkable
class AnySource(Source, Protocol):
    """A source of any kind, recognised by its methods."""


class TiledSource(ABC):
    """Base of the sources that read their own tiles: sums over rows follow from :meth:`chunks`."""

    @abstractmethod
    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield ``(rows, weight)`` tiles in row order."""

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all tiles."""
        return self.reduce_at(lambda rows, weight, start: function(rows, weight))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)`` over all tiles."""
        total = sum_tiles(function, self.chunks())
        if total is None:
            raise ValueError("the source has no rows")
        return total

    def map_tiles(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield ``function(rows, weight, number of the first row)`` of each tile, in row order."""
        start = 0
        for rows, weight in self.chunks():
            fresh = function(rows, weight, start)
            start += len(weight)
            if fresh is not None:
                yield fresh


@dataclass(frozen=True)
class HeldSource(TiledSource):
    """What tables in memory share, dense and sparse."""

    rows: Tensor
    weight: Tensor | None = None
    columns: tuple[str, ...] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.rows.shape[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.columns or tuple(f"x{j}" for j in range(self.rows.shape[1]))


@dataclass(frozen=True)
class ArraySource(HeldSource):
    """A table held as one tensor.

    Args:
        rows: (n, d); NaN marks a missing value.
        weight: (n,), one non-negative weight per row; all ones when omitted.
        columns: column names; ``x0, x1, ...`` when omitted.

    Example:
        >>> import torch
        >>> source = ArraySource(torch.zeros(5, 2))
        >>> source.n_rows, source.names
        (5, ('x0', 'x1'))
    """

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(rows, weight)`` tiles in row order."""
        on_gpu = self.rows.device.type == "cuda"
        n, d = self.rows.shape[0], max(self.rows.shape[1], 1)
        step = size or (max(1, GPU_VALUES // d) if on_gpu else tile_rows(d))
        weight = self.weight
        if weight is None:
            weight = torch.ones(n, dtype=torch.float64, device=self.rows.device)
        for start in range(0, n, step):
            yield self.rows[start : start + step], weight[start : start + step]

    def take(self, indices: Tensor) -> ArraySource:
        """The rows at ``indices``, in that order."""
        weight = None if self.weight is None else self.weight[indices]
        return ArraySource(self.rows[indices], weight, self.columns)


class SourceView(ABC):
    """Base of the sources that transform the tiles of another, which decides where they are summed.

    What :meth:`tile_transform` returns may travel to where the rows live, so it holds what it needs and not the source.
    """

    source: Source

    @abstractmethod
    def tile_transform(self) -> TileTransform:
        """The function of one tile."""

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.source.n_rows

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.source.n_columns

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.source.names

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield transformed tiles in row order; those without rows are left out."""
        transform, start = self.tile_transform(), 0
        for rows, weight in self.source.chunks(size):
            new_rows, new_weight, _ = transform(rows, weight, start)
            start += len(weight)
            if len(new_weight):
                yield new_rows, new_weight

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all transformed tiles, where the rows live."""
        return self.reduce_at(lambda rows, weight, start: function(rows, weight))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)``, where the rows live."""
        return self.source.reduce_at(partial(_call_on_transformed, self.tile_transform(), function))

    def map_tiles(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield sums over consecutive transformed tiles that have rows, where the rows live."""
        return self.source.map_tiles(partial(_call_on_transformed, self.tile_transform(), function))


def _call_on_transformed(
    transform: TileTransform,
    function: Callable[[Tensor, Tensor, int], T],
    rows: Tensor,
    weight: Tensor,
    start: int,
) -> T:
    """``function`` of the transformed tile; None where no row is left, which :func:`sum_tiles` leaves out."""
    tile = transform(rows, weight, start)
    return function(*tile) if len(tile[1]) else None  # type: ignore[return-value]


@dataclass(frozen=True)
class MappedSource(SourceView):
    """A source whose rows go through a function, tile by tile.

    Args:
        source: where rows come from.
        function: (n, d) -> (n, d), row by row.
        device: where weights go, with the rows.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> next(MappedSource(ArraySource(torch.ones(1, 2)), lambda rows: rows * 3).chunks())[0]
        tensor([[3., 3.]])
    """

    source: Source
    function: Callable[[Tensor], Tensor]
    device: torch.device | None = None

    def tile_transform(self) -> TileTransform:
        """The function, beside the weights."""
        function, device = self.function, self.device
        return lambda rows, weight, start: (function(rows), weight.to(device or weight.device), start)


def find_array(source: Source) -> ArraySource | None:
    """The rows in memory behind any views of them; None where there are none."""
    while isinstance(source, SourceView):
        source = source.source
    return source if isinstance(source, ArraySource) else None


def sum_tiles(
    function: Callable[[Tensor, Tensor, int], T | None], tiles: Iterator[Tile], start: int = 0
) -> T | None:
    """Sum ``function`` over tiles, from the first to the last; None where no tile has anything to add."""
    first: T | None = None
    result: T | None = None  # a sum, whose memory may be overwritten
    for rows, weight in tiles:
        fresh = function(rows, weight, start)
        start += len(weight)
        if fresh is None:
            continue
        if result is not None:
            result = result.absorb(fresh) if isinstance(result, Tree) else result + fresh
        elif first is not None:
            result = first + fresh
        else:
            first = fresh
    return first if result is None else result


@dataclass(frozen=True)
class ConcatenatedRows(Tree):
    """Rows of several tiles, one after the other: a statistic whose sum is the concatenation.

    Example:
        >>> import torch
        >>> (ConcatenatedRows.of(torch.zeros(2)) + ConcatenatedRows.of(torch.ones(1))).concatenate()
        tensor([0., 0., 1.])
    """

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Those of one tile."""
        return cls((rows,))

    def __add__(self, other: Self) -> Self:
        last, first = self.parts[-1], other.parts[0]
        if last.numel() + first.numel() > CONCATENATED_VALUES:
            return type(self)(self.parts + other.parts)
        return type(self)((*self.parts[:-1], torch.cat([last, first]), *other.parts[1:]))

    def concatenate(self) -> Tensor:
        """All of them as one tensor."""
        return torch.cat(self.parts)


@dataclass(frozen=True)
class SumAndRows(Tree, Generic[T]):
    """A sum over all rows, and some of the rows, from one pass."""

    sum: T
    rows: ConcatenatedRows


@dataclass(frozen=True)
class RowSampler:
    """Indices of a random sample, drawn before the rows are read, so that the sample does not depend on tiles.

    Args:
        indices: numbers of the sampled rows, counted from 0, increasing, (m,).
        probability: of each row to be in the sample.

    Example:
        >>> import torch
        >>> RowSampler.draw(5, 100, torch.Generator()).indices
        tensor([0, 1, 2, 3, 4])
    """

    indices: Tensor
    probability: float

    @classmethod
    def draw(cls, n_rows: int, size: int, generator: Generator) -> RowSampler:
        """``size`` of ``n_rows`` without replacement; all of them when there are no more."""
        if size >= n_rows:
            return cls(torch.arange(n_rows), 1.0)
        numbers = np.random.default_rng(seed(generator))
        # Without a shuffle: in time that does not grow with the rows.
        indices = numbers.choice(n_rows, size, replace=False, shuffle=False)
        return cls(torch.from_numpy(np.sort(indices)), size / n_rows)

    def indices_between(self, start: int, stop: int) -> Tensor:
        """The sampled rows from ``start`` to ``stop``, counted from ``start``."""
        a, b = torch.searchsorted(self.indices, torch.tensor([start, stop])).tolist()
        return self.indices[a:b] - start

    def take(self, rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        """The sampled rows of a tile in float64, beside their weights."""
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        chosen = self.indices_between(start, start + len(weight)).to(rows.device)
        return ConcatenatedRows((torch.cat([dense[chosen].double(), weight[chosen, None].double()], 1),))


@dataclass(frozen=True)
class RowSample:
    """A random sample of the rows of a source.

    Args:
        rows: (m, d), float64.
        weight: (m,).
        indices: row numbers counted from 0, (m,).
        probability: of each row to be in the sample.
    """

    rows: Tensor
    weight: Tensor
    indices: Tensor
    probability: float

    @classmethod
    def of(cls, sampler: RowSampler, taken: ConcatenatedRows) -> RowSample:
        """From what :meth:`RowSampler.take` gave in one pass."""
        joined = torch.cat(taken.parts)
        rows, weight = joined[:, :-1].contiguous(), joined[:, -1].contiguous()
        return cls(rows, weight, sampler.indices, sampler.probability)

    @property
    def is_complete(self) -> bool:
        """Whether every row is in the sample."""
        return self.probability == 1.0


def sample_rows(source: Source, size: int, generator: Generator) -> RowSample:
    """``size`` rows of a source without replacement, in one pass; all of them when there are no more.

    Args:
        source: rows.
        size: of the sample.
        generator: of random numbers.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> sample_rows(ArraySource(torch.zeros(5, 2)), 100, torch.Generator()).rows.shape
        torch.Size([5, 2])
    """
    sampler = RowSampler.draw(source.n_rows, size, generator)
    return RowSample.of(sampler, source.reduce_at(sampler.take))
