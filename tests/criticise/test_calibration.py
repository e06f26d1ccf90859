"""Calibration and information criteria against closed forms and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture

import boxloop
from boxloop.criticise import as_model, calibration, information_criteria


def clusters(n: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.where(rng.random((n, 1)) < 0.4, rng.normal(size=(n, 2)), rng.normal(size=(n, 2)) * 0.5 + 3.0)


def test_transforms_of_one_gaussian_are_normal_probabilities():
    rows = clusters(200)
    fit = boxloop.GaussianMixture(1).fit(rows)
    wanted = stats.norm.cdf((rows - fit.means_[0]) / np.sqrt(np.diagonal(fit.covariances_[0])))
    np.testing.assert_allclose(calibration(fit, rows).transform, wanted, rtol=1e-10)


@pytest.mark.parametrize(
    "make", [lambda: boxloop.GaussianMixture(2, random_state=0), lambda: boxloop.FactorAnalysis(1)]
)
def test_a_true_model_is_calibrated_and_a_wrong_one_is_not(make):
    """Kolmogorov's test at 1e-4 a column."""
    fit = make().fit(clusters(20_000))
    rows = fit.sample(2000)[0]
    right, wrong = calibration(fit, rows).table(), calibration(fit, rows * 1.3).table()
    assert (right["p_value"] > 1e-4).all()
    assert (wrong["p_value"] < 1e-4).all()
    assert (np.abs(right["inside 95%"] - 0.95) < 4 * right["error 95%"]).all()


def test_decoders_by_quadrature_and_counts_by_draws():
    decoder = as_model(1, lambda z: (z @ torch.ones(1, 2).double(), torch.full((len(z), 2), 0.5).double()))
    rows = np.random.default_rng(0).normal(size=(500, 2)) * 1.5**0.5
    np.testing.assert_allclose(
        calibration(decoder, rows).transform, stats.norm.cdf(rows / 1.5**0.5), atol=2e-3
    )
    counts = np.random.default_rng(0).poisson(3.0, size=(500, 1))
    found = calibration(boxloop.PoissonMixture(1).fit(counts), counts).transform[:, 0]
    rate = counts.mean()
    wanted = 0.5 * (stats.poisson.cdf(counts[:, 0], rate) + stats.poisson.cdf(counts[:, 0] - 1, rate))
    np.testing.assert_allclose(found, wanted, atol=0.02)  # 20,000 draws: 5 standard errors are 0.018


def test_missing_values_stay_missing():
    rows = clusters(50)
    rows[3, 1] = np.nan
    found = calibration(boxloop.GaussianMixture(1).fit(rows), rows)
    assert np.isnan(found.transform).sum() == 1
    assert found.table()["rows"].tolist() == [50, 49]


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_criteria_are_scikit_learn_s(kind):
    rows = clusters(300)
    fit = GaussianMixture(3, covariance_type=kind, random_state=0).fit(rows)
    found = information_criteria(fit, rows)
    assert found.aic == pytest.approx(fit.aic(rows), rel=1e-10)
    assert found.bic == pytest.approx(fit.bic(rows), rel=1e-10)
    assert found.log_likelihood == pytest.approx(fit.score(rows), rel=1e-10)
    assert found.error == pytest.approx(fit.score_samples(rows).std() / 300**0.5, rel=1e-8)
    share = fit.predict_proba(rows)
    entropy = -np.sum(np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0))
    assert found.icl == pytest.approx(found.bic + 2 * entropy, rel=1e-8)


def test_rotations_of_factors_are_not_counted():
    rows = np.random.default_rng(0).normal(size=(200, 6))
    fit = boxloop.FactorAnalysis(2).fit(rows)
    found = information_criteria(fit, rows)
    assert found.n_parameters == 6 + 12 + 6 - 1
    assert found.bic == pytest.approx(fit.bic(rows), rel=1e-10)
    assert found.icl is None


def test_weights_are_repetitions():
    rng = np.random.default_rng(0)
    rows, count = clusters(100), rng.integers(1, 3, size=100)
    fit = boxloop.GaussianMixture(2, random_state=0).fit(rows)
    a = information_criteria(fit, rows, sample_weight=count)
    b = information_criteria(fit, np.repeat(rows, count, axis=0))
    assert (a.log_likelihood, a.bic, a.icl) == pytest.approx((b.log_likelihood, b.bic, b.icl), rel=1e-10)


def test_a_decoder_has_no_criteria():
    decoder = as_model(1, lambda z: (z, torch.ones_like(z)))
    with pytest.raises(TypeError, match="no likelihood"):
        information_criteria(decoder, np.zeros((3, 1)))


def test_the_error_of_a_share_is_binomial():
    rows = clusters(50)
    found = calibration(boxloop.GaussianMixture(1).fit(rows), rows).table()
    np.testing.assert_allclose(found["error 80%"], [(0.8 * 0.2 / 50) ** 0.5] * 2, rtol=1e-12)
