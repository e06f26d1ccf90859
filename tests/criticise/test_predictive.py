"""Scores of predictions of numbers against closed forms, quadrature and each other."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from boxloop.criticise import crps_draws, crps_mixture, crps_normal, regression_scores
from boxloop.figures import png

RNG = np.random.default_rng(0)
Y = RNG.normal(size=(40, 2)) * [1.0, 3.0]
MEAN = RNG.normal(size=(40, 2)) * 0.3
DEVIATION = RNG.uniform(0.5, 2.0, size=(40, 2))


def by_quadrature(cdf, y: float, breaks: list[float]) -> float:
    """The integral that defines the score, in pieces at which the integrand is smooth."""
    ends = sorted([-60.0, 60.0, y, *breaks])
    return sum(
        integrate.quad(lambda x: (cdf(x) - float(x >= y)) ** 2, low, high, epsabs=1e-12)[0]
        for low, high in pairwise(ends)
    )


def test_normal_scores_are_the_closed_forms():
    found = regression_scores(Y, MEAN, DEVIATION)
    np.testing.assert_allclose(found.log_score, stats.norm.logpdf(Y, MEAN, DEVIATION), rtol=1e-12)
    np.testing.assert_allclose(found.transform, stats.norm.cdf(Y, MEAN, DEVIATION), rtol=1e-12)
    np.testing.assert_allclose(found.squared_error, (Y - MEAN) ** 2)
    for i in range(3):
        distribution = stats.norm(MEAN[i, 0], DEVIATION[i, 0])
        assert found.crps[i, 0] == pytest.approx(
            by_quadrature(distribution.cdf, Y[i, 0], [MEAN[i, 0]]), rel=1e-8
        )


def test_a_mixture_of_normals_is_scored_exactly():
    draws, noise = RNG.normal(size=(7, 4, 1)), RNG.uniform(0.2, 1.0, size=(4, 1))
    y = RNG.normal(size=(4, 1))
    found = regression_scores(y, std=noise, draws=draws)
    for i in range(4):
        distribution = stats.norm(draws[:, i, 0], noise[i, 0])
        assert found.log_score[i, 0] == pytest.approx(math.log(distribution.pdf(y[i, 0]).mean()), rel=1e-12)
        assert found.transform[i, 0] == pytest.approx(distribution.cdf(y[i, 0]).mean(), rel=1e-12)
        wanted = by_quadrature(
            lambda x, distribution=distribution: distribution.cdf(x).mean(), y[i, 0], list(draws[:, i, 0])
        )
        assert found.crps[i, 0] == pytest.approx(wanted, rel=1e-8)
    np.testing.assert_allclose(found.std, np.sqrt(draws.var(0) + noise**2))


def test_equal_draws_are_one_normal_and_tiles_do_not_matter(monkeypatch):
    same, share = np.repeat(MEAN[None], 5, 0), np.full(5, 0.2)
    np.testing.assert_allclose(
        crps_mixture(Y, same, DEVIATION, share), crps_normal(Y, MEAN, DEVIATION), rtol=1e-12, atol=1e-14
    )
    draws, share = RNG.normal(size=(9, 40, 2)), RNG.dirichlet(np.ones(9))
    whole = crps_mixture(Y, draws, DEVIATION, share)
    monkeypatch.setattr("boxloop.criticise.prediction_scores.TILE", 100)
    np.testing.assert_allclose(crps_mixture(Y, draws, DEVIATION, share), whole, rtol=1e-12)


def test_weights_are_repetition():
    draws = RNG.normal(size=(3, 40, 2))
    found = regression_scores(Y, std=DEVIATION, draws=draws, weight=[1, 2, 4])
    again = regression_scores(Y, std=DEVIATION, draws=np.repeat(draws, [1, 2, 4], 0))
    for name in ("transform", "log_score", "crps", "squared_error", "std"):
        np.testing.assert_allclose(getattr(found, name), getattr(again, name), rtol=1e-10)


def test_scores_of_draws_are_pairs_of_draws_and_without_bias():
    """The mean over 400 sets of 3 draws: |z| < 4.5, false alarms 7e-6."""
    y, draws = RNG.normal(size=(6, 1)), RNG.normal(size=(5, 6, 1))
    pairs = np.abs(draws[:, None] - draws[None]).sum((0, 1)) / (2 * 5 * 4)
    np.testing.assert_allclose(crps_draws(y, draws), np.abs(draws - y).mean(0) - pairs, rtol=1e-12)
    many = np.array([crps_draws(np.ones((1, 1)), RNG.normal(size=(3, 1, 1)))[0, 0] for _ in range(400)])
    truth = float(crps_normal(np.ones(1), np.zeros(1), np.ones(1))[0])
    assert abs(many.mean() - truth) < 4.5 * many.std() / 20


def test_coverage_and_transforms_of_a_true_distribution():
    """Exact binomial tests at 1e-4 each and Kolmogorov's at 1e-4: 5e-4 in all."""
    y = RNG.normal(2.0, 3.0, size=3000)
    right, narrow = (regression_scores(y, np.full(3000, 2.0), s) for s in (3.0, 2.0))
    table = right.coverage([0.5, 0.9, 0.99])
    assert (table["p_value"] > 1e-4).all()
    np.testing.assert_allclose(table["standard_error"], np.sqrt([0.25 / 3000, 0.09 / 3000, 0.0099 / 3000]))
    np.testing.assert_allclose(table["z"], (table["inside"] - table["level"]) / table["standard_error"])
    assert right.calibration.table()["p_value"].iloc[0] > 1e-4
    assert (narrow.coverage()["p_value"] < 1e-6).all()
    assert narrow.variance_ratio[0] == pytest.approx(2.25 * right.variance_ratio[0])
    inside = (np.abs(y - 2.0) <= 3.0 * stats.norm.ppf(0.95)).mean()
    assert table["inside"].iloc[1] == pytest.approx(inside)


