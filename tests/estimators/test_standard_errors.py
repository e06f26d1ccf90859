"""Standard errors against closed forms and against the spread of estimates over many data sets.

The simulations draw R = 200 or 100 data sets and look at z = (estimate - truth) / error of every parameter. The mean
of z^2 over R is 1 with a standard error of sqrt(2 / R), and a longer right tail than a normal distribution: a limit
of 5 such errors makes at most 1e-5 false alarms a parameter (chi-squared with 100 degrees of freedom above 171), and
about 60 parameters 6e-4 a run. Seeds are fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from boxloop import (
    BernoulliMixture,
    FactorAnalysis,
    GaussianMixture,
    MultinomialMixture,
    PoissonMixture,
    ProbabilisticPCA,
)
from boxloop.distributions import Poisson
from boxloop.models import Mixture
from estimators.cases import (
    BAYESIAN,
    EVERYONE,
    Case,
    bits,
    blobs,
    counts,
    documents,
    every,
    factors,
    fit_with_warnings,
    over,
    parameters,
)


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_one_gaussian(kind: str, scale: float) -> None:
    X = blobs(500) * scale
    n, d = X.shape
    S = np.cov(X.T, bias=True)
    variance = np.diag(S)
    errors = GaussianMixture(1, covariance_type=kind).fit(X).standard_errors(X)
    if kind == "spherical":
        variance = np.full(d, variance.mean())
    np.testing.assert_allclose(errors["means"][0], np.sqrt(variance / n), rtol=1e-6)
    if kind in ("full", "tied"):
        wanted = np.sqrt((np.outer(variance, variance) + S**2) / n)
        np.testing.assert_allclose(errors["covariances"].reshape(d, d), wanted, rtol=1e-6)
    elif kind == "diag":
        np.testing.assert_allclose(errors["covariances"][0], variance * np.sqrt(2 / n), rtol=1e-6)
    np.testing.assert_array_equal(errors["weights"], 0.0)


def test_one_spherical_gaussian_that_is_one() -> None:
    X = np.random.default_rng(0).normal(size=(400, 3))
    X = (X - X.mean(0)) @ np.linalg.inv(np.linalg.cholesky(np.cov(X.T, bias=True))).T
    errors = GaussianMixture(1, covariance_type="spherical").fit(X).standard_errors(X)
    np.testing.assert_allclose(errors["covariances"], np.sqrt(2 / (400 * 3)), rtol=1e-6)


def test_one_distribution_of_counts() -> None:
    X = counts(300)
    errors = PoissonMixture(1).fit(X).standard_errors(X)
    np.testing.assert_allclose(errors["means"][0], np.sqrt(X.mean(0) / 300), rtol=1e-6)
    X = bits(300)
    p = X.mean(0)
    errors = BernoulliMixture(1).fit(X).standard_errors(X)
    np.testing.assert_allclose(errors["means"][0], np.sqrt(p * (1 - p) / 300), rtol=1e-6)
    X = documents(300)
    p = X.sum(0) / X.sum()
    errors = MultinomialMixture(1).fit(X).standard_errors(X)
    np.testing.assert_allclose(errors["probabilities"][0], np.sqrt(p * (1 - p) / X.sum()), rtol=1e-6)


def test_principal_components() -> None:
    """Closed forms: the mean, and sigma^2 with n (d - k) squares behind it."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(800, 1)) @ rng.normal(size=(1, 6)) * 2 + rng.normal(size=(800, 6))
    estimator = ProbabilisticPCA(1).fit(X)
    errors = estimator.standard_errors(X)
    np.testing.assert_allclose(errors["mean"], np.sqrt(np.diag(estimator.get_covariance()) / 800), rtol=1e-6)
    np.testing.assert_allclose(
        errors["noise_variance"], estimator.noise_variance_ * np.sqrt(2 / (800 * 5)), rtol=1e-3
    )


