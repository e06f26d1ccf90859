r"""Standard errors from influences, added up over rows.

.. math:: \mathrm{se}^2 = \sum_n \left( \frac{w_n}{W} \right)^2 (\psi_n - \bar\psi)^2, \qquad W = \sum_n w_n

A row is one observation however much it weighs: a weight of 2 moves the estimate as two equal rows would, but two equal
rows are two observations, and their error is smaller by :math:`\sqrt 2` where all are doubled. The size of the weights
does not matter, only their proportions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.numeric import product
from boxloop.tree import Tree
from boxloop.twoview.influence import ROOM, Side, Tile, crossed, matched


@dataclass(frozen=True)
class Tally(Tree):
    """Sums over rows for m given points and p functions with their squares.

    Args:
        second: of squared shares times products of influences, (m, 3, p): of the function, of both, of the square.
        mean: of shares times influences, (m, 2, p); None where they are 0.
        heavy: of squared shares times influences, (m, 2, p); None likewise.
        square: of squared shares.
        negative: of what is negative among the weights of rows, (m,), with its sign turned.
    """

    second: Tensor
    mean: Tensor | None
    heavy: Tensor | None
    square: Tensor
    negative: Tensor

    @classmethod
    def of(cls, tile: Tile, a: Side, b: Side, centred: bool) -> Tally:
        """Of a tile whose values are p functions, then their squares.

        Args:
            tile: rows.
            a: given points, m of them.
            b: coefficients, 2 p of them.
            centred: whether influences may have a mean, as they do with a ridge.
        """
        p, basis = tile.value.shape[1] // 2, tile.basis
        turning = len(basis.rest) > 0
        some = max(1, min(len(a), ROOM // max(16 * p, 1) if turning else ROOM // max(len(tile.share), 1)))
        parts = []
        for i in range(0, len(a), some):
            here = a[slice(i, i + some)]
            widest = max(2 * p * len(here), (basis.eta.shape[0]) * max(len(basis.rest), 2 * p, len(here)))
            blocks = tile.cut(max(1, ROOM // widest)) if turning else iter([tile])
            add = _turned if turning else _separate
            sums = [add(block, here, b, centred) for block in blocks]
            parts.append([torch.stack(found).sum(0) for found in zip(*sums, strict=True)])
        second, mean, heavy, negative = (torch.cat(found) for found in zip(*parts, strict=True))
        square = tile.share.square().sum()
        return cls(second, mean if centred else None, heavy if centred else None, square, negative)

    def errors(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of the estimated means and of the estimated variances, (m, p) both.

        Args:
            mean: conditional means of the functions, (m, p), in the units in which the squares were taken.
        """
        one, both, two = self.second.unbind(1)
        if self.mean is not None and self.heavy is not None:
            (f, ff), (g, gg) = self.mean.unbind(1), self.heavy.unbind(1)
            one = one - 2.0 * f * g + f * f * self.square
            both = both - f * gg - ff * g + f * ff * self.square
            two = two - 2.0 * ff * gg + ff * ff * self.square
        spread = two - 4.0 * mean * both + 4.0 * mean.square() * one
        return one.clamp(min=0.0), spread.clamp(min=0.0)


def _separate(tile: Tile, a: Side, b: Side, centred: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where influences are sums of few products: matrix products do it all."""
    factors, share, p = tile.factors(a, b), tile.share[:, None], tile.value.shape[1] // 2
    m, k = len(a), len(factors)
    second = tile.share.new_zeros(m, 3 * p)
    for i in range(k):
        for j in range(i, k):
            (x, y), (other, z) = factors[i], factors[j]
            cross = y[:, :p] * z[:, p:]
            if j > i:
                cross = cross + z[:, :p] * y[:, p:]
            twice = 1.0 if i == j else 2.0
            pairs = [twice * y[:, :p] * z[:, :p], cross, twice * y[:, p:] * z[:, p:]]
            second += product((x * other).mT, torch.cat(pairs, 1) * share.square())
    none = tile.share.new_zeros(m, 2, p)
    mean = heavy = none
    if centred:
        mean = torch.stack([product(x.mT, y * share) for x, y in factors]).sum(0).reshape(m, 2, p)
        heavy = torch.stack([product(x.mT, y * share.square()) for x, y in factors]).sum(0).reshape(m, 2, p)
    return second.reshape(m, 3, p), mean, heavy, _negative(factors[0][0], tile.share)


def _turned(tile: Tile, a: Side, b: Side, centred: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where some variables are left out: influences of a block of rows, one by one."""
    found, share = crossed(tile, a, b), tile.share
    m, p = len(a), found.shape[2] // 2
    one, two = found[..., :p], found[..., p:]
    squared = share.square()
    sums = [torch.einsum("n,nmp->mp", squared, part) for part in (one * one, one * two, two * two)]
    mean = torch.einsum("n,nmp->mp", share, found).reshape(m, 2, p)
    heavy = torch.einsum("n,nmp->mp", squared, found).reshape(m, 2, p)
    weight = product(tile.u, (a.kept * tile.basis.eta).mT)
    return torch.stack(sums, 1), mean, heavy, _negative(weight, share)


def _negative(weight: Tensor, share: Tensor) -> Tensor:
    return (weight.clamp(max=0.0) * -share[:, None]).sum(0)


@dataclass(frozen=True)
class Single(Tree):
    """The same for m given points with a function each: sums of psi and psi squared, (m,)."""

    second: Tensor
    mean: Tensor
    heavy: Tensor
    square: Tensor

    @classmethod
    def of(cls, tile: Tile, a: Side, b: Side) -> Single:
        """Of a tile with as many values as given points."""
        r, q = len(tile.basis.eta), len(tile.basis.rest)
        size = max(1, ROOM // (max(len(a), q) * (r if q else 1)))
        second = mean = heavy = tile.share.new_zeros(len(a))
        for block in tile.cut(size):
            found, share = matched(block, a, b), block.share
            second = second + share.square() @ found.square()
            mean, heavy = mean + share @ found, heavy + share.square() @ found
        return cls(second, mean, heavy, tile.share.square().sum())

    def error(self) -> Tensor:
        """Standard errors, (m,)."""
        found = self.second - 2.0 * self.mean * self.heavy + self.mean.square() * self.square
        return found.clamp(min=0.0).sqrt()


def deviation_error(variance: Tensor, error: Tensor) -> Tensor:
    r"""Standard error of a standard deviation from that of the variance.

    .. math:: \frac{s}{2 \sqrt{\max(V, s/4)}}

    which is the delta method where V exceeds a quarter of its error s, and :math:`\sqrt s` where it is 0 or clamped.
    """
    return torch.where(error > 0.0, error / (2.0 * torch.maximum(variance, error / 4.0).sqrt()), 0.0)
