"""The audit of a fitted network estimator is that of its posterior, with the rows that its networks learned from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from boxloop.estimators import MemberTraining, NetworkClassifier, NetworkRegressor, training_rows
from boxloop.networks import audit, weight_decay

SHORT = {"hidden": (6,), "epochs": 10, "collect": 10, "random_state": 3}


def rows(n: int = 160) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2)) * [1.0, 50.0] + [3.0, 0.0]
    y = 10.0 * (X[:, 0] - 3.0) ** 2 + rng.normal(size=n)
    return X, y, np.array(["b", "a", "c"])[(X[:, 0] > 3).astype(int) + (y > 20)]


def inputs(fit: Any, X: np.ndarray) -> torch.Tensor:
    """Rows as the networks of a fit take them."""
    mean = fit.posterior_.components()[0].distribution.mean
    return fit.x_units_.standardise(X, mean.dtype, mean.device)


@pytest.mark.parametrize("kind", [NetworkRegressor, NetworkClassifier])
def test_training_rows_are_those_that_were_trained_on(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    run = MemberTraining.run

    def watched(self: MemberTraining) -> object:
        seen.append(self.data.x)
        return run(self)

    monkeypatch.setattr(MemberTraining, "run", watched)
    X, numbers, labels = rows()
    y = numbers if kind is NetworkRegressor else labels
    fit = kind(**SHORT).fit(X, y)
    mask = training_rows(fit, y)
    assert 0 < (~mask).sum() < len(y) / 2
    torch.testing.assert_close(inputs(fit, X[mask]), seen[0], rtol=0.0, atol=0.0)


def test_it_is_the_audit_of_the_posterior_in_standard_units() -> None:
    X, y, _ = rows()
    fit = NetworkRegressor(**SHORT).fit(X[:120], y[:120])
    found = fit.audit(X[:120], y[:120], X[120:], y[120:], chains=0)
    units, mask = fit.y_units_, training_rows(fit, y[:120])
    own = [
        ((given - units.origin[0].item()) / units.scale[0].item())[:, None] for given in (y[:120], y[120:])
    ]
    direct = audit(
        *(
            fit.posterior_.posteriors[0],
            inputs(fit, X[:120][mask]),
            own[0][mask],
            inputs(fit, X[120:]),
            own[1],
        ),
        kind="regression",
        prior_precision=fit.prior_precision,
        noise=fit.predictor_.noise,
        predictor=fit.predictor_,
        chains=0,
    )
    assert found.last_layer.output_ratio == pytest.approx(direct.last_layer.output_ratio, rel=1e-10)
    np.testing.assert_allclose(
        found.held_out.posterior.log_score, direct.held_out.posterior.log_score, rtol=1e-10
    )
    right = weight_decay(
        fit.prior_precision, int(mask.sum()), noise_precision=1.0 / float(fit.predictor_.noise[0]) ** 2
    )
    assert found.weight_decay.expected == pytest.approx(right)
    assert found.weight_decay.groups[0].decay == fit.weight_decay_


def test_a_decay_of_another_noise_names_what_can_be_changed() -> None:
    X, y, _ = rows()
    fit = NetworkRegressor(**SHORT).fit(X[:120], y[:120])
    fit.weight_decay_ *= 4.0
    concerns = fit.audit(X[:120], y[:120], X[120:], y[120:], chains=0).concerns
    [concern] = [concern for concern in concerns if concern.what == "Weight decay"]
    assert concern.level == "bad"
    assert "prior_precision=" in concern.next
    assert "weight_decay=" not in concern.next


def test_the_decay_of_a_classifier_is_right_by_construction() -> None:
    X, _, labels = rows()
    fit = NetworkClassifier(**SHORT, members=2).fit(X[:120], labels[:120])
    found = fit.audit(X[:120], labels[:120], X[120:], labels[120:], chains=0)
    assert {concern.level for concern in found.concerns if concern.what == "Weight decay"} == {"good"}
    assert found.trajectory is not None
    assert "the first of 2 networks" in found.assumptions[-1]
    np.testing.assert_allclose(
        found.held_out.posterior.log_score,
        np.log(fit.predict_proba(X[120:])[np.arange(40), np.searchsorted(fit.classes_, labels[120:])]),
        rtol=1e-9,
    )


def test_what_it_refuses() -> None:
    X, y, labels = rows()
    fit = NetworkClassifier(**SHORT).fit(X, labels)
    with pytest.raises(ValueError, match="label 'z', which does not occur"):
        fit.audit(X, labels, X[:2], ["a", "z"])
    loose = NetworkRegressor(**SHORT).fit(X, y).set_params(random_state=None)
    with pytest.raises(ValueError, match="random_state must be a whole number"):
        loose.audit(X, y, X, y)


@pytest.mark.parametrize("kind", [NetworkRegressor, NetworkClassifier])
def test_only_the_rows_of_the_fit_in_their_order_are_taken(kind: type, tmp_path: Path) -> None:
    X, numbers, labels = rows()
    y = numbers if kind is NetworkRegressor else labels
    fit = kind(**SHORT).fit(X[:120], y[:120])
    fit.save(tmp_path / "fit.boxloop")
    again = kind.load(tmp_path / "fit.boxloop")
    order = np.r_[1, 0, 2:120]
    others = [slice(40, 160), slice(0, 119), slice(0, 160), order]
    for one in (fit, again):
        for other in others:
            with pytest.raises(ValueError, match="needs the rows of the fit"):
                one.audit(X[other], y[other], X[120:], y[120:], chains=0)
        with pytest.raises(ValueError, match="needs the rows of the fit"):
            one.audit(X[:120], np.roll(y[:120], 1), X[120:], y[120:], chains=0)
        one.audit(X[:120].tolist(), y[:120].tolist(), X[120:], y[120:], chains=0)
