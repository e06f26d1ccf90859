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

from boxloop.numeric import column_signs, product
from boxloop.tree import Tree
from boxloop.twoview.moments import Moments, Products, Sight, feature_moments
from boxloop.twoview.objective import NULL
from boxloop.twoview.views import ViewPair
from boxloop.twoview.whitening import COARSE, WEAK, looked_again, whitened
from boxloop.types import Source

__all__ = ["Canonical", "Products", "RelevanceModel", "canonical_variables"]


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
        moments = Moments.of(products)
        left, right = (one.strong for one in whitened(moments, columns, ridge))
        cross = left.mT @ moments.covariance[:columns, columns:] @ right
        return cls.between(moments.mean, left, right, cross, most)

    @classmethod
    def between(cls, mean: Tensor, left: Tensor, right: Tensor, cross: Tensor, most: int) -> Self:
        """The most correlated combinations of whitened features.

        Args:
            mean: of the features of both views, (k + l,).
            left: whitening matrix of the first, (k, r).
            right: of the second, (l, s).
            cross: covariance of whitened features, (r, s).
            most: variables to keep, at most.
        """
        u, correlation, vt = torch.linalg.svd(cross, full_matrices=False)
        r = min(most, correlation.shape[0])
        left, right = left @ u[:, :r], right @ vt[:r].mT
        sign, k = column_signs(left), len(left)
        return cls(mean[:k], mean[k:], left * sign, right * sign, correlation[:r].clamp(0.0, 1.0))

    @property
    def relevance(self) -> Tensor:
        """Squared canonical correlations, (r,)."""
        return self.correlation.square()


@torch.no_grad()
def canonical_variables(
    pair: ViewPair, source: Source, most: int, ridge: float = 0.0, dtype: torch.dtype = torch.float64
) -> tuple[Canonical, Sight, Moments]:
    """Canonical variables of features, and what a pass saw of them; see :meth:`RelevanceModel.solve`."""
    k = pair.left.n_features
    sight, moments = feature_moments(pair, source, dtype)
    fine = dtype == torch.float64 and ridge == 0.0 and moments.noise**2 < NULL
    limit = WEAK if fine else max(NULL if dtype == torch.float64 else COARSE, moments.noise**2)
    found = whitened(moments, k, ridge, limit)
    left, right = (one.strong for one in found)
    if fine and any(one.weak.shape[1] for one in found):
        left, right, cross = looked_again(source, sight, moments, found, k)
    else:
        cross = left.mT @ moments.covariance[:k, k:] @ right
    mean, factor = sight.back(moments.mean)
    made = Canonical.between(mean, factor[:k, None] * left, factor[k:, None] * right, cross, most)
    return made, sight, moments


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
    def solve(
        cls,
        pair: ViewPair,
        source: Source,
        most: int,
        ridge: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        r"""Canonical variables of features on all rows, in one pass, or more where features are nearly collinear.

        From covariances in float64 correlations are known to about 1e-9. Where a direction of unit length, in units in
        which each feature's variance is 1, has a variance below 1e-6, a second pass measures it on the rows; if it is
        more than rounding, a third takes moments of the features whitened once: see
        :mod:`boxloop.twoview.whitening`.

        Args:
            pair: the features, which stay as they are.
            source: rows that hold both views.
            most: variables to keep.
            ridge: added to each feature's variance, relative to it.
            dtype: of products of two features; their sums are in float64. With float32, twice as quick, directions of a
                variance below 1e-5 are left out, and one of variance :math:`\lambda` is known to about
                :math:`10^{-7}/\lambda`.
        """
        return cls(pair, canonical_variables(pair, source, most, ridge, dtype)[0])

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
