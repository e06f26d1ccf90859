"""Means with their standard errors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def mean_and_error(
    values: NDArray[np.float64], weight: NDArray[np.float64] | None = None, freedom: float | None = None
) -> tuple[float, float]:
    r"""Mean over rows with its standard error, NaN for a single row; whole weights count as repetitions.

    .. math:: \bar v = \sum_i w_i v_i / W, \qquad
        \mathrm{se}^2 = \sum_i w_i (v_i - \bar v)^2 / (W f), \qquad W = \sum_i w_i

    f, the degrees of freedom, is W - 1 when ``freedom`` is omitted.

    Example:
        >>> mean_and_error(np.array([1.0, 3.0]))
        (2.0, 1.0)
    """
    w = np.ones(len(values)) if weight is None else weight
    total = float(w.sum())
    mean = float(w @ values / total)
    free = total - 1.0 if freedom is None else freedom
    if not math.isfinite(mean) or free <= 0.0:
        return mean, math.nan
    return mean, math.sqrt(float(w @ (values - mean) ** 2) / (total * free))
