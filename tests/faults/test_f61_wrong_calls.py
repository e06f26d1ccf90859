"""Fault 61: any public method of any estimator before ``fit``, or with a wrong kind of argument."""

from __future__ import annotations

import copy
import inspect
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import NotFittedError
from torch.utils.data import DataLoader, TensorDataset

import boxloop
import boxloop.sample
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
    "not supported between",
    "at least 1 dimension",
    "Expected array-like",
    "to unpack",
    "infer dtype",
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
        "times": np.zeros(X.shape, "datetime64[s]"),
        "whole numbers beyond floats": [[10**400] * X.shape[1]] * 4,
        "text in a frame": pd.DataFrame(
            np.full((4, X.shape[1]), "a"), columns=[f"x{j}" for j in range(X.shape[1])]
        ),
        "complex and sparse": sparse.csr_array(np.full((4, X.shape[1]), 1j)),
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
        "times": np.zeros(60, "datetime64[s]"),
        "number": 3.5,
        "no rows": y[:0],
    }
    if public.name in ("LogisticRandomEffects", "NetworkClassifier", "RelevantClassifier"):
        del wrong["times"]  # labels of classes
    found = {}
    for kind, target in wrong.items():
        fault = faults_of(lambda t=target: quietly(lambda: public.make().fit(X, t, **public.settings())))  # type: ignore[misc]
        if fault is not None:
            found[kind] = fault
    assert not found, found


SCORED = [public for public in PUBLIC if public.target in ("numbers", "labels", "counts")]


@pytest.mark.parametrize("public", SCORED, ids=lambda public: public.name)
def test_f61_wrong_targets_and_weights_of_a_score(public: Public) -> None:
    X, y = public.data()
    fitted = public.fitted()
    wrong = {
        "none": None,
        "text": "high",
        "loader": DataLoader(TensorDataset(torch.from_numpy(X))),
        "number": np.array(3.5),
        "another length": y[1:],
        "three dimensions": np.ones((60, 1, 2)),
        "several kinds": np.array([1, "a", None] * 20, dtype=object),
        "dictionaries": [{"a": 1}] * 60,
    }
    found = {}
    for kind, value in wrong.items():
        fault = faults_of(lambda v=value: fitted.score(X, v))  # type: ignore[misc]
        found |= {} if fault is None else {f"y: {kind}": fault}
        if value is not None:
            fault = faults_of(lambda v=value: fitted.score(X, y, sample_weight=v))  # type: ignore[misc]
            found |= {} if fault is None else {f"sample_weight: {kind}": fault}
    fault = faults_of(lambda: fitted.score(X, y, sample_weight=-np.ones(60)))
    assert not found, found
    assert fault is None, fault


@over_public
def test_f61_tensors_that_keep_gradients(public: Public) -> None:
    """What a network gave, without detach(): its values are read."""
    X, y = public.data()
    fitted = public.fitted()
    rows = torch.tensor(X.astype(np.float64), requires_grad=True)
    answer = y
    if y is not None and y.dtype.kind == "f":
        answer = torch.tensor(y, requires_grad=True)
    same = quietly(lambda: public.make().fit(rows, *(() if y is None else (answer,)), **public.settings()))
    for name in ("score", "predict", "transform", "score_samples"):
        if name not in methods(fitted):
            continue
        more = [(y,), (answer,)] if name == "score" and y is not None else [(), ()]
        wanted, found = getattr(fitted, name)(X, *more[0]), getattr(same, name)(rows, *more[1])
        np.testing.assert_array_equal(found, wanted, err_msg=name)


def test_f61_draws_of_a_bound() -> None:
    fitted = next(public for public in PUBLIC if public.name == "VariationalAutoencoder").fitted()
    for wrong in (-1, 0, 2.5, "many"):
        assert faults_of(lambda w=wrong: fitted.elbo(fitted.sample(9)[0], n_draws=w)) is None  # type: ignore[misc]


NOT_CALLABLE = [None, "text", {"a": 1}, 3.5, np.ones(3), boxloop.GaussianMixture()]


@pytest.mark.parametrize("wrong", NOT_CALLABLE, ids=lambda wrong: type(wrong).__name__)
def test_f61_wrong_arguments_of_functions(wrong: Any) -> None:
    """None stands for no density of ``sample``, whose kernel then needs one."""
    X = np.random.default_rng(0).normal(size=(20, 3))
    start = torch.zeros(3).double()
    calls: dict[str, Callable[[], Any]] = {
        "sample": lambda: boxloop.sample_density(wrong, start, chains=2, draws=5, warmup=5),
        "z_estimate": lambda: boxloop.z_estimate(wrong, X, start),
        "m_estimate": lambda: boxloop.m_estimate(wrong, X, start),
        "match_moments": lambda: boxloop.match_moments(wrong, lambda theta: theta, X, start),
        "cavi": lambda: boxloop.cavi(wrong),
        "MultiPosterior": lambda: boxloop.MultiPosterior(wrong),
    }
    if not isinstance(wrong, float):
        calls["moment_penalty"] = lambda: boxloop.moment_penalty(wrong)
    if not isinstance(wrong, dict | np.ndarray | float):
        calls["start"] = lambda: boxloop.z_estimate(lambda theta, rows: rows - theta, X, wrong)
    found = {name: faults_of(attempt) for name, attempt in calls.items()}
    assert not any(found.values()), found


@pytest.mark.parametrize(
    "cv",
    [[1, 2], np.ones(4), np.ones((3, 4)), np.ones((2, 2, 2, 2)), {"a": [1]}, ["ab", "cd"], [([0], [99])]],
)
def test_f61_folds_that_are_none(cv: Any) -> None:
    X = np.random.default_rng(0).normal(size=(20, 3))
    select = boxloop.ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]}, cv=cv)
    with pytest.raises(ValueError, match="cv must be a number of folds"):
        quietly(lambda: select.fit(X))
