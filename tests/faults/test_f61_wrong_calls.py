"""Fault 61: any public method of any estimator before ``fit``, or with a wrong kind of argument."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, TensorDataset

from estimators.public_cases import PUBLIC, Public, estimator_names, quietly

PLUMBING = {"get_params", "set_params", "get_metadata_routing", "set_output", "get_feature_names_out", "load"}
"""Methods of scikit-learn's bases, and constructors."""
FITS = {"fit", "fit_predict", "fit_transform", "partial_fit", "fit_covariance"}
TABLES = {"X", "given", "covariance"}
"""Arguments that are tables."""
# A text is the path of a table, of which the operating system's own error says that it is not there.
REFUSALS = (ValueError, TypeError, NotFittedError, FileNotFoundError)
RAW = (
    "object has no attribute",
    "float() argument",
    "could not convert",
    "setting an array element",
    "subscriptable",
)
"""Words of NumPy and Python that name neither the argument nor a remedy."""


def wrong_tables(X: np.ndarray) -> dict[str, Any]:
    """What is no table of numbers with the columns of X."""
    infinite = X.astype(np.float64)
    infinite[1, 0] = np.inf
    return {
        "none": None,
        "text": "no such table",
        "loader": DataLoader(TensorDataset(torch.from_numpy(X))),
        "generator": (row for row in X),
        "dictionary": {"a": [1, 2]},
        "dictionaries": [{"a": 1}, {"a": 2}],
        "set": {1, 2},
        "number": 3.5,
        "one dimension": X[:, 0],
        "five dimensions": np.ones((2, 2, 2, 2, 2)),
        "lists of several lengths": [[1, 2], [3]],
        "text in objects": np.array([["a", "b"]] * 4, dtype=object),
        "text in lists": [["a", "b"], ["c", "d"]],
        "no rows": X[:0],
        "no columns": X[:, :0],
        "another width": X[:, 1:],
        "infinite": infinite,
        "complex": X + 1j,
    }


ALLOWED = {
    "another width": FITS,  # a fit takes any
    "text": set(),
}


def methods(estimator: Any) -> list[str]:
    """Names of its public methods, those that the settings offer."""
    found = []
    for name in dir(type(estimator)):
        if name.startswith("_") or name in PLUMBING or name.endswith("_request"):
            continue
        if isinstance(inspect.getattr_static(type(estimator), name), property):
            continue
        try:
            offered = getattr(estimator, name)
        except AttributeError:
            continue
        if callable(offered):
            found.append(name)
    return found


def call(estimator: Any, name: str, public: Public, table: Any) -> Any:
    """A method with ``table`` for rows, and good values for whatever else it needs."""
    X, y = public.data()
    method = getattr(estimator, name)
    given: dict[str, Any] = {}
    for key, parameter in inspect.signature(method).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if key in TABLES:
            given[key] = table
        elif key in ("y", "y_test"):
            given[key] = y
        elif key == "groups" and name == "fit":
            given[key] = np.arange(len(X)) % 6
        elif name == "fit_covariance" and key == "n_samples":
            given[key] = 10
        elif parameter.default is parameter.empty:
            given[key] = "model.boxloop" if key == "path" else X
    return quietly(lambda: method(**given))


def ignores_rows(estimator: Any, name: str) -> bool:
    """Whether a method takes rows only so as to be called like its namesakes: a posterior has its own errors."""
    errors = getattr(estimator, "standard_errors", None)
    return name in ("standard_errors", "plot") and "no rows are needed" in (errors.__doc__ or "")


def faults_of(attempt: Callable[[], Any]) -> str | None:
    """What is wrong with how a wrong call was answered; None where it was refused as it should be."""
    try:
        attempt()
    except REFUSALS as error:
        raw = next((words for words in RAW if words in str(error)), None)
        return None if raw is None and len(str(error)) > 10 else f"says {str(error)[:90]!r}"
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"raises {type(error).__name__} ({str(error)[:60]}) in {where.name}"
    return "is taken"


over_public = pytest.mark.parametrize("public", PUBLIC, ids=lambda public: public.name)


def test_every_public_estimator_is_asked() -> None:
    assert {public.name for public in PUBLIC} == set(estimator_names())


@over_public
def test_f61_every_method_before_fit(public: Public, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    estimator = public.make()
    X, _ = public.data()
    found = {}
    for name in set(methods(estimator)) - FITS:
        try:
            call(estimator, name, public, X)
            found[name] = "is taken"
        except NotFittedError:
            continue
        except Exception as error:
            found[name] = f"raises {type(error).__name__} ({str(error)[:60]})"
    assert not found, found


@over_public
def test_f61_wrong_tables(public: Public) -> None:
    fitted = public.fitted()
    X, _ = public.data()
    found = {}
    for name in methods(fitted):
        if not TABLES & set(inspect.signature(getattr(fitted, name)).parameters) or ignores_rows(
            fitted, name
        ):
            continue
        for kind, table in wrong_tables(X).items():
            if name in ALLOWED.get(kind, ()):
                continue
            estimator = public.make() if name in FITS else copy.copy(fitted)
            required = "X" in inspect.signature(getattr(fitted, name)).parameters
            default = (
                inspect.signature(getattr(fitted, name)).parameters["X"].default
                if required
                else inspect._empty
            )
            if kind == "none" and default is None:
                continue  # rows may be left out
            fault = faults_of(lambda e=estimator, n=name, t=table: call(e, n, public, t))  # type: ignore[misc]
            if fault is not None:
                found[f"{name}: {kind}"] = fault
    assert not found, found


@over_public
def test_f61_wrong_targets(public: Public) -> None:
    X, y = public.data()
    if y is None:
        pytest.skip("rows alone are fitted")
    wrong = {
        "none": None,
        "loader": DataLoader(TensorDataset(torch.from_numpy(X))),
        "dictionary": {"a": [1, 2]},
        "another length": y[1:],
        "four dimensions": np.ones((60, 2, 2, 2, 2)),
        "infinite": np.full(60, np.inf),
        "missing": np.full(60, np.nan),
        "complex": np.ones(60) + 1j,
        "number": 3.5,
        "no rows": y[:0],
    }
    found = {}
    for kind, target in wrong.items():
        fault = faults_of(lambda t=target: quietly(lambda: public.make().fit(X, t, **public.settings())))  # type: ignore[misc]
        if fault is not None:
            found[kind] = fault
    assert not found, found
