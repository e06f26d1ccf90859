"""Cross-validation: every candidate fitted to and scored on every fold, in parallel, with finished fits on disk.

A checkpoint is a folder of JSON files, one for each fit, each written completely or not at all; the name is a digest of
all that decides the fit: the estimator with its parameters, the rows of the fold, the data. Searches may share a
folder, and one with more candidates or other folds reuses what is the same.
"""

from __future__ import annotations

import json
import math
import os
import re
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.parallel import Parallel, delayed

from boxloop.data import ClusterError, Folds, fingerprint_values
from boxloop.loop import Iteration, Observer, run
from boxloop.persist import write_atomic
from boxloop.select.rows import RowIndices, count_rows, take_rows, to_indices
from boxloop.select.scores import Array, GroupedSums, count_parameters, sum_log_densities
from boxloop.version import __version__

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, TypeError, ValueError)
"""Errors of a fit that do not end the search: the candidate is at fault, not the search."""

Criterion = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class Fold:
    """Training rows and test rows of one fold; None for all rows."""

    train: RowIndices | None = None
    test: RowIndices | None = None
    share: NDArray[np.float64] | None = (
        None  # by how much each test row counts, where rows are in several, (m,)
    )

    @classmethod
    def from_shuffled_rows(cls, n: int, count: int, seed: int) -> list[Fold]:
        """Folds of n shuffled rows, each row in one test set."""
        folds = Folds(n, count, seed)
        return [cls(folds.train_rows(fold), folds.test_rows(fold)) for fold in range(count)]

    @classmethod
    def from_pairs(cls, pairs: Iterable[tuple[Any, Any]], n: int) -> list[Fold]:
        """Folds of n rows from pairs of row numbers; rows in several test sets count once in all."""
        splits = [(np.asarray(train), np.asarray(test)) for train, test in pairs]
        times = np.zeros(n)
        for _, test in splits:
            np.add.at(times, test, 1.0)
        if times.max() <= 1.0:
            return [cls(train, test) for train, test in splits]
        return [cls(train, test, 1.0 / times[test]) for train, test in splits]


@dataclass(frozen=True, eq=False)
class FoldFit:
    """The result of fitting one candidate to one fold."""

    density: GroupedSums | None  # log-densities of the test rows, by groups of rows; None where it failed
    score: float = float("nan")  # value of the criterion, where one was given
    n_parameters: float = float("nan")  # of the fitted estimator, for a fit to all rows
    warnings: tuple[str, ...] = ()
    failure: str = ""


FitPlace = tuple[int, int]
"""Number of a candidate and number of a fold."""
FoldFits = dict[FitPlace, FoldFit]


def cross_validate(
    candidates: Sequence[Any],
    X: Any,
    folds: Sequence[Fold],
    criterion: Criterion | None,
    *,
    n_jobs: int | None,
    checkpoint: Checkpoint | None,
    weight: Array | None = None,
    observers: Sequence[Observer[FoldFits]] = (),
) -> FoldFits:
    """Fit every candidate to every fold, and score it; on Ctrl-C the fits that have finished are in the checkpoint."""
    done: FoldFits = {}
    keys: dict[FitPlace, dict[str, Any]] = {}
    places = [(i, f) for i in range(len(candidates)) for f in range(len(folds))]
    if checkpoint is not None:
        keys = {(i, f): checkpoint.describe_fit(candidates[i], folds[f], criterion) for i, f in places}
        done = {place: fit for place, key in keys.items() if (fit := checkpoint.read_fit(key)) is not None}
    todo = [place for place in places if place not in done]
    fits: Generator[tuple[FitPlace, FoldFit]] = Parallel(n_jobs=n_jobs, return_as="generator_unordered")(
        delayed(_fit_candidate_to_fold)((i, f), candidates[i], X, folds[f], criterion, weight)
        for i, f in todo
    )

    def collect_fit(done: FoldFits) -> Iteration[FoldFits]:
        place, fit = next(fits)
        if checkpoint is not None:
            checkpoint.write_fit(keys[place], fit)
        done[place] = fit
        return Iteration(done, float("nan") if fit.density is None else fit.density.mean)

    try:
        outcome = run(collect_fit, done, max_iter=len(todo), observers=observers)
        if outcome.interrupted:
            raise KeyboardInterrupt
        next(fits, None)  # so that joblib sees the end
    finally:
        fits.close()
    return outcome.state


def _fit_candidate_to_fold(
    place: FitPlace, estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None
) -> tuple[FitPlace, FoldFit]:
    return place, fit_and_score(clone(estimator), X, fold, criterion, weight)


