"""One cell of a search: a candidate fitted to some rows and judged on others."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import ClusterError, Folds
from boxloop.select.grouped import Grouped
from boxloop.select.judged import judged
from boxloop.select.rows import Places, n_rows, placed, taken
from boxloop.select.scores import Array, n_parameters

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""What a fit may raise without ending the search: the candidate is at fault, not the search."""

Criterion = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Fold:
    """The rows fitted to and the rows judged on; None for all rows, both times.

    Args:
        train: to fit to.
        test: to judge on.
        share: by how much each of these counts, where rows are judged on several times, (m,).
    """

    train: Places | None = None
    test: Places | None = None
    share: NDArray[np.float64] | None = None

    @classmethod
    def dealt(cls, n: int, count: int, seed: int) -> list[Fold]:
        """The folds of a shuffle of n rows, by which each is judged on once."""
        folds = Folds(n, count, seed)
        return [cls(folds.train_rows(fold), folds.test_rows(fold)) for fold in range(count)]

    @classmethod
    def given(cls, pairs: Iterable[tuple[Any, Any]], n: int) -> list[Fold]:
        """Folds of n rows from pairs of places; rows judged on several times count once in all."""
        splits = [(np.asarray(train), np.asarray(test)) for train, test in pairs]
        times = np.zeros(n)
        for _, test in splits:
            np.add.at(times, test, 1.0)
        if times.max() <= 1.0:
            return [cls(train, test) for train, test in splits]
        return [cls(train, test, 1.0 / times[test]) for train, test in splits]


@dataclass(frozen=True, eq=False)
class Cell:
    """What one fit gave.

    Args:
        density: log-densities of the rows judged on, by groups of rows; None where there is no fit.
        score: value of the criterion, where one was given; else NaN.
        n_parameters: of the fitted estimator, for a fit to all rows; else NaN.
        warnings: what the fit warned of.
        failure: why there is no fit; empty where there is one.
    """

    density: Grouped | None
    score: float = float("nan")
    n_parameters: float = float("nan")
    warnings: tuple[str, ...] = ()
    failure: str = ""


def evaluate(
    estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None = None
) -> Cell:
    """Fit an estimator to one part of the rows and judge it on the other.

    Args:
        estimator: a fresh one; it is fitted in place.
        X: all rows.
        fold: which rows to fit to and to judge on.
        criterion: ``criterion(estimator, X)``, or None.
        weight: of all rows, for rows in memory.

    Returns:
        The cell, with ``failure`` set where the fit raised an error.

    Raises:
        KeyboardInterrupt: also where the fit itself caught it and stopped early.
        ClusterError: the cluster that holds the rows was lost.
    """
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            cell = _fitted(estimator, X, fold, criterion, weight)
        except ClusterError:  # no candidate's fault: judged or not would depend on when the cluster was lost
            raise
        except FAILURES as error:
            cell = Cell(None, failure=f"{type(error).__name__}: {error}")
    messages = dict.fromkeys(str(warning.message) for warning in told)
    return replace(cell, warnings=tuple(messages))


def _fitted(estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None) -> Cell:
    train = X if fold.train is None else taken(X, fold.train)
    mass, test_mass = (_chosen(weight, where, X) for where in (fold.train, fold.test))
    estimator.fit(train, **({} if mass is None else {"sample_weight": mass}))
    if getattr(estimator, "interrupted_", False):
        raise KeyboardInterrupt
    (density,) = judged([estimator], X, fold.test, fold.share, test_mass)
    if fold.test is None:
        return Cell(density, n_parameters=n_parameters(estimator, X))
    if criterion is None:
        return Cell(density)
    value = criterion(estimator, taken(X, fold.test))
    score = float(value[0] if isinstance(value, tuple) else value)
    if not np.isfinite(score):
        raise ValueError(f"the criterion is {score}")
    return Cell(density, score=score)


def _chosen(weight: Array | None, where: Places | None, X: Any) -> Array | None:
    """Weights of some rows."""
    return weight if weight is None or where is None else weight[placed(where, n_rows(X))]
