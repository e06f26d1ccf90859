"""Scale, noise and temperature by held-out rows: planted ones are found, and the ends of the grid are reported."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from scipy.stats import norm
from torch import nn

from boxloop.networks import (
    SCALES,
    Component,
    Layout,
    Predictor,
    Profile,
    WeightDistribution,
    WeightWarning,
    find_best_noise,
    find_best_temperature,
    log_scale_prior,
    mixture_log_prob,
    tune_scale,
)
from networks.small_networks import filled, mlp, part_of, rows, with_batch_norm

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def wide_distribution(outputs: int = 1, variance: float = 0.04) -> Component:
    """A linear net of 40 inputs: each row is a fresh question to the weights."""
    net = filled(nn.Linear(40, outputs, bias=False)).double()
    layout = Layout.from_network(net)
    mean = layout.read(net, torch.empty(layout.size).double())
    return Component(
        1.0,
        net,
        layout,
        WeightDistribution(mean, torch.zeros(layout.size, 0).double(), torch.full_like(mean, variance)),
    )


def worlds(part: Component, scale: float, x: np.ndarray) -> np.ndarray:
    """What networks drawn from the scaled distribution say, another one for each row."""
    deviation = np.sqrt(scale * part.distribution.noise.numpy()) * RNG.normal(
        size=(len(x), part.distribution.size)
    )
    weights = (part.distribution.mean.numpy() + deviation).reshape(len(x), -1, x.shape[1])
    return np.einsum("nkd,nd->nk", weights, x)


def test_a_planted_scale_and_noise_are_found() -> None:
    """Rows differ in the spread of the weights (|x|), so scale and noise can be distinguished."""
    part = wide_distribution(2)
    x = RNG.normal(size=(2000, 40))
    x[::2] *= 0.1  # half of the rows know nearly nothing of the weights
    f = worlds(part, 4.0, x)
    y = f + np.array([0.5, 2.0]) * RNG.normal(size=f.shape)
    found = Predictor((part,), "regression", 100, noise=1.0, seed=1).tune(x, y)
    tuning = found.tuning
    assert tuning is not None
    assert 2.5 < found.scale < 6.0
    np.testing.assert_allclose(found.noise, [0.5, 2.0], rtol=0.15)
    assert tuning.gain > 5.0 * tuning.gain_error > 0.0
    low, high = tuning.scale_range
    assert 0.0 < low <= found.scale <= high
    np.testing.assert_allclose(
        found.predict(x).log_prob(y).mean(), tuning.scores[tuning.best_index], rtol=1e-10
    )


def test_rows_that_know_the_weights_exactly_prefer_none_of_their_spread() -> None:
    part = wide_distribution()
    x = RNG.normal(size=(500, 40))
    x[::2] *= 0.1
    y = x @ part.distribution.mean.numpy() + 0.3 * RNG.normal(size=500)
    found = Predictor((part,), "regression", 50, seed=1).tune(x, y)
    assert found.scale < 0.05
    assert found.noise == pytest.approx(0.3, rel=0.13)  # 0.03 of itself is its standard error
    assert np.isnan(found.tuning.gain)  # there was no noise before, so no score
    only = Predictor((part,), "regression", 50, seed=1).tune(x, y, scales=[0.0, 1.0], refine=0)
    assert only.scale == 0.0
    assert "does not improve" in str(only.tuning)
    assert len(only.predict(x).outputs) == 1


def test_the_end_of_the_grid_is_reported() -> None:
    part = wide_distribution()
    x = RNG.normal(size=(800, 40))
    x[::2] *= 0.1
    f = worlds(part, 64.0, x) + 0.1 * RNG.normal(size=(800, 1))
    with pytest.warns(WeightWarning, match="The best scale of the covariance, 2, is the largest"):
        found = Predictor((part,), "regression", 50).tune(x, f, scales=[0.0, 1.0, 2.0])
    assert found.tuning.at_largest
    assert "largest that was tried" in str(found.tuning)


def test_noise_is_where_the_score_and_its_prior_are_largest() -> None:
    """Two rows that leave what the mean leaves, beside the mixture; then the deviation of Student's distribution."""
    centres, y = RNG.normal(size=(9, 50, 1)), RNG.normal(size=(50, 1))
    weight = np.full(9, 1.0 / 9.0)
    left = np.sqrt(np.square(y - centres.mean(0)).mean())
    noise, scores, prior = find_best_noise(centres, weight, y)

    def score(s: float) -> float:
        return float(np.log(weight @ norm.pdf((y - centres)[..., 0] / s) / s).sum())

    def loss(s: float) -> float:
        return -score(s) - 2.0 * float(norm.logpdf(left, 0.0, s))

    found = minimize_scalar(loss, bounds=(0.1, 5.0), method="bounded", options={"xatol": 1e-9})
    assert noise[0] == pytest.approx(found.x * np.sqrt(52.0 / 50.0), rel=1e-4)
    assert scores.sum() == pytest.approx(score(float(noise[0])), rel=1e-9)
    assert prior == pytest.approx(2.0 * (norm.logpdf(left, 0.0, found.x) - norm.logpdf(0.0)), rel=1e-4)


