"""RelevantClassifier: labels inferred by the features that tell most about them."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.utils import estimator_checks as checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

from boxloop import FitWarning
from boxloop.data import ArraySource
from boxloop.estimators import RelevantClassifier, fit_temperature, project_to_simplex
from boxloop.persist import ModelFileError

Array = NDArray[np.float64]
NETWORK = {
    "hidden": (32,),
    "learning_rate": 0.01,
    "max_iter": 20,
    "patience": None,
    "random_state": 0,
    "batch_size": 50,
}
FIT_WARNINGS = ("ignore::boxloop.FitWarning", "ignore::sklearn.exceptions.ConvergenceWarning")

# The checks of set_output mix frames and arrays, whoever is tested.
MIXED = ("ignore:X does not have valid feature names", "ignore:X has feature names")


@pytest.fixture(scope="module")
def wine() -> tuple[Array, Array]:
    x, y = load_wine(return_X_y=True)
    return x, y


@pytest.fixture(scope="module")
def learned() -> RelevantClassifier:
    x, y = rings(600, 0)
    return RelevantClassifier(calibration="temperature", **NETWORK).fit(x, y)


def rings(n: int, seed: int) -> tuple[Array, NDArray[Any]]:
    """Rings around one another: no linear function tells them apart."""
    rng = np.random.default_rng(seed)
    label = rng.integers(3, size=n)
    angle = rng.uniform(0.0, 2.0 * np.pi, n)
    radius = 1.0 + label + 0.15 * rng.normal(size=n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1), np.array(["in", "mid", "out"])[
        label
    ]


@parametrize_with_checks(
    [
        RelevantClassifier(features="linear"),
        RelevantClassifier(features="linear", calibration="temperature"),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        check(estimator)


@pytest.mark.parametrize(
    "check",
    [
        checks.check_classifiers_train,
        checks.check_classifiers_classes,
        checks.check_fit_idempotent,
        checks.check_estimators_pickle,
        checks.check_methods_subset_invariance,
        checks.check_dict_unchanged,
        checks.check_param_validation,
        checks.check_estimators_nan_inf,
        checks.check_set_output_transform_pandas,
        checks.check_transformer_get_feature_names_out,
    ],
    ids=lambda check: check.__name__,
)
@pytest.mark.filterwarnings(*FIT_WARNINGS, *MIXED)
def test_checks_of_a_network(check: Any) -> None:
    check("RelevantClassifier", RelevantClassifier(**{**NETWORK, "max_iter": 5, "dtype": "float64"}))


def test_linear_features_are_least_squares_on_indicators(wine: Any) -> None:
    x, y = wine
    found = RelevantClassifier(features="linear").fit(x, y)
    peer = LinearRegression().fit(x, np.eye(3)[y])
    np.testing.assert_allclose(found.decision_function(x), peer.predict(x), rtol=0.0, atol=1e-9)
    assert (found.predict(x) == peer.predict(x).argmax(1)).all()


def test_linear_variables_are_those_of_discriminant_analysis(wine: Any) -> None:
    x, y = wine
    found = RelevantClassifier(features="linear").fit(x, y)
    peer = LinearDiscriminantAnalysis(solver="eigen").fit(x, y).transform(x)
    for i in range(2):
        assert abs(np.corrcoef(found.transform(x)[:, i], peer[:, i])[0, 1]) == pytest.approx(1.0, abs=1e-9)
    u = found.transform(x)
    np.testing.assert_allclose(u.T @ u / len(u), np.eye(2), atol=1e-9)
    between = np.stack([u[y == c].mean(0) for c in range(3)])
    share = np.bincount(y) / len(y)
    np.testing.assert_allclose(found.relevance_, share @ between**2, rtol=1e-9)  # correlation ratios


def test_weights_are_repetitions(wine: Any) -> None:
    x, y = wine
    times = np.random.default_rng(0).integers(0, 4, len(y))
    one = RelevantClassifier(features="linear", calibration="temperature").fit(x, y, sample_weight=times)
    two = RelevantClassifier(features="linear", calibration="temperature").fit(
        x.repeat(times, 0), y.repeat(times)
    )
    np.testing.assert_allclose(one.decision_function(x), two.decision_function(x), atol=1e-9)
    assert one.temperature_ == pytest.approx(two.temperature_, rel=1e-4)


def test_a_network_learns_what_no_line_can(learned: RelevantClassifier) -> None:
    x, y = rings(600, 1)
    assert RelevantClassifier(features="linear").fit(x, y).score(x, y) < 0.6
    assert learned.score(x, y) > 0.97
    assert learned.transform(x).shape == (600, 2)
    assert learned.relevance_.min() > 0.7
    assert learned.classes_.tolist() == ["in", "mid", "out"]


def test_probabilities_agree_with_the_decision(learned: RelevantClassifier) -> None:
    x, _ = rings(200, 2)
    plain = RelevantClassifier(**NETWORK).fit(*rings(600, 0))
    for fit in (learned, plain):
        p, z = fit.predict_proba(x), fit.decision_function(x)
        np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-12)
        np.testing.assert_allclose(z.sum(1), 1.0, atol=1e-9)
        assert p.min() >= 0.0
        assert (p.argmax(1) == z.argmax(1)).all()
        assert (fit.classes_[p.argmax(1)] == fit.predict(x)).all()
    assert (plain.predict_proba(x) == 0.0).any()
    assert learned.predict_proba(x).min() > 0.0


def test_two_classes_have_one_decision() -> None:
    x, y = rings(300, 3)
    two = y != "mid"
    fit = RelevantClassifier(features="linear").fit(x[two], y[two] == "out")
    z, p = fit.decision_function(x), fit.predict_proba(x)
    assert z.shape == (300,)
    assert p.shape == (300, 2)
    assert fit.classes_.tolist() == [False, True]
    assert ((z > 0.0) == fit.predict(x)).all()
    np.testing.assert_allclose(p[:, 1], np.clip((1.0 + z) / 2.0, 0.0, 1.0), atol=1e-9)


def test_the_projection_is_the_nearest_probability() -> None:
    """Against a general solver, and the Brier score never rises."""
    z = np.random.default_rng(0).normal(size=(20, 5))
    p = project_to_simplex(z)
    np.testing.assert_allclose(p.sum(1), 1.0, atol=1e-12)
    for point, mine in zip(z, p):
        peer = minimize(
            lambda q, point=point: ((q - point) ** 2).sum(),
            np.full(5, 0.2),
            jac=lambda q, point=point: 2.0 * (q - point),
            bounds=[(0.0, 1.0)] * 5,
            constraints={"type": "eq", "fun": lambda q: q.sum() - 1.0, "jac": lambda q: np.ones(5)},
            tol=1e-12,
        )
        np.testing.assert_allclose(mine, peer.x, atol=1e-6)
    sums = z / z.sum(1, keepdims=True)
    for corner in np.eye(5):
        assert (
            ((project_to_simplex(sums) - corner) ** 2).sum(1) <= ((sums - corner) ** 2).sum(1) + 1e-12
        ).all()


def test_the_temperature_is_that_of_the_distribution_of_the_labels() -> None:
    """Labels drawn at T = 0.3: the estimate is within 4 standard errors, false alarm 6e-5."""
    rng = np.random.default_rng(1)
    z = rng.normal(size=(20_000, 4))
    p = np.exp(z / 0.3)
    p /= p.sum(1, keepdims=True)
    codes = (p.cumsum(1) > rng.random((len(z), 1))).argmax(1)
    found = fit_temperature(z, codes, np.ones(len(z)))
    mean = (p * z).sum(1)
    information = ((p * z**2).sum(1) - mean**2).sum()  # of 1/T
    assert abs(1.0 / found - 1.0 / 0.3) < 4.0 / information**0.5


def test_a_few_easy_rows_do_not_make_it_certain() -> None:
    z = np.eye(3)[[0, 1, 2] * 3] + 0.01
    found = fit_temperature(z, np.array([0, 1, 2] * 3), np.ones(9))
    p = np.exp(1.0 / found) / (np.exp(1.0 / found) + 2.0)
    assert 0.9 < p < 0.95  # 1 - 2/3 of 1/11


def test_calibration_helps_rows_held_out() -> None:
    """Digits: features in a line explain too little of a class, so projections are timid and some labels impossible."""
    x, y = load_digits(return_X_y=True)
    found = {}
    for kind in (None, "temperature"):
        fit = RelevantClassifier(features="linear", calibration=kind).fit(x[::2], y[::2])
        p, truth = fit.predict_proba(x[1::2]), y[1::2]
        with np.errstate(divide="ignore"):
            score = -np.log(p[np.arange(len(truth)), truth]).mean()
        found[kind] = score, abs(p.max(1).mean() - (p.argmax(1) == truth).mean())
    assert found[None][0] == np.inf
    assert found["temperature"][0] < 0.4
    assert found["temperature"][1] < 0.05 < 0.2 < found[None][1]


def test_n_features_keeps_fewer_variables(wine: Any) -> None:
    x, y = wine
    whole, less = (
        RelevantClassifier(features="linear").fit(x, y),
        RelevantClassifier(1, features="linear").fit(x, y),
    )
    assert less.transform(x).shape == (178, 1)
    np.testing.assert_allclose(less.relevance_, whole.relevance_[:1])
    assert less.loss_ == pytest.approx(1.0 - whole.relevance_[0])
    with pytest.warns(FitWarning, match="rows for 4 features with the constant"):
        narrow = RelevantClassifier(2, **NETWORK).fit(x[:30], np.arange(30) % 3)
    assert narrow.model_.pair.left.n_features == 2


def test_images_are_convolved_and_modules_taken() -> None:
    x, y = load_digits(return_X_y=True)
    images = x.reshape(-1, 8, 8)
    settings = {**NETWORK, "hidden": (8,), "max_iter": 4, "batch_size": 150}
    fit = RelevantClassifier(**settings).fit(images[:900], y[:900])
    assert fit.model_.pair.left.n_features == 10
    assert len(fit.relevance_) == 9
    assert fit.score(images[900:], y[900:]) > 0.85
    with pytest.raises(ValueError, match="images of shape"):
        fit.predict(images.reshape(-1, 4, 16))
    own = nn.Sequential(nn.Linear(64, 10), nn.Tanh())
    mine = RelevantClassifier(**{**settings, "features": own, "hidden": None}).fit(x[:900], y[:900])
    assert mine.score(x[900:], y[900:]) > 0.8


def test_files_hold_it_whole(learned: RelevantClassifier, tmp_path: Path) -> None:
    x, _ = rings(50, 4)
    learned.save(tmp_path / "a")
    again = RelevantClassifier.load(tmp_path / "a")
    assert (again.predict(x) == learned.predict(x)).all()
    np.testing.assert_array_equal(again.predict_proba(x), learned.predict_proba(x))
    assert again.temperature_ == learned.temperature_
    assert again.get_params() == learned.get_params()
    assert again.loss_ == learned.loss_
    clone(again).fit(*rings(100, 5))


def test_a_module_in_a_file_is_given_again(tmp_path: Path) -> None:
    x, y = rings(300, 0)
    own = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3), nn.Tanh())
    fit = RelevantClassifier(features=own, max_iter=2, patience=None, random_state=0).fit(x, y)
    fit.save(tmp_path / "a")
    with pytest.raises(ModelFileError, match=r"RelevantClassifier.load\(path, features="):
        RelevantClassifier.load(tmp_path / "a")
    again = RelevantClassifier.load(tmp_path / "a", features=own)
    np.testing.assert_array_equal(again.decision_function(x), fit.decision_function(x))


def test_a_checkpoint_does_not_change_the_fit(tmp_path: Path) -> None:
    x, y = rings(300, 0)
    whole = RelevantClassifier(**NETWORK).fit(x, y).decision_function(x)
    for _ in ("written", "read"):
        again = RelevantClassifier(**NETWORK, checkpoint=tmp_path / "c").fit(x, y)
        np.testing.assert_array_equal(again.decision_function(x), whole)
    with pytest.raises(ValueError, match="rows"):
        RelevantClassifier(**NETWORK, checkpoint=tmp_path / "c").fit(-x, y)


def test_frames_sources_and_model_selection() -> None:
    frame = load_iris(as_frame=True)
    fit = RelevantClassifier(features="linear").fit(frame.data, frame.target)
    assert list(fit.feature_names_in_) == list(frame.data.columns)
    z = fit.decision_function(frame.data)
    source = ArraySource(torch.from_numpy(frame.data.to_numpy()))
    same = RelevantClassifier(features="linear").fit(source, pd.Series(frame.target))
    np.testing.assert_allclose(same.decision_function(source), z)
    assert cross_val_score(RelevantClassifier(features="linear"), frame.data, frame.target, cv=3).min() > 0.7


@pytest.mark.filterwarnings("error")
def test_passes_that_did_not_converge_are_reported() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        RelevantClassifier(**{**NETWORK, "max_iter": 2, "patience": 5}).fit(*rings(600, 0))


def test_the_temperature_comes_from_rows_held_out(learned: RelevantClassifier) -> None:
    rows, weight = learned.held_out_.rows, learned.held_out_.weight
    points = learned.fit_.infer_right(rows[:, :2]).detach().numpy()
    codes, again = rows[:, 2].long().numpy(), weight.double().numpy()
    assert learned.temperature_ == pytest.approx(fit_temperature(points, codes, again), rel=1e-6)
    assert 0 < len(rows) <= 60
