"""Some rows of a source."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.data.marks import Marks, Mask
from boxloop.data.tiles import Placed, View
from boxloop.types import Source


@dataclass(frozen=True)
class SomeRows(View):
    """The rows of a source that are marked, tile by tile.

    Args:
        source: all rows.
        marks: which of them are kept.

    Example:
        >>> import torch
        >>> rows = SomeRows(ArraySource(torch.arange(3.0)[:, None]), Mask(torch.tensor([True, False, True])))
        >>> rows.n_rows, next(rows.chunks())[0][:, 0]
        (2, tensor([0., 2.]))
    """

    source: Source
    marks: Marks

    @property
    def n_rows(self) -> int:
        """Number of rows that are kept."""
        return self.marks.before(self.source.n_rows)

    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """What is left of each tile."""
        marks = self.marks

        def left(rows: Tensor, weight: Tensor, start: int) -> Placed:
            chosen = marks.among(start, start + len(weight)).to(rows.device)
            return rows[chosen], weight[chosen], marks.before(start)

        return left


def some_rows(source: Source, marks: Marks | Tensor) -> Source:
    """The rows that are marked, or that a mask marks: taken at once where they are in memory."""
    known = Mask(marks) if isinstance(marks, Tensor) else marks
    if isinstance(source, ArraySource):
        return source.taken(known.among(0, source.n_rows).nonzero()[:, 0].to(source.rows.device))
    return SomeRows(source, known)