def test_noise_of_one_network_is_what_it_leaves() -> None:
    """The closed form: the root mean square of each output, as two rows more of that size change nothing."""
    centres, y = RNG.normal(size=(1, 50, 3)), RNG.normal(size=(50, 3)) * np.array([0.1, 1.0, 10.0])
    noise, _, _ = find_best_noise(centres, np.ones(1), y)
    np.testing.assert_allclose(noise, np.sqrt(52.0 / 50.0 * ((y - centres[0]) ** 2).mean(0)), rtol=1e-6)
    with pytest.raises(ValueError, match="predicted exactly"):
        find_best_noise(centres, np.ones(1), centres[0])


def test_bumps_around_every_row_are_not_taken_for_knowledge() -> None:
    """Draws that pass through the rows: without a prior, noise of nearly nothing has the best score of all."""
    y = RNG.normal(size=(20, 1))
    centres = RNG.normal(size=(30, 20, 1))
    centres[np.arange(20), np.arange(20)] = y + 1e-6 * RNG.normal(size=(20, 1))
    weight = np.full(30, 1.0 / 30.0)
    noise, _, _ = find_best_noise(centres, weight, y)
    assert 0.05 < noise[0] < 2.0
    tight, wide = (mixture_log_prob(centres, weight, y, np.array([s])).mean() for s in (2e-6, noise[0]))
    assert tight > wide + 5.0


def test_rows_that_tell_nothing_leave_the_scale_at_one() -> None:
    def profile(scale: float) -> Profile:
        return np.ones(1), np.zeros(20), log_scale_prior(scale)

    found = tune_scale("noise", profile, None, SCALES, 6)
    assert found.scale == pytest.approx(1.0, abs=1e-3)
    assert found.scale_range == (0.0, 64.0)
    assert log_scale_prior(10.0) == pytest.approx(-0.5)
    assert log_scale_prior(0.1) == pytest.approx(-0.5)
    assert log_scale_prior(0.0) == log_scale_prior(1.0 / 64.0) < log_scale_prior(1.0 / 32.0)


def test_a_planted_temperature_is_found() -> None:
    """Labels from softmax(logits / 2.5): the estimate is within four of its own standard errors, rate 1e-4."""
    n = 4000
    logits = 4.0 * RNG.normal(size=(1, n, 3))
    chance = softmax(logits[0] / 2.5, axis=1)
    y = (RNG.random((n, 1)) > chance.cumsum(1)).sum(1)
    heat, scores, prior = find_best_temperature(logits, np.ones(1), y)
    each = logits[0] / 2.5
    information = ((chance * each**2).sum(1) - (chance * each).sum(1) ** 2).sum()  # of log T
    assert abs(np.log(heat[0] / 2.5)) < 4.0 / np.sqrt(information)
    assert prior == pytest.approx(-0.5 * np.log2(heat[0]) ** 2)
    true = np.log(chance[np.arange(n), y]).sum() - 0.5 * np.log2(2.5) ** 2
    assert scores.sum() + prior > true


