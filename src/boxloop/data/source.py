"""What sources share: sums over tiles, and views that transform the tiles of another source.

A source either reads tiles of its own (:class:`TiledSource`), or transforms those of another (:class:`SourceView`),
wherever these are summed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self, TypeVar

import torch
from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)
Tile = tuple[Tensor, Tensor]
PlacedTile = tuple[Tensor, Tensor, int]
"""Rows, their weights, and the number of the first row."""


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


class TiledSource(ABC):
    """Base of the sources that read their own tiles: sums over rows follow from :meth:`chunks`."""

    @abstractmethod
    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield ``(rows, weight)`` tiles in row order."""

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all tiles."""
        return self.reduce_at(ignore_position(function))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)`` over all tiles."""
        found = sum_tiles(function, self.chunks())
        if found is None:
            raise ValueError("the source has no rows")
        return found

    def in_turn(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield ``function(rows, weight, number of the first row)`` of each tile, in row order."""
        return map_tiles(function, self.chunks())


class SourceView(ABC):
    """Base of the sources that transform the tiles of another, which decides where they are summed.

    What :meth:`tile_transform` returns may travel to where the rows live, so it holds what it needs and not the source.
    """

    source: Source

    @abstractmethod
    def tile_transform(self) -> Callable[[Tensor, Tensor, int], PlacedTile]:
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
        return self.reduce_at(ignore_position(function))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)``, where the rows live."""
        return self.source.reduce_at(self._after_transform(function))

    def in_turn(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield sums over consecutive transformed tiles that have rows, where the rows live."""
        return self.source.in_turn(self._after_transform(function))

    def _after_transform(
        self, function: Callable[[Tensor, Tensor, int], T]
    ) -> Callable[[Tensor, Tensor, int], T]:
        """``function`` of the transformed tile; None where no row is left, which :func:`sum_tiles` leaves out."""
        transform = self.tile_transform()

        def composed(rows: Tensor, weight: Tensor, start: int) -> T | None:
            tile = transform(rows, weight, start)
            return function(*tile) if len(tile[1]) else None

        return composed  # type: ignore[return-value]


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

    def tile_transform(self) -> Callable[[Tensor, Tensor, int], PlacedTile]:
        """The function, beside the weights."""
        function, device = self.function, self.device
        return lambda rows, weight, start: (function(rows), weight.to(device or weight.device), start)


def sum_tiles(
    function: Callable[[Tensor, Tensor, int], T | None], tiles: Iterator[Tile], start: int = 0
) -> T | None:
    """Sum ``function`` over tiles, from the first to the last; None where no tile has anything to add."""
    first: T | None = None
    result: T | None = None  # a sum, whose memory may be overwritten
    for fresh in map_tiles(function, tiles, start):
        if result is not None:
            result = result.absorb(fresh) if isinstance(result, Tree) else result + fresh
        elif first is not None:
            result = first + fresh
        else:
            first = fresh
    return first if result is None else result


def map_tiles(
    function: Callable[[Tensor, Tensor, int], T | None], tiles: Iterator[Tile], start: int = 0
) -> Iterator[T]:
    """``function`` of one tile after the other; where it gives None, nothing."""
    for rows, weight in tiles:
        found = function(rows, weight, start)
        start += len(weight)
        if found is not None:
            yield found


def ignore_position(function: Callable[[Tensor, Tensor], T]) -> Callable[[Tensor, Tensor, int], T]:
    """A function of a tile as one of a tile and the number of its first row."""
    return lambda rows, weight, start: function(rows, weight)
