"""Maximum mean discrepancy: two samples compared through all features of a kernel at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from boxloop.criticise.pairwise import (
    Discrepancy,
    KernelContrast,
    check_rows,
    check_two_samples,
    contrast_from_sums,
    contrast_samples,
    draw_permuted_splits,
    first_order_variance,
    match_input_type,
    rows_per_tile,
    square_distances,
    to_float,
)
from boxloop.data import check_choice, check_count
from boxloop.numeric import RandomState, generator, normal, product, single_threaded, spawn

Radial = Callable[[Tensor], Tensor]
"""A kernel as a function of the squared distance in units of the squared bandwidth."""

Method = Literal["quadratic", "linear", "features"]

MEDIAN_ROWS = 1000
"""Most rows whose pairwise distances enter the median."""


@dataclass(frozen=True)
class MMDResult(Discrepancy):
    """A squared maximum mean discrepancy.

    Args:
        bandwidth: the kernel's.
        method: how it was estimated.

    Example:
        >>> MMDResult(0.25, 0.01, None, 1.0, "quadratic").distance
        0.5
    """

    bandwidth: float
    method: str

    @property
    def distance(self) -> float:
        """Root of ``value``, zero where that is negative."""
        return math.sqrt(max(to_float(self.value), 0.0))


@single_threaded
def median_bandwidth(x: object, y: object = None, random_state: RandomState = 0) -> float:
    r"""Median distance between two rows of the pooled samples: the usual width of a Gaussian kernel.

    .. math:: h = \mathrm{median}_{i < j} |z_i - z_j|

    Gretton, Borgwardt, Rasch, Schölkopf and Smola (2012), "A kernel two-sample test", JMLR 13, section 8.

    Args:
        x: rows (n, d): an array, tensor or data frame.
        y: rows (m, d) of the other sample, if there is one.
        random_state: seed of the subsample taken where there are more than 1000 rows.

    Returns:
        The median. Where more than half of all pairs coincide it is that of the others.

    Raises:
        ValueError: all rows are identical, so that no bandwidth fits.

    Example:
        >>> median_bandwidth([[0.0], [1.0], [3.0]])
        2.0
    """
    with torch.no_grad():
        rows = check_rows(x, "x") if y is None else torch.cat(check_two_samples(x, y))
        if len(rows) > MEDIAN_ROWS:
            chosen = torch.randperm(len(rows), generator=generator(random_state))[:MEDIAN_ROWS]
            rows = rows[chosen.to(rows.device)]
        distance = torch.pdist(rows)
        middle = float(distance.quantile(0.5))
        if middle > 0.0:
            return middle
        apart = distance[distance > 0]
        if len(apart) == 0:
            raise ValueError("all rows are identical, so the median bandwidth is 0; give a bandwidth")
        return float(apart.quantile(0.5))


@single_threaded
def mmd(
    x: object,
    y: object,
    kernel: Literal["gaussian"] | Radial = "gaussian",
    bandwidth: float | None = None,
    method: Method = "quadratic",
    n_features: int = 500,
    permutations: int = 0,
    random_state: RandomState = 0,
) -> MMDResult:
    r"""Squared maximum mean discrepancy between two samples, without bias.

    .. math::

        \mathrm{MMD}^2 = \frac{\sum_{i \ne j} k(x_i, x_j)}{n (n - 1)} + \frac{\sum_{i \ne j} k(y_i, y_j)}{m (m - 1)}
        - \frac{2 \sum_{i, j} k(x_i, y_j)}{n m}, \qquad k(a, b) = \exp\left(-\frac{|a - b|^2}{2 h^2}\right)

    Gretton, Borgwardt, Rasch, Schölkopf and Smola (2012), "A kernel two-sample test", JMLR 13: equation 3
    (quadratic), section 6 (linear); Rahimi and Recht (2007), "Random features for large-scale kernel machines".

    Args:
        x: rows (n, d): an array, tensor or data frame.
        y: rows (m, d).
        kernel: ``"gaussian"``, or a positive definite function of :math:`|a - b|^2 / h^2`, elementwise on tensors.
        bandwidth: h; None takes :func:`median_bandwidth`.
        method: ``"quadratic"`` uses every pair of rows; ``"linear"`` disjoint pairs in one pass, with a normal
            p-value; ``"features"`` random Fourier features of the Gaussian kernel, linear in the rows as well.
        n_features: frequencies drawn by ``"features"``; each gives a cosine and a sine.
        permutations: random regroupings behind the p-value of ``"quadratic"`` and ``"features"``; 0 for none.
        random_state: seed of permutations, frequencies, pairs and of the rows behind the median.

    Returns:
        The estimate. Without permutations it is differentiable in rows given as tensors, the bandwidth held fixed. The
        error of ``"features"`` includes that of the frequencies; it is up to 1.4 times too large where the
        distributions are equal, as a jackknife's would be.

    Deviation: ``"linear"`` shuffles the rows and leaves out what the longer sample has in excess, since rows that
    come in groups would otherwise be paired within them; the paper takes i.i.d. rows in order, as many in each.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(100, 2)), rng.normal(1.0, 1.0, size=(80, 2))
        >>> result = mmd(x, y, permutations=99)
        >>> result.p_value
        0.01
        >>> bool(result.value > 3 * result.standard_error)
        True
    """
    check_choice(method, "method", ("quadratic", "linear", "features"))
    count = check_count(permutations, "permutations", 0)
    radial = _resolve_kernel(kernel)
    if method == "linear" and count:
        raise ValueError(
            f"permutations must be 0 with method='linear', which has a normal p-value, got {count}"
        )
    if method == "features" and kernel != "gaussian":
        raise ValueError(
            "method='features' needs kernel='gaussian'; for another kernel take method='quadratic'"
        )
    a, b = check_two_samples(x, y, least=4 if method == "linear" else 2)
    width = median_bandwidth(a, b, random_state) if bandwidth is None else check_bandwidth(bandwidth)
    stream = spawn(generator(random_state), 1)[0]
    with torch.set_grad_enabled(torch.is_grad_enabled() and count == 0):
        a, b = (a.detach(), b.detach()) if count else (a, b)
        origin = a.detach().mean(0)
        a, b = (a - origin) / width, (b - origin) / width
        if method == "linear":
            value, error, p_value = _linear_time_mmd(radial, a, b, stream)
        else:
            if method == "quadratic":
                found = contrast_samples(lambda u, v: radial(square_distances(u, v)), a, b, count, stream)
            else:
                found = _contrast_fourier_features(
                    a, b, check_count(n_features, "n_features", 2), count, stream
                )
            value, error, p_value = found.values[0], found.standard_error, found.p_value
    return MMDResult(match_input_type(value, x, y), error, p_value, width, method)


def check_bandwidth(bandwidth: float) -> float:
    """The bandwidth, which must be positive and finite."""
    width = float(bandwidth)
    if not 0.0 < width < math.inf:
        raise ValueError(f"bandwidth must be positive and finite, got {bandwidth!r}")
    return width


def _resolve_kernel(kernel: str | Radial) -> Radial:
    if callable(kernel):
        return kernel
    if kernel != "gaussian":
        raise ValueError(f"kernel must be 'gaussian' or a function of the squared distance, got {kernel!r}")
    return lambda square: torch.exp(-0.5 * square)


def _linear_time_mmd(
    radial: Radial, x: Tensor, y: Tensor, stream: Generator
) -> tuple[Tensor, float, float | None]:
    """Mean of h over disjoint pairs of rows of x and of y, its error and one-sided normal p-value."""
    half = min(len(x), len(y)) // 2
    x = x[torch.randperm(len(x), generator=stream)[: 2 * half].to(x.device)]
    y = y[torch.randperm(len(y), generator=stream)[: 2 * half].to(y.device)]

    def kernel_of_pairs(a: Tensor, b: Tensor) -> Tensor:
        return radial((a - b).square().sum(1))

    (x1, x2), (y1, y2) = x.chunk(2), y.chunk(2)
    terms = (
        kernel_of_pairs(x1, x2) + kernel_of_pairs(y1, y2) - kernel_of_pairs(x1, y2) - kernel_of_pairs(x2, y1)
    )
    value, error = terms.mean(), float(terms.detach().std()) / math.sqrt(half)
    size = to_float(value)
    if error == 0.0:
        return value, error, 1.0 if size <= 0.0 else 0.0
    return value, error, 0.5 * math.erfc(size / error / math.sqrt(2.0))


def _contrast_fourier_features(
    x: Tensor, y: Tensor, n_features: int, permutations: int, stream: Generator
) -> KernelContrast:
    """The contrast of the kernel mean_f cos(w_f (a - b)), from the sums of cosines and sines of each sample."""
    n, m = len(x), len(y)
    pooled = torch.cat([x, y])
    frequency = normal((x.shape[1], n_features), stream).to(pooled.device)
    member = draw_permuted_splits(n, m, permutations, stream).to(pooled.device)
    step = rows_per_tile(2 * n_features)
    sums, every = pooled.new_zeros(1 + permutations, 2 * n_features), pooled.new_zeros(2 * n_features)
    for start in range(0, n + m, step):
        wave = _fourier_features(pooled[start : start + step], frequency)
        sums, every = sums + product(member[start : start + step].mT, wave), every + wave.sum(0)

    def multiply_sums(a: Tensor, b: Tensor) -> Tensor:
        """Product of two sums at each frequency, its cosine and sine together."""
        return (a * b).unflatten(-1, (2, n_features)).sum(-2)

    # A row's cosine and sine have squares that add up to 1: the pair of a row with itself.
    each = contrast_from_sums(
        multiply_sums(sums, sums) - n,
        multiply_sums(sums, every) - n,
        multiply_sums(every, every) - n - m,
        n,
        m,
    )
    totals = torch.stack([sums[0], every], dim=1).detach() / n_features
    rows = [product(_fourier_features(tile, frequency), totals) for tile in pooled.detach().split(step)]
    to_x, to_all = (
        torch.cat(rows) - torch.stack([member[:, 0], torch.ones_like(member[:, 0])], dim=1)
    ).unbind(1)
    variance = first_order_variance(to_x, to_all, n, m) + each.values[0].detach().var() / n_features
    means = (each.within_x.mean(1), each.within_y.mean(1), each.between.mean(1))
    return KernelContrast(*means, float(variance.sqrt()))


def _fourier_features(rows: Tensor, frequency: Tensor) -> Tensor:
    phase = product(rows, frequency)
    return torch.cat([phase.cos(), phase.sin()], dim=1)
