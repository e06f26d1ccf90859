r"""How far a conditional expectation moves when one row counts a little more: the source of every standard error here.

With all features of both views turned to canonical variables :math:`u, v` (constants :math:`u_0 = v_0 = 1` among them),
of which the first r with the constant are kept, :math:`T = \sum_{i \le r} \eta_i b_i a_i` with :math:`a = v(y)` and
:math:`b = \overline{u \theta}`. Its derivative in the direction of row n, with K, L, A and b all free to move, is

.. math:: \psi_n = (c^\top u_n)(\theta_n - b^\top u_n) + (a^\top v_n)(b^\top u_n - e^\top v_n)
    - (a_>^\top v_{n>})(b_>^\top u_{n>}) + g_n, \qquad c = \eta a_{\le r}, \; e = \eta b_{\le r}

where > marks omitted variables. The rotation of the kept variables towards the omitted ones adds

.. math:: g_n = \sum_{i \le r < j} \frac{b_i a_j}{\eta_i^2 - \eta_j^2}
    \left[ \eta_j^2 v_{nj} s_{ni} + \eta_i \eta_j u_{nj} t_{ni} \right] + \frac{a_i b_j}{\eta_i^2 - \eta_j^2}
    \left[ \eta_j^2 u_{nj} t_{ni} + \eta_i \eta_j v_{nj} s_{ni} \right], \quad s_i = u_i - \eta_i v_i, \;
    t_i = v_i - \eta_i u_i

by the derivative of a truncated singular value decomposition; it is 0 where every variable is kept. The standard error
sums the influences of all rows:

.. math:: \mathrm{se}^2 = \sum_n \left( \frac{w_n}{W} \right)^2 (\psi_n - \bar\psi)^2, \qquad W = \sum_n w_n

A row is one observation whatever its weight: a weight of 2 moves the estimate as two equal rows would, but two equal
rows are two observations, and their standard error is smaller by :math:`\sqrt 2` where all are doubled. Only the
proportions of the weights matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor

from boxloop.numeric import gram, mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.types import Source

MOST_VALUES = 1 << 22
"""Values of the largest tensor that a block of rows makes."""

NOT_ORTHONORMAL = 1e-3
"""How far variables may be from orthonormal on the rows of their fit; on other rows they are much farther."""

NULL_DIRECTION = 1e-10
"""Variance, in units in which each feature's is 1, below which an omitted direction is rounding error."""

TIED = 1e-12
"""Difference of two relevances below which the variables cannot be distinguished."""


@dataclass(frozen=True)
class _GramSums(Tree):
    """Sums over rows that say how variables and features vary."""

    weight: Tensor
    first: tuple[Tensor, Tensor]  # of u, (r,), and v, (r,)
    inner: tuple[Tensor, Tensor]  # of u u' and v v', (r, r)
    outer: tuple[Tensor, Tensor]  # of centred features, (k, k) and (l, l), upper triangles

    @classmethod
    def from_rows(cls, model: RelevanceModel, rows: Tensor, weight: Tensor) -> Self:
        """Of a tile of rows that hold both views."""
        c = model.canonical
        rows, mass = rows.to(c.left.device), weight.to(c.left.device).double()
        f, g = (part.double() - mean for part, mean in zip(model.pair(rows), (c.left_mean, c.right_mean)))
        u, v = product(f, c.left), product(g, c.right)
        return cls(
            mass.sum(),
            (mass @ u, mass @ v),
            (gram(u, mass), gram(v, mass)),
            (upper_gram(f, mass), upper_gram(g, mass)),
        )


