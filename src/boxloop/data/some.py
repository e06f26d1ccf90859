"""Some rows of a source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from boxloop.data.array import ArraySource, total
from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)


@dataclass(frozen=True)
class SomeRows:
    """The rows of a source that a mask marks, tile by tile.

    Args:
        source: all rows.
        mask: (n,), true for those that are kept; on the CPU.

    Example:
        >>> import torch
        >>> rows = SomeRows(ArraySource(torch.arange(3.0)[:, None]), torch.tensor([True, False, True]))
        >>> rows.n_rows, next(rows.chunks())[0][:, 0]
        (2, tensor([0., 2.]))
    """

    source: Source
    mask: Tensor

    @property
    def n_rows(self) -> int:
        """Number of rows that are kept."""
        return int(self.mask.sum())

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.source.n_columns

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.source.names

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is left of each tile, where any row is."""
        start = 0
        for rows, weight in self.source.chunks(size):
            chosen = self.mask[start : start + len(rows)]
            start += len(rows)
            if bool(chosen.any()):
                there = chosen.to(rows.device)
                yield rows[there], weight[there]

    def reduce(self, function: Callable[[Tensor, Tensor], T]) -> T:
        """Sum ``function(rows, weight)`` over the rows that are kept."""
        return total(function, self.chunks())


def some_rows(source: Source, mask: Tensor) -> Source:
    """The rows that a mask marks: taken at once where they are in memory."""
    if isinstance(source, ArraySource):
        return source.taken(mask.nonzero()[:, 0].to(source.rows.device))
    return SomeRows(source, mask)
