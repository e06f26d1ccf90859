"""Verdicts, standard errors and shares, as the findings of all experiments write them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from papers.experiment import Verdict


def judge_claim(holds: bool) -> Verdict:
    """For a claim of a paper about averages, judged over many repetitions."""
    return "reproduced in distribution" if holds else "not reproduced"


def judge_target(holds: bool) -> Verdict:
    """For a target of our own."""
    return "target met" if holds else "target missed"


def standard_error(values: ArrayLike) -> float:
    """Of the mean of independent values; 0 for a single value."""
    array = np.asarray(values, dtype=np.float64)
    return float(array.std() / max(len(array) - 1, 1) ** 0.5)


def percent(share: float) -> str:
    """A share as text."""
    return f"{100.0 * share:.0f}%"