@dataclass(frozen=True)
class VariableBasis(Tree):
    """All features as canonical variables: those that the model keeps, then those that it omits."""

    model: RelevanceModel
    left: Tensor  # omitted ones of the first view as functions of its features, (k, k' - r)
    right: Tensor  # (l, l' - r)
    correlations: Tensor  # of kept pairs, after the constant's: (r + 1,)
    omitted_correlations: Tensor  # of omitted pairs, (q,), the first of ``left`` and ``right``
    total: Tensor  # weight of the rows

    @classmethod
    def solve(cls, model: RelevanceModel, source: Source, ridge: float = 0.0) -> Self:
        """Solve for the omitted variables; the rows, and the ridge, must be those of the fit."""
        c = model.canonical
        with torch.no_grad():
            sums = source.reduce(partial(_GramSums.from_rows, model))
            r, most = len(c.correlation), min(len(c.left), len(c.right))
            full = RelevanceModel.solve(model.pair, source, most, ridge).canonical if r < most else c
            parts = []
            for side, kept in enumerate((full.left, full.right)):
                metric = mirrored(sums.outer[side]) / sums.weight
                ridged = metric + ridge * torch.diag(metric.diagonal())
                own = (c.left, c.right)[side]
                mean = sums.first[side] / sums.weight
                second = sums.inner[side] / sums.weight + own.mT @ (ridged - metric) @ own
                apart = second - torch.eye(len(second), dtype=second.dtype, device=second.device)
                if len(mean) and max(float(mean.abs().max()), float(apart.abs().max())) > NOT_ORTHONORMAL:
                    raise ValueError(
                        "the canonical variables were not solved on these rows: give the rows of the fit and its "
                        "ridge, or solve again on the rows at hand"
                    )
                parts.append(torch.cat([kept[:, r:], _find_omitted_directions(ridged, kept)], 1))
        correlations = torch.cat([c.correlation.new_ones(1), c.correlation])
        return cls(model, parts[0], parts[1], correlations, full.correlation[r:], sums.weight)

    @property
    def relevance_gaps(self) -> Tensor:
        """Differences of squared correlations, kept less omitted, (r, q)."""
        return (self.correlations[1:, None].square() - self.omitted_correlations.square()).clamp(min=TIED)

    def compute_variables(self, view: Literal["left", "right"], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows of one view: 1 and u (or v), (n, r + 1), and the omitted ones, (n, k' - r)."""
        c, pair = self.model.canonical, self.model.pair
        if view == "left":
            features, mean, kept, omitted = pair.left, c.left_mean, c.left, self.left
        else:
            features, mean, kept, omitted = pair.right, c.right_mean, c.right, self.right
        constant = mean.new_zeros(len(kept), 1)
        both = product(features(rows).double() - mean, torch.cat([constant, kept, omitted], 1))
        both[:, 0] = 1.0
        r = kept.shape[1] + 1
        return both[:, :r], both[:, r:]


def _find_omitted_directions(metric: Tensor, kept: Tensor) -> Tensor:
    """Directions of unit variance that are uncorrelated with those kept, (k, k' - r), for a covariance (k, k)."""
    size = metric.diagonal().clamp(min=0.0).sqrt()
    unit = torch.where(size > 1e-12 * size.max(), 1.0 / size.clamp(min=1e-300), 0.0)
    scaled, known = unit[:, None] * metric * unit, kept * size[:, None]
    image = scaled @ known
    values, vectors = torch.linalg.eigh(scaled - image @ image.mT)
    real = (values > NULL_DIRECTION * len(values)) & (
        torch.arange(len(values)).to(values.device) >= kept.shape[1]
    )
    rest = vectors[:, real] / values[real].sqrt()
    return unit[:, None] * (rest - known @ (image.mT @ rest))


@dataclass(frozen=True)
class VariableCoefficients(Tree):
    """The factor of the variables in an expectation: a = v(y), or b = mean of u times a function, for m of them."""

    kept: Tensor  # (m, r + 1), of the kept variables
    omitted: Tensor  # (m, ...), of the omitted ones

    def __getitem__(self, index: slice | Tensor) -> VariableCoefficients:
        return VariableCoefficients(self.kept[index], self.omitted[index])

    def __len__(self) -> int:
        return len(self.kept)


@dataclass(frozen=True)
class VariableTile:
    """Some rows as variables, with values of functions."""

    basis: VariableBasis
    share: Tensor  # of each row in the total weight, (n,)
    u: Tensor  # (n, r + 1)
    u_omitted: Tensor  # the omitted ones of the first view
    v: Tensor  # (n, r + 1)
    v_omitted: Tensor  # the omitted ones of the second
    value: Tensor  # functions of the rows, (n, p)

    def split_into_blocks(self, size: int) -> Iterator[VariableTile]:
        """Blocks of at most so many rows."""
        for i in range(0, len(self.share), size):
            parts = (self.share, self.u, self.u_omitted, self.v, self.v_omitted, self.value)
            yield VariableTile(self.basis, *(part[i : i + size] for part in parts))

    def influence_factors(
        self, a: VariableCoefficients, b: VariableCoefficients
    ) -> list[tuple[Tensor, Tensor]]:
        """Pairs (n, m) and (n, p) whose products add up to the influence without the rotation g."""
        eta = self.basis.correlations
        weight = product(self.u, (a.kept * eta).mT)
        kernel, beyond = product(self.v, a.kept.mT), product(self.v_omitted, a.omitted.mT)
        kept, rest = product(self.u, b.kept.mT), product(self.u_omitted, b.omitted.mT)
        difference = kept - product(self.v, (b.kept * eta).mT)
        first = (weight, self.value - kept - rest)
        if self.u_omitted.shape[1] == 0:
            return [first, (kernel + beyond, difference)]
        if self.v_omitted.shape[1] == 0:
            return [first, (kernel, difference + rest)]
        return [first, (kernel, difference + rest), (beyond, difference)]

    def rotation_influences(self, a: VariableCoefficients, b: VariableCoefficients) -> tuple[Tensor, Tensor]:
        """Of the kept variables towards the omitted ones: (n, r, m) to multiply b, (n, r, p) to multiply a."""
        basis = self.basis
        eta, rest, gap = basis.correlations[1:, None], basis.omitted_correlations, basis.relevance_gaps
        q, u, v = len(rest), self.u[:, 1:], self.v[:, 1:]
        ux, vx = self.u_omitted[:, :q], self.v_omitted[:, :q]
        s, t = (u - v * eta[:, 0])[:, :, None], (v - u * eta[:, 0])[:, :, None]
        near, far = rest.square() / gap, eta * rest / gap
        of_a, of_b = a.omitted[:, :q].mT, b.omitted[:, :q].mT
        to_b = (vx[:, None] * near * s + ux[:, None] * far * t) @ of_a
        return to_b, (ux[:, None] * near * t + vx[:, None] * far * s) @ of_b


@dataclass(frozen=True)
class InfluenceSums(Tree):
    """Sums over rows for every pair of m points and p functions, each with its square."""

    second: Tensor  # squared shares times influences: of f squared, f times f^2, f^2 squared, (m, 3, p)
    mean: Tensor | None  # shares times influences, (m, 2, p); None where they are 0
    weighted: Tensor | None  # squared shares times influences, (m, 2, p); None likewise
    square: Tensor  # of squared shares
    negative: Tensor  # of the negative weights of rows, (m,), with their sign changed

    @classmethod
    def from_tile(
        cls, tile: VariableTile, a: VariableCoefficients, b: VariableCoefficients, centred: bool
    ) -> InfluenceSums:
        """Of a tile whose values are p functions, then their squares; ``centred`` where influences may have a mean."""
        p, basis = tile.value.shape[1] // 2, tile.basis
        r, q = len(basis.correlations), len(basis.omitted_correlations)
        step = max(1, MOST_VALUES // max(16 * p if q else len(tile.share), 1))
        parts = []
        for i in range(0, len(a), step):
            points = a[i : i + step]
            widest = max(2 * p * len(points), r * max(q, 2 * p, len(points)))
            blocks = tile.split_into_blocks(max(1, MOST_VALUES // widest)) if q else iter([tile])
            add = _sum_influences_by_row if q else _sum_influences_by_factors
            sums = [add(block, points, b, centred) for block in blocks]
            parts.append([torch.stack(part).sum(0) for part in zip(*sums, strict=True)])
        second, mean, weighted, negative = (torch.cat(part) for part in zip(*parts, strict=True))
        square = tile.share.square().sum()
        return cls(second, mean if centred else None, weighted if centred else None, square, negative)

    def estimate_variances(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Variances of the estimated means, (m, p), which are given, and of the estimated variances, (m, p)."""
        one, both, two = self.second.unbind(1)
        if self.mean is not None and self.weighted is not None:
            (f, ff), (g, gg) = self.mean.unbind(1), self.weighted.unbind(1)
            one = one - 2.0 * f * g + f * f * self.square
            both = both - f * gg - ff * g + f * ff * self.square
            two = two - 2.0 * ff * gg + ff * ff * self.square
        of_variance = two - 4.0 * mean * both + 4.0 * mean.square() * one
        return one.clamp(min=0.0), of_variance.clamp(min=0.0)


def _sum_influences_by_factors(
    tile: VariableTile, a: VariableCoefficients, b: VariableCoefficients, centred: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where no variable is omitted, influences are sums of few products: matrix products do it all."""
    factors, share, p = tile.influence_factors(a, b), tile.share[:, None], tile.value.shape[1] // 2
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
    mean = weighted = tile.share.new_zeros(m, 2, p)
    if centred:
        mean, weighted = (
            torch.stack([product(x.mT, y * mass) for x, y in factors]).sum(0).reshape(m, 2, p)
            for mass in (share, share.square())
        )
    negative = (factors[0][0].clamp(max=0.0) * -share).sum(0)
    return second.reshape(m, 3, p), mean, weighted, negative


def _sum_influences_by_row(
    tile: VariableTile, a: VariableCoefficients, b: VariableCoefficients, centred: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Where variables are omitted: influences of each row of a block on every point and function, (n, m, p)."""
    influence = torch.as_tensor(sum(x[:, :, None] * y[:, None, :] for x, y in tile.influence_factors(a, b)))
    to_b, to_a = tile.rotation_influences(a, b)
    influence = influence + to_b.mT @ b.kept[:, 1:].mT + a.kept[:, 1:] @ to_a
    share, m, p = tile.share, len(a), influence.shape[2] // 2
    one, two = influence[..., :p], influence[..., p:]
    squared = share.square()
    sums = [torch.einsum("n,nmp->mp", squared, part) for part in (one * one, one * two, two * two)]
    mean = torch.einsum("n,nmp->mp", share, influence).reshape(m, 2, p)
    weighted = torch.einsum("n,nmp->mp", squared, influence).reshape(m, 2, p)
    weight = product(tile.u, (a.kept * tile.basis.correlations).mT)
    negative = (weight.clamp(max=0.0) * -share[:, None]).sum(0)
    return torch.stack(sums, 1), mean, weighted, negative


@dataclass(frozen=True)
class PairedInfluenceSums(Tree):
    """The same where function i goes with point i: sums of influences and of their squares, (m,)."""

    second: Tensor
    mean: Tensor
    weighted: Tensor
    square: Tensor

    @classmethod
    def from_tile(
        cls, tile: VariableTile, a: VariableCoefficients, b: VariableCoefficients
    ) -> PairedInfluenceSums:
        """Of a tile with as many functions as points."""
        r, q = len(tile.basis.correlations), len(tile.basis.omitted_correlations)
        size = max(1, MOST_VALUES // (max(len(a), q) * (r if q else 1)))
        second = mean = weighted = tile.share.new_zeros(len(a))
        for block in tile.split_into_blocks(size):
            influence = torch.as_tensor(sum(x * y for x, y in block.influence_factors(a, b)))
            share = block.share
            if q:
                to_b, to_a = block.rotation_influences(a, b)
                influence = influence + (to_b * b.kept[:, 1:].mT).sum(1) + (to_a * a.kept[:, 1:].mT).sum(1)
            second = second + share.square() @ influence.square()
            mean, weighted = mean + share @ influence, weighted + share.square() @ influence
        return cls(second, mean, weighted, tile.share.square().sum())

    def compute_standard_errors(self) -> Tensor:
        """(m,)."""
        variance = self.second - 2.0 * self.mean * self.weighted + self.mean.square() * self.square
        return variance.clamp(min=0.0).sqrt()


def estimate_deviation_error(variance: Tensor, error: Tensor) -> Tensor:
    r"""Standard error of a standard deviation from that of the variance.

    .. math:: \frac{s}{2 \sqrt{\max(V, s/4)}}

    which is the delta method where V exceeds a quarter of its error s, and :math:`\sqrt s` where it is 0 or clamped.
    """
    return torch.where(error > 0.0, error / (2.0 * torch.maximum(variance, error / 4.0).sqrt()), 0.0)
