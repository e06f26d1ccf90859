"""Conditional quantiles: the distribution function of signed weights, put in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from boxloop.data import ConcatenatedRows, RowSampler, SumAndRows
from boxloop.numeric import generator, product
from boxloop.tree import Tree
from boxloop.twoview.influence import ROOM, Side

if TYPE_CHECKING:
    from boxloop.twoview.conditional import Conditional, Function

MOST_VALUES = 1 << 27
"""Values and variables of all rows that are held at once; beyond them cut points are used."""

CUTS = 1024
"""Cut points of a function whose values are not held."""

SAMPLE = 1 << 14
"""Rows among whose values cut points are chosen."""

PAIRS = 4096
"""Pairs of a given point and a function whose errors are found in one pass."""

TIE = 1e-12
"""Rounding of a distribution function."""


@dataclass(frozen=True)
class Held:
    """Values and weighted variables of all rows: the distribution function, exactly.

    Args:
        value: (n, p).
        heavy: share times u, (n, r + 1).
    """

    value: Tensor
    heavy: Tensor

    def column(self, j: int) -> tuple[Tensor, Tensor, bool]:
        """Values in order, (n,), sums of variables up to each, (n, r + 1), and that F is made of steps."""
        value, order = self.value[:, j].sort()
        return value, self.heavy[order].cumsum(0), False


@dataclass(frozen=True)
class Ends(Tree):
    """Smallest and largest value of each function, (p,)."""

    low: Tensor
    high: Tensor

    def __add__(self, other: Ends) -> Ends:
        return Ends(torch.minimum(self.low, other.low), torch.maximum(self.high, other.high))


@dataclass(frozen=True)
class Binned(Tree):
    """Sums of variables between cut points, to be added over tiles.

    Args:
        cuts: (p, g) in order.
        heavy: (p, g, r + 1).
        straight: which functions have more values than cuts.
    """

    cuts: tuple[Tensor, ...]
    heavy: tuple[Tensor, ...]
    straight: tuple[bool, ...]

    def __add__(self, other: Binned) -> Binned:
        heavy = tuple(a + b for a, b in zip(self.heavy, other.heavy, strict=True))
        return Binned(self.cuts, heavy, self.straight)

    def column(self, j: int) -> tuple[Tensor, Tensor, bool]:
        """Cut points, (g,), sums of variables up to each, (g, r + 1), and whether F is straight between them."""
        return self.cuts[j], self.heavy[j].cumsum(0), self.straight[j]


def quantiles(of: Conditional, theta: Function | None, a: Side, q: float) -> tuple[Tensor, Tensor]:
    """Quantiles at q of every function given every point, and their standard errors, (m, p) both."""
    p = of.values(theta, of.first_rows[:1]).shape[1]
    table = (
        _held(of, theta) if of.source.n_rows * (p + len(of.basis.eta)) <= MOST_VALUES else _binned(of, theta)
    )
    weight = (a.kept * of.basis.eta).mT
    level = weight.new_full((len(a), p), q)
    value = _inverted(table, weight, level)
    error = _level_errors(of, theta, a, value)
    low, high = (_inverted(table, weight, (level + side * error).clamp(0.0, 1.0)) for side in (-1.0, 1.0))
    return value, 0.5 * (high - low)


def _inverted(table: Held | Binned, weight: Tensor, level: Tensor) -> Tensor:
    """Where the ordered distribution function reaches a level: (r + 1, m) and (m, p) -> (m, p)."""
    found = torch.empty_like(level)
    for j in range(level.shape[1]):
        value, sums, straight = table.column(j)
        width = value.diff()[None]
        some = max(1, ROOM // len(value))
        for i in range(0, len(level), some):
            below = product(sums, weight[:, i : i + some])
            at = level[i : i + some, j] - TIE
            if straight:
                low, high = torch.minimum(below[:-1], below[1:]), torch.maximum(below[:-1], below[1:])
                part = ((at - low) / (high - low).clamp(min=TIE)).clamp(0.0, 1.0)
            else:
                part = (below[:-1] < at).to(below)
            found[i : i + some, j] = value[0] + (width @ part)[0]
    return found


def _held(of: Conditional, theta: Function | None) -> Held:
    def seen(rows: Tensor, weight: Tensor) -> SumAndRows[ConcatenatedRows]:
        tile = of.tile(rows, weight, lambda x: of.values(theta, x))
        return SumAndRows(ConcatenatedRows.of(tile.value), ConcatenatedRows.of(tile.u * tile.share[:, None]))

    found = of.source.reduce(seen)
    return Held(found.sum.concatenate(), found.rows.concatenate())


def _binned(of: Conditional, theta: Function | None) -> Binned:
    cuts, straight = _cuts(of, theta)

    def bins(rows: Tensor, weight: Tensor) -> Binned:
        tile = of.tile(rows, weight, lambda x: of.values(theta, x))
        heavy = tile.u * tile.share[:, None]
        found = []
        for edges, column in zip(cuts, tile.value.mT, strict=True):
            place = torch.bucketize(column.contiguous(), edges).clamp(max=len(edges) - 1)
            found.append(heavy.new_zeros(len(edges), heavy.shape[1]).index_add_(0, place, heavy))
        return Binned(cuts, tuple(found), straight)

    return of.source.reduce(bins)


def _cuts(of: Conditional, theta: Function | None) -> tuple[tuple[Tensor, ...], tuple[bool, ...]]:
    """Cut points of each function: its smallest and largest value, and evenly many rows of a sample between."""
    lot = RowSampler.draw(of.source.n_rows, SAMPLE, generator(0))

    def seen(rows: Tensor, weight: Tensor, start: int) -> SumAndRows[Ends]:
        value = of.values(theta, of.model.pair.parts(rows.to(of.device))[0]).cpu()
        chosen = lot.indices_between(start, start + len(weight))
        return SumAndRows(Ends(value.amin(0), value.amax(0)), ConcatenatedRows.of(value[chosen]))

    found = of.source.reduce_at(seen)
    cuts, straight = [], []
    for j, column in enumerate(found.rows.concatenate().mT):
        known = torch.cat([column, found.sum.low[j : j + 1], found.sum.high[j : j + 1]]).unique()
        straight.append(len(known) > CUTS)
        if straight[-1]:
            order = torch.cat([known[:1], column, known[-1:]]).sort().values
            known = order[torch.linspace(0, len(order) - 1, CUTS).round().long()].unique()
        cuts.append(known.to(of.device))
    return tuple(cuts), tuple(straight)


def _level_errors(of: Conditional, theta: Function | None, a: Side, value: Tensor) -> Tensor:
    """Standard errors of the distribution function at values (m, p)."""
    m, p = value.shape
    point, column = (part.reshape(-1) for part in torch.meshgrid(
        torch.arange(m, device=value.device), torch.arange(p, device=value.device), indexing="ij"
    ))  # fmt: skip
    scale = value.abs().amax(0) + (value - value.mean(0)).abs().amax(0)
    edge = (value + 1e-10 * scale).reshape(
        -1
    )  # a value found by adding differences is its row's but for rounding
    parts = []
    for i in range(0, m * p, PAIRS):
        here = slice(i, i + PAIRS)

        def under(rows: Tensor, here: slice = here) -> Tensor:
            return (of.values(theta, rows)[:, column[here]] <= edge[here]).double()

        parts.append(of.single_errors(a[point[here]], under))
    return torch.cat(parts).reshape(m, p)
