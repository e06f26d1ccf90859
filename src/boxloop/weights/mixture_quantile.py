r"""Quantiles of mixtures of Gaussians with one standard deviation: roots of their distribution functions.

.. math:: \sum_i w_i \Phi\!\left(\frac{t - f_i}{\sigma}\right) = q
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

Array = NDArray[np.float64]

ROUNDS = 200
"""Most rounds; half of them at least would halve the bracket, which is the width of the centres."""
VALUES = 2**20
"""Centres that are looked at together."""


def mixture_quantile(q: float, centres: Array, weight: Array, deviation: Array) -> Array:
    """The quantile q of N mixtures of m Gaussians each.

    It lies between the least and the largest quantile of the members; Newton's steps that leave that bracket, or
    shorten it too little, are replaced by its middle.

    Args:
        q: a probability, between 0 and 1.
        centres: f, (m, N).
        weight: of the members, (m,); sums to 1.
        deviation: sigma of each mixture, (N,), above 0.

    Returns:
        (N,).

    Example:
        >>> import numpy as np
        >>> found = mixture_quantile(0.5, np.array([[-1.0], [1.0]]), np.full(2, 0.5), np.ones(1))
        >>> abs(float(found[0])) < 1e-12
        True
    """
    if np.ndim(q) or not 0.0 < q < 1.0:
        raise ValueError(f"a quantile is asked for at one probability between 0 and 1, got {q}")
    found = np.empty(centres.shape[1])
    step = max(1, VALUES // len(centres))
    for start in range(0, len(found), step):
        some = slice(start, start + step)
        found[some] = _roots(q, centres[:, some], weight, deviation[some])
    return found


def _roots(q: float, centres: Array, weight: Array, deviation: Array) -> Array:
    outer = ndtri(q) * deviation
    low, high = centres.min(0) + outer, centres.max(0) + outer
    at = np.clip(weight @ centres + outer, low, high)
    close = 4e-16 * (np.abs(low) + np.abs(high)) + 1e-14 * deviation
    for _ in range(ROUNDS):
        z = (at - centres) / deviation
        gap = weight @ ndtr(z) - q
        slope = weight @ np.exp(-0.5 * z * z) / (deviation * np.sqrt(2.0 * np.pi))
        low, high = np.where(gap <= 0.0, at, low), np.where(gap >= 0.0, at, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            step = at - gap / slope
        middle = 0.5 * (low + high)
        inside = (step > low) & (step < high) & (np.abs(step - at) < 0.5 * (high - low))
        then = np.where(inside, step, middle)
        moved, at = np.abs(then - at), then
        if bool((moved <= close).all()):
            break
    return at
