"""Bayesian linear regression: the posterior, the evidence and where it is highest, against dense algebra and others."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import integrate
from scipy.stats import multivariate_normal
from sklearn.linear_model import BayesianRidge

from boxloop.data import ArraySource
from boxloop.networks import Centre, RegressionMoments, Spectrum, linear_regression, regression_moments
from boxloop.numeric import generator

SHAPES = [(60, 4), (12, 20), (40, 1), (25, 25)]


def problem(
    n: int, d: int, seed: int = 0, noise: float = 1.0, k: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ np.diag(np.linspace(0.5, 2.0, d))
    y = x @ rng.normal(size=(d, k)) + noise * rng.normal(size=(n, k))
    return torch.from_numpy(x), torch.from_numpy(y)


def dense(x, y, alpha, beta):
    """Equations 2.11 to 2.13, and the evidence as the density of y."""
    x, y = x.numpy(), y.numpy()[:, 0]
    a = alpha * np.eye(x.shape[1]) + beta * x.T @ x
    cover = np.eye(len(x)) / beta + x @ x.T / alpha
    return (
        np.linalg.solve(a, beta * x.T @ y),
        np.linalg.inv(a),
        multivariate_normal(np.zeros(len(x)), cover).logpdf(y),
    )


def spectrum(x, y) -> Spectrum:
    values, left = np.linalg.eigh((x @ x.mT).numpy())
    kept = values > 1e-10 * values.max()
    z = left.T @ y.numpy()[:, 0]
    rest = max(float((z[~kept] ** 2).sum()), 1e-12)
    return Spectrum(
        torch.from_numpy(values[kept]),
        torch.from_numpy(z[kept] ** 2),
        torch.tensor(rest, dtype=torch.float64),
        len(x),
        1e-15,
    )


@pytest.mark.parametrize(("n", "d"), SHAPES)
def test_the_posterior_is_that_of_the_document(n, d):
    x, y = problem(n, d)
    found, concerns = linear_regression(RegressionMoments.from_rows(x, y), 0.3, 1.7)
    mean, covariance, evidence = dense(x, y, 0.3, 1.7)
    assert concerns == ()
    np.testing.assert_allclose(found.coefficients()[0], mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.covariance(), covariance, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.log_evidence[0], evidence, rtol=1e-10)
    std = np.sqrt(np.einsum("ni,ij,nj->n", x, covariance, x))
    prediction = found.predict(x)
    np.testing.assert_allclose(prediction.mean[:, 0], x.numpy() @ mean, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(prediction.epistemic_std[:, 0], std, rtol=1e-9)
    np.testing.assert_allclose(prediction.noise, 1.7**-0.5, rtol=1e-14)
    np.testing.assert_allclose(prediction.std[:, 0] ** 2, std**2 + 1.0 / 1.7, rtol=1e-9)


def test_columns_that_depend_on_others():
    x, y = problem(50, 3)
    x = torch.cat([x, x[:, :1] - 2.0 * x[:, 1:2], torch.zeros(50, 1).double()], 1)
    found, _ = linear_regression(RegressionMoments.from_rows(x, y), 0.3, 1.7)
    mean, covariance, evidence = dense(x, y, 0.3, 1.7)
    assert found.rank == 3
    np.testing.assert_allclose(found.coefficients()[0], mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(found.covariance(), covariance, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(found.log_evidence[0], evidence, rtol=1e-10)


def test_the_evidence_by_quadrature_in_one_dimension():
    x, y = problem(6, 1, seed=3)

    def joint(theta):
        error = float((y - x * theta).square().sum())
        likelihood = np.exp(-0.5 * 1.7 * error) * (1.7 / (2.0 * np.pi)) ** 3
        return float(likelihood * np.exp(-0.5 * 0.3 * theta**2) * np.sqrt(0.3 / (2.0 * np.pi)))

    whole = integrate.quad(joint, -30.0, 30.0, epsabs=0.0, epsrel=1e-11, points=[-2.0, 0.0, 2.0], limit=500)[
        0
    ]
    found, _ = linear_regression(RegressionMoments.from_rows(x, y), 0.3, 1.7)
    assert float(found.log_evidence[0]) == pytest.approx(math.log(whole), rel=1e-9)


def test_the_evidence_by_quadrature_in_two_dimensions():
    x, y = problem(8, 2, seed=4)
    axis = np.linspace(-12.0, 12.0, 1201)  # the trapezium rule on a Gaussian is exact to rounding
    theta = np.stack([part.ravel() for part in np.meshgrid(axis, axis)])
    log = -0.5 * 0.8 * ((y.numpy() - x.numpy() @ theta) ** 2).sum(0) + 4.0 * np.log(0.8 / (2.0 * np.pi))
    log += -0.5 * 0.9 * (theta**2).sum(0) + np.log(0.9 / (2.0 * np.pi))
    whole = np.exp(log).sum() * (axis[1] - axis[0]) ** 2
    found, _ = linear_regression(RegressionMoments.from_rows(x, y), 0.9, 0.8)
    assert float(found.log_evidence[0]) == pytest.approx(math.log(whole), rel=1e-9)


@pytest.mark.parametrize(("n", "d"), [(60, 4), (400, 1), (30, 28), (100, 30)])
@pytest.mark.parametrize("seed", range(5))
def test_the_gradient_of_the_evidence_vanishes_where_it_is_highest(n, d, seed):
    x, y = problem(n, d, seed + 10, noise=0.5)
    found, concerns = linear_regression(RegressionMoments.from_rows(x, y))
    assert concerns == ()
    logs = torch.stack([found.alpha.log(), found.beta.log()])[:, 0].requires_grad_()
    height = spectrum(x, y).log_evidence(logs[0].exp(), logs[1].exp())
    (slope,) = torch.autograd.grad(height, logs)
    assert float(height.detach()) == pytest.approx(float(found.log_evidence[0]), rel=1e-10)
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)
    mean = found.mean[0]
    gamma = found.effective[0]
    residual = (y[:, 0] - x @ mean).square().sum()
    assert float(found.alpha[0]) == pytest.approx(
        float(gamma / mean.square().sum()), rel=1e-8
    )  # MacKay's fixed point
    assert float(found.beta[0]) == pytest.approx(float((n - gamma) / residual), rel=1e-8)


@pytest.mark.parametrize("which", ["alpha", "beta"])
@pytest.mark.parametrize("seed", range(4))
def test_one_precision_alone_is_found(which, seed):
    x, y = problem(50, 6, seed, noise=2.0)
    given = {"alpha": 0.05} if which == "beta" else {"beta": 0.4}
    found, _ = linear_regression(RegressionMoments.from_rows(x, y), **given)
    free = getattr(found, which)[0].log().requires_grad_()
    both = {name: torch.tensor(value, dtype=torch.float64) for name, value in given.items()} | {
        which: free.exp()
    }
    (slope,) = torch.autograd.grad(spectrum(x, y).log_evidence(**both), free)
    assert abs(float(slope)) < 1e-7
    assert all(float(getattr(found, name)[0]) == value for name, value in given.items())


@pytest.mark.parametrize("seed", range(8))
def test_no_other_summit_is_higher(seed):
    """On a grid over all precisions that could matter; few rows make several summits likely."""
    x, y = problem(7, 5, seed, noise=4.0)
    found, _ = linear_regression(RegressionMoments.from_rows(x, y))
    alpha, beta = torch.meshgrid(torch.logspace(-6, 12, 400), torch.logspace(-4, 4, 300), indexing="ij")
    heights = spectrum(x, y).log_evidence(alpha.double(), beta.double())
    assert float(heights.max()) <= float(found.log_evidence[0]) + 1e-9


@pytest.mark.parametrize(("n", "d"), [(100, 5), (200, 40), (60, 55)])
def test_scikit_learn_finds_the_same(n, d):
    x, y = problem(n, d, seed=1, noise=2.0)
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    peer = BayesianRidge(**flat, fit_intercept=False, max_iter=100_000, tol=1e-13, compute_score=True)
    peer.fit(x.numpy(), y.numpy()[:, 0])
    found, _ = linear_regression(RegressionMoments.from_rows(x, y))
    assert float(found.alpha[0]) == pytest.approx(peer.lambda_, rel=1e-6)
    assert float(found.beta[0]) == pytest.approx(peer.alpha_, rel=1e-6)
    np.testing.assert_allclose(found.coefficients()[0], peer.coef_, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found.covariance(), peer.sigma_, rtol=1e-5, atol=1e-8)
    assert float(found.log_evidence[0]) == pytest.approx(peer.scores_[-1], rel=1e-9)


def test_sums_over_pieces_are_the_sums():
    x, y = problem(90, 4, k=2)
    whole = RegressionMoments.from_rows(x, y)
    parts = RegressionMoments.from_rows(x[:17], y[:17]) + RegressionMoments.from_rows(x[17:], y[17:])
    for (_, a), (_, b) in zip(whole.leaves(), parts.leaves(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def test_weights_are_repetitions():
    x, y = problem(30, 4)
    weight = torch.from_numpy(np.random.default_rng(0).integers(0, 4, 30))
    heavy, _ = linear_regression(RegressionMoments.from_rows(x, y, weight))
    often, _ = linear_regression(
        RegressionMoments.from_rows(x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    )
    for (_, a), (_, b) in zip(heavy.leaves(), often.leaves(), strict=True):
        if a.shape != heavy.vectors.shape:  # axes may be turned round
            np.testing.assert_allclose(a, b, rtol=1e-8)


def test_several_outputs_are_each_by_itself():
    x, y = problem(70, 5, k=3)
    y = y * torch.tensor([1.0, 30.0, 0.01]).double()
    both, _ = linear_regression(RegressionMoments.from_rows(x, y))
    for j in range(3):
        one, _ = linear_regression(RegressionMoments.from_rows(x, y[:, j : j + 1]))
        for name in ("mean", "alpha", "beta", "log_evidence", "variance"):
            np.testing.assert_allclose(getattr(both, name)[j], getattr(one, name)[0], rtol=1e-9)
        np.testing.assert_allclose(both.covariance(j), one.covariance(), rtol=1e-9)


@pytest.mark.parametrize("scaled", [False, True])
def test_a_level_without_a_prior_is_the_limit_of_a_column_of_ones(scaled):
    """Dense algebra with a precision of 1e-9 for the ones; the evidence integrated over the level by quadrature."""
    x, y = problem(25, 3, noise=0.7)
    x, y = x + torch.tensor([1.0, -2.0, 5.0]).double(), y + 4.0
    sums, centre = regression_moments(ArraySource(torch.cat([x, y], 1)), scaled=scaled)
    found, _ = linear_regression(sums, 0.3, 1.7, centre)
    unit = x.std(0, correction=0) if scaled else torch.ones(3).double()
    ones = torch.cat([torch.ones(25, 1).double(), x], 1)
    a = torch.diag(torch.cat([torch.tensor([1e-9]).double(), 0.3 * unit**2])) + 1.7 * ones.mT @ ones
    mean, covariance = torch.linalg.solve(a, 1.7 * ones.mT @ y)[:, 0], torch.linalg.inv(a)
    np.testing.assert_allclose(found.coefficients()[0], mean[1:], rtol=1e-6)
    np.testing.assert_allclose(found.intercept()[0], mean[0], rtol=1e-6)
    np.testing.assert_allclose(found.covariance(), covariance[1:, 1:], rtol=1e-6)
    variance = ((ones @ covariance) * ones).sum(1)
    np.testing.assert_allclose(found.predict(x).epistemic_std[:, 0] ** 2, variance, rtol=1e-6)
    distribution = multivariate_normal(
        np.zeros(25), np.eye(25) / 1.7 + ((x / unit) @ (x / unit).mT).numpy() / 0.3
    )
    peak = float(y.mean())
    levels = np.linspace(peak - 60.0, peak + 60.0, 20_001)
    whole = integrate.simpson(np.exp(distribution.logpdf(y.numpy()[:, 0] - levels[:, None])), x=levels)
    assert float(found.log_evidence[0]) == pytest.approx(math.log(whole), rel=1e-8)


def test_rows_far_from_zero_lose_nothing():
    x, y = problem(200, 3)
    near, _ = linear_regression(*_arguments(x, y))
    far, _ = linear_regression(*_arguments(x + 1e7, y - 3e6))
    for name in ("mean", "alpha", "beta", "log_evidence", "variance"):
        np.testing.assert_allclose(getattr(far, name), getattr(near, name), rtol=1e-6)
    np.testing.assert_allclose(far.predict(x + 1e7).mean, near.predict(x).mean - 3e6, rtol=1e-12)


def _arguments(x, y):
    sums, centre = regression_moments(ArraySource(torch.cat([x, y], 1)))
    return sums, None, None, centre


def test_columns_of_any_size_where_they_are_scaled():
    x, y = problem(80, 3)
    size = torch.tensor([1e-8, 1.0, 1e8]).double()
    plain, wild = (
        linear_regression(*_placed(regression_moments(ArraySource(torch.cat([rows, y], 1)), scaled=True)))[0]
        for rows in (x, x * size)
    )
    np.testing.assert_allclose(wild.coefficients() * size, plain.coefficients(), rtol=1e-8)
    np.testing.assert_allclose(wild.log_evidence, plain.log_evidence, rtol=1e-10)


def _placed(pair):
    return pair[0], None, None, pair[1]


def test_without_centring_the_columns_are_as_they_came():
    x, y = problem(40, 3)
    sums, centre = regression_moments(ArraySource(torch.cat([x + 3.0, y], 1)), centred=False)
    plain = RegressionMoments.from_rows(x + 3.0, y)
    for (_, a), (_, b) in zip(sums.leaves(), plain.leaves(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)
    assert not centre.free


def test_draws_have_the_distribution():
    """20,000 draws: means within 4.5 and products within 5 standard errors; false alarms below 1e-4."""
    x, y = problem(20, 3, k=2)
    sums, centre = regression_moments(ArraySource(torch.cat([x + 1.0, y], 1)), 2)
    found, _ = linear_regression(sums, centre=centre)
    weights, level = found.draw(20_000, generator(0))
    value = level + (weights * x[:1]).sum(2)
    at = found.predict(x[:1])
    z = (value.mean(0) - at.mean[0]) / (at.epistemic_std[0] / 20_000**0.5)
    assert float(z.abs().max()) < 4.5
    z = (value.var(0) / at.epistemic_std[0] ** 2 - 1.0) / (2.0 / 20_000) ** 0.5
    assert float(z.abs().max()) < 5.0
    sample = torch.cov(weights[:, 1].mT)
    variances = found.covariance(1).diagonal()
    error = ((variances[:, None] * variances + found.covariance(1) ** 2) / 20_000).sqrt()
    assert float(((sample - found.covariance(1)) / error).abs().max()) < 5.0


def test_what_is_unknown_is_said():
    x, y = problem(30, 3)
    exact, concerns = linear_regression(RegressionMoments.from_rows(x, x[:, :1] - x[:, 1:2]))
    assert "up to rounding" in concerns[0]
    np.testing.assert_allclose(exact.coefficients()[0], [1.0, -1.0, 0.0], atol=1e-9)
    other = torch.zeros(30, 1).double()
    other[0] = 1.0
    away = x - other * x[0]
    _, concerns = linear_regression(RegressionMoments.from_rows(away, other))
    assert "without any coefficients" in concerns[0]
    _, concerns = linear_regression(RegressionMoments.from_rows(away, other), beta=1.0)
    assert "without any coefficients" in concerns[0]
    few, concerns = linear_regression(RegressionMoments.from_rows(x[:2], y[:2] * 0.0))
    assert few.is_finite()
    _, concerns = linear_regression(RegressionMoments.from_rows(*problem(30, 50, noise=0.0)))
    assert "without noise" in concerns[0]


def test_no_columns_that_say_anything():
    x, y = torch.zeros(9, 2).double(), problem(9, 2)[1]
    found, _ = linear_regression(RegressionMoments.from_rows(x, y))
    assert found.rank == 0
    np.testing.assert_allclose(1.0 / found.beta[0], y.square().mean(), rtol=1e-12)
    np.testing.assert_array_equal(found.mean, 0.0)


@pytest.mark.parametrize("bad", [{"alpha": 0.0}, {"alpha": -1.0}, {"beta": math.inf}, {"beta": math.nan}])
def test_precisions_that_are_none(bad):
    with pytest.raises(ValueError, match="must be positive and finite"):
        linear_regression(RegressionMoments.from_rows(*problem(9, 2)), **bad)


def test_one_row_has_no_level_and_noise():
    sums, centre = regression_moments(ArraySource(torch.ones(1, 3).double()))
    with pytest.raises(ValueError, match="1 sample"):
        linear_regression(sums, centre=centre)


def test_missing_values_and_too_many_columns_are_refused():
    rows = torch.ones(5, 3).double()
    rows[2, 1] = math.nan
    with pytest.raises(ValueError, match="missing"):
        regression_moments(ArraySource(rows))
    with pytest.raises(ValueError, match="at most 4096"):
        regression_moments(ArraySource(torch.ones(2, 5000).double()))


def test_a_centre_of_nothing():
    centre = Centre.identity(2, 1)
    assert not centre.free
    assert float(centre.origin.sum() + centre.level.sum()) == 0.0
