r"""Canonical variables: the singular value decomposition of the joint distribution of two views.

.. math:: p(x, y) = p(x) \, p(y) \left( 1 + \sum_{i \ge 1} \eta_i u_i(x) v_i(y) \right), \qquad
    \overline{u_i u_j} = \overline{v_i v_j} = \delta_{ij}, \; \overline{u_i v_j} = \eta_i \delta_{ij}

Lancaster (1958); Learning relevant features for statistical inference, eq. 1. The sum starts at the constant
:math:`u_0 = v_0 = 1, \eta_0 = 1`, which is kept apart here: K, L and A are covariances of features, and
:math:`\eta_i` are canonical correlations. The relevance of a variable is the square :math:`\eta_i^2`.

Moments of features are summed over the rows, features are whitened by their covariance, and the variables are the
singular vectors of the cross-covariance of the whitened features. A covariance holds the square of a direction's size:
a direction of relative size :math:`\sigma` is known from it to :math:`10^{-16}/\sigma^2`, from the rows to
:math:`10^{-16}/\sigma`. Directions below :math:`\sigma = 10^{-3}` are therefore measured again on the rows, and if they
exceed rounding error, the features are whitened once, their moments summed again, and the result is whitened again:
QR by two Cholesky factorisations (Yamamoto et al., 2015) with the weak directions split off, so that a singular view
does no harm. Its sums add over tiles, as those of Householder's QR do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.data import FIRST_ROWS, summarise_moments
from boxloop.numeric import column_signs, mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.views import FiniteView, LinearView, View, ViewPair
from boxloop.types import Source

CANCELLED = 1e-13
"""A variance below this part of the squared mean is what rounding leaves of a difference."""

ROUNDED = 16.0
"""Units in the last place of a mean by which a feature that is computed from constants may vary."""

NULL = 1e-12
"""Eigenvalue of a matrix with unit diagonal, relative to its largest, below which a direction counts as null."""

WEAK = 1e-6
"""Variance of a direction, in units in which each feature's is 1, below which covariances are not precise enough."""

COARSE = 1e-5
"""Variance below which a direction is rounding error where products are in float32."""

KNOWN = 512.0
"""Smallest size of a weak direction relative to rounding error: features then give it to about four digits."""

REPEATED = 0.1
"""Variance of a combination of whitened features, relative to the largest, below which two directions are one."""

SLIGHT = 1e-9
"""Coefficients of a null direction, relative to its largest, that are rounding error."""


