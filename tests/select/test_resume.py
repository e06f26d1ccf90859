"""A search that was killed goes on where it stopped: fits are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from boxloop.select import ModelSearchCV, SelectionWarning, to_json

COLUMNS = [0, 1, 2]
FITS = len(COLUMNS) * (4 + 1)


class Counting(BaseEstimator):
    """Counts fits of all its kind, and fails at a given one."""

    fits: ClassVar[int] = 0
    stop_at: ClassVar[int | None] = None
    error: ClassVar[type[BaseException]] = KeyboardInterrupt

    def __init__(self, column: int = 0, extra: Any = None) -> None:
        self.column = column
        self.extra = extra

    def fit(self, X: np.ndarray, y: object = None) -> Counting:
        kind = type(self)
        if kind.fits == kind.stop_at:
            raise kind.error("stopped")
        kind.fits += 1
        self.mean_ = X[:, self.column].mean()
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return -((X[:, self.column] - self.mean_) ** 2)


@pytest.fixture(autouse=True)
def _count_from_zero() -> None:
    Counting.fits, Counting.stop_at, Counting.error = 0, None, KeyboardInterrupt


@pytest.fixture
def X() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(40, 3)) * [1.0, 2.0, 3.0]


def search(folder: Path | None, **more: Any) -> ModelSearchCV:
    usual = {
        "estimator": Counting(),
        "param_grid": {"column": COLUMNS},
        "cv": 4,
        "refit": False,
        "checkpoint": folder,
    }
    return ModelSearchCV(**{**usual, **more})


@pytest.mark.parametrize("stop", [0, 1, 7, FITS - 1])
def test_no_cell_is_fitted_twice(tmp_path: Path, X: np.ndarray, stop: int) -> None:
    expected = search(None).fit(X).cv_results_
    Counting.fits, Counting.stop_at = 0, stop
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "cells").fit(X)
    assert len(list((tmp_path / "cells").glob("*.json"))) == stop
    Counting.stop_at = None
    found = search(tmp_path / "cells").fit(X).cv_results_
    assert Counting.fits == FITS
    for name in ("log_likelihood", "log_likelihood_error", "gap", "gap_error"):
        assert (found[name] == expected[name]).all(), "the same bits"
    search(tmp_path / "cells").fit(X)
    assert Counting.fits == FITS


SCRIPT = """
import os, sys
import numpy as np
from sklearn.base import BaseEstimator
from boxloop.select import ModelSearchCV

class Counting(BaseEstimator):
    fits = 0
    def __init__(self, column=0):
        self.column = column
    def fit(self, X, y=None):
        if Counting.fits == stop:
            os._exit(9)
        Counting.fits += 1
        return self
    def score_samples(self, X):
        return X[:, self.column]

