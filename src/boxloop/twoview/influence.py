r"""How far a conditional expectation moves when one row counts a little more: the source of every error bar here.

With all features of both views turned to canonical variables :math:`u, v` (constants :math:`u_0 = v_0 = 1` among them),
of which the first r with the constant are kept, :math:`T = \sum_{i \le r} \eta_i b_i a_i` with :math:`a = v(y)` and
:math:`b = \overline{u \theta}`. Its derivative in the direction of row n, with K, L, A and b all free to move, is

.. math:: \psi_n = (c^\top u_n)(\theta_n - b^\top u_n) + (a^\top v_n)(b^\top u_n - e^\top v_n)
    - (a_>^\top v_{n>})(b_>^\top u_{n>}) + g_n, \qquad c = \eta a_{\le r}, \; e = \eta b_{\le r}

where > marks variables left out. What turns the kept variables towards those left out is

.. math:: g_n = \sum_{i \le r < j} \frac{b_i a_j}{\eta_i^2 - \eta_j^2}
    \left[ \eta_j^2 v_{nj} s_{ni} + \eta_i \eta_j u_{nj} t_{ni} \right] + \frac{a_i b_j}{\eta_i^2 - \eta_j^2}
    \left[ \eta_j^2 u_{nj} t_{ni} + \eta_i \eta_j v_{nj} s_{ni} \right], \quad s_i = u_i - \eta_i v_i, \;
    t_i = v_i - \eta_i u_i

by the derivative of a truncated singular value decomposition; it is 0 where every variable is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.numeric import gram, mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.types import Source

ROOM = 1 << 22
"""Values of the largest tensor that a block of rows makes."""

STRANGE = 1e-3
"""How far variables may be from orthonormal on the rows of their fit; on other rows they are much farther."""

NULL_DIRECTION = 1e-10
"""Variance, in units in which each feature's is 1, below which a direction left out is rounding."""

TIED = 1e-12
"""Difference of two relevances below which the variables cannot be told apart."""


@dataclass(frozen=True)
class Grams(Tree):
    """Sums over rows that say how variables and features vary.

    Args:
        weight: of the rows.
        first: of u, (r,), and v, (r,).
        inner: of u u' and v v', (r, r).
        outer: of centred features of each view, (k, k) and (l, l), right in the upper triangle.
    """

    weight: Tensor
    first: tuple[Tensor, Tensor]
    inner: tuple[Tensor, Tensor]
    outer: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, model: RelevanceModel, rows: Tensor, weight: Tensor) -> Self:
        """Of a tile of rows that hold both views."""
        c, mass = model.canonical, weight.double()
        f, g = (part.double() - mean for part, mean in zip(model.pair(rows), (c.left_mean, c.right_mean)))
        u, v = product(f, c.left), product(g, c.right)
        return cls(
            mass.sum(),
            (mass @ u, mass @ v),
            (gram(u, mass), gram(v, mass)),
            (upper_gram(f, mass), upper_gram(g, mass)),
        )