@dataclass(frozen=True)
class MomentSums(Tree):
    """Sums over rows of features and of their products: all that canonical variables need of the data.

    Args:
        weight: sum of the weights of the rows.
        first: sums of [f g], (k + l,).
        second: sums of [f g] [f g]', (k + l, k + l), right in the upper triangle.
    """

    weight: Tensor
    first: Tensor
    second: Tensor

    @classmethod
    def of(cls, pair: ViewPair, rows: Tensor, weight: Tensor) -> Self:
        """Of a tile of rows that hold both views."""
        return cls.of_features(torch.cat([part.double() for part in pair(rows)], 1), weight)

    @classmethod
    def of_features(cls, features: Tensor, weight: Tensor, dtype: torch.dtype = torch.float64) -> Self:
        """Of the features [f g] of a tile, (n, k + l) in float64, with products of two features in ``dtype``."""
        mass = weight.double()
        second = upper_gram(features.to(dtype), mass.to(dtype)).double()
        return cls(mass.sum(), product(mass[None], features)[0], second)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Means (k + l,) and covariances (k + l, k + l) of features."""
        mean = self.first / self.weight
        return mean, mirrored(self.second) / self.weight - mean[:, None] * mean


@dataclass(frozen=True)
class CentredFeatures:
    """The features of both views about a rough origin; where both views are linear, the centred columns themselves."""

    pair: ViewPair
    origin: Tensor  # (k + l,)
    scale: Tensor | None  # (k + l,), or None for ones
    linear: bool  # both views

    def __call__(self, rows: Tensor, indices: Tensor | None = None) -> Tensor:
        """(n, d) -> (n, k + l), in float64; or only the features with these indices."""
        features = rows if self.linear else torch.cat([part.double() for part in self.pair(rows)], 1)
        on: Tensor | slice = slice(None) if indices is None else indices
        centred = features[:, on] - self.origin[on]
        return centred if self.scale is None else centred.div_(self.scale[on])

    def to_feature_units(self, mean: Tensor) -> tuple[Tensor, Tensor]:
        """Means of features from centred means, and the factor from centred coefficients to those of features."""
        one = torch.ones_like(mean) if self.scale is None else self.scale
        if not self.linear:
            return self.origin + one * mean, 1.0 / one
        views = self.pair.left, self.pair.right
        origin = torch.cat([view.origin.double() for view in views if isinstance(view, LinearView)])
        scale = torch.cat([view.scale.double() for view in views if isinstance(view, LinearView)])
        return (self.origin - origin + one * mean) / scale, scale / one


@dataclass(frozen=True)
class FeatureMoments:
    """Means and covariances of the centred features of two views."""

    mean: Tensor  # (k + l,)
    covariance: Tensor  # (k + l, k + l)
    distance: Tensor  # of the means from zero in the features' coordinates: what rounding is relative to
    precision: float = torch.finfo(torch.float64).eps  # smallest relative difference that a feature resolves

    @property
    def deviation(self) -> Tensor:
        """Standard deviations, (k + l,); 0 for a feature that varies by rounding error alone."""
        variance = self.covariance.diagonal()
        floor = CANCELLED * self.mean.square() + (ROUNDED * self.precision * self.distance).square()
        return torch.where(variance > floor, variance, 0.0).sqrt()

    @property
    def rounding_error(self) -> float:
        """Standard deviation that rounding gives a feature, relative to its own: the largest of all features."""
        size = self.deviation
        lost = torch.where(size > 0.0, self.distance / size.clamp(min=1e-300), 0.0)
        return ROUNDED * self.precision * (1.0 + float(lost.max()))


def measure_moments(
    pair: ViewPair, source: Source, dtype: torch.dtype = torch.float64
) -> tuple[CentredFeatures, FeatureMoments]:
    """Moments of features by one pass over the rows, products in ``dtype``.

    The columns of linear views are multiplied as they are, and their moments mapped to standard units afterwards.
    """
    linear = isinstance(pair.left, LinearView) and isinstance(pair.right, LinearView)
    head, _ = next(iter(source.chunks(FIRST_ROWS)))
    parts = pair(head)
    kinds = [part.dtype for part in (head, *parts) if part.is_floating_point()]
    precision = max(torch.finfo(kind).eps for kind in kinds)
    summary = summarise_moments(source, dtype) if linear else None
    if summary is not None:
        scale = None if bool((summary.scale == 1.0).all()) else summary.scale
        distance = (summary.origin / summary.scale + summary.mean).abs()
        moments = FeatureMoments(summary.mean, summary.covariance, distance, precision)
        return CentredFeatures(pair, summary.origin, scale, linear), moments
    first = torch.cat([part.double() for part in parts], 1)
    origin, deviation = first.mean(0), first.std(0, correction=0)
    scale = None if dtype == torch.float64 else torch.where(deviation > 1e-13 * origin.abs(), deviation, 1.0)
    centred = CentredFeatures(pair, origin, scale, False)
    sums = source.reduce(lambda rows, weight: MomentSums.of_features(centred(rows), weight, dtype))
    mean, covariance = sums.moments()
    far = origin if scale is None else origin / scale
    return centred, FeatureMoments(mean, covariance, (far + mean).abs(), precision)


@dataclass(frozen=True)
class WhiteningBasis:
    """Combinations of the features of one view: whitening ones, and ones of too small a variance."""

    strong: Tensor  # R, (k, r)
    weak: Tensor  # (k, q), of unit length in units of the features
    rounding: float = 0.0  # variance that rounding of K may give a weak direction, on the rows


def whiten_covariance(covariance: Tensor, deviation: Tensor, ridge: float, limit: float) -> WhiteningBasis:
    """Whiten features by their covariance K, (k, k); a feature of deviation 0 is left out."""
    varying = torch.nonzero(deviation > 0.0)[:, 0]
    unit = 1.0 / deviation[varying]
    scaled = unit[:, None] * covariance[varying][:, varying] * unit
    eye = torch.eye(len(varying), dtype=scaled.dtype, device=scaled.device)
    if ridge > 0.0:
        scaled = scaled + ridge * eye
    factor, failed = torch.linalg.cholesky_ex(scaled)
    strong, weak, rounding = eye, eye[:, :0], 0.0
    if not bool(failed):
        strong = torch.linalg.solve_triangular(factor, eye, upper=False).mT
    if bool(failed) or not bool(strong.square().sum() * limit < 1.0):  # the sum of inverse eigenvalues
        values, vectors = torch.linalg.eigh(scaled)
        fine = values > limit * values[-1]
        strong, weak = vectors[:, fine] / values[fine].sqrt(), vectors[:, ~fine]
        rounded = ROUNDED * torch.finfo(scaled.dtype).eps * float(values[-1])
        rounding = rounded**2 / float(values[fine].min()) if bool(fine.any()) else 0.0
    basis = covariance.new_zeros(len(deviation), strong.shape[1] + weak.shape[1])
    basis[varying] = unit[:, None] * torch.cat([strong, weak], 1)
    return WhiteningBasis(basis[:, : strong.shape[1]], basis[:, strong.shape[1] :], rounding)


def whiten_views(
    moments: FeatureMoments, columns: int, ridge: float = 0.0, limit: float = NULL
) -> tuple[WhiteningBasis, WhiteningBasis]:
    """Whiten the features of both views, which must be finite; see :func:`whiten_covariance`."""
    if not bool(torch.isfinite(moments.covariance).all()):
        lost = torch.nonzero(~torch.isfinite(moments.covariance.diagonal()))[:, 0].tolist()
        where = [
            f"{j} of the first view" if j < columns else f"{j - columns} of the second view" for j in lost[:5]
        ]
        raise ValueError(
            f"feature {', '.join(where)} is missing, infinite or too large for its square in some row"
        )
    parts, deviation = (slice(columns), slice(columns, None)), moments.deviation
    left, right = (whiten_covariance(moments.covariance[on, on], deviation[on], ridge, limit) for on in parts)
    return left, right


def _whiten_weak_directions(
    source: Source,
    centred: CentredFeatures,
    moments: FeatureMoments,
    bases: tuple[WhiteningBasis, WhiteningBasis],
    columns: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Whiten with those weak directions that the rows confirm: matrices (k, r), (l, s), and the covariance, (r, s)."""
    roots = _measure_weak_directions(source, centred, moments, bases)
    if all(root is basis.strong for root, basis in zip(roots, bases, strict=True)):
        left, right = roots
        return left, right, left.mT @ moments.covariance[:columns, columns:] @ right

    def sum_whitened(rows: Tensor, weight: Tensor) -> MomentSums:
        features = centred(rows).sub_(moments.mean)
        parts = features[:, :columns], features[:, columns:]
        white = [product(part, root) for part, root in zip(parts, roots, strict=True)]
        return MomentSums.of_features(torch.cat(white, 1), weight)

    _, covariance = source.reduce(sum_whitened).moments()
    r, size = roots[0].shape[1], covariance.diagonal().clamp(min=0.0).sqrt()
    turns = [
        whiten_covariance(covariance[on, on], size[on], 0.0, REPEATED).strong
        for on in (slice(r), slice(r, None))
    ]
    cross = turns[0].mT @ covariance[:r, r:] @ turns[1]
    return roots[0] @ turns[0], roots[1] @ turns[1], cross


