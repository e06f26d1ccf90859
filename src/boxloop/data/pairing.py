"""Two sources whose rows belong together, joined where they live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.data.dask import DaskSource
from boxloop.data.paired import Paired
from boxloop.data.parts import HeldPart, JoinedPart, Part
from boxloop.data.some import SomeRows
from boxloop.data.tiles import Placed, View
from boxloop.types import Source

Look = Callable[[Tensor, Tensor, int], Placed]


def paired(left: Source, right: Source, hold: bool = True) -> Source:
    """Two sources as one: in memory where both are, on the cluster where one is, else tile by tile.

    Args:
        left: the first columns, and the weights.
        right: the rest.
        hold: whether rows in memory are joined at once, which mini-batches want, or as they are read.
    """
    joined = Paired(left, right)
    if hold and isinstance(left, ArraySource) and isinstance(right, ArraySource):
        kind = torch.promote_types(left.rows.dtype, right.rows.dtype)
        rows = torch.cat([left.rows.to(kind), right.rows.to(kind)], 1)
        return ArraySource(rows, left.weight, joined.names)
    first, second = _bare(left)[0], _bare(right)[0]
    cuts = [source.counts for source in (first, second) if isinstance(source, DaskSource)]
    if not cuts:
        return joined
    counts = cuts[0]
    parts = map(JoinedPart, _parts(first, counts), _parts(second, counts))
    names = (*(f"x:{name}" for name in first.names), *(f"y:{name}" for name in second.names))
    return Beside(DaskSource(tuple(parts), counts, names), first.n_columns, left, right, joined.names)


@dataclass(frozen=True)
class Beside(View):
    """Two views of partitions that hold both tables, one beside the other.

    Args:
        source: the columns of both.
        first: columns of the first.
        left: the first, as it is seen.
        right: the second, as it is seen.
        seen: names of the columns that are seen.
    """

    source: Source
    first: int
    left: Source
    right: Source
    seen: tuple[str, ...]

    @property
    def n_columns(self) -> int:
        """Of both together."""
        return len(self.seen)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.seen

    def look(self) -> Look:
        """Tiles of both, each seen in its own way; weights are those of the first."""
        first, one, other = self.first, _bare(self.left)[1], _bare(self.right)[1]

        def both(rows: Tensor, weight: Tensor, start: int) -> Placed:
            seen, mass, _ = one(rows[:, :first], weight, start)
            beside, _, _ = other(rows[:, first:], weight, start)
            kind = torch.promote_types(seen.dtype, beside.dtype)
            return torch.cat([seen.to(kind), beside.to(kind)], 1), mass, start

        return both


def _bare(source: Source) -> tuple[Source, Look]:
    """A source without the views through which it is seen, and these as one; some rows are a source of their own."""
    if not isinstance(source, View) or isinstance(source, SomeRows):
        return source, lambda rows, weight, start: (rows, weight, start)
    (inner, before), look = _bare(source.source), source.look()
    return inner, lambda rows, weight, start: look(*before(rows, weight, start))


def _parts(source: Source, counts: tuple[int, ...]) -> list[Part]:
    """The parts of a source, cut as the other is."""
    if isinstance(source, DaskSource):
        if source.counts != counts:
            raise ValueError(
                "the two views are in partitions of different numbers of rows: repartition one of them"
            )
        return list(source.parts)
    if not isinstance(source, ArraySource):
        raise ValueError("one view is on a cluster and the other is not: open both with dask_source")
    parts: list[Part] = []
    for i, (stop, count) in enumerate(zip(accumulate(counts), counts, strict=True)):
        here = slice(stop - count, stop)
        mass = None if source.weight is None else source.weight[here]
        parts.append(HeldPart(source.rows[here], mass, source.names, f"partition {i}"))
    return parts
