"""One cell of a search: a candidate fitted to some rows and judged on others."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import ClusterError
from boxloop.select.rows import taken
from boxloop.select.scores import Array, log_densities, n_parameters

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a fit may raise without ending the search: the candidate is at fault, not the search."""

Criterion = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Fold:
    """Places of the rows fitted to and of the rows judged on; None for all rows, both times."""

    train: NDArray[np.intp] | None = None
    test: NDArray[np.intp] | None = None


@dataclass(frozen=True, eq=False)
class Cell:
    """What one fit gave.

    Args:
        log_density: of each row judged on.
        score: value of the criterion, where one was given; else NaN.
        n_parameters: of the fitted estimator, for a fit to all rows; else NaN.
        warnings: what the fit warned of.
        failure: why there is no fit; empty where there is one.
    """

    log_density: Array
    score: float = float("nan")
    n_parameters: float = float("nan")
    warnings: tuple[str, ...] = ()
    failure: str = ""


def evaluate(estimator: Any, X: Any, fold: Fold, criterion: Criterion | None) -> Cell:
    """Fit an estimator to one part of the rows and judge it on the other.

    Args:
        estimator: a fresh one; it is fitted in place.
        X: all rows.
        fold: which rows to fit to and to judge on.
        criterion: ``criterion(estimator, X)``, or None.

    Returns:
        The cell, with ``failure`` set where the fit raised an error.

    Raises:
        KeyboardInterrupt: also where the fit itself caught it and stopped early.
        ClusterError: the cluster that holds the rows was lost.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            cell = _fitted(estimator, X, fold, criterion)
        except ClusterError:  # no candidate's fault: judged or not would depend on when the cluster was lost
            raise
        except FAILURES as error:
            cell = Cell(np.empty(0), failure=f"{type(error).__name__}: {error}")
    messages = dict.fromkeys(str(warning.message) for warning in told)
    return replace(cell, warnings=tuple(messages))


def _fitted(estimator: Any, X: Any, fold: Fold, criterion: Criterion | None) -> Cell:
    train = X if fold.train is None else taken(X, fold.train)
    test = X if fold.test is None else taken(X, fold.test)
    estimator.fit(train)
    if getattr(estimator, "interrupted_", False):
        raise KeyboardInterrupt
    density = log_densities(estimator, test)
    if fold.test is None:
        return Cell(density, n_parameters=n_parameters(estimator, X, density))
    if criterion is None:
        return Cell(density)
    value = criterion(estimator, test)
    score = float(value[0] if isinstance(value, tuple) else value)
    if not np.isfinite(score):
        raise ValueError(f"the criterion is {score}")
    return Cell(density, score=score)