def _measure_weak_directions(
    source: Source,
    centred: CentredFeatures,
    moments: FeatureMoments,
    bases: tuple[WhiteningBasis, WhiteningBasis],
) -> tuple[Tensor, Tensor]:
    """Strong directions, and of the weak ones those that vary by more than rounding error."""
    weak = torch.block_diag(*(basis.weak for basis in bases))
    length = (weak * moments.deviation[:, None]).abs()
    few = torch.nonzero((length > SLIGHT * length.amax(0)).any(1))[:, 0]  # columns that repeat others, say
    roots = bases[0].strong, bases[1].strong
    for indices in (few, None) if len(few) < len(weak) else (None,):

        def sum_weak(rows: Tensor, weight: Tensor, indices: Tensor | None = indices) -> MomentSums:
            on: Tensor | slice = slice(None) if indices is None else indices
            features, mass = centred(rows, indices).sub_(moments.mean[on]), weight.double()
            return MomentSums(mass.sum(), mass.new_zeros(0), upper_gram(product(features, weak[on]), mass))

        sums = source.reduce(sum_weak)
        split, extended = bases[0].weak.shape[1], []
        for basis, on in zip(bases, (slice(split), slice(split, None)), strict=True):
            values, vectors = torch.linalg.eigh(mirrored(sums.second)[on, on] / sums.weight)
            real = values > max(basis.rounding, (KNOWN * moments.rounding_error) ** 2)
            more = basis.weak @ (vectors[:, real] / values[real].sqrt())
            extended.append(torch.cat([basis.strong, more], 1) if bool(real.any()) else basis.strong)
        if all(a is b for a, b in zip(extended, roots, strict=True)):
            return roots
    return extended[0], extended[1]