@pytest.mark.parametrize("planted", [0.5, 0.8, 1.0, 1.5, 4.0])
def test_no_temperature_beside_the_one_found_is_more_probable(planted: float) -> None:
    """On either side of the points from which the search starts."""
    logits = 4.0 * RNG.normal(size=(1, 400, 3))
    y = (RNG.random((400, 1)) > softmax(logits[0] / planted, axis=1).cumsum(1)).sum(1)

    def log_posterior(heat: float) -> float:
        score = log_softmax(logits[0] / heat, axis=1)[np.arange(400), y].sum()
        return float(score - 0.5 * np.log2(heat) ** 2)

    (heat,), scores, prior = find_best_temperature(logits, np.ones(1), y)
    assert scores.sum() + prior == pytest.approx(log_posterior(heat), rel=1e-12)
    assert log_posterior(heat) > max(log_posterior(heat * factor) for factor in (0.99, 1.01))


def test_a_classifier_is_tuned() -> None:
    part = part_of(mlp(outputs=3), 0.3)
    x = rows(600, 3)
    predictor = Predictor((part,), "classification", 20, seed=1)
    chance = predictor.predict(x).probability ** 0.4  # flatter than the net believes
    y = (RNG.random((600, 1)) > (chance / chance.sum(1, keepdims=True)).cumsum(1)).sum(1)
    found = predictor.tune(x, y)
    assert found.temperature > 1.3
    assert found.tuning.gain > 0.0
    assert found.predict(x).log_prob(y).mean() == pytest.approx(
        found.tuning.scores[found.tuning.best_index], rel=1e-10
    )
    assert predictor.temperature == 1.0
    assert predictor.scale == 1.0


def test_what_was_tried_is_reported() -> None:
    part = wide_distribution(2)
    x = RNG.normal(size=(300, 40))
    f = worlds(part, 1.0, x)
    tuning = Predictor((part,), "regression", 30, noise=1.0).tune(x, f + RNG.normal(size=f.shape)).tuning
    table = tuning.table()
    assert list(table.columns) == [
        "scale",
        "noise 0",
        "noise 1",
        "log score",
        "s.e.",
        "log prior",
        "difference",
        "s.e. difference",
    ]
    assert len(table) == len(tuning.scales) >= 14
    assert (np.diff(tuning.scales) > 0.0).all()
    assert (
        tuning.n_rows * tuning.differences + tuning.log_priors <= tuning.log_priors[tuning.best_index] + 1e-9
    ).all()
    assert tuning.differences[tuning.best_index] == 0.0
    assert tuning.difference_errors[tuning.best_index] == 0.0
    assert (tuning.errors > 0.0).all()
    assert tuning.n_rows == 300
    assert "gain by tuning" in str(tuning)


def test_more_scales_between_neighbours_are_better_still() -> None:
    rows_at = {"n": 0}

    def profile(scale: float) -> Profile:
        rows_at["n"] += 1
        off = np.log(scale / 3.0) if scale else 3.0
        return np.ones(1), -np.square(off + np.array([-0.1, 0.1])), 0.0

    plain = tune_scale("noise", profile, None, [0.0, 1.0, 2.0, 4.0, 8.0], 0)
    assert plain.scale == 4.0
    assert rows_at["n"] == 5
    finer = tune_scale("noise", profile, None, [0.0, 1.0, 2.0, 4.0, 8.0], 12)
    assert finer.scale == pytest.approx(3.0, rel=0.01)
    for bad in ([], [-1.0], [np.nan]):
        with pytest.raises(ValueError, match="scales must be"):
            tune_scale("noise", profile, None, bad, 0)


def test_statistics_of_batch_norm_follow_the_scale_that_is_tried() -> None:
    part = part_of(with_batch_norm(), 0.3)
    x, y = rows(40, 1, 6, 6), rows(40, 2, seed=8)
    batches = [rows(9, 1, 6, 6, seed=n) for n in range(2)]
    found = (
        Predictor((part,), "regression", 4)
        .refresh_batch_norm(batches)
        .tune(x, y, scales=[0.0, 0.5, 1.0, 2.0], refine=0)
    )
    again = Predictor((part,), "regression", 4, scale=found.scale, noise=found.noise).refresh_batch_norm(
        batches
    )
    assert again.predict(x).log_prob(y).mean() == pytest.approx(
        found.tuning.scores[found.tuning.best_index], rel=1e-10
    )