@dataclass(frozen=True)
class Basis(Tree):
    """All features as canonical variables: those of the model, then those that it leaves out.

    Args:
        model: keeps r of them.
        left: the others of the first view as functions of its features, (k, k' - r).
        right: of the second, (l, l' - r).
        rest: correlations of those that come in pairs, (q,), the first of ``left`` and ``right``.
        total: weight of the rows.
    """

    model: RelevanceModel
    left: Tensor
    right: Tensor
    rest: Tensor
    total: Tensor

    @classmethod
    def of(cls, model: RelevanceModel, source: Source, ridge: float = 0.0) -> Self:
        """Solve for the variables left out; the rows must be those of the fit.

        Args:
            model: a fit.
            source: its rows, of both views.
            ridge: with which it was solved.

        Raises:
            ValueError: the rows, or the ridge, are not those of the fit.
        """
        c, device = model.canonical, model.canonical.correlation.device
        with torch.no_grad():
            sums = source.reduce(lambda rows, weight: Grams.of(model, rows.to(device), weight.to(device)))
            r, most = len(c.correlation), min(len(c.left), len(c.right))
            whole = RelevanceModel.solve(model.pair, source, most, ridge).canonical if r < most else c
            parts = []
            for side, kept in enumerate((whole.left, whole.right)):
                metric = mirrored(sums.outer[side]) / sums.weight
                ridged = metric + ridge * torch.diag(metric.diagonal())
                own = (c.left, c.right)[side]
                _same(
                    sums.first[side] / sums.weight,
                    sums.inner[side] / sums.weight + own.mT @ (ridged - metric) @ own,
                )
                parts.append(torch.cat([kept[:, r:], _beyond(ridged, kept)], 1))
        return cls(model, parts[0], parts[1], whole.correlation[r:], sums.weight)

    @property
    def eta(self) -> Tensor:
        """Correlations of the variables kept, after the constant's: (r + 1,)."""
        found = self.model.canonical.correlation
        return torch.cat([found.new_ones(1), found])

    @property
    def gap(self) -> Tensor:
        """Differences of squared correlations, kept less left out, (r, q)."""
        return (self.eta[1:, None].square() - self.rest.square()).clamp(min=TIED)

    def lefts(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows of the first view: 1 and u, (n, r + 1), and the others, (n, k' - r)."""
        c = self.model.canonical
        return _variables(self.model.pair.left(rows).double() - c.left_mean, c.left, self.left)

    def rights(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Of rows of the second view: 1 and v, (n, r + 1), and the others, (n, l' - r)."""
        c = self.model.canonical
        return _variables(self.model.pair.right(rows).double() - c.right_mean, c.right, self.right)


def _same(first: Tensor, second: Tensor) -> None:
    eye = torch.eye(len(second), dtype=second.dtype, device=second.device)
    if len(first) and max(float(first.abs().max()), float((second - eye).abs().max())) > STRANGE:
        raise ValueError(
            "the canonical variables were not solved on these rows: give the rows of the fit and its ridge, or solve "
            "again on the rows at hand"
        )


def _beyond(metric: Tensor, kept: Tensor) -> Tensor:
    """Directions of unit variance that are uncorrelated with those kept, (k, k' - r), for a covariance (k, k)."""
    size = metric.diagonal().clamp(min=0.0).sqrt()
    unit = torch.where(size > 1e-12 * size.max(), 1.0 / size.clamp(min=1e-300), 0.0)
    scaled, known = unit[:, None] * metric * unit, kept * size[:, None]
    image = scaled @ known
    values, vectors = torch.linalg.eigh(scaled - image @ image.mT)
    real = (values > NULL_DIRECTION * len(values)) & (
        torch.arange(len(values)).to(values.device) >= kept.shape[1]
    )
    found = vectors[:, real] / values[real].sqrt()
    return unit[:, None] * (found - known @ (image.mT @ found))


def _variables(found: Tensor, kept: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
    both = product(found, torch.cat([found.new_zeros(len(kept), 1), kept, rest], 1))
    both[:, 0] = 1.0
    r = kept.shape[1] + 1
    return both[:, :r], both[:, r:]


@dataclass(frozen=True)
class Side(Tree):
    """What multiplies variables: a = v(y), or b = mean of u times a function, for m of them.

    Args:
        kept: (m, r + 1).
        rest: (m, ...), of those left out.
    """

    kept: Tensor
    rest: Tensor

    def __getitem__(self, index: slice | Tensor) -> Side:
        return Side(self.kept[index], self.rest[index])

    def __len__(self) -> int:
        return len(self.kept)


@dataclass(frozen=True)
class Tile:
    """Some rows as variables.

    Args:
        basis: of the variables.
        share: of each row in the whole, (n,).
        u: (n, r + 1), and ``ux`` those left out.
        v: (n, r + 1), and ``vx`` those left out.
        value: functions of them, (n, p).
    """

    basis: Basis
    share: Tensor
    u: Tensor
    ux: Tensor
    v: Tensor
    vx: Tensor
    value: Tensor

    def cut(self, size: int) -> Iterator[Tile]:
        """Blocks of at most so many rows."""
        for i in range(0, len(self.share), size):
            parts = (self.share, self.u, self.ux, self.v, self.vx, self.value)
            yield Tile(self.basis, *(part[i : i + size] for part in parts))

    def coefficients(self) -> Side:
        """Sums of share times variable times value: b of each column, to be added over tiles."""
        heavy = self.value * self.share[:, None]
        return Side(product(heavy.mT, self.u), product(heavy.mT, self.ux))

    def factors(self, a: Side, b: Side) -> list[tuple[Tensor, Tensor]]:
        """Pairs (n, m) and (n, p) whose products add up to the influence, but for the turn."""
        eta = self.basis.eta
        weight = product(self.u, (a.kept * eta).mT)
        kernel, beyond = product(self.v, a.kept.mT), product(self.vx, a.rest.mT)
        kept, rest = product(self.u, b.kept.mT), product(self.ux, b.rest.mT)
        swing = kept - product(self.v, (b.kept * eta).mT)
        first = (weight, self.value - kept - rest)
        if self.ux.shape[1] == 0:
            return [first, (kernel + beyond, swing)]
        if self.vx.shape[1] == 0:
            return [first, (kernel, swing + rest)]
        return [first, (kernel, swing + rest), (beyond, swing)]

    def turns(self, a: Side, b: Side) -> tuple[Tensor, Tensor]:
        """Of the kept variables towards those left out: (n, r, m) to multiply b, (n, r, p) to multiply a."""
        eta, rest, gap = self.basis.eta[1:, None], self.basis.rest, self.basis.gap
        q, u, v = len(rest), self.u[:, 1:], self.v[:, 1:]
        ux, vx = self.ux[:, :q], self.vx[:, :q]
        s, t = (u - v * eta[:, 0])[:, :, None], (v - u * eta[:, 0])[:, :, None]
        near, far = rest.square() / gap, eta * rest / gap
        of_a, of_b = a.rest[:, :q].mT, b.rest[:, :q].mT
        one = (vx[:, None] * near * s + ux[:, None] * far * t) @ of_a
        return one, (ux[:, None] * near * t + vx[:, None] * far * s) @ of_b


def crossed(tile: Tile, a: Side, b: Side) -> Tensor:
    """Influence of each row on every pair of a given point and a function, (n, m, p)."""
    found = sum(x[:, :, None] * y[:, None, :] for x, y in tile.factors(a, b))
    if len(tile.basis.rest):
        of_a, of_b = tile.turns(a, b)
        found = found + of_a.mT @ b.kept[:, 1:].mT + a.kept[:, 1:] @ of_b
    return torch.as_tensor(found)


def matched(tile: Tile, a: Side, b: Side) -> Tensor:
    """Influence of each row where function i goes with given point i, (n, m)."""
    found = sum(x * y for x, y in tile.factors(a, b))
    if len(tile.basis.rest):
        of_a, of_b = tile.turns(a, b)
        found = found + (of_a * b.kept[:, 1:].mT).sum(1) + (of_b * a.kept[:, 1:].mT).sum(1)
    return torch.as_tensor(found)
