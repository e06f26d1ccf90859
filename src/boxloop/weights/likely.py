"""Noise or temperature by rows held out, with priors for rows that are few.

A dozen rows that are all classified well would have the coldest temperature there is, and two dozen that each have a
draw nearby next to no noise. The priors outweigh a dozen rows and vanish beside a thousand.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize, minimize_scalar

from boxloop.weights.classes import log_probabilities, mean_log_probability
from boxloop.weights.prediction import mixture_log_prob

Array = NDArray[np.float64]

Found = tuple[Array, Array, float]
"""The best noise or temperature at a scale, the log score of every row, and the logarithm of the prior there."""

PRIOR_ROWS = 2
"""Rows that the prior of the noise is worth."""
HOT = 7.0
"""Logarithm of the largest temperature; its negative is that of the smallest."""
HEAT_SPREAD = math.log(2.0)
"""Standard deviation of the logarithm of a temperature, before any row is seen."""


def best_noise(centres: Array, weight: Array, y: Array, row_weight: Array | None = None) -> Found:
    r"""Noise of most density of held-out rows and two more, by output, and the log score of the rows.

    .. math:: \max_\sigma \sum_{r=1}^n \log \sum_i w_i \prod_j N(y_{rj}; f_{ij}(x_r), \sigma_j^2)
              - \sum_j \Bigl(2 \log \sigma_j + \frac{r_j^2}{\sigma_j^2}\Bigr), \qquad
              r_j^2 = \frac1n \sum_r \bigl(y_{rj} - \bar f_j(x_r)\bigr)^2

    times :math:`\sqrt{(n + 2) / n}`, which makes it the deviation of Student's law with n + 2 degrees of freedom: of a
    new row whose noise is known from so many alone.

    Args:
        centres: what the draws say, (m, n, k).
        weight: of the draws, (m,).
        y: observed, (n, k).
        row_weight: of the rows, (n,), as repetitions: n is their sum.

    Returns:
        Standard deviations (k,), log scores (n,) with these, and the logarithm of the prior.

    Raises:
        ValueError: an output that is predicted without any error.
    """
    start = np.sqrt(np.average((y - np.tensordot(weight, centres, 1)) ** 2, axis=0, weights=row_weight))
    if not np.isfinite(start).all():
        return np.full(y.shape[1], np.nan), np.full(len(y), np.nan), 0.0
    if not (start > 0.0).all():
        raise ValueError("an output is predicted exactly on all rows: noise of zero has no density")
    square, rows = ((y - centres) ** 2).reshape(-1, y.shape[1]), len(y)
    each = np.ones(rows) if row_weight is None else row_weight
    count = float(each.sum())

    def loss(log_noise: Array) -> tuple[float, Array]:
        precision = np.exp(-2.0 * log_noise)
        joint = (square @ (-0.5 * precision)).reshape(len(weight), rows) + np.log(weight)[:, None]
        top = joint.max(0)
        share = np.exp(joint - top)
        total = share.sum(0)
        share /= total
        score = (top + np.log(total)) @ each - count * log_noise.sum() + _noise_prior(log_noise, start)
        left = (share * each).reshape(-1) @ square + PRIOR_ROWS * start**2
        slope = precision * left - count - PRIOR_ROWS
        return -float(score) / count, -slope / count

    # A mixture may have two maxima: noise for the residuals, or for those of some draws.
    found = [
        minimize(
            loss,
            np.log(start) + shift,
            jac=True,
            method="L-BFGS-B",
            bounds=[(at - 12.0, at + 3.0) for at in np.log(start)],
            options={"ftol": 1e-13, "gtol": 1e-8},
        )
        for shift in (0.0, -1.5)
    ]
    best = min(found, key=lambda one: one.fun).x
    noise = np.exp(best) * math.sqrt((count + PRIOR_ROWS) / count)
    return noise, mixture_log_prob(centres, weight, y, noise), _noise_prior(best, start)


def _noise_prior(log_noise: Array, left: Array) -> float:
    return -0.5 * PRIOR_ROWS * float((2.0 * log_noise + (left * np.exp(-log_noise)) ** 2).sum())


def likely_temperature(
    logits: Array, weight: Array, seen: NDArray[np.int64], row_weight: Array | None = None
) -> Found:
    """The most probable temperature (1,), the log score of rows (n,), and the logarithm of the prior.

    Args:
        logits: (m, n, C).
        weight: of the draws, (m,).
        seen: classes, (n,).
        row_weight: of the rows, (n,), as repetitions.
    """
    counted = np.ones(len(seen)) if row_weight is None else row_weight

    if not np.isfinite(logits).all():
        return np.array([np.nan]), np.full(len(seen), np.nan), 0.0

    def rows(log_temperature: float) -> Array:
        each = log_probabilities(logits, math.exp(log_temperature))
        return mean_log_probability(np.take_along_axis(each, seen[None, :, None], 2)[..., 0], weight)

    def loss(log_temperature: float) -> float:
        return -float(rows(log_temperature) @ counted + _prior(log_temperature)) / float(counted.sum())

    grid = np.linspace(-HOT, HOT, 29)
    place = int(np.argmin([loss(at) for at in grid]))
    ends = (grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)])
    found = float(minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-6}).x)
    return np.exp([found]), rows(found), _prior(found)


def _prior(log_temperature: float) -> float:
    """Logarithm of the prior, up to a constant."""
    return -0.5 * (log_temperature / HEAT_SPREAD) ** 2
