"""Small, flat, lopsided and half-empty tables: whatever is fitted is finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from boxloop import BernoulliMixture, FactorAnalysis, GaussianMixture, MultinomialMixture
from estimators.cases import (
    EVERYONE,
    Case,
    blobs,
    documents,
    everyone,
    factors,
    fit_with_warnings,
    linear,
    paired,
)


def _mostly_missing(X: np.ndarray) -> np.ndarray:
    return np.where(np.random.default_rng(0).random(X.shape) < 0.6, np.nan, X)


def shaped(case: Case, table: str) -> np.ndarray:
    """An odd table of values that the estimator takes; others are refused by name, which is not tested here."""
    X = TABLES[table](abs(case.rows(40)) if case.counting else case.rows(40))
    if case.counting and X.dtype.kind == "f":
        X = np.round(X)
    return np.where(np.isnan(X), X, X > 0) if case.kind is BernoulliMixture else X


def _with(X: np.ndarray, where: Any, value: float) -> np.ndarray:
    X = X.copy()
    X[where] = value
    return X


TABLES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "one column": lambda X: X[:, :1],
    "three rows": lambda X: X[:3],
    "truth values": lambda X: np.greater(X, X.mean()),
    "small integers": lambda X: np.clip(np.round(abs(X)), 0, 100).astype(np.int8),
    "an outlier": lambda X: _with(X, 0, 1e6),
    "nothing but zeros": np.zeros_like,
    "some rows of zeros": lambda X: _with(X, slice(10), 0.0),
    "a column of zeros": lambda X: _with(X, (slice(None), 0), 0.0),
    "three kinds of rows": lambda X: np.repeat(X[:3], 10, axis=0),
    "tiny values": lambda X: X * 1e-150,
    "more columns than rows": lambda X: np.repeat(X[:10], 6, axis=1) + np.arange(6 * X.shape[1]) % 7,
    "a column seen once": lambda X: _with(X, (slice(1, None), 1), np.nan),
    "mostly missing": _mostly_missing,
}


def assert_finite(estimator: Any, X: np.ndarray) -> None:
    assert estimator.model_.is_finite()
    assert np.isfinite(estimator.lower_bounds_).all()
    for value in (estimator.score_samples(X), estimator.transform(X), estimator.sample(3)[0]):
        assert np.isfinite(value).all()


@everyone
@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_fit(case: Case, table: str, dtype: str) -> None:
    X = shaped(case, table)
    start = {"init_params": "kmeans"} if case.mixing else {}
    assert_finite(fit_with_warnings(case.make(dtype=dtype, **start), X)[0], X)


@paired(EVERYONE, "method", ["online", "gradient"])
@pytest.mark.parametrize(
    "table", ["one column", "nothing but zeros", "more columns than rows", "mostly missing"]
)
def test_other_engines(case: Case, table: str, method: str) -> None:
    X = shaped(case, table)
    start = {"init_params": "kmeans"} if case.mixing else {}
    assert_finite(fit_with_warnings(case.make(method=method, max_iter=2, **start), X)[0], X)


@everyone
@pytest.mark.parametrize("table", ["an outlier", "nothing but zeros", "some rows of zeros", "mostly missing"])
@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
def test_stream(case: Case, table: str) -> None:
    X = shaped(case, table)
    estimator = case.make(**({"init_params": "kmeans"} if case.mixing else {}))
    for start in range(0, 40, 7):
        estimator.partial_fit(X[start : start + 7])
    assert_finite(estimator, X)


def test_a_stream_waits_for_a_column_that_is_not_yet_seen() -> None:
    X = blobs(60)
    X[:30, 1] = np.nan
    estimator = GaussianMixture(2, random_state=0).partial_fit(X[:30])
    assert "model_" not in vars(estimator)
    assert np.isfinite(estimator.partial_fit(X[30:]).means_).all()
    never = blobs(300)
    never[:, 1] = np.nan
    with pytest.raises(ValueError, match="column 'x1' has no observed value"):
        GaussianMixture(2, random_state=0).partial_fit(never)


@linear
def test_rounding_in_single_precision_is_no_bad_covariance(case: Case) -> None:
    X = np.repeat(factors(5), 10, axis=0)
    one, _ = fit_with_warnings(case.make(), X)
    other, _ = fit_with_warnings(case.make(dtype="float32"), X)
    np.testing.assert_allclose(other.get_covariance(), one.get_covariance(), atol=1e-3)


def test_precisions_of_a_nearly_singular_component() -> None:
    """Straight from the factor of the covariance, not by way of the covariance, which rounding makes singular."""
    X = blobs(300)
    X[:, 2] = X[:, 0] + 1e-7 * X[:, 2]
    estimator, _ = fit_with_warnings(GaussianMixture(1, reg_covar=1e-15), X)
    identity = (
        estimator.precisions_cholesky_[0].T @ estimator.covariances_[0] @ estimator.precisions_cholesky_[0]
    )
    np.testing.assert_allclose(identity, np.eye(3), atol=1e-1)


def test_one_word() -> None:
    estimator = MultinomialMixture(2, random_state=0, method="gradient", max_iter=2)
    fitted, _ = fit_with_warnings(estimator, documents(30)[:, :1])
    np.testing.assert_array_equal(fitted.probabilities_, 1.0)


def test_weights_may_have_any_scale() -> None:
    X, weight = blobs(200), np.random.default_rng(0).random(200)
    fits = [GaussianMixture(2, random_state=0).fit(X, sample_weight=weight * c) for c in (1.0, 1e-12, 1e12)]
    for other in fits[1:]:
        np.testing.assert_allclose(other.means_, fits[0].means_, rtol=1e-8)
    one = FactorAnalysis(1).fit(factors(200), sample_weight=weight * 1e-12)
    np.testing.assert_allclose(
        one.components_, FactorAnalysis(1).fit(factors(200), sample_weight=weight).components_, rtol=1e-6
    )
