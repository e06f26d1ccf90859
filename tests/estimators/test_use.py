"""The estimators inside scikit-learn: clones, pipelines, searches, routed weights, pickles, readable text."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted

import boxloop
from boxloop import (
    BayesianFactorAnalysis,
    BayesianMultinomialMixture,
    FactorAnalysis,
    FitWarning,
    GaussianMixture,
    MultinomialMixture,
)
from estimators.cases import CASES, EVERYONE, Case, assert_same, blobs, everyone, factors, mixtures, over


@everyone
def test_clone_is_unfitted_and_equal(case: Case) -> None:
    estimator = case.make(tol=1e-5, max_iter=77).fit(case.rows(100))
    copy = clone(estimator)
    assert copy.get_params() == estimator.get_params()
    assert not [name for name in vars(copy) if name.endswith("_") or name == "_stream"]
    with pytest.raises(NotFittedError):
        copy.transform(case.rows(10))
    assert_same(copy.fit(case.rows(100)), estimator, rtol=0, atol=0)


@everyone
def test_parameters_are_set_and_read(case: Case) -> None:
    estimator = case.make()
    for name, value in estimator.get_params().items():
        assert getattr(estimator.set_params(**{name: value}), name) is value
    with pytest.raises(ValueError, match="Invalid parameter 'components'"):
        estimator.set_params(components=3)


@everyone
def test_rows_that_are_only_kept_are_no_fit(case: Case) -> None:
    estimator = case.make(n_components=2).partial_fit(case.rows(1))
    with pytest.raises(NotFittedError):
        check_is_fitted(estimator)
    for method in (estimator.transform, estimator.score, estimator.score_samples, estimator.aic):
        with pytest.raises(NotFittedError):
            method(case.rows(5))
    for method in (estimator.sample, estimator.summary, estimator.get_feature_names_out):
        with pytest.raises(NotFittedError):
            method()
    check_is_fitted(estimator.partial_fit(case.rows(40)))


@everyone
def test_pickle_keeps_everything(case: Case) -> None:
    X = case.rows(250)
    estimator = case.make().fit(X)
    copy = pickle.loads(pickle.dumps(estimator))
    assert_same(copy, estimator, rtol=0, atol=0)
    np.testing.assert_array_equal(copy.transform(X), estimator.transform(X))
    new = case.rows(50, seed=1)
    assert_same(copy.partial_fit(new), estimator.partial_fit(new), rtol=0, atol=0)


@everyone
def test_text_shows_what_was_chosen(case: Case) -> None:
    assert repr(case.make(random_state=3)).startswith(f"{case.kind.__name__}(")
    assert "random_state=3" in repr(case.make(random_state=3))
    assert "tol" not in repr(case.make())
    assert case.kind.__name__ in case.make()._repr_html_()


@everyone
def test_summary_is_a_frame(case: Case) -> None:
    X = case.rows(100)
    names = [f"column {j}" for j in range(X.shape[1])]
    frame = case.make().fit(__import__("pandas").DataFrame(X, columns=names)).summary()
    text = frame.to_string()
    assert all(name in text for name in names)
    by_topic = case.kind in (MultinomialMixture, BayesianMultinomialMixture)
    assert np.isfinite(frame[["weight"]].to_numpy() if by_topic else frame.to_numpy()).all()
    by_column = case.kind in (FactorAnalysis, BayesianFactorAnalysis)
    assert len(frame) == (X.shape[1] if by_column else case.params["n_components"])


@pytest.mark.parametrize("kind", [MultinomialMixture, BayesianMultinomialMixture])
def test_a_summary_of_topics_has_their_most_probable_words_first(kind: Any) -> None:
    X = __import__("pandas").DataFrame(
        [[5, 4, 0, 1], [0, 1, 6, 2]] * 40, columns=["sea", "ship", "tree", "leaf"]
    )
    fitted = kind(2, random_state=0).fit(X)
    frame = fitted.summary(top=2)
    assert list(frame.columns) == ["weight", "word 1", "word 2"]
    assert list(frame.index) == ["topic 0", "topic 1"]
    for k, row in enumerate(fitted.probabilities_):
        first, second = np.argsort(-row)[:2]
        assert frame["word 1"].iloc[k] == f"{X.columns[first]} ({row[first]:.3g})"
        assert frame["word 2"].iloc[k].startswith(X.columns[second])
    assert len(fitted.summary().columns) == 5
    assert kind(2, random_state=0).fit(X.to_numpy()).summary()["word 1"].str.startswith("x").all()
    with pytest.raises(ValueError, match="top must be at least 1"):
        fitted.summary(top=0)


@over([case for case in EVERYONE if not case.counting])
def test_in_a_pipeline(case: Case) -> None:
    X = case.rows(200)
    pipe = make_pipeline(StandardScaler(), case.make()).fit(X)
    assert pipe.transform(X).shape == (200, case.params["n_components"])
    assert np.isfinite(pipe.score(X))
    names = pipe.get_feature_names_out()
    assert list(names) == [f"{case.kind.__name__.lower()}{k}" for k in range(case.params["n_components"])]
    union = FeatureUnion([("pca", PCA(1)), ("ours", case.make())]).fit(X)
    assert union.transform(X).shape == (200, 1 + case.params["n_components"])
    with config_context(transform_output="pandas"):
        assert list(pipe.fit_transform(X).columns) == list(names)


@over([case for case in EVERYONE if case.mixing])
def test_predictions_in_a_pipeline(case: Case) -> None:
    X = case.rows(200)
    pipe = Pipeline([("same", FunctionTransformer()), ("mixture", case.make())])
    labels = pipe.fit_predict(X)
    np.testing.assert_array_equal(labels, pipe.predict(X))
    np.testing.assert_allclose(pipe.predict_proba(X).sum(1), 1.0)


@mixtures
def test_grid_search_finds_the_number_of_components(case: Case) -> None:
    """Held-out likelihood of two clear groups: one component is far worse than two."""
    search = GridSearchCV(case.make(), {"n_components": [1, 2]}, cv=3).fit(case.rows(300))
    assert search.best_params_ == {"n_components": 2}
    scores = search.cv_results_["mean_test_score"]
    assert scores[1] > scores[0] + 0.1
    assert search.best_estimator_.weights_.shape == (2,)


def test_grid_search_over_factors_and_covariances() -> None:
    search = GridSearchCV(FactorAnalysis(), {"n_components": np.arange(1, 3)}, cv=3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # the second factor is a Heywood case
        warnings.simplefilter("ignore", ConvergenceWarning)
        search.fit(factors(300))
    assert search.best_params_ == {"n_components": 1}
    grid = {"covariance_type": ["full", "spherical"], "reg_covar": np.logspace(-8, -6, 2)}
    shapes = GridSearchCV(
        GaussianMixture(2, random_state=0), grid, scoring=lambda m, X, y=None: -m.bic(X), cv=3
    )
    assert shapes.fit(blobs(600)).best_params_["covariance_type"] == "full"


@everyone
def test_cross_validation(case: Case) -> None:
    scores = cross_val_score(case.make(), case.rows(150), cv=3)
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()


@everyone
@pytest.mark.parametrize("routed", [True, False])
def test_weights_are_routed(case: Case, routed: bool) -> None:
    X, weight = case.rows(120), np.random.default_rng(0).integers(1, 4, size=120).astype(float)
    with config_context(enable_metadata_routing=True):
        ours = case.make(tol=1e-8, max_iter=1000).set_fit_request(sample_weight=routed)
        pipe = Pipeline([("same", FunctionTransformer()), ("ours", ours)])
        if not routed:
            with pytest.raises(TypeError, match="sample_weight"):
                pipe.fit(X, sample_weight=weight)
            return
        pipe.fit(X, sample_weight=weight)
        assert ours.get_metadata_routing().partial_fit.requests == {"sample_weight": None}
    assert_same(pipe["ours"], case.make(tol=1e-8, max_iter=1000).fit(X, sample_weight=weight), rtol=0, atol=0)


def test_weights_reach_a_search_with_routing() -> None:
    X = blobs(150)
    weight = np.r_[np.full(75, 1e-9), np.ones(75)]
    with config_context(enable_metadata_routing=True):
        model = GaussianMixture(random_state=0).set_fit_request(sample_weight=True)
        model.set_score_request(sample_weight=True)
        search = GridSearchCV(model, {"n_components": [1]}, cv=2).fit(X, sample_weight=weight)
    np.testing.assert_allclose(search.best_estimator_.means_[0], X[75:].mean(0), atol=1e-6)


@pytest.mark.parametrize(
    "state",
    [0, np.int64(3), np.random.RandomState(0), np.random.default_rng(0), torch.Generator(), None],
    ids=["int", "np.int64", "RandomState", "Generator", "torch", "None"],
)
def test_any_random_state(state: Any) -> None:
    fitted = clone(GaussianMixture(2, random_state=state)).fit(blobs(100))
    assert fitted.sample(5)[0].shape == (5, 3)


@over([case for case in CASES if case.name in ("gaussian-diag", "factor")])
def test_drawn_rows_follow_the_model(case: Case) -> None:
    """z-scores of the mean of 4000 draws; 3 or 5 columns, false alarms 5 x 2e-6 = 1e-5."""
    estimator = case.make().fit(case.rows(300))
    drawn, latent = estimator.sample(4000)
    mean, covariance = estimator.model_.moments()
    z = (drawn.mean(0) - mean.numpy()) / np.sqrt(covariance.diagonal().numpy()[0] / 4000)
    assert abs(z).max() < 4.8
    assert len(latent) == 4000
    with pytest.raises(ValueError, match="n_samples"):
        estimator.sample(0)


def test_torch_device_objects_are_taken() -> None:
    assert GaussianMixture(device=torch.device("cpu")).fit(blobs(50)).n_iter_ >= 1
    assert boxloop.GaussianMixture(device="auto").fit(blobs(50)).converged_


def test_warnings_point_at_the_caller() -> None:
    for fit in (GaussianMixture(2, random_state=0, max_iter=1, tol=0.0).fit, GaussianMixture(1).partial_fit):
        with warnings.catch_warnings(record=True) as record:
            warnings.simplefilter("always")
            fit(np.column_stack([blobs(300), np.ones(300)]))
        assert record
        assert {w.filename for w in record} == {__file__}