@over([case for case in EVERYONE if not case.counting])
def test_units_carry_over(case: Case) -> None:
    X = case.rows(300)
    options = {"tol": 1e-10, "max_iter": 3000}
    plain = case.quick(**options).fit(X).standard_errors(X)
    scaled = case.quick(**options).fit(1e-6 * X + 5.0).standard_errors(1e-6 * X + 5.0)
    power = {"weights": 0, "covariances": 2, "noise_variance": 2}
    for name, value in plain.items():
        np.testing.assert_allclose(scaled[name], value * 1e-6 ** power.get(name, 1), rtol=1e-3, err_msg=name)


@every
def test_more_rows_are_smaller_errors(case: Case) -> None:
    X = case.rows(300)
    estimator = case.quick(tol=1e-9, max_iter=3000).fit(X)
    once, four_times = estimator.standard_errors(X), estimator.standard_errors(np.tile(X, (4, 1)))
    for name, value in once.items():
        assert value.shape == parameters(estimator)[name].shape
        np.testing.assert_allclose(four_times[name], value / 2, rtol=1e-5, err_msg=name)
    weighted = estimator.standard_errors(X, sample_weight=np.full(300, 4.0))
    for name, value in weighted.items():
        np.testing.assert_allclose(value, four_times[name], rtol=1e-5, err_msg=name)


@over(BAYESIAN)
def test_more_rows_are_a_narrower_distribution(case: Case) -> None:
    """Half as wide with four times the rows, but for a prior that is worth two rows or so of hundreds."""
    X = case.rows(300)
    once, many = (
        case.quick(tol=1e-9, max_iter=3000).fit(X, sample_weight=np.full(300, w)) for w in (1.0, 4.0)
    )
    repeated = case.quick(tol=1e-9, max_iter=3000).fit(np.tile(X, (4, 1))).standard_errors()
    for name, value in once.standard_errors().items():
        assert value.shape == parameters(once)[name].shape
        np.testing.assert_allclose(many.standard_errors()[name], value / 2, rtol=0.05, err_msg=name)
        np.testing.assert_allclose(np.sort(repeated[name]), np.sort(many.standard_errors()[name]), rtol=1e-3)


def assert_spread(
    draw: Callable[[np.random.Generator], np.ndarray],
    fit: Callable[[np.ndarray], Any],
    truth: dict[str, np.ndarray],
    replications: int,
) -> None:
    """The squared z-scores of each parameter have mean 1 over data sets, within five of its standard errors."""
    total: dict[str, Any] = dict.fromkeys(truth, 0.0)
    for seed in range(replications):
        X = draw(np.random.default_rng(seed))
        estimator = fit(X)
        errors, found = estimator.standard_errors(X), parameters(estimator)
        for name, value in truth.items():
            same = np.sign((found[name] * value).sum(1))[:, None] if name == "components" else 1.0
            total[name] = total[name] + ((same * found[name] - value) / errors[name]) ** 2
    for name, value in total.items():
        assert abs(value / replications - 1.0).max() < 5 * np.sqrt(2 / replications), name


@pytest.mark.slow
def test_two_gaussians_over_many_data_sets() -> None:
    means, weights = np.array([[0.0, 0.0], [4.0, 1.0]]), np.array([0.6, 0.4])
    covariances = np.array([[[1.0, 0.4], [0.4, 0.8]], [[0.6, -0.2], [-0.2, 1.2]]])
    factor = np.linalg.cholesky(covariances)

    def draw(rng: np.random.Generator) -> np.ndarray:
        z = (rng.random(400) < 0.4).astype(int)
        return means[z] + np.einsum("nij,nj->ni", factor[z], rng.normal(size=(400, 2)))

    start = {"weights_init": weights, "means_init": means, "precisions_init": np.linalg.inv(covariances)}
    model = GaussianMixture(2, tol=1e-8, max_iter=500, **start)
    assert_spread(draw, model.fit, {"weights": weights, "means": means, "covariances": covariances}, 200)