def test_a_scale_that_takes_networks_out_of_bounds_is_not_chosen() -> None:
    def profile(scale: float) -> Profile:
        return np.array([1.0]), np.full(20, np.nan if scale > 1.0 else -abs(scale - 0.5)), 0.0

    found = tune_scale("noise", profile, None, [0.0, 0.5, 1.0, 2.0], 0)
    assert found.scale == 0.5
    assert np.isfinite(found.scores).all()


def test_rows_that_are_missing_are_reported_and_not_tuned_on() -> None:
    def nothing(_: float) -> Profile:
        return np.array([np.nan]), np.full(20, np.nan), 0.0

    with pytest.raises(ValueError, match="not finite at any scale"):
        tune_scale("temperature", nothing, None, [0.0, 1.0], 0)
    lost = np.full((2, 20, 3), np.nan)
    assert np.isnan(find_best_temperature(lost, np.full(2, 0.5), np.zeros(20, dtype=np.int64))[1]).all()
    assert np.isnan(find_best_noise(lost, np.full(2, 0.5), np.zeros((20, 3)))[1]).all()


def test_few_rows_warn() -> None:
    part = part_of(nn.Linear(3, 1), seed=0)
    with pytest.warns(WeightWarning, match=r"Tuning on 3 row\(s\) is unreliable"):
        Predictor((part,), "regression", 4).tune(rows(3, 3), rows(3, 1, seed=1), scales=[0.0], refine=0)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_a_distribution_without_spread_keeps_the_scale_of_one(kind: str) -> None:
    part = part_of(mlp(outputs=2), 0.0)
    y = rows(30, 2, seed=1) if kind == "regression" else np.arange(30) % 2
    found = Predictor((part,), kind, 4).tune(rows(30, 3), y)
    assert found.scale == pytest.approx(1.0, rel=1e-6)


def test_few_rows_cost_little_and_intervals_hold() -> None:
    """Twenty rows choose for a distribution ten times too wide: what is lost to the truth, and coverage, on fresh rows.

    Over 100 seeds the mean loss of 24 sets is 0.045 with a deviation of 0.011 (largest 0.083), and their coverage 0.903
    with one of 0.012: less than 1 seed in 10,000 fails. Without priors the loss is 0.31 here.
    """
    rng = np.random.default_rng(2)
    lost, inside = zip(*(lost_by_tuning(rng, 20) for _ in range(24)), strict=True)
    assert 0.0 < np.mean(lost) < 0.13
    assert abs(np.mean(inside) - 0.9) < 0.05


def test_many_rows_cost_next_to_nothing() -> None:
    """Two parameters from 2000 rows: 1/2000 is expected, of 30 draws instead of a distribution a few times that."""
    lost, _ = lost_by_tuning(np.random.default_rng(0), 2000)
    assert lost < 0.02


def lost_by_tuning(rng: np.random.Generator, n: int, m: int = 30, fresh: int = 300) -> tuple[float, float]:
    """Log score of fresh rows under the truth less that after tuning on n rows, and the share in intervals of 90%."""
    spread = rng.uniform(0.0, 2.0, size=n + fresh)
    truth = np.sqrt(0.1 * spread**2 + 0.25)
    y, z = truth * rng.normal(size=n + fresh), rng.normal(size=(m, n + fresh))

    def said(scale: float) -> tuple[np.ndarray, np.ndarray]:
        return (np.sqrt(scale) * spread * z)[..., None], np.full(m, 1.0 / m)

    def profile(scale: float) -> Profile:
        centres, weight = said(scale)
        noise, scores, prior = find_best_noise(centres[:, :n], weight, y[:n, None])
        return noise, scores, prior + log_scale_prior(scale)

    found = tune_scale("noise", profile, None, SCALES, 0)
    centres, weight = said(found.scale)
    scores = mixture_log_prob(centres[:, n:], weight, y[n:, None], found.value)
    place = norm.cdf((y[n:] - centres[:, n:, 0]) / found.value).mean(0)
    inside = (place > 0.05) & (place < 0.95)
    return float((norm.logpdf(y[n:], 0.0, truth[n:]) - scores).mean()), float(inside.mean())
