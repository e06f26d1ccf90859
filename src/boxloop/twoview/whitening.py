r"""Orthonormal combinations of features, from covariances and, where these lose too many digits, from the rows again.

Covariances hold the square of a direction's size, so a direction of relative size :math:`\sigma` is known from them to
:math:`10^{-16}/\sigma^2`, from the rows to :math:`10^{-16}/\sigma`. Hence a second look at those below
:math:`\sigma = 10^{-3}`: their size on the rows, and, if that is more than rounding, moments of the features whitened
once, which are whitened again. This is QR by two Cholesky factorisations (Yamamoto et al., 2015) with the weak
directions split off, so that a singular view does no harm; its sums add over tiles, as those of Householder's do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from boxloop.numeric import mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.twoview.moments import ROUNDED, Moments, Products, Sight
from boxloop.twoview.objective import NULL
from boxloop.types import Source

WEAK = 1e-6
"""Variance of a direction, in units in which each feature's is 1, below which covariances are not enough."""

COARSE = 1e-5
"""Variance below which a direction is rounding, where products are in float32."""

KNOWN = 512.0
"""Least size of a weak direction beside what rounding may be: features then give it to about four digits."""

TWICE = 0.1
"""Variance of a combination of whitened features, beside the largest, below which some are one direction seen twice."""

SLIGHT = 1e-9
"""Coefficients of a null direction, beside its largest, that are rounding."""


@dataclass(frozen=True)
class Directions:
    r"""Combinations of the features of one view.

    Args:
        strong: R, (k, r), with :math:`R^\top K R = I`.
        weak: (k, q), of unit length in units of the features, with variances too small to be trusted.
        blur: variance on the rows that rounding of K may give to a weak direction: :math:`\delta^2/\lambda` of the
            strong direction nearest to it, for rounding :math:`\delta`.
    """

    strong: Tensor
    weak: Tensor
    blur: float = 0.0


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
    strong, weak, blur = eye, eye[:, :0], 0.0
    if not bool(failed):
        strong = torch.linalg.solve_triangular(factor, eye, upper=False).mT
    if bool(failed) or not bool(strong.square().sum() * limit < 1.0):  # the sum of inverse eigenvalues
        values, vectors = torch.linalg.eigh(scaled)
        fine = values > limit * values[-1]
        strong, weak = vectors[:, fine] / values[fine].sqrt(), vectors[:, ~fine]
        rounded = ROUNDED * torch.finfo(scaled.dtype).eps * float(values[-1])
        blur = rounded**2 / float(values[fine].min()) if bool(fine.any()) else 0.0
    found = covariance.new_zeros(len(size), strong.shape[1] + weak.shape[1])
    found[kept] = unit[:, None] * torch.cat([strong, weak], 1)
    return Directions(found[:, : strong.shape[1]], found[:, strong.shape[1] :], blur)


def whitened(
    moments: Moments, columns: int, ridge: float = 0.0, limit: float = NULL
) -> tuple[Directions, Directions]:
    """Directions of both views; see :func:`directions`.

    Raises:
        ValueError: a feature is not finite somewhere.
    """
    if not bool(torch.isfinite(moments.covariance).all()):
        lost = torch.nonzero(~torch.isfinite(moments.covariance.diagonal()))[:, 0].tolist()
        where = [
            f"{j} of the first view" if j < columns else f"{j - columns} of the second view" for j in lost
        ]
        raise ValueError(
            f"feature {', '.join(where[:5])} is missing, infinite or too large for its square in some row"
        )
    parts = slice(columns), slice(columns, None)
    size = moments.size
    left, right = (directions(moments.covariance[on, on], size[on], ridge, limit) for on in parts)
    return left, right


@dataclass(frozen=True)
class _Weak(Tree):
    weight: Tensor
    second: Tensor


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
        apart = sight(rows).sub_(moments.mean)
        made = [product(part, root) for part, root in zip((apart[:, :columns], apart[:, columns:]), roots)]
        return Products.of_features(torch.cat(made, 1), weight)

    again = Moments.of(source.reduce(products))
    r = roots[0].shape[1]
    size = again.covariance.diagonal().clamp(min=0.0).sqrt()
    turns = [
        directions(again.covariance[on, on], size[on], 0.0, TWICE).strong for on in (slice(r), slice(r, None))
    ]
    cross = turns[0].mT @ again.covariance[:r, r:] @ turns[1]
    return roots[0] @ turns[0], roots[1] @ turns[1], cross


def _present(
    source: Source, sight: Sight, moments: Moments, found: tuple[Directions, Directions], columns: int
) -> tuple[Tensor, Tensor]:
    """Strong directions, and of the weak ones those that vary by more than rounding."""
    whole = torch.block_diag(*(one.weak for one in found))
    length = (whole * moments.size[:, None]).abs()
    few = torch.nonzero((length > SLIGHT * length.amax(0)).any(1))[:, 0]  # columns that repeat others, say
    roots = found[0].strong, found[1].strong
    for some in (few, None) if len(few) < len(whole) else (None,):
        sums = source.reduce(partial(_weak_sums, sight=sight, moments=moments, coefficients=whole, some=some))
        split, made = found[0].weak.shape[1], []
        for one, on in zip(found, (slice(split), slice(split, None)), strict=True):
            values, vectors = torch.linalg.eigh(mirrored(sums.second)[on, on] / sums.weight)
            real = values > max(one.blur, (KNOWN * moments.noise) ** 2)
            more = one.weak @ (vectors[:, real] / values[real].sqrt())
            made.append(torch.cat([one.strong, more], 1) if bool(real.any()) else one.strong)
        if all(a is b for a, b in zip(made, roots, strict=True)):
            return roots
    return made[0], made[1]


def _weak_sums(
    rows: Tensor, weight: Tensor, *, sight: Sight, moments: Moments, coefficients: Tensor, some: Tensor | None
) -> _Weak:
    on: Tensor | slice = slice(None) if some is None else some
    apart = sight(rows, some).sub_(moments.mean[on])
    mass = weight.double()
    return _Weak(mass.sum(), upper_gram(product(apart, coefficients[on]), mass))
