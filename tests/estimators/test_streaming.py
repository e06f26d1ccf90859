"""``partial_fit``: a stream ends near the fit of all its rows, goes on from a fit, and refuses what does not fit."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pandas
import pytest
from scipy import sparse

from boxloop import FactorAnalysis, GaussianMixture, MultinomialMixture
from estimators.cases import (
    EVERYONE,
    Case,
    assert_same,
    blobs,
    counted,
    documents,
    every,
    everyone,
    factors,
    linear,
    over,
    paired,
)

GAP = 0.01
"""Most that a stream of 4000 rows may lose of the mean log-likelihood, beside the fit of all of them.

A fit of p parameters to n rows gains p / 2n of it by chance, at most 19/8000 = 0.0024 here. Online EM is efficient, so
its loss is of that size.
"""


def stream(case: Case, X: np.ndarray, size: int) -> object:
    estimator = case.quick()
    for start in range(0, len(X), size):
        estimator.partial_fit(X[start : start + size])
    return estimator


@everyone
@pytest.mark.parametrize("size", [37, 1000])
def test_a_stream_comes_close_to_the_fit_of_all_rows(case: Case, size: int) -> None:
    X = case.rows(4000, seed=21)
    batch = case.quick(tol=1e-6, max_iter=1000).fit(X)
    estimator = stream(case, X, size)
    assert estimator.score(X) > batch.score(X) - GAP
    assert estimator.n_samples_seen_ == 4000
    new = case.rows(2000, seed=22)
    assert estimator.score(new) > batch.score(new) - GAP


@everyone
def test_a_longer_stream_is_better(case: Case) -> None:
    """Against fresh rows, the loss falls by at least half from 250 to 4000 rows."""
    X, new = case.rows(4000, seed=23), case.rows(4000, seed=24)
    best = case.quick(tol=1e-6, max_iter=1000).fit(new).score(new)
    short, long = stream(case, X[:250], 50), stream(case, X, 50)
    assert best - long.score(new) < 0.5 * (best - short.score(new))


@everyone
def test_missing_values_in_a_stream(case: Case) -> None:
    X = case.rows(3000, seed=25)
    missing = np.random.default_rng(0).random(X.shape) < 0.1
    X[missing] = np.nan
    batch = case.quick(tol=1e-6, max_iter=1000).fit(X)
    assert stream(case, X, 100).score(X) > batch.score(X) - GAP


@everyone
def test_weights_in_a_stream(case: Case) -> None:
    """Rows of weight zero are as good as absent, before and after the model begins to flow."""
    X = case.rows(1200, seed=26)
    one, other = case.quick(), case.quick()
    for start in range(0, 1200, 100):
        part = X[start : start + 100]
        weight = np.tile([2.0, 0.0], 50)
        one.partial_fit(part, sample_weight=weight)
        other.partial_fit(part[::2], sample_weight=np.full(50, 2.0))
    assert_same(one, other, rtol=1e-7, atol=1e-9)


@everyone
def test_a_stream_goes_on_from_a_fit(case: Case) -> None:
    X, new = case.rows(3000, seed=27), case.rows(3000, seed=28)
    estimator = case.quick(tol=1e-6, max_iter=1000).fit(X[:2000])
    before = estimator.score(new)
    estimator.partial_fit(X[2000:2001])
    assert abs(estimator.score(new) - before) < 1e-3, "one row more than 2000 changes little"
    assert estimator.n_samples_seen_ == 2001
    for start in range(2001, 3000, 111):
        estimator.partial_fit(X[start : start + 111])
    assert estimator.score(new) > before - 2e-3
    whole = case.quick(tol=1e-6, max_iter=1000).fit(X)
    assert estimator.score(X) > whole.score(X) - GAP / 2


@paired(EVERYONE, "method", ["online", "gradient"])
def test_a_stream_goes_on_from_other_engines(case: Case, method: str) -> None:
    X = case.rows(1000, seed=29)
    estimator = case.quick(method=method, max_iter=20).fit(X)
    before = estimator.score(X)
    estimator.partial_fit(X[:100])
    assert abs(estimator.score(X) - before) < 0.02


@everyone
def test_fit_forgets_the_stream(case: Case) -> None:
    X = case.rows(600, seed=30)
    estimator = case.quick().partial_fit(X[:250]).fit(X[250:500])
    assert_same(estimator, case.quick().fit(X[250:500]), rtol=0, atol=0)
    twin = case.quick().fit(X[250:500])
    assert_same(estimator.partial_fit(X[500:]), twin.partial_fit(X[500:]), rtol=0, atol=0)
    fewer = case.quick().partial_fit(X).fit(X[:, 1:]).partial_fit(X[:50, 1:])
    assert fewer.n_features_in_ == X.shape[1] - 1


@every
def test_the_reported_likelihood_is_that_of_the_batch(case: Case) -> None:
    """Before the update, as everywhere in online learning; in the units of the data, base measure included."""
    X = case.rows(900, seed=31)
    X[::7, 1] = np.nan
    estimator = case.quick().partial_fit(X[:300])
    for start in (300, 500, 700):
        before = copy.deepcopy(estimator)
        estimator.partial_fit(X[start : start + 200])
        assert estimator.lower_bound_ == pytest.approx(before.score(X[start : start + 200]), abs=0.15)


@over([case for case in EVERYONE if not case.counting])
def test_far_from_the_origin(case: Case) -> None:
    X = case.rows(1000, seed=32)
    one, other = stream(case, X, 100), stream(case, 1e7 + 0.1 * X, 100)
    np.testing.assert_allclose(one.transform(X), other.transform(1e7 + 0.1 * X), rtol=1e-4, atol=1e-5)


@linear
def test_factors_keep_their_form(case: Case) -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 2)) * [2.0, 1.0] @ rng.normal(size=(2, 6)) + 0.5 * rng.normal(size=(1000, 6))
    estimator = case.quick(n_components=2)
    for start in range(0, 1000, 100):
        estimator.partial_fit(X[start : start + 100])
    inner = estimator.components_ / estimator.noise_variance_ @ estimator.components_.T
    np.testing.assert_allclose(inner, np.diag(np.diag(inner)), atol=1e-8 * inner.max())
    assert np.diff(np.diag(inner))[0] < 0


def test_rotation_in_a_stream() -> None:
    X = np.repeat(factors(800), 2, axis=1) + 0.3 * np.random.default_rng(0).normal(size=(800, 10))
    turned, plain = FactorAnalysis(2, rotation="varimax"), FactorAnalysis(2)
    for start in range(0, 800, 200):
        turned.partial_fit(X[start : start + 200])
        plain.partial_fit(X[start : start + 200])
    np.testing.assert_allclose(turned.get_covariance(), plain.get_covariance(), rtol=1e-8)


@counted
def test_counts_are_checked_in_every_batch(case: Case) -> None:
    X = case.rows(300)
    estimator = case.quick(**({"binarize": None} if "binarize" in case.quick().get_params() else {}))
    estimator.partial_fit(X)
    before = copy.deepcopy(estimator.model_)
    bad = X[:10].copy()
    bad[3, 2] = -1.0
    with pytest.raises(ValueError, match="column 'x2' holds -1"):
        estimator.partial_fit(bad)
    assert all(
        (a == b).all() for (_, a), (_, b) in zip(before.leaves(), estimator.model_.leaves(), strict=True)
    )


def test_sparse_batches() -> None:
    X = documents(600)
    one, other = MultinomialMixture(2, random_state=0), MultinomialMixture(2, random_state=0)
    for start in range(0, 600, 150):
        one.partial_fit(X[start : start + 150])
        other.partial_fit(sparse.csr_array(X[start : start + 150]))
    assert_same(one, other)


def test_names_are_kept_from_the_first_batch() -> None:
    X = pandas.DataFrame(blobs(300), columns=["a", "b", "c"])
    estimator = GaussianMixture(2, random_state=0).partial_fit(X[:3]).partial_fit(X[3:])
    assert estimator.feature_names_in_.tolist() == ["a", "b", "c"]
    assert "a mean" in estimator.summary().columns
    with pytest.raises(ValueError, match="feature names"):
        estimator.partial_fit(X[["b", "a", "c"]])


def test_bad_parameters_are_reported_at_the_first_batch() -> None:
    with pytest.raises(ValueError, match="'n_components' parameter"):
        GaussianMixture(0).partial_fit(blobs(10))


def test_an_empty_component_in_a_stream_is_reported() -> None:
    estimator = GaussianMixture(2, random_state=0).partial_fit(blobs(300))
    far = np.full((300, 3), 1e3) + np.random.default_rng(0).normal(size=(300, 3))
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        for _ in range(60):
            estimator.partial_fit(far)
    assert estimator.model_.is_finite()
    assert np.isfinite(estimator.score(far))
    assert all("component" in str(w.message) for w in record)
