"""Engines by name, warm starts and single precision: other ways to the same fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from boxloop import GaussianMixture, MultinomialMixture
from boxloop.data import open_source, write_table
from boxloop.fit import STARTS
from estimators.cases import (
    EVERYONE,
    Case,
    assert_same,
    blobs,
    documents,
    everyone,
    fit_with_warnings,
    over,
    paired,
)

ENGINES = ("online", "gradient")


def worsened(case: Case, X: np.ndarray, **more: Any) -> Any:
    """An estimator about to start from a model that is far from its best one."""
    estimator = case.quick(warm_start=True, **more)
    if case.bayesian:
        estimator.model_ = case.quick().fit(scrambled(X)).model_
        return estimator
    model = case.quick().fit(X).model_
    estimator.model_ = model.with_free_parameters(
        {name: 0.6 * value for name, value in model.free_parameters().items()}
    )
    return estimator


def scrambled(X: np.ndarray) -> np.ndarray:
    """A copy in which the values of every column have changed places in two thirds of the rows."""
    rng, X = np.random.default_rng(0), X.copy()
    chosen = rng.permutation(len(X))[: 2 * len(X) // 3]
    X[chosen] = rng.permuted(X[chosen], axis=0)
    return X


@paired(EVERYONE, "method", ENGINES)
def test_other_engines_come_close_to_em(case: Case, method: str) -> None:
    """Within 0.01 of EM's mean log-likelihood; the start is worse by much more."""
    X = case.rows(1000, seed=41)
    em = worsened(case, X, tol=1e-7, max_iter=2000).fit(X)
    start, _ = fit_with_warnings(worsened(case, X, max_iter=0), X)
    found = worsened(case, X, method=method, max_iter=40).fit(X)
    assert start.score(X) < em.score(X) - 0.1
    assert found.score(X) > em.score(X) - 0.01
    assert not found.converged_  # passes are counted, not judged
    assert len(found.lower_bounds_) == found.n_iter_ == 40 * -(-1000 // found.batch_size)


@paired(EVERYONE, "method", ENGINES)
def test_rows_in_order_are_shuffled(case: Case, method: str) -> None:
    """Rows sorted by group would lead a mini-batch engine from one group to the next."""
    X = case.rows(1000, seed=42)
    em = case.quick(tol=1e-7, max_iter=2000).fit(X)
    order = np.argsort(em.transform(X)[:, 0])
    found = case.quick(method=method, max_iter=30).fit(X[order])
    assert found.score(X) > em.score(X) - 0.02


@paired(EVERYONE, "method", ENGINES)
def test_weights_and_missing_values_in_mini_batches(case: Case, method: str) -> None:
    """A third of the rows without weight, in one piece, and missing values in the others."""
    X = case.rows(600, seed=43)
    weight = np.r_[np.ones(200), np.zeros(200), np.full(200, 2.0)]
    X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    em = case.quick(tol=1e-6, max_iter=2000).fit(X, sample_weight=weight)
    found = case.quick(method=method, max_iter=20, batch_size=100).fit(X, sample_weight=weight)
    gap = np.average(em.score_samples(X) - found.score_samples(X), weights=weight)
    assert gap < 0.02
    assert found.model_.is_finite()


@paired(EVERYONE, "method", ENGINES)
def test_mini_batches_without_weight_are_left_out(case: Case, method: str, tmp_path: Path) -> None:
    """A file is read in its own order, so that whole mini-batches may come without weight."""
    X, weight = case.rows(600, seed=43), np.repeat([0.0, 1.0, 0.0], 200)
    for name, keep in (("all.csv", weight >= 0), ("some.csv", weight > 0)):
        table = {f"x{j}": X[keep, j] for j in range(X.shape[1])} | {"w": weight[keep]}
        write_table(tmp_path / name, table)
    found = [
        case.quick(method=method, max_iter=epochs, batch_size=50).fit(
            open_source(tmp_path / name, weight="w", memory=0)
        )
        for name, epochs in (("all.csv", 2), ("some.csv", 6))
    ]
    assert_same(found[0], found[1], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ENGINES)
def test_sparse_mini_batches(method: str) -> None:
    X = documents(600)
    dense = MultinomialMixture(2, method=method, max_iter=5, random_state=0).fit(X)
    assert_same(
        MultinomialMixture(2, method=method, max_iter=5, random_state=0).fit(sparse.csr_array(X)), dense
    )


@paired(EVERYONE, "method", ENGINES)
def test_the_seed_decides(case: Case, method: str) -> None:
    X = case.rows(300, seed=44)
    fits = [case.quick(method=method, max_iter=3, random_state=seed).fit(X) for seed in (1, 1, 2)]
    assert_same(fits[0], fits[1], rtol=0, atol=0)
    assert fits[0].score(X) != fits[2].score(X), "another order of rows"


@everyone
def test_plain_em_reaches_the_same_maximum(case: Case) -> None:
    X = case.rows(500, seed=45)
    options = {"tol": 1e-10, "max_iter": 20_000, **({"solver": "em"} if case.name == "ppca" else {})}
    fast, plain = case.quick(**options).fit(X), case.quick(accelerate=False, **options).fit(X)
    assert fast.score(X) == pytest.approx(plain.score(X), abs=1e-6)
    assert_same(fast, plain, rtol=1e-2, atol=1e-2)


@everyone
def test_warm_start_goes_on(case: Case) -> None:
    X = case.rows(500, seed=46)
    estimator, _ = fit_with_warnings(worsened(case, X, max_iter=2, tol=0.0, accelerate=False), X)
    first = estimator.lower_bounds_
    fit_with_warnings(estimator.set_params(max_iter=3), X)
    straight, _ = fit_with_warnings(worsened(case, X, max_iter=5, tol=0.0, accelerate=False), X)
    np.testing.assert_allclose([*first, *estimator.lower_bounds_], straight.lower_bounds_, rtol=1e-9)
    assert_same(estimator, straight, rtol=1e-6, atol=1e-8)


@everyone
def test_warm_start_at_the_maximum_stays(case: Case) -> None:
    X = case.rows(500, seed=47)
    estimator = case.quick(warm_start=True, tol=1e-7, max_iter=2000).fit(X)
    before = estimator.lower_bound_
    estimator.fit(X)
    assert estimator.lower_bound_ >= before - 1e-10
    assert estimator.n_iter_ <= 6


@everyone
def test_warm_start_on_new_rows(case: Case) -> None:
    estimator = case.quick(warm_start=True, tol=1e-6, max_iter=1000).fit(case.rows(400, seed=48))
    X = case.rows(400, seed=49)
    fresh = case.quick(tol=1e-6, max_iter=1000).fit(X)
    assert estimator.fit(X).score(X) == pytest.approx(fresh.score(X), abs=1e-4)


@everyone
def test_warm_start_with_another_shape_is_refused(case: Case) -> None:
    X = case.rows(200)
    estimator = case.quick(warm_start=True).fit(X)
    with pytest.raises(ValueError, match="warm_start needs a previous fit with the same columns"):
        estimator.fit(X[:, 1:])
    with pytest.raises(ValueError, match="warm_start needs a previous fit with the same columns"):
        case.quick(warm_start=True).fit(X).set_params(n_components=3).fit(X)


def test_warm_start_with_another_covariance_is_refused() -> None:
    estimator = GaussianMixture(2, warm_start=True, random_state=0).fit(blobs(100))
    with pytest.raises(ValueError, match="the same kind of components"):
        estimator.set_params(covariance_type="diag").fit(blobs(100))


@everyone
@pytest.mark.parametrize("missing", [False, True])
def test_single_precision_is_close(case: Case, missing: bool) -> None:
    X = case.rows(2000, seed=50)
    if missing:
        X[np.random.default_rng(0).random(X.shape) < 0.05] = np.nan
    one = case.quick(tol=1e-6, max_iter=500).fit(X)
    other = case.quick(tol=1e-6, max_iter=500, dtype="float32").fit(X)
    assert_same(one, other, rtol=2e-3, atol=2e-3)
    assert other.score(X) == pytest.approx(one.score(X), abs=1e-5)
    assert other.score_samples(X).dtype == np.float64
    assert all(leaf.dtype.itemsize == 8 for _, leaf in other.model_.leaves()), "parameters stay in float64"


@paired([case for case in EVERYONE if not case.counting], "method", ENGINES)
def test_single_precision_with_other_engines(case: Case, method: str) -> None:
    X = case.rows(600, seed=51)
    one = case.quick(method=method, max_iter=10).fit(X)
    other = case.quick(method=method, max_iter=10, dtype="float32").fit(X)
    assert other.score(X) == pytest.approx(one.score(X), abs=1e-2)


@over([case for case in EVERYONE if case.mixing])
def test_more_starts_are_no_worse(case: Case) -> None:
    X = case.rows(300, seed=52)
    one = case.make(n_components=4, tol=1e-5, max_iter=1000, init_params="random_from_data").fit(X)
    many = case.make(n_components=4, tol=1e-5, max_iter=1000, init_params="random_from_data", n_init=8).fit(X)
    assert many.score(X) > one.score(X) - 0.02


@over([case for case in EVERYONE if case.mixing])
def test_no_kind_of_start_is_better_than_the_race(case: Case) -> None:
    X = case.rows(300, seed=53)
    best = case.make(max_iter=300).fit(X).score(X)
    for start in STARTS:
        fitted, _ = fit_with_warnings(case.make(init_params=start, max_iter=300), X)
        assert fitted.model_.is_finite()
        assert best > fitted.score(X) - 1e-3, start
