"""Network estimators on disk: tensors alone, the same predictions."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import boxloop
from boxloop.estimators import NetworkClassifier, NetworkRegressor
from boxloop.persist import ModelFileError

QUICK: dict[str, Any] = {"hidden": (6,), "epochs": 10, "collect": 10, "rank": 2, "random_state": 0}


def rows(n: int = 150) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 2))
    return x, x[:, 0] - x[:, 1] ** 2 + 0.1 * rng.normal(size=n)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"members": 3, "method": "swag"},
        {"method": "full"},
        {"method": "swa", "dtype": "float32"},
        {"method": "gradient"},
    ],
)
def test_numbers_come_back_bit_for_bit(tmp_path: Path, given: dict[str, Any]) -> None:
    x, y = rows()
    fit = NetworkRegressor(**{**QUICK, **given}).fit(x, y)
    fit.save(tmp_path / "net.boxloop")
    again = boxloop.load(tmp_path / "net.boxloop")
    assert type(again) is NetworkRegressor
    for one, other in zip(fit.predict(x, return_std=True), again.predict(x, return_std=True), strict=True):
        assert (one == other).all()
    assert again.get_params() == fit.get_params()
    for name in (
        "n_iter_",
        "history_",
        "events_",
        "weight_decay_",
        "collect_rate_",
        "scale_",
        "n_features_in_",
    ):
        assert getattr(again, name) == getattr(fit, name), name
    assert (again.noise_ == fit.noise_).all()
    first, second = (one.posterior_.posteriors[0] for one in (fit, again))
    assert torch.equal(first.trace.values, second.trace.values)
    assert torch.equal(fit.posterior_.draw(3, 1), again.posterior_.draw(3, 1))


def test_several_outputs_and_names_come_back(tmp_path: Path) -> None:
    import pandas as pd

    x, y = rows()
    frame = pd.DataFrame(x, columns=["a", "b"])
    fit = NetworkRegressor(**QUICK).fit(frame, np.stack([y, -y], 1))
    fit.save(tmp_path / "net")
    again = NetworkRegressor.load(tmp_path / "net")
    assert (again.predict(frame) == fit.predict(frame)).all()
    assert again.feature_names_in_.tolist() == ["a", "b"]
    with pytest.raises(ValueError, match="feature names"):
        again.predict(frame[["b", "a"]])


SINGLE = np.array([1.0, 2.0], dtype=np.float32)
OBJECTS = np.array(["no", "yes"], dtype=object)


@pytest.mark.parametrize("labels", [["no", "yes"], [False, True], [3, 7], [0.5, 1.0], SINGLE, OBJECTS])
def test_classes_come_back(tmp_path: Path, labels: list[Any]) -> None:
    x, y = rows()
    named = np.asarray(labels)[(y > 0).astype(int)] if labels[0] != 0.5 else (y > 0).astype(float)
    fit = NetworkClassifier(**QUICK).fit(x, named)
    fit.save(tmp_path / "net")
    again = boxloop.load(tmp_path / "net")
    assert (again.predict(x) == fit.predict(x)).all()
    assert again.classes_.dtype == fit.classes_.dtype
    assert (again.predict_proba(x) == fit.predict_proba(x)).all()
    assert again.temperature_ == fit.temperature_


def test_own_modules_are_given_again(tmp_path: Path) -> None:
    x, y = rows()
    fit = NetworkRegressor(**QUICK, module=network()).fit(x, y)
    fit.save(tmp_path / "net")
    with pytest.raises(ModelFileError, match=r"a module of yours \(Sequential\).*load\(path, module"):
        boxloop.load(tmp_path / "net")
    with pytest.raises(ModelFileError, match="do not fit the Linear given"):
        NetworkRegressor.load(tmp_path / "net", module=nn.Linear(2, 1))
    for module in (network(), lambda draws: network()):
        again = NetworkRegressor.load(tmp_path / "net", module=module)
        np.testing.assert_array_equal(again.predict(x), fit.predict(x))


def test_a_file_of_another_is_reported(tmp_path: Path) -> None:
    x, y = rows()
    NetworkRegressor(**QUICK).fit(x, y).save(tmp_path / "net")
    with pytest.raises(
        ModelFileError, match="holds the estimator 'NetworkRegressor', not 'NetworkClassifier'"
    ):
        NetworkClassifier.load(tmp_path / "net")
    with pytest.raises(ModelFileError, match="perceptrons of boxloop: leave out module="):
        NetworkRegressor.load(tmp_path / "net", module=network())
    boxloop.FactorAnalysis(1).fit(x).save(tmp_path / "factor")
    with pytest.raises(ModelFileError, match="holds the estimator 'FactorAnalysis', not 'NetworkRegressor'"):
        NetworkRegressor.load(tmp_path / "factor")


def test_what_was_not_fitted_is_not_saved(tmp_path: Path) -> None:
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        NetworkRegressor().save(tmp_path / "net")
    assert list(tmp_path.iterdir()) == []


def test_pickles_hold_no_more_than_the_members_own(tmp_path: Path) -> None:
    x, y = rows()
    fit = NetworkRegressor(**QUICK, members=4).fit(x, y)
    again = pickle.loads(pickle.dumps(fit))
    assert (again.predict(x) == fit.predict(x)).all()
    net = fit.posterior_.posteriors[0].net
    assert all(value.untyped_storage().nbytes() == value.numel() * 8 for value in net.parameters())
