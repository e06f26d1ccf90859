"""NetworkRegressor and NetworkClassifier: units, members, priors, own modules, Ctrl-C, and what they predict."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.datasets import load_wine
from torch import Generator, nn

from boxloop import FitWarning
from boxloop.estimators import MemberTraining, NetworkClassifier, NetworkRegressor, hold_out
from boxloop.networks import WeightWarning, find_best_temperature, weight_decay

Array = NDArray[np.float64]
QUICK: dict[str, Any] = {"hidden": (10,), "epochs": 20, "collect": 12, "rank": 3, "random_state": 0}


def curve(n: int = 200, seed: int = 0, noise: float = 0.2) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2.0, 2.0, size=(n, 2))
    return x, np.sin(2.0 * x[:, 0]) + 0.5 * x[:, 1] + noise * rng.normal(size=n)


def circles(n: int = 240, seed: int = 0) -> tuple[Array, NDArray[Any]]:
    rng = np.random.default_rng(seed)
    label = rng.integers(3, size=n)
    angle, radius = rng.uniform(0.0, 2.0 * np.pi, n), 1.0 + label + 0.2 * rng.normal(size=n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), np.array(["in", "mid", "out"])[
        label
    ]


def small(draws: Generator) -> nn.Module:
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.5 * torch.randn(value.shape, generator=draws))
    return net


@pytest.fixture(scope="module")
def fitted() -> NetworkRegressor:
    return NetworkRegressor(**QUICK).fit(*curve())


def test_results_are_in_the_units_of_the_data(fitted: NetworkRegressor) -> None:
    x, y = curve()
    moved = NetworkRegressor(**QUICK).fit(1e5 + x * [1e-3, 1e3], 50.0 + 7.0 * y)
    mean, deviation = fitted.predict(x, return_std=True)
    other, wider = moved.predict(1e5 + x * [1e-3, 1e3], return_std=True)
    # 1e5 beside a spread of 1e-3 leaves eight digits of x, and training multiplies what is lost.
    np.testing.assert_allclose(other, 50.0 + 7.0 * mean, rtol=1e-3)
    np.testing.assert_allclose(wider, 7.0 * deviation, rtol=1e-2)
    np.testing.assert_allclose(moved.noise_, 7.0 * fitted.noise_, rtol=1e-2)
    assert moved.scale_ == pytest.approx(fitted.scale_, rel=1e-2)


def test_one_prediction_says_the_same_in_all_ways(fitted: NetworkRegressor) -> None:
    x, y = curve(60, 1)
    mean, deviation = fitted.predict(x, return_std=True)
    found = fitted.predict_distribution(x)
    assert found.mean.shape == (60,)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(found.std, deviation, rtol=1e-12)
    np.testing.assert_allclose(np.hypot(found.epistemic_std, fitted.noise_), deviation, rtol=1e-12)
    standard = fitted.predictor_.predict(
        (torch.from_numpy(x) - fitted.x_units_.origin) / fitted.x_units_.scale
    )
    units = fitted.y_units_
    score = standard.log_prob((y - units.origin.item()) / units.scale.item()) - math.log(units.scale.item())
    np.testing.assert_allclose(found.log_prob(y), score, rtol=1e-9)


def test_a_curve_is_found_with_its_noise() -> None:
    x, y = curve(600)
    fit = NetworkRegressor(random_state=0).fit(x, y)
    new, seen = curve(2000, 1)
    mean, deviation = fit.predict(new, return_std=True)
    assert np.sqrt(np.mean((mean - seen) ** 2)) < 1.25 * 0.2
    # From 60 rows the noise is known to 9 %: four standard errors.
    assert fit.noise_[0] == pytest.approx(0.2, rel=0.4)
    inside = np.abs(seen - mean) < 1.96 * deviation
    # A coverage of 0.95 moves by 0.23 times the error of the logarithm of the noise: 0.02, four times.
    assert 0.87 < inside.mean() < 0.995
    far = fit.predict_distribution([[20.0, -20.0]])
    assert far.epistemic_std[0] > 3.0 * np.median(fit.predict_distribution(new).epistemic_std)


def test_several_outputs_have_noise_of_their_own() -> None:
    x, y = curve(300)
    rng = np.random.default_rng(5)
    both = np.stack([y, 100.0 * x[:, 0] + 30.0 * rng.normal(size=300)], 1)
    fit = NetworkRegressor(**QUICK).fit(x, both)
    mean, deviation = fit.predict(x, return_std=True)
    assert mean.shape == deviation.shape == (300, 2)
    # 50 rows know a standard deviation to 10 %.
    assert fit.noise_[1] == pytest.approx(30.0, rel=0.45)
    assert fit.score(x, both) > 0.7
    low, high = fit.predict_distribution(x).interval(0.9)
    assert low.shape == (300, 2)
    assert (low < high).all()


def test_weight_decay_is_the_prior_of_the_rows_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    x, label = circles(200)
    fit = NetworkClassifier(prior_precision=0.7, **QUICK).fit(x, label)
    held = hold_out(np.unique(label, return_inverse=True)[1], 0.1, torch.Generator()).sum()
    assert 47 <= held <= 50
    assert fit.weight_decay_ == pytest.approx(weight_decay(0.7, 200 - held, "mean_log"), rel=1e-12)
    x, y = curve(400)
    none = NetworkRegressor(**QUICK, prior_precision=0.0).fit(x, y)
    assert none.weight_decay_ == 0.0
    fit = NetworkRegressor(**{**QUICK, "epochs": 100}, prior_precision=2.0).fit(x, y)
    noise = 0.5 * fit.weight_decay_ * 350 / 2.0  # that the prior is weighed against, of standardised y
    assert noise == pytest.approx((0.2 / y.std()) ** 2, rel=1.0)
    for name in ("residual_variance", "estimate_noise"):
        monkeypatch.setattr(MemberTraining, name, lambda self, *given: 0.3)
    for outputs in (1, 2):
        fit = NetworkRegressor(**QUICK, prior_precision=2.0).fit(x, np.stack([y] * outputs, 1))
        assert fit.weight_decay_ == pytest.approx(2.0 * 2.0 * 0.3 / (350 * outputs), rel=1e-12)


def squares(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hardly any noise: what a network leaves half way is a hundred times more."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(120, 2))
    return x, x[:, 0] ** 2 + 0.03 * rng.normal(size=120)


@pytest.mark.filterwarnings("ignore:The best scale of the covariance")
@pytest.mark.parametrize("seed", [1, 3])
def test_training_goes_on_until_the_noise_of_the_prior_is_that_found(seed: int) -> None:
    fit = NetworkRegressor(random_state=seed).fit(*squares(seed))
    assumed = 0.5 * fit.weight_decay_ * 90 / fit.prior_precision
    assert 1.0 / 2.0 < assumed / fit.predictor_.noise.item() ** 2 < 2.0
    assert fit.n_iter_ == len(fit.history_["loss"])


def test_a_noise_that_never_agrees_ends_the_revisions(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def estimate(self: object, posteriors: object, before: float) -> float:
        asked.append(before)
        return 10.0 * before

    monkeypatch.setattr(MemberTraining, "estimate_noise", estimate)
    monkeypatch.setattr(MemberTraining, "residual_variance", lambda self, before: 1e-5)
    NetworkRegressor(**QUICK).fit(*curve(200))
    np.testing.assert_allclose(asked, [1e-5, 1e-4, 1e-3], rtol=1e-12)


def test_a_revision_that_runs_away_keeps_what_was_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, calls = MemberTraining.collect_weights, []

    def collected(*given: object) -> object:
        calls.append(given)
        if len(calls) > 1:
            raise FloatingPointError("away")
        return plain(*given)

    monkeypatch.setattr(MemberTraining, "collect_weights", collected)
    monkeypatch.setattr(MemberTraining, "estimate_noise", lambda self, posteriors, before: 0.25)
    with pytest.warns(match="assumes another noise: with 0.5 standard deviations"):
        fit = NetworkRegressor(**QUICK).fit(*curve(200))
    assert len(calls) > 1
    assert fit.posterior_.posteriors[0].count > 10
    assert any("diverges at every rate" in event for event in fit.events_)


def test_a_member_beside_others_is_what_it_is_alone() -> None:
    x, label = circles()
    given = {**QUICK, "collect_rate": 0.02}
    alone, several = (NetworkClassifier(**given, members=k).fit(x, label) for k in (1, 3))
    assert len(several.posterior_) == 3
    first, other = (one.posterior_.posteriors[0].mean() for one in (alone, several))
    torch.testing.assert_close(first, other, rtol=1e-7, atol=1e-9)
    assert not torch.allclose(other, several.posterior_.posteriors[1].mean())
    x, y = curve()
    alone, several = (NetworkRegressor(**given, method="swa", members=k).fit(x, y) for k in (1, 3))
    assert alone.predict_distribution(x).epistemic_std.max() == 0.0
    assert several.predict_distribution(x).epistemic_std.min() > 0.0  # an ensemble of points


def test_the_same_seed_is_the_same_fit_whatever_else_is_drawn() -> None:
    x, y = curve()
    before = torch.get_rng_state()
    one, two, three = (
        NetworkRegressor(**{**QUICK, "random_state": s}).fit(x, y).predict(x) for s in (3, 3, 4)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert (one == two).all()
    assert (one != three).any()


@pytest.mark.filterwarnings("ignore:.* vectors give a distribution")  # units that are never on do not move
@pytest.mark.parametrize("method", ["factor", "swag", "swa", "full", "gradient"])
def test_every_method_predicts(method: str) -> None:
    x, label = circles()
    fit = NetworkClassifier(**{**QUICK, "method": method, "epochs": 60}).fit(x, label)
    assert fit.score(x, label) > 0.9
    chance = fit.predict_proba(x)
    np.testing.assert_allclose(chance.sum(1), 1.0, rtol=1e-9)
    assert fit.classes_.tolist() == ["in", "mid", "out"]
    found = fit.predict_distribution(x)
    assert ((found.mutual_information > 1e-9).any()) == (method != "swa")


def test_classes_that_are_hard_to_tell_have_a_middling_probability() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 2))
    label = rng.random(400) < 0.5
    fit = NetworkClassifier(**QUICK).fit(x, label)
    assert fit.classes_.dtype == bool
    assert np.abs(fit.predict_proba(x)[:, 1] - 0.5).mean() < 0.2


def test_a_class_of_one_row_is_trained_on() -> None:
    x, label = circles()
    label[0], x[0] = "odd", [40.0, 40.0]
    fit = NetworkClassifier(**{**QUICK, "epochs": 100}).fit(x, label)
    assert fit.predict([[40.0, 40.0]]) == ["odd"]


def test_rows_held_out_are_a_share_of_every_class() -> None:
    codes = np.repeat([0, 1, 2, 3], [500, 300, 199, 1])
    mask = hold_out(codes, 0.1, torch.Generator())
    assert [int(mask[codes == c].sum()) for c in range(4)] == [50, 30, 19, 0]
    numbers = np.zeros((1000, 2))
    assert hold_out(numbers, 0.1, torch.Generator()).sum() == 100
    assert hold_out(numbers[:100], 0.1, torch.Generator()).sum() == 25
    assert hold_out(numbers[:300], 0.1, torch.Generator()).sum() == 50
    assert hold_out(numbers[:30], 0.1, torch.Generator()).sum() == 0
    assert hold_out(numbers, 0.0, torch.Generator()).sum() == 0


def test_a_few_rows_that_are_all_right_do_not_freeze_the_temperature() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(5, 20, 2)) * 0.2 + np.array([2.0, -2.0])
    weight, seen = np.full(5, 0.2), np.zeros(20, dtype=np.int64)
    assert 0.4 < find_best_temperature(logits, weight, seen)[0][0] < 1.0
    many = rng.normal(size=(1, 20_000, 3)) * 2.0
    chance = np.exp(many[0] / 3.0)
    labels = (rng.random((20_000, 1)) > (chance / chance.sum(1, keepdims=True)).cumsum(1)).sum(1)
    assert find_best_temperature(many, np.ones(1), labels)[0][0] == pytest.approx(3.0, rel=0.15)


def test_a_distribution_without_spread_keeps_its_scale() -> None:
    assert NetworkRegressor(**QUICK, method="swa").fit(*curve()).scale_ == pytest.approx(1.0, rel=1e-6)
    assert NetworkClassifier(**QUICK, method="swa").fit(*circles()).scale_ == pytest.approx(1.0, rel=1e-6)


def test_columns_without_spread_count_for_nothing() -> None:
    x, y = curve()
    with pytest.warns(FitWarning, match="constant columns have no effect: c"):
        fit = NetworkRegressor(**QUICK).fit(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "c": 5.0}), y)
    one, two = (pd.DataFrame({"a": x[:5, 0], "b": x[:5, 1], "c": value}) for value in (5.0, 1e9))
    assert (fit.predict(one) == fit.predict(two)).all()
    assert fit.feature_names_in_.tolist() == ["a", "b", "c"]


def test_outputs_without_spread_are_predicted_as_they_are() -> None:
    x, _ = curve()
    with pytest.warns(
        FitWarning,
        match="y does not vary, so its standard deviations mean little",
    ):
        fit = NetworkRegressor(**QUICK).fit(x, np.full(200, 3.0))
    np.testing.assert_allclose(fit.predict(x), 3.0, atol=0.05)
    with pytest.raises(ValueError, match=r"'y1' holds values so small .* rescale it"):
        NetworkRegressor(**QUICK).fit(x, np.stack([x[:, 0], 1e-170 * x[:, 1]], 1))


def test_too_few_rows_to_hold_out_are_reported() -> None:
    x, y = curve(20)
    with pytest.warns(FitWarning, match="no rows are held out: .* the noise is estimated on training rows"):
        fit = NetworkRegressor(**QUICK).fit(x, y)
    assert fit.scale_ == 1.0
    with pytest.warns(FitWarning, match="the probabilities are estimated on training rows"):
        NetworkClassifier(**QUICK, validation_fraction=0.0).fit(*circles())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"members": 2, "module": nn.Linear(2, 1)}, "would all start from the same module"),
        ({"module": nn.Linear(2, 3)}, r"must return 1 outputs per row, \(n, 1\), got \(2, 3\)"),
        ({"module": nn.Linear(7, 1)}, "module cannot be evaluated at rows of 2 columns and torch.float64"),
        ({"module": lambda draws: 3}, "must be a torch.nn.Module, or return one, got a int"),
        ({"method": "median"}, "method must be one of"),
        ({"activation": "cubic"}, "activation"),
        ({"momentum": 1.0}, "momentum"),
        ({"hidden": (0,)}, "whole numbers above 0.*got 0"),
        ({"n_draws": 1}, "n_draws=1 must be at least 2"),
        ({"n_draws": 2, "members": 3}, "must be at least 3: one draw per member"),
        ({"method": "swag", "rank": 1}, "rank must be at least 2"),
        (
            {"module": nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, track_running_stats=False))},
            "rows beside it",
        ),
        ({"hidden": (2.5,)}, "whole numbers above 0.*got 2.5"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_training(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr("boxloop.estimators._network.train", None)
    with pytest.raises(ValueError, match=message):
        NetworkRegressor(**{**QUICK, **given}).fit(*curve())


def test_one_draw_of_a_distribution_without_spread_is_enough() -> None:
    assert NetworkRegressor(**QUICK, method="swa", n_draws=1).fit(*curve()).predict(curve()[0]).shape == (
        200,
    )


@pytest.mark.parametrize(
    "y", [["1", "2"] * 5, np.array(["a", "b"] * 5, dtype=object), pd.Series(["a", "b"] * 5)]
)
def test_text_is_sent_to_the_classifier(y: Any) -> None:
    with pytest.raises(ValueError, match="NetworkClassifier takes labels"):
        NetworkRegressor(**QUICK).fit(np.arange(20.0).reshape(10, 2), y)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="one class"):
        NetworkClassifier().fit(np.ones((10, 2)), np.zeros(10))


def test_own_modules_are_copied_and_their_batch_norm_is_gathered_anew() -> None:
    x, y = curve(300)
    given = small(torch.Generator().manual_seed(1))
    before = {name: value.clone() for name, value in given.state_dict().items()}
    fit = NetworkRegressor(**{**QUICK, "epochs": 60}, module=given).fit(x, y)
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    assert fit.score(x, y) > 0.7
    assert fit.predictor_.buffers is not None
    several = NetworkRegressor(**{**QUICK, "epochs": 60}, module=small, members=2).fit(x, y)
    assert len(several.posterior_) == 2
    assert several.score(x, y) > 0.7
    assert clone(several).module is small


@pytest.mark.parametrize("members", [1, 2])
def test_a_fit_is_audited(members: int) -> None:
    x, y = curve(300)
    fit = NetworkRegressor(**QUICK, members=members).fit(x[:240], y[:240])
    found = fit.audit(x[:240], y[:240], x[240:], y[240:], chains=0)
    assert found.concerns
    assert "bad" not in [concern.level for concern in found.concerns if concern.what == "Weight decay"]
    other = clone(fit).set_params(random_state=np.random.default_rng(0)).fit(x, y)
    with pytest.raises(ValueError, match="random_state must be a whole number"):
        other.audit(x, y, x, y)


class Cut:
    """A loss that is interrupted at one of its calls."""

    def __init__(self, when: int, inner: Any) -> None:
        self.calls, self.when, self.inner = 0, when, inner

    def __call__(self, out: Any, y: Any) -> Any:
        self.calls += 1
        if self.calls == self.when:
            raise KeyboardInterrupt
        return self.inner(out, y)


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    plain = nn.functional.mse_loss

    def at(when: int) -> None:
        monkeypatch.setattr("boxloop.estimators._network.mse_loss", Cut(when, plain))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)
        yield at


@pytest.mark.parametrize(("when", "spread"), [(20, False), (140, False), (700, True)])
def test_ctrl_c_leaves_something_that_predicts(interrupted: Any, when: int, spread: bool) -> None:
    interrupted(when)
    x, y = curve()
    fit = NetworkRegressor(**{**QUICK, "collect_rate": 0.02, "collect": 100})
    said = "interrupted while weights were collected, after" if spread else "interrupted before weights were"
    with pytest.warns(FitWarning, match=said):
        fit.fit(x, y)
    assert fit.interrupted_
    assert fit.n_iter_ < 120
    mean, deviation = fit.predict(x, return_std=True)
    assert np.isfinite(mean).all()
    assert (deviation > 0.0).all()
    assert bool((fit.predict_distribution(x).epistemic_std > 0.0).any()) == spread


@pytest.mark.filterwarnings("ignore::boxloop.networks.WeightWarning")
def test_a_rate_that_runs_away_is_halved_or_refused() -> None:
    x, y = curve()
    alike = x[:, :1] + 0.01 * np.random.default_rng(0).normal(size=(200, 60))  # a steep direction
    fit = NetworkRegressor(**QUICK).fit(np.hstack([x, alike]), y)
    assert fit.collect_rate_ < 0.05
    losses = fit.history_["loss"]
    assert np.mean(losses[20:]) < 1.5 * losses[19]
    with pytest.raises(FloatingPointError, match="steps in a row"):
        NetworkRegressor(**{**QUICK, "method": "swa"}, collect_rate=1e6).fit(x, y)


def test_single_precision_is_near_double() -> None:
    x, y = curve()
    one, two = (NetworkRegressor(**QUICK, dtype=dtype).fit(x, y) for dtype in ("float32", "float64"))
    assert one.posterior_.components()[0].distribution.mean.dtype == torch.float32
    # the starts differ, as other random numbers are drawn
    assert one.score(x, y) == pytest.approx(two.score(x, y), abs=0.15)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:constant columns")  # corners of digits
def test_as_good_as_the_networks_of_scikit_learn() -> None:
    from sklearn.datasets import load_diabetes, load_digits, make_friedman1
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier, MLPRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    for rows in (load_diabetes(return_X_y=True), make_friedman1(1500, random_state=0, noise=1.0)):
        x, new, y, seen = train_test_split(*rows, random_state=0)
        ours = NetworkRegressor(random_state=0, members=3).fit(x, y).predict_distribution(new)
        scale = y.std()
        peer = make_pipeline(StandardScaler(), MLPRegressor(random_state=0, max_iter=2000)).fit(x, y / scale)
        theirs = scale * peer.predict(new)
        assert np.sqrt(np.mean((ours.mean - seen) ** 2)) < 1.05 * np.sqrt(np.mean((theirs - seen) ** 2))
        low, high = ours.interval(0.95)
        assert 0.88 < np.mean((low < seen) & (seen < high)) < 0.99
    for rows in (load_digits(return_X_y=True), load_wine(return_X_y=True)):
        x, new, y, seen = train_test_split(*rows, random_state=0)
        peer = make_pipeline(StandardScaler(), MLPClassifier(random_state=0, max_iter=500)).fit(x, y)
        assert NetworkClassifier(random_state=0).fit(x, y).score(new, seen) > peer.score(new, seen) - 0.02


def test_warnings_of_the_weights_point_at_the_line_of_the_fit() -> None:
    with pytest.warns(WeightWarning, match="FactorEM has rank 30") as record:
        NetworkRegressor(**{**QUICK, "collect": 1, "rank": 30}).fit(*curve())
    assert {one.filename for one in record} == {__file__}
