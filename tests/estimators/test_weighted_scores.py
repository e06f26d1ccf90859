"""Scores by weight: whole numbers count as repetitions, in ``score``, in cross-validation and in ``ModelSearchCV``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from sklearn.model_selection import GridSearchCV, PredefinedSplit, cross_val_score

import boxloop
from estimators.cases import factors
from estimators.public_cases import PUBLIC, Public, quietly

SCORED = [public for public in PUBLIC if public.name != "OutlierDetector"]
scored = pytest.mark.parametrize("public", SCORED, ids=lambda public: public.name)


def repetitions(n: int) -> np.ndarray:
    """0 to 3 repetitions of each row."""
    return np.random.default_rng(5).integers(4, size=n)


@scored
def test_score_by_weight_is_that_of_repeated_rows(public: Public) -> None:
    fitted = public.fitted()
    X, y = public.data(40, seed=3)
    times = repetitions(40)
    again = np.repeat(np.arange(40), times)
    pair = [(X, y, times), (X[again], None if y is None else y[again], None)]
    found = [
        fitted.score(rows, target, **({} if weight is None else {"sample_weight": weight}))
        for rows, target, weight in pair
    ]
    # The score of an autoencoder draws anew for every row, which repetition cannot match.
    rtol = 0.2 if public.name == "VariationalAutoencoder" else 1e-9
    assert found[0] == pytest.approx(found[1], rel=rtol)
    assert fitted.score(X, y) != pytest.approx(found[0], rel=1e-12)


@scored
def test_weights_can_be_routed_to_score(public: Public) -> None:
    with sklearn.config_context(enable_metadata_routing=True):
        estimator = public.make().set_score_request(sample_weight=True)
        assert estimator.get_metadata_routing().score.requests["sample_weight"] is True


def test_weighted_density_and_criteria_are_those_of_repeated_rows() -> None:
    X, times = factors(60), repetitions(60)
    fitted = boxloop.FactorAnalysis(1).fit(X)
    again = np.repeat(X, times, axis=0)
    assert fitted.aic(X, times) == pytest.approx(fitted.aic(again), rel=1e-12)
    assert fitted.bic(X, times) == pytest.approx(fitted.bic(again), rel=1e-12)


def test_rows_without_weight_may_have_no_density() -> None:
    X = np.array([[0.0], [1.0]] * 20)
    fitted = boxloop.BernoulliMixture(1).fit(X)
    assert np.isfinite(fitted.score(X, sample_weight=np.r_[0.0, np.ones(39)]))


def test_cross_validation_scores_weighted_rows() -> None:
    X, times = factors(60), repetitions(60)
    places = PredefinedSplit(np.arange(60) % 3)
    with sklearn.config_context(enable_metadata_routing=True):
        model = (
            boxloop.FactorAnalysis(1)
            .set_fit_request(sample_weight=True)
            .set_score_request(sample_weight=True)
        )
        found = cross_val_score(model, X, cv=places, params={"sample_weight": times})
        search = GridSearchCV(model, {"n_components": [1]}, cv=places).fit(X, sample_weight=times)
    again = np.repeat(np.arange(60), times)
    wanted = cross_val_score(boxloop.FactorAnalysis(1), X[again], cv=PredefinedSplit(again % 3))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert search.cv_results_["mean_test_score"][0] == pytest.approx(wanted.mean(), rel=1e-6)


def selected(X: np.ndarray, cv: Any, **more: Any) -> boxloop.ModelSearchCV:
    search = boxloop.ModelSearchCV(boxloop.FactorAnalysis(tol=1e-10), {"n_components": [1, 2]}, cv=cv)
    return quietly(lambda: search.fit(X, **more))


def test_select_judges_weighted_rows() -> None:
    X, times = factors(60), repetitions(60)
    again = np.repeat(np.arange(60), times)
    weighted = selected(X, PredefinedSplit(np.arange(60) % 3), sample_weight=times).cv_results_
    repeated = selected(X[again], PredefinedSplit(again % 3)).cv_results_
    for name in ("log_likelihood", "aic", "bic"):
        np.testing.assert_allclose(weighted[name], repeated[name], rtol=1e-6)


def test_select_refuses_weights_that_the_estimator_does_not_take() -> None:
    from sklearn.mixture import GaussianMixture

    with pytest.raises(TypeError, match="fit of GaussianMixture takes no sample_weight"):
        boxloop.ModelSearchCV(GaussianMixture(), {"n_components": [1]}).fit(
            factors(30), sample_weight=np.ones(30)
        )


def test_a_search_with_other_weights_reuses_no_cell(tmp_path: Any) -> None:
    X = factors(40)
    for weight in (np.ones(40), np.arange(40) + 1.0):
        search = boxloop.ModelSearchCV(
            boxloop.FactorAnalysis(1), {"n_components": [1]}, cv=2, checkpoint=tmp_path
        )
        search.fit(X, sample_weight=weight)
    assert len(list(tmp_path.iterdir())) == 6