first = os.fork()
stop = 6 if first == 0 else -1
if first:
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == 9
X = np.random.default_rng(0).normal(size=(40, 3))
ModelSearchCV(Counting(), {"column": [0, 1, 2]}, cv=4, refit=False, checkpoint=sys.argv[1]).fit(X)
print(Counting.fits)
"""


def test_a_process_that_dies(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cells")]
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.stdout.split() == [str(FITS - 6)], again.stderr


def test_cells_serve_a_larger_search(tmp_path: Path, X: np.ndarray) -> None:
    ModelSearchCV(Counting(), {"column": [0, 1]}, cv=4, refit=False, checkpoint=tmp_path).fit(X)
    assert Counting.fits == 10
    search(tmp_path).fit(X)
    assert Counting.fits == FITS


@pytest.mark.parametrize("change", ["data", "folds", "parameter", "criterion", "names"])
def test_anything_else_is_fitted_anew(tmp_path: Path, X: np.ndarray, change: str) -> None:
    search(tmp_path).fit(X)
    more: dict[str, Any] = {}
    if change == "data":
        X = X.copy()
        X[0, 0] += 1e-9
    elif change == "folds":
        more["random_state"] = 1
    elif change == "criterion":
        more["criterion"] = own_criterion
    elif change == "parameter":
        more["estimator"] = Counting(extra=[1, 2.5])
    else:
        more["param_grid"] = {"column": COLUMNS, "extra": [None, "full"]}
    search(tmp_path, **more).fit(X)
    kept = {"folds": len(COLUMNS), "names": 0}.get(change, 0)  # the fit to all rows has no folds
    assert Counting.fits == 2 * FITS - kept


def own_criterion(estimator: Counting, X: np.ndarray) -> float:
    return float(estimator.score_samples(X).mean())


def test_a_failure_is_tried_again(tmp_path: Path, X: np.ndarray) -> None:
    Counting.stop_at, Counting.error = 3, ValueError
    with pytest.raises(ValueError, match="no candidate could be fitted: ValueError: stopped"):
        search(tmp_path).fit(X)
    Counting.stop_at = None
    search(tmp_path).fit(X)
    assert Counting.fits == FITS


def test_errors_of_the_search_itself_are_passed_on(tmp_path: Path, X: np.ndarray) -> None:
    Counting.stop_at, Counting.error = 2, SystemExit
    with pytest.raises(SystemExit):
        search(tmp_path).fit(X)
    assert len(list(tmp_path.glob("*.json"))) == 2


def test_a_fit_that_caught_the_interruption_is_not_kept(tmp_path: Path, X: np.ndarray) -> None:
    class Patient(Counting):
        def fit(self, X: np.ndarray, y: object = None) -> Counting:
            super().fit(X)
            self.interrupted_ = Counting.fits == 0 and Patient.fits == 3
            return self

    with pytest.raises(KeyboardInterrupt):
        ModelSearchCV(Patient(), {"column": COLUMNS}, cv=4).fit(X)
    assert Patient.fits == 3


def test_warnings_come_back(tmp_path: Path, X: np.ndarray) -> None:
    class Uneasy(Counting):
        def fit(self, X: np.ndarray, y: object = None) -> Counting:
            import warnings

            warnings.warn("not sure", UserWarning, stacklevel=2)
            return super().fit(X)

    for _ in range(2):
        with pytest.warns(SelectionWarning, match="not sure"):
            ModelSearchCV(Uneasy(), {"column": [0]}, cv=2, refit=False, checkpoint=tmp_path).fit(X)
    assert Uneasy.fits == 3


def test_densities_of_zero_come_back(tmp_path: Path, X: np.ndarray) -> None:
    class Zero(Counting):
        def score_samples(self, X: np.ndarray) -> np.ndarray:
            density = super().score_samples(X)
            return np.where(self.column == 0, -np.inf, density)

    first, second = (search(tmp_path, estimator=Zero()).fit(X).cv_results_ for _ in range(2))
    assert first["log_likelihood"][0] == second["log_likelihood"][0] == -np.inf
    for file in tmp_path.glob("*.json"):
        json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"format": 2', '"format": 3'),
        lambda text: text.replace('"column": 0', '"column": 1'),
        lambda text: text.replace('"total": [', '"total": ["x", '),
    ],
)
def test_a_damaged_cell_is_refused_by_name(tmp_path: Path, X: np.ndarray, damage: Any) -> None:
    only = {"param_grid": {"column": [0]}, "cv": 2}
    search(tmp_path, **only).fit(X)
    for file in tmp_path.glob("*.json"):
        file.write_text(damage(file.read_text()))
    with pytest.raises(ValueError, match=r"[0-9a-f]{32}\.json.*remove it"):
        search(tmp_path, **only).fit(X)


def test_a_file_is_no_folder(tmp_path: Path, X: np.ndarray) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        search(tmp_path / "file").fit(X)
    with pytest.raises(FileNotFoundError):
        search(tmp_path / "missing" / "cells").fit(X)


@pytest.mark.parametrize("value", [lambda e, X: 0.0, np.random.default_rng(0), object()])
def test_what_cannot_be_distinguished_is_refused(tmp_path: Path, X: np.ndarray, value: Any) -> None:
    with pytest.raises(ValueError, match="cannot distinguish"):
        search(tmp_path, estimator=Counting(extra=value)).fit(X)


def test_parameters_as_json() -> None:
    array = np.arange(3.0)
    assert to_json({"a": np.float64(1.5), "b": (True, None)}) == {"a": 1.5, "b": [True, None]}
    assert to_json(array) == to_json(array.copy()) != to_json(array + 1e-12)
    assert to_json(Counting(1)).endswith("Counting")
    assert to_json(float("inf")) == "inf"