@pytest.mark.slow
def test_two_poisson_groups_over_many_data_sets() -> None:
    rates, weights = (
        torch.tensor([[2.0, 9.0, 4.0], [8.0, 3.0, 5.0]]).double(),
        torch.tensor([0.6, 0.4]).double(),
    )
    truth = Mixture(weights.log(), Poisson(rates))

    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(rates.numpy()[(rng.random(300) < 0.4).astype(int)]).astype(float)

    def fit(X: np.ndarray) -> Any:
        estimator = PoissonMixture(2, warm_start=True, tol=1e-8, max_iter=500)
        estimator.model_ = truth
        return estimator.fit(X)

    assert_spread(draw, fit, {"weights": weights.numpy(), "means": rates.numpy()}, 100)


@pytest.mark.parametrize("kind", [FactorAnalysis, pytest.param(ProbabilisticPCA, marks=pytest.mark.slow)])
def test_one_factor_over_many_data_sets(kind: type) -> None:
    loadings = np.array([[1.5, 1.0, -1.2, 0.8, 0.6]])
    noise = np.array([0.5, 0.3, 0.8, 0.4, 1.0]) if kind is FactorAnalysis else np.array([0.6])

    def draw(rng: np.random.Generator) -> np.ndarray:
        return 2.0 + rng.normal(size=(500, 1)) @ loadings + np.sqrt(noise) * rng.normal(size=(500, 5))

    truth = {"mean": np.full(5, 2.0), "components": loadings, "noise_variance": noise}
    assert_spread(draw, kind(1, tol=1e-9).fit, truth, 100)


@pytest.mark.slow
def test_two_factors_over_many_data_sets() -> None:
    """Loadings of two factors in the canonical rotation, which is part of what is estimated."""
    rng = np.random.default_rng(9)
    noise = rng.uniform(0.3, 0.8, size=8)
    left, _ = np.linalg.qr(rng.normal(size=(8, 2)))
    loadings = (np.sqrt(noise)[:, None] * left * [5.0, 3.0]).T

    def draw(rng: np.random.Generator) -> np.ndarray:
        return rng.normal(size=(2000, 2)) @ loadings + np.sqrt(noise) * rng.normal(size=(2000, 8))

    truth = {"components": loadings, "noise_variance": noise}
    assert_spread(draw, FactorAnalysis(2, tol=1e-10, max_iter=3000).fit, truth, 200)


def test_what_is_not_identified_is_nan() -> None:
    X = factors(300)
    estimator, _ = fit_with_warnings(FactorAnalysis(3, tol=1e-10, max_iter=5000), X)
    errors = estimator.standard_errors(X)  # 17 parameters of 15 second moments
    assert np.isnan(errors["components"]).all()
    assert np.isfinite(errors["mean"]).all()
    one_kind = np.full((50, 2), 4.0)
    twins, _ = fit_with_warnings(PoissonMixture(2, random_state=0), one_kind)
    assert np.isnan(twins.standard_errors(one_kind)["weights"]).all()


def test_what_is_at_a_bound_is_nan() -> None:
    X = np.column_stack([blobs(300), np.ones(300)])
    estimator, _ = fit_with_warnings(GaussianMixture(1, covariance_type="diag"), X)
    errors = estimator.standard_errors(X)
    np.testing.assert_array_equal(np.isnan(errors["covariances"]), [[False, False, False, True]])
    flat, _ = fit_with_warnings(FactorAnalysis(1), np.column_stack([factors(300), np.ones(300)]))
    errors = flat.standard_errors(np.column_stack([factors(300), np.ones(300)]))
    np.testing.assert_array_equal(np.isnan(errors["noise_variance"]), [False] * 5 + [True])
    for kind, X, name in (
        (PoissonMixture, counts(300), "means"),
        (BernoulliMixture, bits(300), "means"),
        (MultinomialMixture, documents(300), "probabilities"),
    ):
        X[:, 1] = 0.0
        errors = kind(2, random_state=0, tol=1e-8, max_iter=1000).fit(X).standard_errors(X)
        assert np.isnan(errors[name][:, 1]).all()
        assert np.isfinite(np.delete(errors[name], 1, axis=1)).all()
        assert np.isfinite(errors["weights"]).all()


def test_a_rotation_has_no_errors() -> None:
    with pytest.raises(ValueError, match="set rotation=None"):
        FactorAnalysis(1, rotation="varimax").fit(factors(100)).standard_errors(factors(100))
