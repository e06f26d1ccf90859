"""Scale, noise and temperature by held-out rows: planted ones are found, and the ends of the grid are told."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from scipy.stats import norm
from torch import nn

from boxloop.weights.law import WeightLaw
from boxloop.weights.layout import Layout
from boxloop.weights.likely import heat_prior, likely_noise, likely_temperature
from boxloop.weights.method import Part, WeightWarning
from boxloop.weights.predictor import Predictor
from boxloop.weights.tuning import best_noise, tune
from weights.made import filled, mlp, part_of, rows, with_batch_norm

RNG = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Each test draws the same, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(3).bit_generator.state


def wide_law(outputs: int = 1, variance: float = 0.04) -> Part:
    """A linear net of 40 inputs: each row is a fresh question to the weights."""
    net = filled(nn.Linear(40, outputs, bias=False)).double()
    layout = Layout.of(net)
    mean = layout.read(net, torch.empty(layout.size).double())
    return Part(
        1.0,
        net,
        layout,
        WeightLaw(mean, torch.zeros(layout.size, 0).double(), torch.full_like(mean, variance)),
    )


def worlds(part: Part, scale: float, x: np.ndarray) -> np.ndarray:
    """What networks drawn from the scaled law say, another one for each row."""
    deviation = np.sqrt(scale * part.law.noise.numpy()) * RNG.normal(size=(len(x), part.law.size))
    weights = (part.law.mean.numpy() + deviation).reshape(len(x), -1, x.shape[1])
    return np.einsum("nkd,nd->nk", weights, x)


def test_a_planted_scale_and_noise_are_found() -> None:
    """Rows differ in the spread of the weights (|x|), so scale and noise can be told apart."""
    part = wide_law(2)
    x = RNG.normal(size=(2000, 40))
    x[::2] *= 0.1  # half of the rows know nearly nothing of the weights
    f = worlds(part, 4.0, x)
    y = f + np.array([0.5, 2.0]) * RNG.normal(size=f.shape)
    found = Predictor((part,), "regression", 100, noise=1.0, seed=1).tuned(x, y)
    tuning = found.tuning
    assert tuning is not None
    assert 2.5 < found.scale < 6.0
    np.testing.assert_allclose(found.noise, [0.5, 2.0], rtol=0.15)
    assert tuning.gain > 5.0 * tuning.gain_error > 0.0
    low, high = tuning.plausible
    assert 0.0 < low <= found.scale <= high
    np.testing.assert_allclose(found.predict(x).log_prob(y).mean(), tuning.scores[tuning.best], rtol=1e-10)


def test_rows_that_know_the_weights_exactly_prefer_none_of_their_spread() -> None:
    part = wide_law()
    x = RNG.normal(size=(500, 40))
    x[::2] *= 0.1
    y = x @ part.law.mean.numpy() + 0.3 * RNG.normal(size=500)
    found = Predictor((part,), "regression", 50, seed=1).tuned(x, y)
    assert found.scale < 0.05
    assert found.noise == pytest.approx(0.3, rel=0.13)  # 0.03 of itself is its standard error
    assert np.isnan(found.tuning.gain)  # there was no noise before, so no score
    only = Predictor((part,), "regression", 50, seed=1).tuned(x, y, scales=[0.0, 1.0], refine=0)
    assert only.scale == 0.0
    assert "does not help" in str(only.tuning)
    assert len(only.predict(x).outputs) == 1


def test_the_end_of_the_grid_is_told() -> None:
    part = wide_law()
    x = RNG.normal(size=(800, 40))
    x[::2] *= 0.1
    f = worlds(part, 64.0, x) + 0.1 * RNG.normal(size=(800, 1))
    with pytest.warns(WeightWarning, match="the largest tried, 2: a larger one may be better"):
        found = Predictor((part,), "regression", 50).tuned(x, f, scales=[0.0, 1.0, 2.0])
    assert found.tuning.at_end
    assert "largest scale tried" in str(found.tuning)


def test_noise_is_where_the_score_is_largest() -> None:
    centres, y = RNG.normal(size=(9, 50, 1)), RNG.normal(size=(50, 1))
    weight = np.full(9, 1.0 / 9.0)
    noise, scores = best_noise(centres, weight, y)

    def loss(s: float) -> float:
        z = (y - centres)[..., 0] / s
        return -float(np.log(weight @ np.exp(-0.5 * z * z) / s / np.sqrt(2.0 * np.pi)).mean())

    found = minimize_scalar(loss, bounds=(0.1, 5.0), method="bounded", options={"xatol": 1e-9})
    assert noise[0] == pytest.approx(found.x, rel=1e-4)
    assert scores.mean() == pytest.approx(-found.fun, rel=1e-9)
    for factor in (0.99, 1.01):
        assert -loss(factor * float(noise[0])) < scores.mean()


def test_noise_of_several_outputs_is_stationary() -> None:
    """One draw: the closed form, the root mean square of each output."""
    centres, y = RNG.normal(size=(1, 50, 3)), RNG.normal(size=(50, 3)) * np.array([0.1, 1.0, 10.0])
    noise, _ = best_noise(centres, np.ones(1), y)
    np.testing.assert_allclose(noise, np.sqrt(((y - centres[0]) ** 2).mean(0)), rtol=1e-6)
    with pytest.raises(ValueError, match="predicted exactly"):
        best_noise(centres, np.ones(1), centres[0])


def test_noise_beside_a_spread_is_where_the_score_is_largest() -> None:
    mean, spread, y = RNG.normal(size=(50, 1)), RNG.random((50, 1)), 2.0 * RNG.normal(size=(50, 1))
    noise, scores = likely_noise(mean, spread, y)

    def loss(s: float) -> float:
        return -float(norm.logpdf(y, mean, np.sqrt(spread**2 + s**2)).mean())

    found = minimize_scalar(loss, bounds=(0.1, 5.0), method="bounded", options={"xatol": 1e-9})
    assert noise[0] == pytest.approx(found.x, rel=1e-4)
    assert scores.mean() == pytest.approx(-found.fun, rel=1e-9)
    for factor in (0.99, 1.01):
        assert -loss(factor * float(noise[0])) < scores.mean()


def test_noise_of_several_outputs_without_spread_is_the_root_mean_square() -> None:
    mean, y = RNG.normal(size=(50, 3)), RNG.normal(size=(50, 3)) * np.array([0.1, 1.0, 10.0])
    noise, _ = likely_noise(mean, np.zeros((50, 3)), y)
    np.testing.assert_allclose(noise, np.sqrt(((y - mean) ** 2).mean(0)), rtol=1e-5)
    with pytest.raises(ValueError, match="predicted exactly"):
        likely_noise(mean, np.zeros((50, 3)), mean)


def test_a_planted_temperature_is_found() -> None:
    """Labels from softmax(logits / 2.5): the estimate is within four of its own standard errors, rate 1e-4."""
    n = 4000
    logits = 4.0 * RNG.normal(size=(1, n, 3))
    chance = softmax(logits[0] / 2.5, axis=1)
    y = (RNG.random((n, 1)) > chance.cumsum(1)).sum(1)
    heat, scores = likely_temperature(logits, np.ones(1), y)
    each = logits[0] / 2.5
    information = ((chance * each**2).sum(1) - (chance * each).sum(1) ** 2).sum()  # of log T
    assert abs(np.log(heat[0] / 2.5)) < 4.0 / np.sqrt(information)
    assert scores.mean() > np.log(chance[np.arange(n), y]).mean() + heat_prior(2.5) / n


def test_a_classifier_is_tuned() -> None:
    part = part_of(mlp(outputs=3), 0.3)
    x = rows(600, 3)
    predictor = Predictor((part,), "classification", 20, seed=1)
    chance = predictor.predict(x).probability ** 0.4  # flatter than the net believes
    y = (RNG.random((600, 1)) > (chance / chance.sum(1, keepdims=True)).cumsum(1)).sum(1)
    found = predictor.tuned(x, y)
    assert found.temperature > 1.3
    assert found.tuning.gain > 0.0
    assert found.predict(x).log_prob(y).mean() == pytest.approx(found.tuning.scores.max(), rel=1e-10)
    assert predictor.temperature == 1.0
    assert predictor.scale == 1.0


def test_what_was_tried_is_told() -> None:
    part = wide_law(2)
    x = RNG.normal(size=(300, 40))
    f = worlds(part, 1.0, x)
    tuning = Predictor((part,), "regression", 30, noise=1.0).tuned(x, f + RNG.normal(size=f.shape)).tuning
    table = tuning.table()
    assert list(table.columns) == [
        "scale",
        "noise 0",
        "noise 1",
        "log score",
        "s.e.",
        "behind",
        "s.e. behind",
    ]
    assert len(table) == len(tuning.scales) >= 14
    assert (np.diff(tuning.scales) > 0.0).all()
    assert (tuning.behind <= 0.0).all()
    assert tuning.behind[tuning.best] == 0.0
    assert tuning.behind_errors[tuning.best] == 0.0
    assert (tuning.errors > 0.0).all()
    assert tuning.n_rows == 300
    assert "over before" in str(tuning)


def test_more_scales_between_neighbours_are_better_still() -> None:
    rows_at = {"n": 0}

    def profile(scale: float) -> tuple[np.ndarray, np.ndarray]:
        rows_at["n"] += 1
        return np.ones(1), -np.square(np.log(scale / 3.0) + np.array([-0.1, 0.1])) if scale else np.full(
            2, -9.0
        )

    plain = tune("noise", profile, None, [0.0, 1.0, 2.0, 4.0, 8.0], 0)
    assert plain.scale == 4.0
    assert rows_at["n"] == 5
    finer = tune("noise", profile, None, [0.0, 1.0, 2.0, 4.0, 8.0], 12)
    assert finer.scale == pytest.approx(3.0, rel=0.01)
    for bad in ([], [-1.0], [np.nan]):
        with pytest.raises(ValueError, match="scales must be"):
            tune("noise", profile, None, bad, 0)


def test_statistics_of_batch_norm_follow_the_scale_that_is_tried() -> None:
    part = part_of(with_batch_norm(), 0.3)
    x, y = rows(40, 1, 6, 6), rows(40, 2, seed=8)
    batches = [rows(9, 1, 6, 6, seed=n) for n in range(2)]
    found = (
        Predictor((part,), "regression", 4).fresh(batches).tuned(x, y, scales=[0.0, 0.5, 1.0, 2.0], refine=0)
    )
    again = Predictor((part,), "regression", 4, scale=found.scale, noise=found.noise).fresh(batches)
    assert again.predict(x).log_prob(y).mean() == pytest.approx(found.tuning.scores.max(), rel=1e-10)


def test_a_scale_that_takes_networks_out_of_bounds_is_not_chosen() -> None:
    def profile(scale: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([1.0]), np.full(20, np.nan if scale > 1.0 else -abs(scale - 0.5))

    found = tune("noise", profile, None, [0.0, 0.5, 1.0, 2.0], 0)
    assert found.scale == 0.5
    assert np.isfinite(found.scores).all()


def test_rows_that_are_missing_are_told_and_not_tuned_on() -> None:
    def nothing(_: float) -> tuple[np.ndarray, np.ndarray]:
        return np.array([np.nan]), np.full(20, np.nan)

    with pytest.raises(ValueError, match="not finite at any scale"):
        tune("temperature", nothing, None, [0.0, 1.0], 0)
    lost = np.full((2, 20, 3), np.nan)
    assert np.isnan(likely_temperature(lost, np.full(2, 0.5), np.zeros(20, dtype=np.int64))[1]).all()
    assert np.isnan(likely_noise(lost[0], lost[0], np.zeros((20, 3)))[1]).all()
    assert np.isnan(best_noise(lost, np.full(2, 0.5), np.zeros((20, 3)))[1]).all()


def test_few_rows_warn() -> None:
    part = part_of(nn.Linear(3, 1), seed=0)
    with pytest.warns(WeightWarning, match=r"3 row\(s\) tell little"):
        Predictor((part,), "regression", 4).tuned(rows(3, 3), rows(3, 1, seed=1), scales=[0.0], refine=0)
