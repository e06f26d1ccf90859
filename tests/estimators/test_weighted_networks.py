"""Weights of rows in network estimators: whole numbers count as repetitions, in the loss, the prior and the tuning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
import torch
from sklearn.model_selection import cross_validate

import boxloop
from boxloop.estimators import NetworkClassifier, NetworkRegressor
from boxloop.networks import SCALES, Predictor, WeightPosterior
from estimators.public_cases import quietly

SMALL: dict[str, Any] = {"hidden": (6,), "rank": 2, "n_draws": 4, "activation": "tanh", "random_state": 0}
WHOLE = {"epochs": 30, "collect": 12, "collect_rate": 0.02, "batch_size": 10_000, "validation_fraction": 0.0}
"""Batches that hold all rows, and no rows held out: then nothing depends on how rows are drawn."""


def table(n: int = 80, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows, numbers, labels, and 0 to 3 repetitions of each row."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * [1.0, 20.0]
    y = np.sin(X[:, 0]) + 0.1 * rng.normal(size=n)
    return X, y, np.where(y > 0.3, "high", np.where(y < -0.3, "low", "middle")), rng.integers(4, size=n)


def said(fit: Any, X: np.ndarray) -> np.ndarray:
    """Predictions as numbers."""
    return fit.predict_proba(X) if isinstance(fit, NetworkClassifier) else fit.predict(X)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", [NetworkRegressor, NetworkClassifier])
def test_weights_are_repetitions(kind: type, members: int) -> None:
    X, numbers, labels, times = table()
    y = numbers if kind is NetworkRegressor else labels
    again = np.repeat(np.arange(80), times)
    one = quietly(lambda: kind(**SMALL, **WHOLE, members=members).fit(X, y, sample_weight=times))
    other = quietly(lambda: kind(**SMALL, **WHOLE, members=members).fit(X[again], y[again]))
    plain = quietly(lambda: kind(**SMALL, **WHOLE, members=members).fit(X, y))
    np.testing.assert_allclose(one.x_units_.scale, other.x_units_.scale, rtol=1e-10)
    assert one.weight_decay_ == pytest.approx(other.weight_decay_, rel=1e-6)
    np.testing.assert_allclose(said(one, X), said(other, X), rtol=1e-6, atol=1e-8)
    assert np.abs(said(one, X) - said(plain, X)).max() > 1e-3
    if kind is NetworkRegressor:
        np.testing.assert_allclose(one.noise_, other.noise_, rtol=1e-6)


@pytest.mark.parametrize("kind", ["regression", "classification"])
def test_tuning_by_weight_is_that_of_repeated_rows(kind: Any) -> None:
    rng = np.random.default_rng(1)
    net = torch.nn.Linear(1, 1 if kind == "regression" else 3).double()
    posterior = WeightPosterior(net, "swag", random_state=0)
    for _ in range(30):
        with torch.no_grad():
            for value in net.parameters():
                value.add_(0.3 * torch.from_numpy(rng.normal(size=tuple(value.shape))))
        posterior.observe()
    X, times = rng.normal(size=(40, 1)), rng.integers(1, 4, size=40)
    y = X + 0.5 * rng.normal(size=(40, 1)) if kind == "regression" else rng.integers(3, size=40)
    again = np.repeat(np.arange(40), times)
    made = Predictor.from_posterior(posterior, kind, 6)
    one = made.tune(X, y, sample_weight=times, scales=SCALES).tuning
    other = made.tune(X[again], y[again], scales=SCALES).tuning
    for name in (
        "scales",
        "values",
        "scores",
        "errors",
        "log_priors",
        "differences",
        "difference_errors",
        "n_rows",
    ):
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-9, err_msg=name
        )
    if kind == "regression":
        noise = made.estimate_noise(X, y, times).noise
        np.testing.assert_allclose(noise, made.estimate_noise(X[again], y[again]).noise, rtol=1e-12)


def test_rows_of_little_weight_do_not_turn_the_network() -> None:
    """Two curves in one table: mini-batches, rows held out and noise follow the one that has the weight."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-2.0, 2.0, size=(400, 1))
    first = np.arange(400) % 2 == 0
    y = np.where(first, np.sin(2.0 * X[:, 0]), 3.0) + 0.1 * rng.normal(size=400)
    fit = quietly(
        lambda: NetworkRegressor((20,), activation="tanh", random_state=0).fit(
            X, y, sample_weight=np.where(first, 1.0, 1e-6)
        )
    )
    at = np.linspace(-1.5, 1.5, 9)
    np.testing.assert_allclose(fit.predict(at[:, None]), np.sin(2.0 * at), atol=0.2)
    assert fit.noise_[0] < 0.2


@pytest.mark.parametrize("kind", [NetworkRegressor, NetworkClassifier])
def test_wrong_weights_are_refused(kind: type) -> None:
    X, numbers, labels, _ = table(30)
    y = numbers if kind is NetworkRegressor else labels
    for weight, message in (
        (np.ones(29), "one entry per row"),
        (np.r_[-1.0, np.ones(29)], "row 0"),
        (np.r_[np.ones(29), np.nan], "row 29"),
        (np.zeros(30), "all zero"),
    ):
        with pytest.raises(ValueError, match=message):
            kind(**SMALL).fit(X, y, sample_weight=weight)
    with pytest.raises(ValueError, match=r"at least 2 rows|one class"):
        kind(**SMALL).fit(X, y, sample_weight=np.r_[1.0, np.zeros(29)])


def test_cross_validation_fits_and_scores_by_weight() -> None:
    X, y, _, times = table()
    with sklearn.config_context(enable_metadata_routing=True):
        model = NetworkRegressor(**SMALL, epochs=3, collect=3, collect_rate=0.01)
        model = model.set_fit_request(sample_weight=True).set_score_request(sample_weight=True)
        found = quietly(
            lambda: cross_validate(model, X, y, cv=2, params={"sample_weight": times}, return_estimator=True)
        )
    assert np.isfinite(found["test_score"]).all()
    assert all(one.weighted_ for one in found["estimator"])
    half = np.arange(80) >= 40
    own = found["estimator"][0].score(X[~half], y[~half], sample_weight=times[~half])
    assert found["test_score"][0] == pytest.approx(own, rel=1e-12)


def test_an_audit_of_weighted_rows_is_refused_also_from_a_file(tmp_path: Path) -> None:
    X, y, _, times = table()
    quick = NetworkRegressor(**SMALL, epochs=3, collect=3, collect_rate=0.01)
    fit = quietly(lambda: quick.fit(X, y, sample_weight=times))
    fit.save(tmp_path / "fit.boxloop")
    for one in (fit, boxloop.load(tmp_path / "fit.boxloop")):
        with pytest.raises(ValueError, match="does not support row weights"):
            one.audit(X, y, X, y, chains=0)
