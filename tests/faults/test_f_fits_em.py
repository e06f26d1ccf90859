"""Faults 10 to 19 as an estimator meets them: what goes wrong inside EM, units that lose digits, weights."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning

from boxloop import GaussianMixture
from boxloop.loop import FALL, MonotonicityError
from boxloop.models import LinearGaussian, Mixture
from estimators.cases import (
    CASES,
    Case,
    assert_same,
    blobs,
    every,
    fit_with_warnings,
    gaussians,
    measured,
    mixtures,
    over,
    parameters,
)


def given(X: np.ndarray, kind: str, means: np.ndarray, precision: float = 1.0) -> dict[str, Any]:
    """A start of equal weights and round components at ``means``."""
    k, d = means.shape
    eye = precision * np.eye(d)
    shapes = {"full": np.tile(eye, (k, 1, 1)), "tied": eye, "diag": np.full((k, d), precision)}
    precisions = shapes.get(kind, np.full(k, precision))
    return {"weights_init": np.full(k, 1 / k), "means_init": means, "precisions_init": precisions}


def assert_monotone(estimator: Any) -> None:
    """The likelihood never falls, but in the round after one that has an event to account for it."""
    trace = np.array(estimator.lower_bounds_)
    assert np.isfinite(trace).all()
    eventful = {int(m[1]) for e in estimator.events_ if (m := re.match(r"iteration (\d+):", e))}
    for i in range(1, len(trace)):
        if i not in eventful:  # iterations count from 1: events of iteration i excuse a fall in the next
            assert trace[i] >= trace[i - 1] - FALL * max(abs(trace[i - 1]), 1.0), i


@gaussians
@pytest.mark.parametrize("accelerate", [True, False])
def test_f10_empty_component_far_away(case: Case, accelerate: bool) -> None:
    X, kind = blobs(400), case.params["covariance_type"]
    means = np.array([[0.0, 0.0, 0.0], [6.0, -3.0, 5.0], [1e4, 1e4, 1e4]])
    estimator, warned = fit_with_warnings(
        GaussianMixture(
            3, covariance_type=kind, accelerate=accelerate, tol=1e-6, max_iter=500, **given(X, kind, means)
        ),
        X,
    )
    assert any(
        re.search(r"iteration 1: component 2 was empty; component \d was split", e) for e in estimator.events_
    )
    assert any("component 2 was empty" in message for message in warned)
    assert_monotone(estimator)
    assert estimator.converged_
    assert estimator.weights_.min() > 1e-3, "the re-seeded component lives"
    two = GaussianMixture(2, covariance_type=kind, tol=1e-6, max_iter=500, random_state=0).fit(X)
    assert estimator.score(X) > two.score(X) - 1e-6, "three components are no worse than two"


@mixtures
@pytest.mark.parametrize("accelerate", [True, False])
def test_f10_weightless_component(case: Case, accelerate: bool) -> None:
    X = case.rows(300)
    estimator = case.make(warm_start=True, accelerate=accelerate, tol=1e-6, max_iter=2000).fit(X)
    family = estimator.model_.family
    estimator.model_ = Mixture(torch.tensor([0.0, -900.0], dtype=torch.float64), family)
    estimator, warned = fit_with_warnings(estimator, X)
    assert any("component 1 was empty; component 0 was split" in e for e in estimator.events_)
    assert any("component 1 was empty" in message for message in warned)
    assert_monotone(estimator)
    assert estimator.weights_.min() > 0.05


@gaussians
@pytest.mark.parametrize("method", ["em", "online"])
def test_f11_without_a_floor_a_collapse_is_an_error_with_a_remedy(case: Case, method: str) -> None:
    X = np.repeat([[0.0, 1.0], [1.0, 3.0]], 5, axis=0)
    estimator = GaussianMixture(**case.params, reg_covar=0.0, method=method, random_state=0)
    with pytest.raises(
        ValueError, match=r"increase reg_covar, .* Here reg_covar=0, and .* (zero|definite)\.$"
    ):
        estimator.fit(X)


@gaussians
def test_f11_component_collapses_on_one_row(case: Case) -> None:
    kind = case.params["covariance_type"]
    X = np.vstack([np.random.default_rng(5).normal(size=(200, 2)), [[40.0, 40.0]]])
    start = given(X, kind, np.array([[0.0, 0.0], [40.0, 40.0]]))
    estimator, warned = fit_with_warnings(
        GaussianMixture(2, covariance_type=kind, reg_covar=1e-4, **start), X
    )
    assert np.isfinite(estimator.lower_bounds_).all()
    assert np.isfinite(estimator.score_samples(X)).all()
    assert estimator.model_.is_finite()
    assert_monotone(estimator)
    assert estimator.weights_[1] == pytest.approx(1 / 201, rel=1e-6)
    if kind == "tied":
        return
    assert any("variance of component(s) 1 is held at the floor" in message for message in warned)
    lowest = {
        "full": lambda c: np.linalg.eigvalsh(c / np.outer(X.std(0), X.std(0)))[0],
        "diag": lambda c: (c / X.var(0)).min(),
    }
    value = lowest.get(kind, lambda c: c / X.var(0).mean())(estimator.covariances_[1])
    assert value == pytest.approx(1e-4, rel=1e-6), "the floor is relative to the variance of a column"


def offset_twins(case: Case, offset: float, spread: float) -> tuple[np.ndarray, np.ndarray]:
    """Rows of a small spread at a great offset, and the same rows, to the bit, moved to the origin."""
    X = spread * case.rows(300) + offset
    return X, X - offset


@measured
def test_f12_large_values_with_small_spread(case: Case) -> None:
    far, near = offset_twins(case, 1e7, 0.1)
    one, other = case.make(tol=1e-8, max_iter=1000).fit(far), case.make(tol=1e-8, max_iter=1000).fit(near)
    for name, value in parameters(one).items():
        base = 1e7 if name in ("mean", "means") else 0.0
        np.testing.assert_allclose(value - base, parameters(other)[name], rtol=1e-6, atol=1e-6, err_msg=name)
    np.testing.assert_allclose(one.score_samples(far), other.score_samples(near), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(one.transform(far), other.transform(near), rtol=1e-6, atol=1e-6)
    assert one.score(far) == pytest.approx(one.lower_bound_, abs=1e-5)


@measured
def test_f12_variance_to_six_digits(case: Case) -> None:
    X, _ = offset_twins(case, 1e7, 0.1)
    estimator = case.make(n_components=1).fit(X)
    truth = np.var(X - 1e7, axis=0)
    if not case.mixing:
        found = np.diag(estimator.get_covariance())
        found, truth = (found.sum(), truth.sum()) if case.name == "ppca" else (found, truth)
    else:
        found = estimator.model_.family.covariance().diagonal().numpy()[0]
        found = found.mean() if case.name == "gaussian-spherical" else found
        truth = truth.mean() if case.name == "gaussian-spherical" else truth
    np.testing.assert_allclose(found, truth, rtol=1e-6)


@measured
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_f13_float32_with_large_offset(case: Case, dtype: str) -> None:
    exact = case.rows(400) + 1e4
    one = case.make(dtype=dtype, tol=1e-6, max_iter=1000).fit(exact.astype(np.float32))
    other = case.make(tol=1e-6, max_iter=1000).fit(exact)
    scale = other.model_.moments()[1].diagonal().max()
    np.testing.assert_allclose(
        one.model_.moments()[1].dense(), other.model_.moments()[1].dense(), atol=0.01 * scale
    )
    np.testing.assert_allclose(one.score(exact), other.score(exact), atol=1e-3)


@every
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_f14_huge_float32_is_promoted(case: Case, dtype: str) -> None:
    X = case.rows(200)
    huge = (X * 1e30).astype(np.float32)
    estimator = case.for_measurements(dtype=dtype).fit(huge)
    assert estimator.model_.is_finite()
    assert np.isfinite(estimator.lower_bounds_).all()
    assert np.isfinite(estimator.score_samples(huge)).all()
    if not case.counting and dtype == "float64":
        small = case.make().fit(huge.astype(float) / 1e30)
        scaled = small.model_.affine(
            torch.zeros(X.shape[1]).double(), torch.full((X.shape[1],), 1e30).double()
        )
        for name, value in scaled.named_parameters().items():
            np.testing.assert_allclose(
                parameters(estimator)[name], value, rtol=1e-6, atol=1e-6 * value.abs().max()
            )


@measured
def test_f14_values_whose_squares_overflow_are_refused(case: Case) -> None:
    X = case.rows(50)
    X[:, 1] *= 1e200
    with pytest.raises(ValueError, match="column 'x1'"):
        case.make().fit(X)


@measured
def test_f15_unlike_units(case: Case) -> None:
    X = case.rows(300)
    one_scale = case.name in ("ppca", "gaussian-spherical")
    for scale in (
        (np.full(X.shape[1], 1e-8), np.full(X.shape[1], 1e8))
        if one_scale
        else (np.logspace(-8, 8, X.shape[1]),)
    ):
        plain = case.make(tol=1e-8, max_iter=1000).fit(X)
        other = case.make(tol=1e-8, max_iter=1000).fit(X * scale)
        wanted = plain.model_.affine(torch.zeros(len(scale)).double(), torch.from_numpy(scale))
        for name, value in wanted.named_parameters().items():
            np.testing.assert_allclose(parameters(other)[name], value, rtol=1e-6, err_msg=name)
        density = plain.score_samples(X) - np.log(scale).sum()
        np.testing.assert_allclose(other.score_samples(X * scale), density, rtol=1e-6)
        np.testing.assert_allclose(other.transform(X * scale), plain.transform(X), rtol=1e-6, atol=1e-9)


@every
@pytest.mark.parametrize("accelerate", [True, False])
def test_f16_likelihood_that_falls(case: Case, accelerate: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X = case.rows(300)
    if case.name == "factor":
        X[0, 0] = np.nan  # complete rows are fitted by a search that accepts no fall
    owner = Mixture if case.mixing else LinearGaussian
    solve, calls = owner.solve, []
    em_only = {"solver": "em"} if case.name == "ppca" else {}
    start = case.make(max_iter=1, tol=0.0, accelerate=accelerate, warm_start=True, **em_only)
    fit_with_warnings(start, X)

    def broken(self: Any, statistics: Any) -> Any:
        calls.append(1)
        right = solve(self, statistics)
        free = {name: value * 0.5 for name, value in right.free_parameters().items()}
        return right.with_free_parameters(free) if len(calls) == 2 else right

    monkeypatch.setattr(owner, "solve", broken)
    start.set_params(max_iter=50)
    with pytest.raises(MonotonicityError, match=r"fell at iteration 3, from \S+ to \S+ \(by [\d.e+-]+\)"):
        start.fit(X)


@every
def test_f17_iteration_limit(case: Case) -> None:
    more = {"solver": "em"} if case.name == "ppca" else {}
    estimator, warned = fit_with_warnings(
        case.make(max_iter=2, tol=0.0, n_components=2, **more), case.rows(300)
    )
    assert any("max_iter=2" in message for message in warned)
    assert estimator.converged_ is False
    with pytest.warns(ConvergenceWarning):
        case.make(max_iter=1, tol=0.0, **more).fit(case.rows(300))
    assert estimator.n_iter_ == 2
    assert len(estimator.lower_bounds_) == 2


@every
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(50), "the weights are all zero"),
        (np.r_[np.ones(49), -1.0], r"the weight at row 49 .* is -1\.0"),
        (np.r_[np.nan, np.ones(49)], "the weight at row 0 .* is nan"),
        (np.r_[np.inf, np.ones(49)], "the weight at row 0 .* is inf"),
        (np.ones(49), r"shape \(50,\) is needed, \(49,\) was given"),
        (np.ones((50, 1)), r"shape \(50,\) is needed, \(50, 1\) was given"),
    ],
)
def test_f18_weights(case: Case, method: str, weight: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(case.make(), method)(case.rows(50), sample_weight=weight)


@every
@pytest.mark.parametrize("missing", [False, True])
def test_f19_integer_weights_are_repetitions(case: Case, missing: bool) -> None:
    rng = np.random.default_rng(6)
    X, weight = case.rows(150), rng.integers(0, 4, size=150)
    if missing:
        X[rng.random(X.shape) < 0.1] = np.nan
    options = {"tol": 1e-9, "max_iter": 2000}
    weighted = case.make(**options).fit(X, sample_weight=weight)
    repeated = case.make(**options).fit(np.repeat(X, weight, axis=0))
    assert_same(weighted, repeated, rtol=1e-7, atol=1e-9)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, rel=1e-9)


@over([case for case in CASES if case.name in ("gaussian-full", "factor", "poisson")])
def test_f19_standard_errors_count_repetitions(case: Case) -> None:
    X, weight = case.rows(100), np.random.default_rng(7).integers(0, 3, size=100)
    estimator = case.make(tol=1e-9, max_iter=2000).fit(X, sample_weight=weight)
    one = estimator.standard_errors(X, sample_weight=weight)
    other = estimator.standard_errors(np.repeat(X, weight, axis=0))
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], rtol=1e-5)


def test_the_helper_of_this_file_can_fail() -> None:
    estimator, _ = fit_with_warnings(GaussianMixture(2, random_state=0, max_iter=3, tol=0.0), blobs(100))
    estimator.lower_bounds_ = [-3.0, -2.0, -2.5]
    with pytest.raises(AssertionError):
        assert_monotone(estimator)
