"""Means over images and runs with errors that count both; how well doubt tells the unknown from the known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """A number and its standard error."""

    value: float
    error: float

    @property
    def z(self) -> float:
        """In units of the error; 0 where both are."""
        return self.value / self.error if self.error > 0.0 else 0.0

    def __str__(self) -> str:
        return f"{self.value:.4f} ± {self.error:.4f}"


def mean_of(values: Array) -> Measured:
    r"""Of (g, n) values, a line for each group of runs and a column for each image.

    .. math:: \mathrm{se}^2 = \frac{s^2_\mathrm{groups}}{g} + \frac{s^2_\mathrm{images}}{n}

    Groups and images are both drawn at random; the two terms count what they share twice, so the error is no smaller
    than it should be.
    """
    groups, images = values.mean(1), values.mean(0)
    return Measured(float(values.mean()), float(np.hypot(_error(groups), _error(images))))


def over_groups(values: Array) -> Measured:
    """Of one number for each group."""
    return Measured(float(values.mean()), _error(values))


def placements(known: Array, unknown: Array) -> tuple[Array, Array]:
    r"""Shares of pairs that are in order, for every known and every unknown image (DeLong et al., 1988).

    .. math:: V_j = \tfrac1m \sum_i \psi(u_j, k_i), \quad W_i = \tfrac1n \sum_j \psi(u_j, k_i), \qquad
              \psi = 1 \text{ if } u > k, \ \tfrac12 \text{ if } u = k, \ 0 \text{ otherwise}

    Args:
        known: doubt about the m known images.
        unknown: about the n unknown ones.

    Returns:
        W (m,) and V (n,); the mean of either is the area under the curve of hits and false alarms.
    """
    m, n = len(known), len(unknown)
    ranks = rankdata(np.concatenate([known, unknown]))
    above = ranks[m:] - rankdata(unknown)
    below = ranks[:m] - rankdata(known)
    return 1.0 - below / n, above / m


def area(known: Array, unknown: Array, base: tuple[Array, Array] | None = None) -> Measured:
    """Area under the curve over groups, or its difference from that of another method on the same images.

    Args:
        known: doubt about known images, (g, m).
        unknown: about unknown ones, (g, n).
        base: known and unknown of the other method.
    """
    pairs = [placements(a, b) for a, b in zip(known, unknown, strict=True)]
    if base is not None:
        others = [placements(a, b) for a, b in zip(*base, strict=True)]
        pairs = [(w - w0, v - v0) for (w, v), (w0, v0) in zip(pairs, others, strict=True)]
    of_known, of_unknown = (np.array(part) for part in zip(*pairs, strict=True))
    by_image = np.hypot(_error(of_known.mean(0)), _error(of_unknown.mean(0)))
    groups = of_unknown.mean(1)
    return Measured(float(groups.mean()), float(np.hypot(_error(groups), by_image)))


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0
