"""Two views in the other order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.data.tiles import Placed, View
from boxloop.types import Source


@dataclass(frozen=True)
class Exchanged(View):
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
    def names(self) -> tuple[str, ...]:
        """Column names, in their new order."""
        return self.source.names[self.first :] + self.source.names[: self.first]

    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """Tiles with their columns turned."""
        first = self.first
        return lambda rows, weight, start: (torch.cat([rows[:, first:], rows[:, :first]], 1), weight, start)
