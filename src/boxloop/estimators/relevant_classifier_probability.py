"""Expected indicators of classes as probabilities: projected onto them, or sharpened to fit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

Array = NDArray[np.float64]

COLDEST, HOTTEST = 1e-3, 10.0
"""Temperatures that are looked at."""


def onto_simplex(points: Array) -> Array:
    r"""The nearest probabilities to points, row by row.

    .. math:: p = \arg\min_{q \ge 0, \, \sum q = 1} \|q - z\|^2 = (z - \tau)_+, \qquad
        \tau = \max_r \tfrac1r \Bigl( \sum_{j \le r} z_{(j)} - 1 \Bigr)

    Held, Wolfe and Crowder (1974), with :math:`z_{(1)} \ge z_{(2)} \ge \dots`. As the simplex is convex and holds every
    indicator, a projection is never farther from a row's own indicator than the point was: the Brier score cannot rise.

    Args:
        points: z, (n, C).

    Returns:
        (n, C); the order of the columns of a row is kept.

    Example:
        >>> import numpy as np
        >>> onto_simplex(np.array([[0.5, 0.5], [1.25, -0.25], [0.75, -0.25]])).tolist()
        [[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]]
    """
    falling = -np.sort(-points, axis=1)
    level = (falling.cumsum(1) - 1.0) / np.arange(1, points.shape[1] + 1)
    return np.maximum(points - level.max(1, keepdims=True), 0.0)


def with_temperature(points: Array, temperature: float) -> Array:
    r"""Probabilities :math:`p_c \propto \exp(z_c / T)`, all positive.

    Example:
        >>> import numpy as np
        >>> with_temperature(np.array([[1.0, 0.0]]), 1.0 / np.log(3.0)).round(6).tolist()
        [[0.75, 0.25]]
    """
    found: Array = softmax(points / temperature, axis=1)
    return found


def fitted_temperature(points: Array, codes: NDArray[np.int64], weight: Array) -> float:
    r"""The temperature at which the classes of rows are most probable.

    .. math:: \max_T \; \overline{\sum_c t_c \log p_c}, \qquad t = (1 - \epsilon) \, 1_y + \epsilon \, \bar 1_y, \;
        \epsilon = 1 / (2 + \textstyle\sum w)

    Guo et al. (2017). A few rows may all be classified well, and would have T fall to 0; so their indicators are drawn
    towards the share of each class, as Platt (1999) draws his.

    Args:
        points: z, expected indicators, (n, C).
        codes: number of each row's class, (n,).
        weight: (n,), not negative.
    """
    truth = np.zeros_like(points)
    truth[np.arange(len(codes)), codes] = 1.0
    share = weight @ truth / weight.sum()
    some = 1.0 / (2.0 + weight.sum())
    target = ((1.0 - some) * truth + some * share) * (weight / weight.sum())[:, None]

    def surprise(log_temperature: float) -> float:
        return -float((target * log_softmax(points * np.exp(-log_temperature), axis=1)).sum())

    ends = (float(np.log(COLDEST)), float(np.log(HOTTEST)))
    return float(np.exp(minimize_scalar(surprise, bounds=ends, method="bounded", options={"xatol": 1e-6}).x))
