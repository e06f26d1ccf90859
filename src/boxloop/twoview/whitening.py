r"""Orthonormal combinations of features, from covariances and, where these lose too many digits, from the rows again.

Covariances hold the square of a direction's size, so a direction of relative size :math:`\sigma` is known from them to
:math:`10^{-16}/\sigma^2`, from the rows to :math:`10^{-16}/\sigma`. Hence a second look at those below
:math:`\sigma = 10^{-3}`: their size on the rows, and, if that is more than rounding, moments of the features whitened
once, which are whitened again. This is QR by two Cholesky factorisations (Yamamoto et al., 2015) with the weak
directions split off, so that a singular view does no harm; its sums add over tiles, as those of Householder's do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.numeric import mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.moments import Moments, Products, Sight
from boxloop.twoview.objective import NULL
from boxloop.types import Source

WEAK = 1e-6
"""Variance of a direction, in units in which each feature's is 1, below which covariances are not enough."""

COARSE = 1e-5
"""Variance below which a direction is rounding, where products are in float32."""

FINEST = 1e-25
"""Variance below which a direction is rounding, whatever it is computed from."""


@dataclass(frozen=True)
class Directions:
    r"""Combinations of the features of one view.

    Args:
        strong: R, (k, r), with :math:`R^\top K R = I`.
        weak: (k, q), of unit length, with variances too small to be trusted.
    """

    strong: Tensor
    weak: Tensor


def directions(covariance: Tensor, size: Tensor, ridge: float, limit: float) -> Directions:
    """Whiten features by their covariance.

    Args:
        covariance: K, (k, k).
        size: their standard deviations, (k,); 0 leaves a feature out.
        ridge: added to each variance, relative to it.
        limit: variance of a weak direction, beside that of the largest.
    """
    kept = torch.nonzero(size > 0.0)[:, 0]
    unit = 1.0 / size[kept]
    scaled = unit[:, None] * covariance[kept][:, kept] * unit
    eye = torch.eye(len(kept), dtype=scaled.dtype, device=scaled.device)
    if ridge > 0.0:
        scaled = scaled + ridge * eye
    factor, failed = torch.linalg.cholesky_ex(scaled)
    strong, weak = eye, eye[:, :0]
    if not bool(failed):
        strong = torch.linalg.solve_triangular(factor, eye, upper=False).mT
    if bool(failed) or not bool(strong.square().sum() * limit < 1.0):  # the sum of inverse eigenvalues
        values, vectors = torch.linalg.eigh(scaled)
        fine = values > limit * values[-1]
        strong, weak = vectors[:, fine] / values[fine].sqrt(), vectors[:, ~fine]
    found = covariance.new_zeros(len(size), strong.shape[1] + weak.shape[1])
    found[kept] = unit[:, None] * torch.cat([strong, weak], 1)
    return Directions(found[:, : strong.shape[1]], found[:, strong.shape[1] :])


def whitened(
    moments: Moments, columns: int, ridge: float = 0.0, limit: float = NULL
) -> tuple[Directions, Directions]:
    """Directions of both views; see :func:`directions`."""
    parts = slice(columns), slice(columns, None)
    size = moments.size
    left, right = (directions(moments.covariance[on, on], size[on], ridge, limit) for on in parts)
    return left, right


@dataclass(frozen=True)
class _Weak(Tree):
    weight: Tensor
    left: Tensor
    right: Tensor


def looked_again(
    source: Source, sight: Sight, moments: Moments, found: tuple[Directions, Directions], columns: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Whiten with the weak directions that are there, seen on the rows.

    Args:
        source: rows that hold both views.
        sight: what was seen of them.
        moments: of that.
        found: directions of both views.
        columns: k, features of the first.

    Returns:
        Whitening matrices (k, r) and (l, s), and the covariance of what they make, (r, s).
    """
    roots = _present(source, sight, moments, found, columns)
    if all(root is one.strong for root, one in zip(roots, found, strict=True)):
        left, right = roots
        return left, right, left.mT @ moments.covariance[:columns, columns:] @ right

    def products(rows: Tensor, weight: Tensor) -> Products:
        apart = sight(rows) - moments.mean
        made = [product(part, root) for part, root in zip((apart[:, :columns], apart[:, columns:]), roots)]
        return Products.of_features(torch.cat(made, 1), weight)

    again = Moments.of(source.reduce(products))
    r = roots[0].shape[1]
    size = again.covariance.diagonal().clamp(min=0.0).sqrt()
    turns = [
        directions(again.covariance[on, on], size[on], 0.0, NULL).strong for on in (slice(r), slice(r, None))
    ]
    cross = turns[0].mT @ again.covariance[:r, r:] @ turns[1]
    return roots[0] @ turns[0], roots[1] @ turns[1], cross


def _present(
    source: Source, sight: Sight, moments: Moments, found: tuple[Directions, Directions], columns: int
) -> tuple[Tensor, Tensor]:
    """Strong directions, and of the weak ones those that vary by more than rounding."""

    def weak(rows: Tensor, weight: Tensor) -> _Weak:
        apart = sight(rows) - moments.mean
        mass = weight.double()
        made = product(apart[:, :columns], found[0].weak), product(apart[:, columns:], found[1].weak)
        left, right = (upper_gram(z, mass) if z.shape[1] else z.new_zeros(0, 0) for z in made)
        return _Weak(mass.sum(), left, right)

    sums = source.reduce(weak)
    null = max(FINEST, moments.noise**2)
    roots = []
    for one, second in zip(found, (sums.left, sums.right), strict=True):
        values, vectors = torch.linalg.eigh(mirrored(second) / sums.weight)
        real = values > null
        more = one.weak @ (vectors[:, real] / values[real].sqrt())
        roots.append(torch.cat([one.strong, more], 1) if bool(real.any()) else one.strong)
    return roots[0], roots[1]
