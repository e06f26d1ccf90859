"""Faults 1 to 9 as an estimator meets them: tables that are empty, short, flat, or hold what is not a number."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest
from scipy import sparse

from boxloop import FactorAnalysis, FitWarning, GaussianMixture, MultinomialMixture, ProbabilisticPCA
from boxloop.data import write_table
from estimators.cases import (
    Case,
    assert_same,
    counted,
    every,
    fit_with_warnings,
    gaussians,
    linear,
    measured,
    mixtures,
)

NAMES = ("height", "width", "depth", "weight", "age", "sex", "race", "class")


def frame(rows: np.ndarray) -> pandas.DataFrame:
    return pandas.DataFrame(rows, columns=list(NAMES[: rows.shape[1]]))


def spoilt(rows: np.ndarray, value: float, row: int = 7, column: int = 1) -> np.ndarray:
    rows = rows.copy()
    rows[row, column] = value
    return rows


def fit_quietly(estimator: Any, X: Any) -> Any:
    return fit_with_warnings(estimator, X)[0]


def assert_usable(estimator: Any, X: np.ndarray) -> None:
    """Every number that a user may read is finite."""
    assert estimator.model_.is_finite()
    assert np.isfinite(estimator.lower_bounds_).all()
    assert np.isfinite(estimator.score_samples(X)).all()
    assert np.isfinite(estimator.transform(X)).all()
    assert np.isfinite(estimator.sample(5)[0]).all()


@every
def test_f01_missing_values_are_fitted(case: Case) -> None:
    X = case.rows(200)
    missing = np.random.default_rng(1).random(X.shape) < 0.15
    missing[3] = True
    X[missing] = np.nan
    estimator = case.make().fit(X)
    assert_usable(estimator, X)
    assert estimator.score_samples(X)[3] == pytest.approx(0.0, abs=1e-12), (
        "a row with nothing seen says nothing"
    )
    np.testing.assert_allclose(estimator.score(X), estimator.lower_bound_, atol=1e-2)


@every
@pytest.mark.parametrize("kind", ["array", "pandas", "polars"])
def test_f01_a_column_with_nothing_seen_is_named(case: Case, kind: str) -> None:
    X = case.rows(60)
    X[:, 1] = np.nan
    data = {"array": lambda: X, "pandas": lambda: frame(X), "polars": lambda: polars.from_pandas(frame(X))}[
        kind
    ]()
    with pytest.raises(
        ValueError, match=f"column '{'x1' if kind == 'array' else 'width'}' has no observed value"
    ):
        case.make().fit(data)


def test_f01_missing_value_in_sparse_counts_is_named() -> None:
    X = sparse.csr_array(spoilt(np.ones((20, 3)), np.nan))
    with pytest.raises(ValueError, match="column 'x1' holds nan at row 7"):
        MultinomialMixture(2).fit(X)


@every
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_f02_infinite_value(case: Case, value: float, tmp_path: Path) -> None:
    X = spoilt(case.rows(60), value)
    with pytest.raises(ValueError, match=rf"column 'x1' holds an infinite value \({value}\) at row 7"):
        case.make().fit(X)
    with pytest.raises(ValueError, match="column 'width' holds an infinite value"):
        case.make().fit(frame(X))
    with pytest.raises(ValueError, match="column 'width' holds an infinite value"):
        case.make().partial_fit(frame(X))
    write_table(tmp_path / "t.csv", {name: X[:, j] for j, name in enumerate(frame(X))})
    with pytest.raises(ValueError, match=r"t\.csv: column 'width' holds an infinite value"):
        case.make().fit(tmp_path / "t.csv")
    fitted = case.make().fit(frame(case.rows(60)))
    with pytest.raises(ValueError, match="column 'width' holds an infinite value"):
        fitted.transform(frame(X))


@every
def test_f03_no_rows_and_no_columns(case: Case) -> None:
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"):
        case.make().fit(np.zeros((0, 3)))
    with pytest.raises(
        ValueError, match=r"0 feature\(s\) \(shape=\(5, 0\)\) while a minimum of 1 is required"
    ):
        case.make().fit(np.zeros((5, 0)))
    fitted = case.make().fit(case.rows(60))
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\)"):
        fitted.transform(case.rows(60)[:0])


@every
def test_f04_one_row(case: Case) -> None:
    X = case.rows(1)
    estimator = fit_quietly(case.make(n_components=1), X)
    assert_usable(estimator, X)
    centre = estimator.means_ if case.mixing else estimator.mean_[None]
    if case.kind is MultinomialMixture:
        np.testing.assert_allclose(estimator.probabilities_, X / X.sum(), atol=1e-9)
    else:
        np.testing.assert_allclose(centre, X, atol=1e-9)


@measured
def test_f04_one_row_warns(case: Case) -> None:
    estimator, warned = fit_with_warnings(case.make(n_components=1), case.rows(1))
    for record in (estimator.events_, warned):
        assert any("constant column" in event for event in record)


@every
def test_f05_fewer_rows_than_components(case: Case) -> None:
    k = 3
    message = rf"n_components = {k}.*n_samples = 2" if case.mixing else rf"n_components={k}.*2 rows"
    with pytest.raises(ValueError, match=message):
        case.make(n_components=k).fit(case.rows(2))


@linear
def test_f05_more_factors_than_columns(case: Case) -> None:
    with pytest.raises(ValueError, match=r"n_components=6.*columns, 5"):
        case.make(n_components=6).fit(case.rows(60))


@linear
def test_f05_covariance_of_fewer_rows_than_factors(case: Case) -> None:
    with pytest.raises(ValueError, match=r"n_components=3.*2 rows"):
        case.make(n_components=3).fit_covariance(np.eye(5), n_samples=2)


@gaussians
def test_f06_fewer_rows_than_columns(case: Case) -> None:
    X = np.random.default_rng(2).normal(size=(8, 20))
    estimator = case.make(n_components=1)
    if case.params["covariance_type"] in ("full", "tied"):
        with pytest.warns(FitWarning, match="held at the floor.*too few rows"):
            estimator.fit(X)
        assert np.linalg.eigvalsh(estimator.covariances_.reshape(20, 20)).min() > 0
    else:
        estimator.fit(X)
    assert_usable(estimator, X)


@linear
def test_f06_fewer_rows_than_columns_for_factors(case: Case) -> None:
    X = np.random.default_rng(2).normal(size=(8, 20))
    assert_usable(fit_quietly(case.make(n_components=2), X), X)


@measured
@pytest.mark.parametrize("value", [0.0, 3.0, -1e7, 1e-9])
def test_f07_constant_column(case: Case, value: float) -> None:
    X = case.rows(200)
    X[:, 1] = value
    estimator, warned = fit_with_warnings(case.make(), frame(X))
    for record in (estimator.events_, warned):
        assert any("constant column(s) 'width'" in event for event in record)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        assert_usable(estimator, X)
    mean = estimator.means_[:, 1] if case.mixing else estimator.mean_[1]
    np.testing.assert_allclose(mean, value, rtol=1e-9, atol=1e-12)
    others = fit_quietly(case.make(), np.delete(X, 1, axis=1))
    if case.name != "ppca" and case.name != "gaussian-spherical":
        kept = np.delete(estimator.means_ if case.mixing else estimator.mean_[None], 1, axis=1)
        centre = others.means_ if case.mixing else others.mean_[None]
        np.testing.assert_allclose(np.sort(kept, 0), np.sort(centre, 0), rtol=1e-6, atol=1e-6)


@counted
def test_f07_constant_counts_are_ordinary(case: Case) -> None:
    X = case.rows(200)
    X[:, 1] = 1.0
    assert_usable(case.make().fit(X), X)


@every
def test_f08_all_rows_identical(case: Case) -> None:
    X = np.repeat(case.rows(1), 30, axis=0)
    one = fit_quietly(case.make(n_components=1), X)
    assert_usable(one, X)
    more, warned = fit_with_warnings(case.make(n_components=3), X)
    assert_usable(more, X)
    assert warned, "more than one component for one kind of row deserves a warning"


@mixtures
def test_f08_fewer_distinct_rows_than_components(case: Case) -> None:
    X = np.repeat(case.rows(2), 20, axis=0)
    assert_usable(fit_quietly(case.make(n_components=4), X), X)


@pytest.mark.parametrize("scale", [1.0, -2.5, 1e6])
@pytest.mark.parametrize("kind", ["full", "tied"])
def test_f09_collinear_columns(kind: str, scale: float) -> None:
    X = np.random.default_rng(3).normal(size=(300, 3))
    X = np.column_stack([X, scale * X[:, 0]])
    with pytest.warns(FitWarning, match=r"condition number [\d.e+]+"):
        estimator = GaussianMixture(1, covariance_type=kind).fit(X)
    assert any("condition number" in event for event in estimator.events_)
    assert_usable(estimator, X)
    np.testing.assert_allclose(
        np.corrcoef(X.T)[0, 3], np.sign(scale), err_msg="the planted fault is there", rtol=1e-12
    )
    covariance = estimator.covariances_.reshape(4, 4)
    np.testing.assert_allclose(covariance[:3, :3], np.cov(X[:, :3].T, bias=True), rtol=1e-4, atol=1e-4)


@linear
def test_f09_collinear_columns_of_factors(case: Case) -> None:
    X = case.rows(300)
    X[:, 1] = X[:, 0]
    estimator = fit_quietly(case.make(n_components=4), X)
    assert_usable(estimator, X)
    assert isinstance(estimator, FactorAnalysis | ProbabilisticPCA)
    if case.kind is FactorAnalysis:
        assert any("condition number" in event for event in estimator.events_)


def test_f09_nearly_collinear_columns_are_fitted_as_they_are() -> None:
    rng = np.random.default_rng(4)
    X = rng.normal(size=(400, 2))
    X = np.column_stack([X, X[:, 0] + 0.01 * rng.normal(size=400)])
    estimator = GaussianMixture(1).fit(X)
    np.testing.assert_allclose(estimator.covariances_[0], np.cov(X.T, bias=True), rtol=1e-8)
    assert_same(estimator, GaussianMixture(1).fit(X))
