"""Verdicts and standard errors, as the experiments on moment gaps write them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from papers.experiment import Verdict


def held(holds: bool) -> Verdict:
    """For a claim of the document, judged over many repetitions."""
    return "reproduced in distribution" if holds else "not reproduced"


def met(holds: bool) -> Verdict:
    """For a statement of ours."""
    return "target met" if holds else "target missed"


def standard_error(values: ArrayLike) -> float:
    """Of the mean of independent values."""
    found = np.asarray(values, dtype=np.float64)
    return float(found.std() / max(len(found) - 1, 1) ** 0.5)


def percent(share: float) -> str:
    """A share as text."""
    return f"{100.0 * share:.0f}%"
