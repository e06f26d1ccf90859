r"""The continuous ranked probability score: how far a law is from the value that came.

.. math:: \mathrm{CRPS}(F, y) = \int (F(x) - 1_{y \le x})^2 dx = E|X - y| - \tfrac12 E|X - X'|

In the units of y; smaller is better; the absolute error where the law is a point (Gneiting and Raftery 2007).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]

TILE = 1 << 22
"""Numbers held at a time by pairs of draws."""


def crps_normal(y: Array, mean: Array, deviation: Array) -> Array:
    r"""Of normal laws.

    .. math:: \sigma \left[ z (2 \Phi(z) - 1) + 2 \phi(z) - \pi^{-1/2} \right], \qquad z = (y - \mu) / \sigma

    Gneiting et al. (2005), eq. 5.

    Example:
        >>> import numpy as np
        >>> crps_normal(np.zeros(1), np.zeros(1), np.ones(1)).round(6).tolist()
        [0.233695]
    """
    return _reach(y - mean, deviation) - deviation / math.sqrt(math.pi)


def crps_draws(y: Array, draws: Array) -> Array:
    r"""From draws of the law, without bias.

    .. math:: \frac1m \sum_i |x_i - y| - \frac{1}{2 m (m - 1)} \sum_{ij} |x_i - x_j|

    The fair score of Ferro (2014): its mean over draws is the score of the law behind them, where dividing by
    :math:`m^2` would punish few draws.

    Args:
        y: (n, q).
        draws: (m, n, q), two at least.

    Example:
        >>> import numpy as np
        >>> crps_draws(np.array([[0.0]]), np.array([[[1.0]], [[3.0]]])).tolist()
        [[1.0]]
    """
    m = len(draws)
    rank = np.arange(1 - m, m, 2, dtype=np.float64)
    pairs = np.tensordot(rank, np.sort(draws, axis=0), 1) / (m * (m - 1))
    return np.abs(draws - y).mean(0) - pairs


def crps_mixture(y: Array, draws: Array, deviation: Array, weight: Array) -> Array:
    r"""Of a mixture of normal laws with one deviation a row.

    .. math:: \sum_i w_i A(y - \mu_i, \sigma) - \tfrac12 \sum_{ij} w_i w_j A(\mu_i - \mu_j, \sqrt2 \sigma), \qquad
        A(d, s) = d (2 \Phi(d/s) - 1) + 2 s \phi(d/s)

    Grimit et al. (2006). It takes :math:`m^2` operations a row.

    Args:
        y: (n, q).
        draws: the means, (m, n, q).
        deviation: (n, q).
        weight: of the means, (m,), with sum 1.

    Example:
        >>> import numpy as np
        >>> one = crps_mixture(np.zeros((1, 1)), np.zeros((2, 1, 1)), np.ones((1, 1)), np.array([0.9, 0.1]))
        >>> one.round(6).tolist()
        [[0.233695]]
    """
    found = np.tensordot(weight, _reach(y - draws, deviation), 1)
    m, wide = len(draws), math.sqrt(2.0) * deviation
    step = max(1, TILE // (m * deviation.size))
    total = np.zeros_like(found)
    for start in range(0, m, step):
        apart = draws[start : start + step, None] - draws[None]
        shares = weight[start : start + step, None] * weight
        total += np.tensordot(shares, _reach(apart, wide), 2)
    return np.asarray(found - 0.5 * total)


def _reach(apart: Array, deviation: Array) -> Array:
    """E|X| where X is normal with the mean ``apart``."""
    z = apart / deviation
    found: Array = apart * (2.0 * ndtr(z) - 1.0) + deviation * math.sqrt(2.0 / math.pi) * np.exp(-0.5 * z * z)
    return found