@dataclass(frozen=True)
class CanonicalVariables(Tree):
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
    def solve(cls, sums: MomentSums, columns: int, most: int, ridge: float = 0.0) -> Self:
        r"""The most relevant variables in the span of the features.

        With :math:`K = W_x W_x^\top` and :math:`L = W_y W_y^\top` (Cholesky, or eigenvectors without the null ones
        where singular), :math:`W_y^{-1} A W_x^{-\top} = V \eta U^\top` gives :math:`B_x = W_x^{-\top} U`.

        Args:
            sums: over rows.
            columns: k, features of the first view.
            most: largest number of variables; fewer are returned where the features have a smaller rank.
            ridge: added to each feature's variance, relative to it.
        """
        mean, covariance = sums.moments()
        moments = FeatureMoments(mean, covariance, mean.abs())
        left, right = (basis.strong for basis in whiten_views(moments, columns, ridge))
        cross = left.mT @ covariance[:columns, columns:] @ right
        return cls.from_cross_covariance(mean, left, right, cross, most)

    @classmethod
    def from_cross_covariance(
        cls, mean: Tensor, left: Tensor, right: Tensor, cross: Tensor, most: int
    ) -> Self:
        """The most correlated combinations of whitened features, from their cross-covariance (r, s)."""
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
def solve_canonical_variables(
    pair: ViewPair, source: Source, most: int, ridge: float = 0.0, dtype: torch.dtype = torch.float64
) -> tuple[CanonicalVariables, CentredFeatures, FeatureMoments]:
    """Canonical variables of features, and the moments that they follow from; see :meth:`RelevanceModel.solve`."""
    k = pair.left.n_features
    centred, moments = measure_moments(pair, source, dtype)
    rounding = moments.rounding_error**2
    fine = dtype == torch.float64 and ridge == 0.0 and rounding < NULL
    limit = WEAK if fine else max(NULL if dtype == torch.float64 else COARSE, rounding)
    bases = whiten_views(moments, k, ridge, limit)
    left, right = (basis.strong for basis in bases)
    if fine and any(basis.weak.shape[1] for basis in bases):
        left, right, cross = _whiten_weak_directions(source, centred, moments, bases, k)
    else:
        cross = left.mT @ moments.covariance[:k, k:] @ right
    mean, factor = centred.to_feature_units(moments.mean)
    variables = CanonicalVariables.from_cross_covariance(
        mean, factor[:k, None] * left, factor[k:, None] * right, cross, most
    )
    return variables, centred, moments


