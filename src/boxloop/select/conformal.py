"""p-values from scores of rows that calibrate, the same wherever a row is scored."""

from __future__ import annotations

import numpy as np

from boxloop.select.scores import Array

ROUNDING = 1e-9
"""By which two log-densities of a row, found in different tiles or on other processors, may differ: they are ties."""


def conformal(held: Array, scores: Array) -> Array:
    """p-values of rows by their scores, given the rising ones of rows that calibrate; equal but for rounding is equal.

    Example:
        >>> conformal(np.array([-3.0, -2.0, -1.0]), np.array([-5.0, -2.0 - 1e-14]))
        array([0.25, 0.75])
    """
    highest = scores + ROUNDING * np.clip(np.abs(scores), 1.0, np.finfo(float).max)
    return np.asarray((1.0 + np.searchsorted(held, highest, side="right")) / (len(held) + 1.0))


def below(score: float) -> float:
    """The highest score that is below another by more than rounding."""
    return score - ROUNDING * max(1.0, abs(score)) if np.isfinite(score) else score
