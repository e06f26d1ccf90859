"""Distances between two samples or two Gaussians: energy, sliced Wasserstein, Gaussian Wasserstein, Fréchet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.criticise.pairwise import (
    Discrepancy,
    check_covariance,
    check_rows,
    check_two_samples,
    contrast_samples,
    match_input_type,
    rows_per_tile,
    safe_root,
    square_distances,
    to_float,
)
from boxloop.data import check_count
from boxloop.numeric import (
    RandomState,
    generator,
    normal,
    product,
    relative_error,
    single_threaded,
    wasserstein_distance,
)

NEGLIGIBLE = 1e-12
"""Eigenvalues below this share of the largest are rounding."""


@dataclass(frozen=True)
class EnergyResult(Discrepancy):
    """A squared energy distance.

    Args:
        distance: root of the energy distance between the two *samples*, which is never negative; this is what
            :func:`scipy.stats.energy_distance` returns.
    """

    distance: float | Tensor


@dataclass(frozen=True)
class SlicedWasserstein:
    """A sliced Wasserstein distance.

    Args:
        value: the distance between the two samples; a tensor where the rows were tensors.
        standard_error: of ``value``, over the random projections alone: the rows are taken as they are.
        order: that of the Wasserstein distance.
    """

    value: float | Tensor
    standard_error: float
    order: float


@dataclass(frozen=True)
class FrechetResult:
    """A squared Fréchet distance between Gaussians fitted to two samples.

    Args:
        value: the *square*, as in the Fréchet inception distance.
        standard_error: of ``value``, over the rows.
    """

    value: float
    standard_error: float


@single_threaded
def energy_distance(
    x: object, y: object, permutations: int = 0, random_state: RandomState = 0
) -> EnergyResult:
    r"""Squared energy distance between two samples, without bias, in any number of columns.

    .. math:: D^2 = 2 E|X - Y| - E|X - X'| - E|Y - Y'|

    Székely and Rizzo (2013), "Energy statistics: a class of statistics based on distances", J. Stat. Plan.
    Inference 143. It is the squared mean discrepancy of the kernel :math:`-|a - b|`, free of a bandwidth.

    Args:
        x: rows (n, d): an array, tensor or data frame.
        y: rows (m, d).
        permutations: random regroupings behind the p-value; 0 for none.
        random_state: their seed.

    Returns:
        The estimate. Without permutations it is differentiable in rows given as tensors.

    Deviation: ``value`` averages over pairs of different rows, so that its mean is zero for equal distributions; the
    paper's statistic also counts each row's zero distance to itself, and its root is ``distance``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> result = energy_distance(rng.normal(size=100), rng.normal(1.0, 1.0, size=80), permutations=99)
        >>> result.p_value
        0.01
    """
    count = check_count(permutations, "permutations", 0)
    a, b = check_two_samples(x, y)
    with torch.set_grad_enabled(torch.is_grad_enabled() and count == 0):
        a, b = (a.detach(), b.detach()) if count else (a, b)
        origin = a.detach().mean(0)
        found = contrast_samples(
            lambda u, v: -safe_root(square_distances(u, v)), a - origin, b - origin, count, random_state
        )
        n, m = len(a), len(b)
        with_self = found.within_x * (1 - 1 / n) + found.within_y * (1 - 1 / m) - 2.0 * found.between
        distance = safe_root(with_self[0].clamp(min=0.0))
    value = match_input_type(found.values[0], x, y)
    return EnergyResult(value, found.standard_error, found.p_value, match_input_type(distance, x, y))


@single_threaded
def sliced_wasserstein(
    x: object, y: object, n_projections: int = 200, order: float = 2, random_state: RandomState = 0
) -> SlicedWasserstein:
    r"""Wasserstein distance of one-dimensional projections, averaged over random directions.

    .. math:: \mathrm{SW}_p^p = E_\theta \int_0^1
        \left| F^{-1}_{\theta \cdot x}(u) - F^{-1}_{\theta \cdot y}(u) \right|^p du, \qquad |\theta| = 1

    Bonneel, Rabin, Peyré and Pfister (2015), "Sliced and Radon Wasserstein barycenters of measures", J. Math.
    Imaging Vis. 51. Each integral is exact, for samples of different sizes too.

    Args:
        x: rows (n, d): an array, tensor or data frame.
        y: rows (m, d).
        n_projections: how many directions, at least 2.
        order: p, at least 1.
        random_state: seed of the directions.

    Returns:
        The distance, differentiable in rows given as tensors, with its error over directions.

    Example:
        >>> import numpy as np
        >>> x = np.array([[0.0], [1.0], [2.0]])
        >>> sliced_wasserstein(x, x + 3.0).value
        3.0
    """
    count = check_count(n_projections, "n_projections", 2)
    power = float(order)
    if not 1.0 <= power < math.inf:
        raise ValueError(f"order must be at least 1 and finite, not {order!r}")
    a, b = check_two_samples(x, y)
    direction = normal((a.shape[1], count), generator(random_state)).to(a.device)
    direction = direction / direction.norm(dim=0)
    index_a, index_b, width = _align_quantile_steps(len(a), len(b), a.device)
    costs = []
    for part in direction.split(rows_per_tile(len(a) + len(b)), dim=1):
        sorted_a, sorted_b = product(a, part).sort(0).values, product(b, part).sort(0).values
        costs.append(width @ (sorted_a[index_a] - sorted_b[index_b]).abs() ** power)
    cost = torch.cat(costs)
    value = safe_root(cost.mean(), power)
    error, size = float(cost.detach().std()) / math.sqrt(count), to_float(value)
    error = error / (power * size ** (power - 1.0)) if size > 0.0 else 0.0
    return SlicedWasserstein(match_input_type(value, x, y), error, power)


def _align_quantile_steps(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Where both quantile functions are constant: the order statistics that hold there, and the lengths."""
    # In units of 1 / (n m) the edges i / n and j / m are whole numbers, so that ties are exact.
    edges = torch.cat([torch.arange(n + 1) * m, torch.arange(m + 1) * n]).unique()
    left, width = edges[:-1], edges.diff().double() / (n * m)
    return (left // m).to(device), (left // n).to(device), width.to(device)


@single_threaded
def gaussian_wasserstein(mean_a: object, cov_a: object, mean_b: object, cov_b: object) -> float:
    r"""2-Wasserstein distance between two Gaussians: the distance itself, not its square.

    .. math:: W_2^2 = |\mu - \nu|^2 + \mathrm{tr}\left(A + B - 2 (A^{1/2} B A^{1/2})^{1/2}\right)

    Dowson and Landau (1982), "The Fréchet distance between multivariate normal distributions", J. Multivariate
    Anal. 12; Brownlie (2021), section 5 (whose table 6.1 shows the square).

    Args:
        mean_a: mu, (d,).
        cov_a: A, (d, d).
        mean_b: nu, (d,).
        cov_b: B, (d, d).

    Returns:
        The distance.

    Example:
        >>> gaussian_wasserstein([0.0, 0.0], [[1.0, 0.0], [0.0, 1.0]], [3.0, 0.0], [[25.0, 0.0], [0.0, 1.0]])
        5.0
    """
    a, b = check_covariance(cov_a, "cov_a"), check_covariance(cov_b, "cov_b")
    mean, other = (
        check_rows(value, name, 1).detach()[:, 0] for value, name in ((mean_a, "mean_a"), (mean_b, "mean_b"))
    )
    if not a.shape[0] == b.shape[0] == len(mean) == len(other):
        sizes = f"{len(mean)}, {a.shape[0]}, {len(other)} and {b.shape[0]}"
        raise ValueError(f"means and covariances must have the same columns, not {sizes}")
    return wasserstein_distance(a, b, mean, other)


@single_threaded
def relative_covariance_error(estimate: object, truth: object) -> float:
    r"""Error of a covariance relative to the true one, in the Frobenius norm.

    .. math:: |A - B|_F \,/\, |B|_F

    Brownlie (2021), figure 5.1.

    Args:
        estimate: A, (d, d).
        truth: B, (d, d), not zero.

    Returns:
        The relative error.

    Example:
        >>> relative_covariance_error([[4.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]])
        1.0
    """
    a, b = check_covariance(estimate, "estimate"), check_covariance(truth, "truth")
    if a.shape != b.shape:
        raise ValueError(f"estimate has {a.shape[0]} columns and truth has {b.shape[0]}")
    if not bool(b.any()):
        raise ValueError("truth must not be zero: the error is relative to it")
    return relative_error(a, b)


@single_threaded
def frechet_distance(
    x: object, y: object, features: Callable[[Tensor], object] | None = None
) -> FrechetResult:
    r"""Squared Fréchet distance: squared 2-Wasserstein between Gaussians with the moments of two samples.

    .. math:: |\mu_x - \mu_y|^2 + \mathrm{tr}\left(A + B - 2 (A^{1/2} B A^{1/2})^{1/2}\right)

    Heusel, Ramsauer, Unterthiner, Nessler and Hochreiter (2017), "GANs trained by a two time-scale update rule",
    equation 6: with the features of an Inception network this is the FID. Like it, this is the *square*.

    Args:
        x: rows (n, d): an array, tensor or data frame.
        y: rows (m, d).
        features: a function from float64 rows, as a tensor (n, d), to features (n, p); None takes the rows.

    Returns:
        The square, and its error by the delta method. Both samples' covariances divide by n - 1. The estimate is too
        large by a term of order 1 / n, which dominates where the distributions are equal.

    Example:
        >>> import numpy as np
        >>> x = np.random.default_rng(0).normal(size=(50, 2))
        >>> round(frechet_distance(x, x + [3.0, 4.0]).value, 6)
        25.0
    """
    with torch.no_grad():
        a, b = check_two_samples(x, y)
        if features is not None:
            a, b = check_two_samples(features(a), features(b))
        mean, other = a.mean(0), b.mean(0)
        a, b = a - mean, b - other
        covariance, other_covariance = a.mT @ a / (len(a) - 1), b.mT @ b / (len(b) - 1)
        distance = wasserstein_distance(covariance, other_covariance, mean, other)
        back, forth = _transport_matrices(covariance, other_covariance)
        pull = 2.0 * (mean - other)
        change_a = a @ pull + (a * (a - a @ forth)).sum(1)
        change_b = -b @ pull + (b * (b - b @ back)).sum(1)
        error = (change_a.var() / len(a) + change_b.var() / len(b)).sqrt()
    return FrechetResult(distance**2, float(error))


def _transport_matrices(covariance: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices that carry the other Gaussian to the first, and back: the slopes of the squared distance."""
    values, vectors = torch.linalg.eigh(covariance)
    half, inverse = _matrix_power(values, vectors, 0.5), _matrix_power(values, vectors, -0.5)
    values, vectors = torch.linalg.eigh(half @ other @ half)
    back, forth = _matrix_power(values, vectors, -0.5), _matrix_power(values, vectors, 0.5)
    return half @ back @ half, inverse @ forth @ inverse


def _matrix_power(values: Tensor, vectors: Tensor, exponent: float) -> Tensor:
    """Power of a symmetric matrix on the axes along which it is not zero."""
    positive = values > NEGLIGIBLE * values[-1]
    return (vectors * torch.where(positive, torch.where(positive, values, 1.0) ** exponent, 0.0)) @ vectors.mT
