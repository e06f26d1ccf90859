"""Which candidate to take when several are as good as the best."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.float64]


def one_standard_error(gap: Numbers, error: Numbers, n_parameters: Numbers) -> int:
    r"""The simplest candidate within one standard error of the best.

    .. math:: \arg\min_j \{ p_j : g_j \le \mathrm{se}(g_j) \}

    The one-standard-error rule of Breiman, Friedman, Olshen and Stone (1984), section 3.4.3.

    Deviation: they allow the standard error of the best candidate's own score. All candidates are scored on the same
    rows, so the error of the paired difference is the right one, and the smaller.

    Args:
        gap: score of the best minus that of each candidate, 0 for the best; NaN for one that failed.
        error: standard error of each gap.
        n_parameters: number of parameters of each; where one of the eligible is NaN the first in order is taken.

    Returns:
        The index of the candidate. Of two with as few parameters the better one, then the first.

    Example:
        >>> one_standard_error([0.30, 0.02, 0.00], [0.10, 0.03, 0.00], [5, 11, 17])
        1
    """
    gaps, errors, counts = (np.asarray(part, dtype=np.float64) for part in (gap, error, n_parameters))
    if not gaps.shape == errors.shape == counts.shape or gaps.ndim != 1:
        raise ValueError(
            "gap, error and n_parameters must be vectors with one number per candidate, got shapes "
            f"{gaps.shape}, {errors.shape} and {counts.shape}"
        )
    eligible = np.flatnonzero((gaps <= errors) | (gaps == 0.0))
    if len(eligible) == 0:
        raise ValueError("no candidate can be chosen: all of gap is NaN")
    if np.isnan(counts[eligible]).any():
        return int(eligible[0])
    return int(eligible[np.lexsort((gaps[eligible], counts[eligible]))[0]])
