"""The generator as an estimator: training, use, criticism, and the curve of latent dimensions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV

from boxloop.criticise import MomentPenalty, mega
from boxloop.estimators import RelevantFeatures, RelevantGenerator
from boxloop.numeric import generator
from boxloop.persist import ModelFileError
from boxloop.twoview import GaussianNoise

QUICK: dict[str, Any] = {
    "hidden": (32,),
    "learning_rate": 0.01,
    "max_iter": 25,
    "patience": None,
    "random_state": 0,
}


def arc(n: int = 600, seed: int = 0) -> np.ndarray:
    """One angle seen in three columns of different units."""
    angle = np.random.default_rng(seed).uniform(-2.5, 2.5, size=n)
    return np.stack([np.cos(angle), 10.0 * np.sin(angle), 100.0 + np.cos(2 * angle)], 1)


def linear_features(n_features: int, sd: float = 0.3) -> RelevantFeatures:
    return RelevantFeatures(
        n_features, x_features="linear", y_features="linear", channel=GaussianNoise(sd), random_state=0
    )


@pytest.fixture(scope="module")
def fitted() -> RelevantGenerator:
    return RelevantGenerator(2, **QUICK).fit(arc())


@pytest.fixture(scope="module")
def bent(fitted: RelevantGenerator) -> Any:
    """Features of the arc that bend with it."""
    return fitted.features_


def test_rows_are_made_from_two_codes_and_new_rows_too(fitted: RelevantGenerator) -> None:
    for X in (arc(), arc(seed=1)):
        apart = (X - fitted.reconstruct(X)) / X.std(0)
        assert np.square(apart).mean() < 0.03
        assert fitted.score(X) == pytest.approx(-np.square(X - fitted.reconstruct(X)).mean(), rel=1e-9)
    codes = fitted.transform(arc())
    np.testing.assert_allclose(fitted.inverse_transform(codes), fitted.reconstruct(arc()), rtol=1e-6)
    assert abs(codes.mean(0)).max() < 0.05
    assert fitted.get_feature_names_out().tolist() == ["relevantgenerator0", "relevantgenerator1"]


def test_linear_generator_of_all_linear_variables_is_principal_components() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(800, 3)) @ rng.normal(size=(3, 6)) + 0.3 * rng.normal(size=(800, 6))
    X = (X - X.mean(0)) / X.std(0)
    fit = RelevantGenerator(
        2,
        **{**QUICK, "hidden": (), "features": linear_features(6), "validation_fraction": 0.0, "max_iter": 60},
    ).fit(X)
    pca = PCA(2).fit(X)
    best = np.square(X - pca.inverse_transform(pca.transform(X))).mean()
    assert best - 1e-9 <= -fit.score(X) < 1.01 * best


def test_gaussian_distribution_of_codes_is_refused_and_a_mixture_comes_nearer(
    fitted: RelevantGenerator, bent: Any
) -> None:
    mixed = RelevantGenerator(2, **QUICK, features=bent, prior="mixture", prior_components=8).fit(arc())
    fresh = arc(4000, seed=2)
    assert mega(fitted, fresh, random_state=0).p_value < 0.01
    rows = torch.from_numpy(fresh)
    middle, deviation = rows.mean(0), rows.std(0)
    gaps = []
    for fit in (fitted, mixed):
        model = replace(
            fit.model_,
            origin=(fit.model_.origin - middle) / deviation,
            scale=fit.model_.scale / deviation,
        )
        with torch.no_grad():
            gaps.append(
                float(MomentPenalty(1.0, 1 << 12).gap(model, (rows - middle) / deviation, generator(0)))
            )
    assert gaps[1] < 0.7 * gaps[0]


def test_sampled_rows_carry_the_noise_measured_on_rows_held_out(bent: Any) -> None:
    rng = np.random.default_rng(3)
    X = arc(1500) + rng.normal(size=(1500, 3)) * [0.1, 1.0, 0.1]
    fit = RelevantGenerator(2, **{**QUICK, "random_state": 1}, features=bent).fit(X)
    rows, codes = fit.sample(4000)
    apart = (rows - fit.inverse_transform(codes)).var(0)
    stated = (fit.model_.noise * fit.model_.scale**2).numpy()
    # 3 variances of 4000 draws; 4.5 standard errors have chance 2e-5 in all
    assert np.abs(apart / stated - 1.0).max() < 4.5 * (2.0 / 4000) ** 0.5
    fresh = arc(1500, seed=8) + rng.normal(size=(1500, 3)) * [0.1, 1.0, 0.1]
    outside = np.square(fresh - fit.reconstruct(fresh)).mean(0)
    assert np.abs(np.log(stated / outside)).max() < 4.5 * (2.0 / 150) ** 0.5  # 150 rows were held out


def test_features_may_come_fitted_frozen_or_as_a_model() -> None:
    X = arc()
    features = linear_features(3).fit(X)
    given = [features, FrozenEstimator(features), features.model_]
    fits = [RelevantGenerator(1, **QUICK, features=one).fit(X) for one in given]
    for other in fits[1:]:
        np.testing.assert_array_equal(fits[0].reconstruct(X), other.reconstruct(X))
    assert fits[0].features_ is features
    unfitted = linear_features(3)
    own = RelevantGenerator(1, **QUICK, features=unfitted).fit(X)
    assert "model_" not in vars(unfitted)
    np.testing.assert_array_equal(own.reconstruct(X), fits[0].reconstruct(X))
    search = GridSearchCV(
        RelevantGenerator(**QUICK, features=FrozenEstimator(features)), {"n_components": [1, 2]}, cv=2
    ).fit(X)
    assert search.best_params_["n_components"] == 2
    assert search.best_estimator_.features_ is features


def test_only_the_most_relevant_variables_are_used_when_asked() -> None:
    X = arc()
    fit = RelevantGenerator(1, **QUICK, features=linear_features(3), n_relevant=1).fit(X)
    assert fit.model_.code.shape == (1, 1)
    u = fit.features_.transform(X)[:, 0]
    assert abs(np.corrcoef(u, fit.transform(X)[:, 0])[0, 1]) == pytest.approx(1.0, abs=1e-9)


def test_images_keep_their_shape_and_share_one_scale() -> None:
    images = np.random.default_rng(0).random((200, 4, 5)) * np.linspace(0.0, 1.0, 5)
    fit = RelevantGenerator(3, **QUICK, features=linear_features(15)).fit(images)
    assert fit.reconstruct(images).shape == (200, 4, 5)
    assert fit.sample(7)[0].shape == (7, 4, 5)
    assert len(np.unique(fit.model_.scale.numpy())) == 1
    assert fit.error_ == pytest.approx(min(fit.history_["validation_loss"]), rel=1e-4)
    with pytest.raises(ValueError, match="images of shape"):
        fit.transform(images.reshape(200, 5, 4))


def test_the_same_seed_gives_the_same_fit_and_a_checkpoint_goes_on(tmp_path: Any, bent: Any) -> None:
    X = arc(300)
    own = {**QUICK, "max_iter": 8, "features": bent}
    whole = RelevantGenerator(2, **own).fit(X)
    path = tmp_path / "generator.ckpt"
    half = RelevantGenerator(2, **own, checkpoint=path).fit(X)
    again = RelevantGenerator(2, **own, checkpoint=path).fit(X)
    np.testing.assert_array_equal(whole.reconstruct(X), half.reconstruct(X))
    np.testing.assert_array_equal(whole.reconstruct(X), again.reconstruct(X))
    other = RelevantGenerator(2, **{**own, "random_state": 5}).fit(X)
    assert np.abs(other.reconstruct(X) - whole.reconstruct(X)).max() > 0.0


def test_weights_of_zero_leave_rows_out_of_the_error() -> None:
    X = np.vstack([arc(400), 50.0 + arc(100, seed=4)])
    weight = np.append(np.ones(400), np.zeros(100))
    features = linear_features(3, 1.0).fit(X[:400])
    fit = RelevantGenerator(2, **QUICK, features=features).fit(X, sample_weight=weight)
    assert fit.error_ < 0.2 * np.square(arc(400) - arc(400).mean(0)).mean()


def test_frames_keep_their_names_and_wrong_columns_are_refused(fitted: RelevantGenerator) -> None:
    frame = pd.DataFrame(arc(200), columns=["a", "b", "c"])
    fit = RelevantGenerator(1, **{**QUICK, "max_iter": 2}, features=linear_features(3)).fit(frame)
    assert fit.feature_names_in_.tolist() == ["a", "b", "c"]
    with pytest.raises(ValueError, match="feature"):
        fitted.transform(arc()[:, :2])
    with pytest.raises(ValueError, match="table of 2 columns"):
        fitted.inverse_transform(np.zeros((4, 3)))
    with pytest.raises(ValueError, match="n_samples"):
        fitted.sample(0)
    features = linear_features(2).fit(arc()[:, :2])
    with pytest.raises(ValueError, match="features are those of 2 columns, X has 3"):
        RelevantGenerator(1, features=features).fit(arc())
    with pytest.raises(ValueError, match="missing value"):
        fitted.transform(np.where(np.arange(3) == 1, np.nan, arc()))


@pytest.mark.parametrize("prior", ["gaussian", "mixture"])
def test_file_brings_the_same_generator_back(bent: Any, tmp_path: Any, prior: str) -> None:
    X = pd.DataFrame(arc(300), columns=["a", "b", "c"])
    own = {**QUICK, "max_iter": 3, "prior": prior, "prior_components": 3}
    fit = RelevantGenerator(2, **own, features=bent).fit(X)
    path = tmp_path / "generator.boxloop"
    fit.save(path)
    back = RelevantGenerator.load(path)
    np.testing.assert_array_equal(back.reconstruct(X), fit.reconstruct(X))
    np.testing.assert_array_equal(back.sample(4)[0], fit.sample(4)[0])
    assert back.feature_names_in_.tolist() == ["a", "b", "c"]
    assert back.error_ == fit.error_
    assert back.hidden == (32,)
    with pytest.raises(ModelFileError, match="decoder is boxloop's own"):
        RelevantGenerator.load(path, decoder=torch.nn.Linear(2, 3))
    with pytest.raises(ModelFileError, match="not 'RelevantFeatures'"):
        RelevantFeatures.load(path)


def test_own_decoder_and_its_faults(bent: Any, tmp_path: Any) -> None:
    X = arc(300)
    with generator_seed():
        net = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
    fit = RelevantGenerator(2, **QUICK, features=bent, decoder=net).fit(X)
    assert np.square((X - fit.reconstruct(X)) / X.std(0)).mean() < 0.2
    fit.save(tmp_path / "own.boxloop")
    with pytest.raises(ModelFileError, match=r"RelevantGenerator.load\(path, decoder="):
        RelevantGenerator.load(tmp_path / "own.boxloop")
    back = RelevantGenerator.load(tmp_path / "own.boxloop", decoder=net)
    np.testing.assert_array_equal(back.reconstruct(X), fit.reconstruct(X))
    with pytest.raises(ValueError, match="must make 3 columns from 1"):
        RelevantGenerator(1, features=bent, decoder=torch.nn.Linear(1, 4)).fit(X)


class generator_seed:
    """Modules draw their start from the global stream: fix it, and put it back."""

    def __enter__(self) -> None:
        self.state = torch.random.get_rng_state()
        torch.random.set_rng_state(generator(0).get_state())

    def __exit__(self, *_: object) -> None:
        torch.random.set_rng_state(self.state)


def test_training_that_has_not_converged_is_reported() -> None:
    with pytest.warns(ConvergenceWarning, match="max_iter=2"):
        RelevantGenerator(1, **{**QUICK, "max_iter": 2, "patience": 5}, features=linear_features(3)).fit(
            arc(200)
        )


@pytest.mark.parametrize(
    "bad", [{"prior": "flat"}, {"variance": "shared"}, {"features": "linear"}, {"n_relevant": 0}]
)
def test_wrong_parameters_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        RelevantGenerator(**bad).fit(arc(50))


def test_estimator_is_cloned_with_its_parameters() -> None:
    own = clone(RelevantGenerator(3, hidden=(7,), features=linear_features(3)))
    assert own.hidden == (7,)
    assert own.features.n_features == 3
