"""Sums over tiles, and two ways to look at a source: as tiles of one's own, or through a function of another's."""

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
Placed = tuple[Tensor, Tensor, int]
"""Rows, their weights, and the number of the first of them."""


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
        """Of the rows of one tile, values (n, ...); a row without weight may have no finite value."""
        share = weight.reshape(-1, *[1] * (values.dim() - 1)).to(values)
        return cls(torch.where(share > 0.0, share * values, 0.0).sum(0), weight.sum())

    @classmethod
    def over(cls, source: Source, function: Callable[[Tensor], Tensor]) -> Self:
        """Of ``function(rows)``, one value a row, over all rows of a source."""
        return source.reduce(lambda rows, weight: cls.of(function(rows).double(), weight))

    @property
    def mean(self) -> float:
        """By weight, of one value a row."""
        return float(self.value / self.weight)


class Tiled(ABC):
    """Base of the sources that read their own tiles: sums over rows follow from :meth:`chunks`."""

    @abstractmethod
    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield ``(rows, weight)`` tiles in row order."""

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all tiles."""
        return self.reduce_at(placeless(function))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)`` over all tiles."""
        found = total(function, self.chunks())
        if found is None:
            raise ValueError("the source has no rows")
        return found

    def in_turn(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield ``function(rows, weight, number of the first row)`` of each tile, in row order."""
        return each_tile(function, self.chunks())


class View(ABC):
    """Base of the sources that change another's tiles: where rows are summed is the other's affair.

    What :meth:`look` returns may travel to where the rows live, so it holds what it needs and not the source.
    """

    source: Source

    @abstractmethod
    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """The change of one tile."""

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
        """Yield changed tiles in row order, where any row is left."""
        look, start = self.look(), 0
        for rows, weight in self.source.chunks(size):
            seen, mass, _ = look(rows, weight, start)
            start += len(weight)
            if len(mass):
                yield seen, mass

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all changed tiles, where the rows live."""
        return self.reduce_at(placeless(function))

    def reduce_at(self, function: Callable[[Tensor, Tensor, int], T]) -> T:
        """Sum ``function(rows, weight, number of the first row)``, where the rows live."""
        return self.source.reduce_at(self._seen(function))

    def in_turn(self, function: Callable[[Tensor, Tensor, int], T]) -> Iterator[T]:
        """Yield sums over consecutive changed tiles, where any row is left, found where the rows live."""
        return self.source.in_turn(self._seen(function))

    def _seen(self, function: Callable[[Tensor, Tensor, int], T]) -> Callable[[Tensor, Tensor, int], T]:
        """The function of changed tiles as one of tiles; None where no row is left, which :func:`total` leaves out."""
        look = self.look()

        def seen(rows: Tensor, weight: Tensor, start: int) -> T | None:
            tile = look(rows, weight, start)
            return function(*tile) if len(tile[1]) else None

        return seen  # type: ignore[return-value]


def total(
    function: Callable[[Tensor, Tensor, int], T | None], tiles: Iterator[Tile], start: int = 0
) -> T | None:
    """Sum ``function`` over tiles, from the first to the last; None where no tile has anything to add."""
    first: T | None = None
    result: T | None = None  # a sum, and so nobody else's
    for fresh in each_tile(function, tiles, start):
        if result is not None:
            result = result.absorb(fresh) if isinstance(result, Tree) else result + fresh
        elif first is not None:
            result = first + fresh
        else:
            first = fresh
    return first if result is None else result


def each_tile(
    function: Callable[[Tensor, Tensor, int], T | None], tiles: Iterator[Tile], start: int = 0
) -> Iterator[T]:
    """``function`` of one tile after the other; those that have nothing to add are left out."""
    for rows, weight in tiles:
        found = function(rows, weight, start)
        start += len(weight)
        if found is not None:
            yield found


def placeless(function: Callable[[Tensor, Tensor], T]) -> Callable[[Tensor, Tensor, int], T]:
    """A function of a tile that need not know where it is."""
    return lambda rows, weight, start: function(rows, weight)
