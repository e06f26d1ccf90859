r"""Canonical variables: the singular value decomposition of a channel, from averages of products of features.

.. math:: p(x, y) = p(x) \, p(y) \left( 1 + \sum_{i \ge 1} \eta_i u_i(x) v_i(y) \right), \qquad
    \overline{u_i u_j} = \overline{v_i v_j} = \delta_{ij}, \; \overline{u_i v_j} = \eta_i \delta_{ij}

Lancaster (1958); document 003, eq. 1. The sum starts at the constant :math:`u_0 = v_0 = 1, \eta_0 = 1`, which is kept
apart here: K, L and A are covariances of features, and :math:`\eta_i` are canonical correlations. The relevance of a
variable is the square :math:`\eta_i^2`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.numeric import mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.objective import NULL, SINGULAR
from boxloop.twoview.views import ViewPair
from boxloop.types import Source


@dataclass(frozen=True)
class Products(Tree):
    """Sums over rows of products of features: all that canonical variables need of the data.

    Args:
        weight: of the rows.
        first: sums of [f g], (k + l,).
        second: sums of [f g] [f g]', (k + l, k + l), right in the upper triangle.
    """

    weight: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, pair: ViewPair, rows: Tensor, weight: Tensor) -> Self:
        """Of a tile of rows that hold both views."""
        left, right = pair(rows)
        both = torch.cat([left.double(), right.double()], 1)
        mass = weight.double()
        return cls(mass.sum(), product(mass[None], both)[0], upper_gram(both, mass))

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means (k + l,) and covariances (k + l, k + l) of features."""
        mean = self.first / self.weight
        return mean, mirrored(self.second) / self.weight - mean[:, None] * mean


@dataclass(frozen=True)
class Canonical(Tree):
    r"""Canonical variables as linear functions of features, most relevant first, without the constant.

    .. math:: u(x) = B_x^\top (f(x) - \bar f), \qquad v(y) = B_y^\top (g(y) - \bar g)

    Args:
        left_mean: mean of f, (k,).
        right_mean: mean of g, (l,).
        left: B_x, (k, r).
        right: B_y, (l, r).
        correlation: eta, (r,), from 1 down to 0.
    """

    left_mean: Tensor
    right_mean: Tensor
    left: Tensor
    right: Tensor
    correlation: Tensor

    @classmethod
    def solve(cls, products: Products, columns: int, most: int, ridge: float = 0.0) -> Self:
        r"""The most relevant variables in the span of the features.

        With :math:`K = W_x W_x^\top` and :math:`L = W_y W_y^\top` (Cholesky, or eigenvectors without the null ones
        where singular), :math:`W_y^{-1} A W_x^{-\top} = V \eta U^\top` gives :math:`B_x = W_x^{-\top} U`.

        Args:
            products: sums over rows.
            columns: k, features of the first view.
            most: variables to keep, at most; fewer where the features have a smaller rank.
            ridge: added to each feature's variance, relative to it.
        """
        mean, moment = products.moments()
        root, other = (whitener(moment[part, part], ridge) for part in (slice(columns), slice(columns, None)))
        cross = root.mT @ moment[:columns, columns:] @ other
        u, correlation, vt = torch.linalg.svd(cross, full_matrices=False)
        r = min(most, correlation.shape[0])
        left, right = root @ u[:, :r], other @ vt[:r].mT
        largest = left.gather(0, left.abs().argmax(0, keepdim=True))  # a sign that repeats
        sign = torch.where(largest < 0.0, -1.0, 1.0)
        return cls(mean[:columns], mean[columns:], left * sign, right * sign, correlation[:r].clamp(0.0, 1.0))

    @property
    def relevance(self) -> Tensor:
        """Squared canonical correlations, (r,)."""
        return self.correlation.square()


def whitener(matrix: Tensor, ridge: float = 0.0) -> Tensor:
    r"""R, (k, r), such that :math:`R^\top K R = I`, without directions in which features do not vary.

    Args:
        matrix: K, (k, k), a covariance.
        ridge: added to each variance, relative to it.
    """
    size = matrix.diagonal().clamp(min=0.0).sqrt()
    floor = NULL * size.max().clamp(min=1e-300)  # constant features, but for rounding
    unit = torch.where(size > floor, 1.0 / size.clamp(min=1e-300), 0.0)
    scaled = unit[:, None] * matrix * unit
    if ridge > 0.0:
        scaled = (scaled + ridge * torch.eye(len(scaled)).to(scaled)) * (unit > 0.0).to(scaled)
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if not bool(failed) and bool(factor.diagonal().square().min() > SINGULAR):
        eye = torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
        root = torch.linalg.solve_triangular(factor, eye, upper=False).mT
    else:
        values, vectors = torch.linalg.eigh(scaled)
        kept = values > NULL * values[-1].clamp(min=1e-300)
        root = vectors[:, kept] / values[kept].sqrt()
    return unit[:, None] * root


@dataclass(frozen=True)
class RelevanceModel(Tree):
    """Two views with their canonical variables: a representation of the law of one given the other.

    Args:
        pair: features of both.
        canonical: variables in their span.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview.views import LinearView
        >>> x = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> rows = torch.cat([x, 3.0 - 2.0 * x], 1)
        >>> still = LinearView(torch.zeros(1).double(), torch.ones(1).double())
        >>> model = RelevanceModel.solve(ViewPair(still, still), ArraySource(rows), most=1)
        >>> round(float(model.canonical.correlation[0]), 6)
        1.0
    """

    pair: ViewPair
    canonical: Canonical

    @classmethod
    def solve(cls, pair: ViewPair, source: Source, most: int, ridge: float = 0.0) -> Self:
        """Canonical variables of features on all rows, in one pass.

        Args:
            pair: the features, which stay as they are.
            source: rows that hold both views.
            most: variables to keep.
            ridge: added to each feature's variance, relative to it.
        """
        with torch.no_grad():
            products = source.reduce(lambda rows, weight: Products.of(pair, rows, weight))
            return cls(pair, Canonical.solve(products, pair.left.n_features, most, ridge))

    def left(self, rows: Tensor) -> Tensor:
        """u of rows of the first view, (n, r)."""
        found = self.pair.left(rows).double() - self.canonical.left_mean
        return product(found, self.canonical.left)

    def right(self, rows: Tensor) -> Tensor:
        """v of rows of the second view, (n, r)."""
        found = self.pair.right(rows).double() - self.canonical.right_mean
        return product(found, self.canonical.right)

    def both(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """u and v of rows that hold both views."""
        x, y = self.pair.parts(rows)
        return self.left(x), self.right(y)

    def swapped(self) -> RelevanceModel:
        """The same with the views exchanged; rows must hold them in the other order."""
        c = self.canonical
        turned = Canonical(c.right_mean, c.left_mean, c.right, c.left, c.correlation)
        return RelevanceModel(ViewPair(self.pair.right, self.pair.left), turned)