@dataclass(frozen=True)
class RelevanceModel(Tree):
    """Two views with their canonical variables: a representation of the distribution of one given the other.

    Args:
        pair: features of both.
        canonical: variables in their span.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.twoview import LinearView
        >>> x = torch.randn(500, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> rows = torch.cat([x, 3.0 - 2.0 * x], 1)
        >>> linear = LinearView(torch.zeros(1).double(), torch.ones(1).double())
        >>> model = RelevanceModel.solve(ViewPair(linear, linear), ArraySource(rows), most=1)
        >>> round(float(model.canonical.correlation[0]), 6)
        1.0
    """

    pair: ViewPair
    canonical: CanonicalVariables

    @classmethod
    def solve(
        cls,
        pair: ViewPair,
        source: Source,
        most: int,
        ridge: float = 0.0,
        dtype: torch.dtype = torch.float64,
    ) -> Self:
        r"""Canonical variables of features on all rows: one pass, or up to four where features are nearly collinear.

        From covariances in float64 correlations are known to about 1e-9. Where a direction of unit length, in units in
        which each feature's variance is 1, has a variance below 1e-6, a second pass measures it on the rows; if it
        exceeds rounding error, a third takes moments of the whitened features: see the head of this module.

        Args:
            pair: the features, which stay as they are.
            source: rows that hold both views.
            most: largest number of variables.
            ridge: added to each feature's variance, relative to it.
            dtype: of products of two features; their sums are in float64. With float32, twice as quick, directions of a
                variance below 1e-5 are left out, and one of variance :math:`\lambda` is known to about
                :math:`10^{-7}/\lambda`.
        """
        return cls(pair, solve_canonical_variables(pair, source, most, ridge, dtype)[0])

    def left(self, rows: Tensor) -> Tensor:
        """u of rows of the first view, (n, r)."""
        centred = self.pair.left(rows).double() - self.canonical.left_mean
        return product(centred, self.canonical.left)

    def right(self, rows: Tensor) -> Tensor:
        """v of rows of the second view, (n, r)."""
        centred = self.pair.right(rows).double() - self.canonical.right_mean
        return product(centred, self.canonical.right)

    def both(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """u and v of rows that hold both views."""
        x, y = self.pair.split_rows(rows)
        return self.left(x), self.right(y)

    def swap_views(self) -> RelevanceModel:
        """The same model with the views exchanged; rows must hold them in the other order."""
        c = self.canonical
        swapped = CanonicalVariables(c.right_mean, c.left_mean, c.right, c.left, c.correlation)
        return RelevanceModel(ViewPair(self.pair.right, self.pair.left), swapped)


@dataclass(frozen=True)
class RelevanceFit(Tree):
    r"""A model with the means of each view's columns under its canonical variables.

    .. math:: E[y \mid x] \approx \sum_{i \ge 0} \eta_i \, u_i(x) \; \overline{v_i y}

    Learning relevant features for statistical inference, eq. 9 and 10, for the columns themselves; a finite view counts
    as the indicators of its values.

    Args:
        model: the canonical variables.
        left: mean of [1 u(x)]' x, (1 + r, d_x).
        right: mean of [1 v(y)]' y, (1 + r, d_y).
    """

    model: RelevanceModel
    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, model: RelevanceModel, source: Source) -> Self:
        """The means over all rows, in one pass."""

        def sum_columns(rows: Tensor, weight: Tensor) -> _ColumnSums:
            x, y = model.pair.split_rows(rows)
            mass = weight.double()
            left, right = (prepend_constant(part) * mass[:, None] for part in (model.left(x), model.right(y)))
            x, y = to_columns_or_indicators(model.pair.left, x), to_columns_or_indicators(model.pair.right, y)
            return _ColumnSums(mass.sum(), product(left.mT, x), product(right.mT, y))

        with torch.no_grad():
            total = source.reduce(sum_columns)
        return cls(model, total.left / total.weight, total.right / total.weight)

    def infer_right(self, rows: Tensor) -> Tensor:
        """E[y | x] of rows of the first view, (n, d_y)."""
        return prepend_constant(self.model.left(rows) * self.model.canonical.correlation) @ self.right

    def infer_left(self, rows: Tensor) -> Tensor:
        """E[x | y] of rows of the second view, (n, d_x)."""
        return prepend_constant(self.model.right(rows) * self.model.canonical.correlation) @ self.left


@dataclass(frozen=True)
class _ColumnSums(Tree):
    weight: Tensor
    left: Tensor
    right: Tensor


def prepend_constant(variables: Tensor) -> Tensor:
    """Variables after the constant 1, (n, 1 + r)."""
    return torch.cat([variables.new_ones(len(variables), 1), variables], 1)


def to_columns_or_indicators(view: View, rows: Tensor) -> Tensor:
    """The columns of a view in float64; of a finite view, the indicators of its values."""
    return (view(rows) if isinstance(view, FiniteView) else rows).double()
