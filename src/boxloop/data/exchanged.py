"""Two views in the other order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)


@dataclass(frozen=True)
class Exchanged:
    """A source whose first columns come last.

    Args:
        source: rows that hold one view beside the other.
        first: columns of the first.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> turned = Exchanged(ArraySource(torch.tensor([[1.0, 2.0, 3.0]])), 1)
        >>> turned.names, next(turned.chunks())[0]
        (('x1', 'x2', 'x0'), tensor([[2., 3., 1.]]))
    """

    source: Source
    first: int

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
        """Column names, in their new order."""
        return self.source.names[self.first :] + self.source.names[: self.first]

    def _turned(self, rows: Tensor) -> Tensor:
        return torch.cat([rows[:, self.first :], rows[:, : self.first]], 1)

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield tiles in row order."""
        for rows, weight in self.source.chunks(size):
            yield self._turned(rows), weight

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over all tiles, where the rows live."""
        return self.source.reduce(lambda rows, weight: function(self._turned(rows), weight))
