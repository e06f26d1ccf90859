"""Some rows of a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.data.tiles import Placed, View
from boxloop.types import Source

BLOCK = 4096
"""Rows whose number of kept ones is known, so that no tile counts all before it."""


@dataclass(frozen=True)
class SomeRows(View):
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

    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """What is left of each tile."""
        mask = self.mask
        whole = len(mask) // BLOCK * BLOCK
        counted = mask[:whole].reshape(-1, BLOCK).sum(1).cumsum(0)

        def before(start: int) -> int:
            block = start // BLOCK
            return int(mask[block * BLOCK : start].sum()) + (int(counted[block - 1]) if block else 0)

        def left(rows: Tensor, weight: Tensor, start: int) -> Placed:
            chosen = mask[start : start + len(weight)].to(rows.device)
            return rows[chosen], weight[chosen], before(start)

        return left


def some_rows(source: Source, mask: Tensor) -> Source:
    """The rows that a mask marks: taken at once where they are in memory."""
    if isinstance(source, ArraySource):
        return source.taken(mask.nonzero()[:, 0].to(source.rows.device))
    return SomeRows(source, mask)
