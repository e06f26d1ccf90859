r"""Noise or temperature by rows held out, where these may be few.

A dozen rows that are all classified well would have the coldest temperature there is: a log-normal prior around 1
outweighs a dozen rows and vanishes beside a thousand.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from boxloop.weights.classes import log_probabilities, mean_log_probability

Array = NDArray[np.float64]

HOT = 7.0
"""Logarithm of the largest temperature; its negative is that of the smallest."""
HEAT_SPREAD = math.log(2.0)
"""Standard deviation of the logarithm of a temperature, before any row is seen."""


def likely_noise(mean: Array, spread: Array, y: Array) -> tuple[Array, Array]:
    r"""The noise of most density of rows, (q,), and their log score (n,), all outputs of a row together.

    .. math:: \max_\sigma \sum_r \log N(y_r; \bar f(x_r), s(x_r)^2 + \sigma^2)

    With the mean and spread of the draws, not their mixture: between a few dozen draws with little noise there are
    gaps, and the score of a few dozen rows leaps with every row that falls into one.

    Args:
        mean: over draws, (n, q).
        spread: standard deviation over draws, (n, q).
        y: observed, (n, q).

    Raises:
        ValueError: an output that is predicted without any error.
    """

    if not (np.isfinite(mean) & np.isfinite(spread)).all():
        return np.full(y.shape[1], np.nan), np.full(len(y), np.nan)

    def rows(log_noise: float, j: int) -> Array:
        total = np.sqrt(spread[:, j : j + 1] ** 2 + math.exp(2.0 * log_noise))
        return normal_score(mean[:, j : j + 1], total, y[:, j : j + 1])

    sizes = np.sqrt(((y - mean) ** 2).mean(0))
    if not (sizes > 0.0).all():
        raise ValueError("an output is predicted exactly on all rows: noise of zero has no density")
    found = []
    for j, size in enumerate(sizes):
        middle = math.log(float(size))
        ends = (middle - math.log(100.0), middle + 0.1)
        best = minimize_scalar(
            lambda at, j=j: -float(rows(at, j).mean()), bounds=ends, method="bounded", options={"xatol": 1e-6}
        )
        found.append(float(best.x))
    return np.exp(found), np.sum([rows(at, j) for j, at in enumerate(found)], axis=0)


def likely_temperature(logits: Array, weight: Array, seen: NDArray[np.int64]) -> tuple[Array, Array]:
    """The most probable temperature (1,), and the log score of rows (n,), a share of the prior's with each.

    Args:
        logits: (m, n, C).
        weight: of the draws, (m,).
        seen: classes, (n,).
    """

    if not np.isfinite(logits).all():
        return np.array([np.nan]), np.full(len(seen), np.nan)

    def rows(log_temperature: float) -> Array:
        each = log_probabilities(logits, math.exp(log_temperature))
        score = mean_log_probability(np.take_along_axis(each, seen[None, :, None], 2)[..., 0], weight)
        return score + heat_prior(math.exp(log_temperature)) / len(score)

    grid = np.linspace(-HOT, HOT, 29)
    place = int(np.argmax([rows(at).mean() for at in grid]))
    ends = (grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)])
    found = minimize_scalar(
        lambda at: -float(rows(at).mean()), bounds=ends, method="bounded", options={"xatol": 1e-6}
    )
    return np.exp([float(found.x)]), rows(float(found.x))


def heat_prior(temperature: float) -> float:
    """Logarithm of the prior of a temperature, up to a constant."""
    return -0.5 * (math.log(temperature) / HEAT_SPREAD) ** 2


def normal_score(mean: Array, deviation: Array, y: Array) -> Array:
    """Log-density of rows (n, q) under independent normal laws, (n,)."""
    each = -0.5 * ((y - mean) / deviation) ** 2 - np.log(deviation) - 0.5 * math.log(2.0 * math.pi)
    return np.asarray(each.sum(1))