def test_few_draws_cover_what_they_say():
    """Three draws only: ranks with broken ties are exactly uniform. Binomial and Kolmogorov's tests at 1e-4."""
    found = regression_scores(RNG.normal(size=4000), draws=RNG.normal(size=(3, 4000)))
    assert (found.coverage()["p_value"] > 1e-4).all()
    assert found.calibration.table()["p_value"].iloc[0] > 1e-4
    assert np.isnan(found.log_score).all()
    counts = regression_scores(RNG.poisson(2.0, size=4000), draws=RNG.poisson(2.0, size=(3, 4000)))
    assert counts.calibration.table()["p_value"].iloc[0] > 1e-4


def test_two_predictors_are_compared_in_pairs():
    y = RNG.normal(size=500)
    good, bad = regression_scores(y, np.zeros(500), 1.0), regression_scores(y, np.zeros(500), 3.0)
    found = good.difference(bad)
    apart = stats.norm.logpdf(y) - stats.norm.logpdf(y, scale=3.0)
    assert found["log score"].value == pytest.approx(apart.mean())
    assert found["log score"].standard_error == pytest.approx(apart.std(ddof=1) / 500**0.5)
    assert found["log score"].z > 10
    assert found["CRPS"].z < -10
    assert found["squared error"].value == 0.0
    assert found["squared error"].z == 0.0
    with pytest.raises(ValueError, match="same rows"):
        good.difference(regression_scores(y[:9], np.zeros(9), 1.0))


def test_tables_words_and_pictures():
    found = regression_scores(torch.from_numpy(Y), MEAN, DEVIATION, names=("$a$", "b"))
    table = found.table()
    assert table.index.tolist() == ["$a$", "b"]
    assert table["CRPS"].tolist() == pytest.approx(found.crps.mean(0))
    assert table["CRPS error"].tolist() == pytest.approx(found.crps.std(0, ddof=1) / 40**0.5)
    assert table["inside 95%"].iloc[0] == pytest.approx(found.coverage([0.95])["inside"].iloc[0])
    assert "log score" in str(found)
    assert "log score" not in str(regression_scores(Y, draws=RNG.normal(size=(3, 40, 2))))
    assert png(found.plot()).startswith(b"\x89PNG")


def test_one_output_may_leave_its_axis_out():
    flat = regression_scores(Y[:, 0], MEAN[:, 0], DEVIATION[:, 0])
    full = regression_scores(Y[:, :1], MEAN[:, :1], DEVIATION[:, :1])
    np.testing.assert_array_equal(flat.crps, full.crps)
    one = regression_scores(Y, MEAN, np.array([1.0, 2.0]))
    np.testing.assert_array_equal(one.std, np.broadcast_to([1.0, 2.0], Y.shape))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"std": np.zeros((40, 2))}, "std must be positive"),
        ({"mean": MEAN[:5]}, "mean must have shape"),
        ({"mean": None}, "give mean and std, or draws"),
        ({"mean": MEAN * np.nan}, "not finite"),
        ({"y": np.zeros((2, 2, 2))}, "y must have shape"),
        ({"y": ["a", "b"]}, "must hold numbers"),
        ({"names": ("a",)}, "names has 1 names, and y has 2"),
        ({"std": None, "draws": MEAN[None]}, "draws must be at least 2"),
        ({"draws": MEAN}, "draws must have shape"),
        ({"draws": MEAN[None], "weight": [1.0, 1.0]}, "weight must hold 1"),
        ({"draws": MEAN[None], "weight": [-1.0]}, "not negative"),
    ],
)
def test_what_cannot_be_judged_is_said(change, said):
    given = {"y": Y, "mean": MEAN, "std": DEVIATION, **change}
    with pytest.raises(ValueError, match=said):
        regression_scores(given.pop("y"), given.pop("mean"), given.pop("std"), **given)


def test_a_level_is_a_probability():
    with pytest.raises(ValueError, match="between 0 and 1"):
        regression_scores(Y, MEAN, DEVIATION).coverage([95])


def test_square_errors_of_draws_are_those_of_their_mean():
    rng = np.random.default_rng(3)
    y, draws, noise = rng.normal(size=(6, 2)), rng.normal(size=(5, 6, 2)), rng.uniform(0.2, 1.0, (6, 2))
    alone = regression_scores(y, draws=draws)
    np.testing.assert_allclose(alone.squared_error, (y - draws.mean(0)) ** 2, rtol=1e-12)
    np.testing.assert_allclose(alone.std, draws.std(0, ddof=1), rtol=1e-12)
    weight = np.array([0.1, 0.2, 0.3, 0.3, 0.1])
    weighted = regression_scores(y, std=noise, draws=draws, weight=weight)
    np.testing.assert_allclose(weighted.squared_error, (y - np.tensordot(weight, draws, 1)) ** 2, rtol=1e-12)
    for more in ({}, {"std": noise}):
        given = regression_scores(y, np.ones((6, 2)), draws=draws, **more)
        np.testing.assert_allclose(given.squared_error, (y - 1.0) ** 2, rtol=1e-12)
