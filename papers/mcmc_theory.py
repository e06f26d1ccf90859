r"""Acceptance on a standard Gaussian of d columns in closed form, and what theory says for large d.

Every proposal here is linear: with :math:`v = (x, z)` of a column, the log-ratio is a sum over columns of one
quadratic form :math:`v^\top M v`, whose eigenvalues are :math:`\lambda_+ > 0 > \lambda_-`. The chance of acceptance of
a reversible proposal is twice that of a positive log-ratio, which is here that of an F law:

.. math:: E[\alpha^{MH}] = 2 P(\log r > 0) = 2 P\left( F_{d, d} > |\lambda_-| / \lambda_+ \right)

For large d the log-ratio tends to :math:`N(-s^2/2, s^2)`, and efficiency is :math:`s^p E[\alpha]` with p = 2 for the
random walk, 2/3 for MALA, and 1/2 for HMC by gradients.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

Array = NDArray[np.float64]

POWERS = {"random walk": 2.0, "MALA": 2.0 / 3.0, "HMC": 0.5}
"""Power of s in the efficiency of large d."""

EXPONENTS = {"random walk": -1.0 / 2.0, "MALA": -1.0 / 6.0, "HMC": -1.0 / 4.0}
"""Power of d in the best scale."""

GOALS = {"random walk": 0.234, "MALA": 0.574, "HMC": 0.651}
BARKER_GOALS = {"random walk": 0.158, "MALA": 0.347}

NODE = np.linspace(-9.0, 9.0, 721)
WEIGHT = np.exp(-0.5 * NODE**2)
WEIGHT = WEIGHT / WEIGHT.sum()
"""The trapezoidal rule for a standard normal law, exact to rounding for functions as smooth as these."""

LENGTH = math.pi
"""T, of the longest trajectory: a uniform share of it leaves a column uncorrelated with where it was."""


def acceptance(name: str, h: float, d: float) -> float:
    """Mean chance of acceptance of Metropolis in stationarity.

    Args:
        name: of the algorithm.
        h: its scale.
        d: columns.

    Example:
        >>> round(acceptance("random walk", 2.38 / 1000**0.5, 1000), 2)
        0.23
    """
    if name == "HMC":
        return _trajectories(h, d)
    keep = 1.0 if name == "random walk" else 1.0 - 0.5 * h * h
    low, high = np.linalg.eigvalsh([[1.0 - keep * keep, -keep * h], [-keep * h, -h * h]])
    return float(2.0 * special.fdtrc(d, d, -low / high))


def scale_for(name: str, goal: float, d: float) -> float:
    """The largest h at which so many moves are accepted."""
    most = {"random walk": 60.0, "MALA": 3.0, "HMC": 1.99}[name]
    grid = np.geomspace(most, 1e-4, 100)
    for long, short in pairwise(grid):
        if acceptance(name, float(short), d) >= goal:
            return float(optimize.brentq(lambda h: acceptance(name, h, d) - goal, short, long))
    raise ValueError(f"{name} accepts no {goal} of its moves in {d} columns")


def limit_chance(s: float, rule: str) -> float:
    """Mean chance of acceptance by a rule when the log-ratio is N(-s²/2, s²)."""
    if rule == "metropolis":
        return float(2.0 * special.ndtr(-0.5 * s))
    return float(WEIGHT @ special.expit(-0.5 * s * s + s * NODE))


def limit_best(name: str, rule: str) -> float:
    """The acceptance at which efficiency is highest for large d."""
    power = POWERS[name]
    best = optimize.minimize_scalar(
        lambda s: -power * math.log(s) - math.log(limit_chance(s, rule)), bounds=(0.05, 6.0), method="bounded"
    )
    return limit_chance(float(best.x), rule)


def limit_curve(name: str, rule: str) -> tuple[list[float], list[float]]:
    """Acceptance, and efficiency over its maximum by Metropolis, along s."""
    power = POWERS[name]
    along = np.geomspace(0.02, 6.0, 80)
    worth = {r: np.asarray([s**power * limit_chance(s, r) for s in along]) for r in ("metropolis", rule)}
    return [limit_chance(s, rule) for s in along], (worth[rule] / worth["metropolis"].max()).tolist()


def mean_cost(name: str, h: float) -> float:
    """Densities or gradients that a draw needs, in the mean."""
    if name != "HMC":
        return 1.0
    steps, share = _lengths(h)
    return float(share @ steps)


def _lengths(h: float) -> tuple[Array, Array]:
    """Numbers of leapfrog steps, and how often each is made."""
    steps = np.arange(1.0, math.ceil(LENGTH / h) + 1.0)
    return steps, np.minimum(steps * h / LENGTH, 1.0) - (steps - 1.0) * h / LENGTH


def _trajectories(h: float, d: float) -> float:
    """Mean over the lengths of trajectories; each is a rotation in coordinates that are a little stretched."""
    steps, share = _lengths(h)
    angle = math.acos(1.0 - 0.5 * h * h)
    stretch = (1.0 - 0.25 * h * h) ** -0.5
    half = 0.5 * ((stretch - 1.0 / stretch) * np.sin(steps * angle)) ** 2
    growth = 1.0 + half + np.sqrt(half * (half + 2.0))  # the larger singular value, squared
    return float(share @ (2.0 * special.fdtrc(d, d, growth)))
