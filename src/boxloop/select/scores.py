"""Log-densities of rows and what follows from them: means, paired differences, parameter counts.

Models are judged on the same rows, so what makes a row hard under every model cancels in a difference: errors of
differences are those of paired values, and mostly far smaller than the errors of the two means.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import AnySource, ArraySource

Array = NDArray[np.float64]

HEAD = 1024
"""Rows from which parameters are counted where they are not at hand."""


def log_densities(estimator: Any, X: Any, places: NDArray[np.intp] | None = None) -> Array:
    """Log-density of each row under a fitted estimator, (n,); -inf where it is zero, never NaN or +inf.

    Messages name a row by its number in ``places``, where that is given.
    """
    score_samples = getattr(estimator, "score_samples", None)
    if score_samples is None:
        raise TypeError(f"{type(estimator).__name__} gives no log-densities: it has no score_samples")
    given = score_samples(X)
    if isinstance(given, tuple):
        raise TypeError(
            f"score_samples of {type(estimator).__name__} gives {len(given)} values, not one log-density for "
            "each row: models of sequences are not compared row by row"
        )
    found = np.asarray(given, dtype=np.float64)
    if found.ndim != 1:
        raise ValueError(
            f"score_samples of {type(estimator).__name__} gave shape {found.shape}, one number a row is needed"
        )
    bad = np.isnan(found) | np.isposinf(found)
    if bad.any():
        row = int(bad.argmax())
        place = row if places is None else int(places[row])
        raise ValueError(f"score_samples of {type(estimator).__name__} is {found[row]} at row {place}")
    return found


def n_parameters(estimator: Any, X: Any) -> float:
    r"""Number of free parameters of a fitted estimator, NaN where nothing tells.

    .. math:: p = (\mathrm{AIC} + 2 \log L) / 2

    Args:
        estimator: one with ``n_parameters`` (a number or a method), else with ``aic``, else with ``bic``.
        X: rows; of a source the first tile is enough.

    Returns:
        The count, as a float.
    """
    count = getattr(estimator, "n_parameters", None)
    if count is not None:
        return float(count() if callable(count) else count)
    aic, bic = getattr(estimator, "aic", None), getattr(estimator, "bic", None)
    if aic is None and bic is None:
        return float("nan")
    if isinstance(X, AnySource):
        X = ArraySource(next(iter(X.chunks(HEAD)))[0], None, X.names)
    density = log_densities(estimator, X)
    total, n = float(density.sum()), len(density)
    if aic is not None and np.isfinite(total):
        return _settled((float(aic(X)) + 2.0 * total) / 2.0, total)
    if bic is not None and np.isfinite(total) and n > 1:
        return _settled((float(bic(X)) + 2.0 * total) / np.log(n), total)
    return float("nan")


def _settled(count: float, total: float) -> float:
    """The count without the rounding that the log-likelihood left in it."""
    near = float(np.round(count))
    return near if abs(count - near) <= 1e-12 * abs(total) + 1e-9 else float(count)


def information(total: float, n: float, count: float) -> tuple[float, float]:
    r"""Akaike's and the Bayesian information criterion; lower is better.

    .. math:: \mathrm{AIC} = 2 p - 2 \log L, \qquad \mathrm{BIC} = p \log n - 2 \log L

    Document 000, eq. 20, with the whole number of parameters.

    Args:
        total: log-likelihood of all rows, log L.
        n: how many they are, or what they weigh.
        count: number of parameters p.

    Returns:
        AIC and BIC; NaN where the count is.

    Example:
        >>> information(-3.0, 2.0, 3.0)[0]
        12.0
    """
    return 2.0 * count - 2.0 * total, count * float(np.log(n)) - 2.0 * total