def fit_and_score(
    estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None = None
) -> FoldFit:
    """Fit an estimator in place to the training rows of a fold and score the test rows; errors become a ``failure``."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            fit = _fit_and_score(estimator, X, fold, criterion, weight)
        except ClusterError:  # no candidate's fault: the result would depend on when the cluster was lost
            raise
        except FAILURES as error:
            fit = FoldFit(None, failure=f"{type(error).__name__}: {error}")
    return replace(fit, warnings=tuple(dict.fromkeys(str(warning.message) for warning in caught)))


def _fit_and_score(
    estimator: Any, X: Any, fold: Fold, criterion: Criterion | None, weight: Array | None
) -> FoldFit:
    train_weight, test_weight = (
        weight if weight is None or where is None else weight[to_indices(where, count_rows(X))]
        for where in (fold.train, fold.test)
    )
    train = X if fold.train is None else take_rows(X, fold.train)
    estimator.fit(train, **({} if train_weight is None else {"sample_weight": train_weight}))
    if getattr(estimator, "interrupted_", False):  # the fit caught Ctrl-C and stopped early
        raise KeyboardInterrupt
    (density,) = sum_log_densities([estimator], X, fold.test, fold.share, test_weight)
    if fold.test is None:
        return FoldFit(density, n_parameters=count_parameters(estimator, X))
    if criterion is None:
        return FoldFit(density)
    value = criterion(estimator, take_rows(X, fold.test))
    score = float(value[0] if isinstance(value, tuple) else value)
    if not np.isfinite(score):
        raise ValueError(f"criterion must give a finite number, got {score}")
    return FoldFit(density, score=score)


FORMAT = 2
PARTS = ("weight", "square", "total")
"""Of the log-densities of a fit."""
NOT_FITTED = {"verbose", "n_jobs", "checkpoint", "warm_start"}
"""Parameters that do not change what is fitted."""


class Checkpoint:
    """Finished fits of a search in a folder, which is created where there is none; ``data`` is a digest of the data."""

    def __init__(self, folder: str | os.PathLike[str], data: str) -> None:
        self.folder: Path = Path(folder)
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(
                f"checkpoint={str(folder)!r} is a file: give a folder, which holds one file per fit"
            )
        self.folder.mkdir(exist_ok=True)
        self.data = data

    def describe_fit(self, estimator: Any, fold: Fold, criterion: Criterion | None) -> dict[str, Any]:
        """All that decides a fit, as JSON."""
        params = estimator.get_params(deep=True)
        return {
            "boxloop": __version__,
            "data": self.data,
            "estimator": to_json(type(estimator)),
            "parameters": {
                k: to_json(v) for k, v in params.items() if k.rpartition("__")[2] not in NOT_FITTED
            },
            "fold": "all rows" if fold.train is None else fingerprint_values(fold.train, fold.test),
            "criterion": to_json(criterion),
        }

    def read_fit(self, key: Mapping[str, Any]) -> FoldFit | None:
        """The fit with this key, or None."""
        path = self._file_path(key)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{path}: this file of a checkpoint is damaged, remove it: {error}") from error
        try:
            if document["format"] != FORMAT or document["key"] != key:
                raise ValueError("it belongs to another search or version")
            parts = (document["density"][name] for name in PARTS)
            return FoldFit(
                GroupedSums(*(torch.tensor([float(v) for v in part], dtype=torch.float64) for part in parts)),
                score=float(document["score"]),
                n_parameters=float(document["n_parameters"]),
                warnings=tuple(str(line) for line in document["warnings"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: not a fit of this search, remove it: {error}") from error

    def write_fit(self, key: Mapping[str, Any], fit: FoldFit) -> None:
        """Write a fit, unless it failed: a failure is tried again."""
        if fit.density is None:
            return
        document = {
            "format": FORMAT,
            "key": key,
            "density": {
                name: [v if math.isfinite(v) else str(v) for v in part.tolist()]
                for name, part in fit.density.leaves()
            },
            "score": to_json(fit.score),
            "n_parameters": to_json(fit.n_parameters),
            "warnings": list(fit.warnings),
        }
        write_atomic(self._file_path(key), json.dumps(document, allow_nan=False).encode())

    def _file_path(self, key: Mapping[str, Any]) -> Path:
        return self.folder / f"{fingerprint_values(json.dumps(key, sort_keys=True))[:32]}.json"


def to_json(value: Any) -> Any:
    """A parameter as JSON that is the same in another process."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, list | tuple):
        return [to_json(part) for part in value]
    if isinstance(value, Mapping):
        return {str(name): to_json(part) for name, part in value.items()}
    if isinstance(value, np.ndarray):
        return fingerprint_values(value)
    if isinstance(value, BaseEstimator):
        value = type(value)  # its parameters are listed beside it
    name = getattr(value, "__qualname__", "<")
    if "<" not in name:
        return f"{value.__module__}.{name}"
    text = repr(value)
    if re.search(r"\bat 0x[0-9a-fA-F]+", text):
        raise ValueError(
            f"a checkpoint cannot distinguish {text} from another of its kind: "
            "give a plain value, an integer seed or a function with a name"
        )
    return text
