"""The search: scores against their definition, the rule on constructed scores, candidates that fail."""

from __future__ import annotations

from typing import Any

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.exceptions import NotFittedError
from sklearn.mixture import GaussianMixture as Theirs
from sklearn.model_selection import KFold, RepeatedKFold
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import boxloop
from boxloop.select import ModelSearchCV, SelectionWarning, one_standard_error
from estimators.cases import blobs, documents


class Given(BaseEstimator):
    """Its log-densities are a column of the rows, its number of parameters is given."""

    def __init__(self, column: int = 0, n_parameters: float = 1.0, fail: bool = False) -> None:
        self.column = column
        self.n_parameters = n_parameters
        self.fail = fail

    def fit(self, X: np.ndarray, y: object = None) -> Given:
        if self.fail:
            raise ValueError("out of luck")
        self.fitted_ = True
        return self

    def score_samples(self, X: np.ndarray) -> np.ndarray:
        return X[:, self.column]


def grid(*counts: float) -> list[dict[str, Any]]:
    """One candidate a column, with these numbers of parameters."""
    return [{"column": [j], "n_parameters": [p]} for j, p in enumerate(counts)]


def constructed(*errors: float) -> np.ndarray:
    """Columns that fall behind the first by this many paired standard errors."""
    noise = np.array([1.0, -1.0] * 50)
    error = noise.std(ddof=1) / 10.0
    return np.column_stack([np.zeros(100), *(noise - e * error for e in errors)])


@pytest.mark.parametrize(
    ("gap", "error", "count", "expected"),
    [
        ([0.3, 0.02, 0.0], [0.1, 0.03, 0.0], [5, 11, 17], 1),
        ([0.3, 0.04, 0.0], [0.1, 0.03, 0.0], [5, 11, 17], 2),
        ([0.0, 0.0], [0.0, 0.0], [3, 3], 0),
        ([0.01, 0.0], [0.1, 0.0], [3, 3], 1),
        ([0.01, 0.0], [0.1, 0.0], [np.nan, 3], 0),
        ([9.0, 0.01, 0.0], [0.1, 0.1, 0.0], [np.nan, 2, 3], 1),
        ([np.nan, 0.0], [np.nan, 0.0], [1, 3], 1),
        ([np.inf, 0.0], [np.nan, 0.0], [1, 3], 1),
        ([0.0], [np.nan], [np.nan], 0),
    ],
)
def test_one_standard_error(gap: list[float], error: list[float], count: list[float], expected: int) -> None:
    assert one_standard_error(gap, error, count) == expected


@pytest.mark.parametrize(("gap", "message"), [([np.nan], "no candidate"), ([0.0, 1.0], "shapes")])
def test_one_standard_error_refuses(gap: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        one_standard_error(gap, [0.0], [1.0])


@pytest.mark.parametrize(
    ("errors", "rule", "expected"),
    [
        ((0.9, 0.5), "one_standard_error", 1),
        ((1.1, 0.5), "one_standard_error", 2),
        ((1.1, 1.1), "one_standard_error", 0),
        ((0.9, 0.5), "best", 0),
    ],
)
def test_the_rule_on_constructed_scores(errors: tuple[float, ...], rule: str, expected: int) -> None:
    X = constructed(*errors)
    search = ModelSearchCV(Given(), grid(9.0, 2.0, 5.0), rule=rule, cv=4).fit(X)
    assert search.best_index_ == expected
    assert search.best_params_ == {"column": expected, "n_parameters": [9.0, 2.0, 5.0][expected]}
    assert search.best_score_ == pytest.approx(X[:, expected].mean())
    assert search.cv_results_["gap"] == pytest.approx(-X.mean(0))
    assert search.cv_results_["gap_error"] == pytest.approx(X.std(0, ddof=1) / 10.0)
    assert search.cv_results_["difference"] == pytest.approx(X.mean(0))
    assert search.cv_results_["difference_error"] == pytest.approx(X.std(0, ddof=1) / 10.0)


def test_held_out_likelihood_is_that_of_folds() -> None:
    X = blobs(60)
    search = ModelSearchCV(Theirs(random_state=0), {"n_components": [1, 2]}, cv=KFold(3), rule="best").fit(X)
    for j, k in enumerate((1, 2)):
        held = np.empty(60)
        for train, test in KFold(3).split(X):
            held[test] = Theirs(k, random_state=0).fit(X[train]).score_samples(X[test])
        whole = Theirs(k, random_state=0).fit(X)
        row = {name: column[j] for name, column in search.cv_results_.items()}
        assert row["log_likelihood"] == pytest.approx(held.mean(), rel=1e-10)
        assert row["log_likelihood_error"] == pytest.approx(held.std(ddof=1) / np.sqrt(60), rel=1e-10)
        assert row["aic"] == pytest.approx(whole.aic(X), rel=1e-10)
        assert row["bic"] == pytest.approx(whole.bic(X), rel=1e-10)
        assert row["n_parameters"] == round((whole.bic(X) - whole.aic(X)) / (np.log(60) - 2))
    assert search.n_splits_ == 3


@pytest.mark.parametrize("criterion", ["aic", "bic"])
def test_information_criteria_decide(criterion: str) -> None:
    X = blobs(200)
    sizes = [1, 2, 3, 4]
    search = ModelSearchCV(
        Theirs(random_state=0), {"n_components": sizes}, criterion=criterion, rule="best", cv=2
    ).fit(X)
    values = [getattr(Theirs(k, random_state=0).fit(X), criterion)(X) for k in sizes]
    assert search.best_index_ == int(np.argmin(values))
    assert search.cv_results_["gap"] * 2 * 200 == pytest.approx(np.array(values) - min(values), abs=1e-8)


def test_a_criterion_of_ones_own_is_judged_over_folds() -> None:
    X = np.arange(12.0).reshape(6, 2) * [1.0, -1.0]
    seen = []

    def criterion(model: Given, rows: np.ndarray) -> Any:
        seen.append(len(rows))
        value = float(rows[:, model.column].sum())
        return (value, 0.1) if model.column else value

    search = ModelSearchCV(Given(), grid(1.0, 1.0), criterion=criterion, cv=KFold(3), rule="best").fit(X)
    assert seen == [2] * 6
    sums = X.reshape(3, 2, 2).sum(1)
    assert search.cv_results_["mean_test_score"] == pytest.approx(sums.mean(0))
    apart = sums[:, 0] - sums[:, 1]
    assert search.cv_results_["gap"] == pytest.approx([0.0, apart.mean()])
    assert search.cv_results_["gap_error"] == pytest.approx([0.0, apart.std(ddof=1) / np.sqrt(3)])
    assert search.cv_results_["log_likelihood"] == pytest.approx(X.mean(0))


def test_a_row_held_out_twice_counts_once() -> None:
    X = constructed(0.5)
    once = ModelSearchCV(Given(), grid(2.0, 1.0), cv=4).fit(X).cv_results_
    again = ModelSearchCV(
        Given(), grid(2.0, 1.0), cv=RepeatedKFold(n_splits=4, n_repeats=3, random_state=0)
    ).fit(X)
    assert again.n_splits_ == 12
    assert again.cv_results_["gap_error"] == pytest.approx(once["gap_error"])


def test_pairs_of_places_are_folds() -> None:
    X = constructed(0.5)
    search = ModelSearchCV(Given(), grid(2.0, 1.0), cv=[(np.arange(50), np.arange(50, 90))]).fit(X)
    assert search.cv_results_["log_likelihood"] == pytest.approx(X[50:90].mean(0))


def test_the_right_mixture_is_found() -> None:
    X = blobs(400)
    space = {"n_components": [1, 2, 3], "covariance_type": ["full", "diag"]}
    search = ModelSearchCV(boxloop.GaussianMixture(), space, cv=3).fit(X)
    assert search.best_params_["n_components"] == 2
    table = search.table()
    assert table["chosen"].sum() == 1
    assert (
        table.index[search.best_index_]
        == f"covariance_type={search.best_params_['covariance_type']}, n_components=2"
    )
    same = boxloop.GaussianMixture(**search.best_params_, random_state=0).fit(X)
    np.testing.assert_allclose(search.score_samples(X), same.score_samples(X))


def test_methods_are_those_of_the_chosen_estimator() -> None:
    X = blobs(60)
    search = ModelSearchCV(boxloop.GaussianMixture(random_state=0), {"n_components": [2]}, cv=2)
    with pytest.raises(NotFittedError):
        search.predict(X)
    best = search.fit(X).best_estimator_
    assert (search.predict(X) == best.predict(X)).all()
    assert (search.predict_proba(X) == best.predict_proba(X)).all()
    assert (search.transform(X) == best.transform(X)).all()
    assert (search.fit_transform(X) == search.transform(X)).all()
    assert search.score(X) == best.score(X)
    assert search.sample(3)[0].shape == (3, 3)
    assert not hasattr(ModelSearchCV(KernelDensity(), {}), "predict")
    assert not hasattr(ModelSearchCV(KernelDensity(), {}).fit(X), "transform")
    with pytest.raises(AttributeError, match="predict"):
        ModelSearchCV(KernelDensity(), {}).predict(X)


def test_without_refit_there_is_a_choice_but_no_estimator() -> None:
    search = ModelSearchCV(Given(), grid(1.0, 2.0), refit=False).fit(constructed(0.5))
    assert search.best_params_["column"] == 0
    assert not hasattr(search, "best_estimator_")
    with pytest.raises(AttributeError, match="score_samples"):
        search.score_samples(np.ones((2, 2)))


def test_it_clones_and_takes_nested_parameters() -> None:
    search = clone(ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]}, cv=3))
    assert search.set_params(estimator__tol=1e-5).estimator.tol == 1e-5
    piped = ModelSearchCV(
        make_pipeline(StandardScaler(), boxloop.GaussianMixture()), {"gaussianmixture__n_components": [1, 2]}
    )
    assert piped.fit(blobs(80)).best_params_ == {"gaussianmixture__n_components": 2}
    assert piped.best_estimator_[-1].random_state == 0, "a seed where there was none"


@pytest.mark.parametrize("make", [pd.DataFrame, lambda t: pl.DataFrame(dict(t))], ids=["pandas", "polars"])
def test_frames_keep_their_names(make: Any) -> None:
    X = blobs(60)
    frame = make({name: X[:, j] for j, name in enumerate("abc")})
    search = ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]}, cv=2).fit(frame)
    assert search.best_estimator_.feature_names_in_.tolist() == ["a", "b", "c"]
    assert search.n_features_in_ == 3
    plain = ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]}, cv=2).fit(X)
    assert search.best_score_ == pytest.approx(plain.best_score_)


def test_sparse_rows() -> None:
    X = documents(60)
    space = {"n_components": [1, 2]}
    one = ModelSearchCV(boxloop.MultinomialMixture(), space, cv=2).fit(sparse.csr_matrix(X))
    two = ModelSearchCV(boxloop.MultinomialMixture(), space, cv=2).fit(X)
    assert one.cv_results_["log_likelihood"] == pytest.approx(two.cv_results_["log_likelihood"])


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.slow)])
def test_fits_at_the_same_time_give_the_same(backend: str) -> None:
    X = blobs(60)
    search = ModelSearchCV(Theirs(random_state=0), {"n_components": [1, 2]}, cv=2)
    one = clone(search).fit(X).cv_results_
    with joblib.parallel_config(backend=backend):
        two = clone(search).set_params(n_jobs=2).fit(X).cv_results_
    for name in ("log_likelihood", "aic", "gap", "gap_error"):
        np.testing.assert_allclose(one[name], two[name], rtol=1e-10)


def test_no_fit_starts_from_another() -> None:
    X = blobs(60)
    cold = ModelSearchCV(Theirs(random_state=0), {"n_components": [3]}, cv=3).fit(X).cv_results_
    warm = (
        ModelSearchCV(Theirs(random_state=0, warm_start=True), {"n_components": [3]}, cv=3).fit(X).cv_results_
    )
    assert warm["log_likelihood"] == cold["log_likelihood"]
    assert warm["aic"] == cold["aic"]


def test_the_seed_decides_and_global_state_does_not() -> None:
    X = blobs(60)
    make = ModelSearchCV(boxloop.GaussianMixture(init_params="kmeans"), {"n_components": [1, 2]}, cv=2)
    one = make.fit(X).cv_results_["log_likelihood"]
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    assert (clone(make).fit(X).cv_results_["log_likelihood"] == one).all()
    assert (before == np.random.get_state()[1]).all()  # noqa: NPY002
    assert (clone(make).set_params(random_state=1).fit(X).cv_results_["log_likelihood"] != one).all()
    for state in (None, np.random.default_rng(0), np.random.RandomState(0)):
        found = clone(make).set_params(random_state=state).fit(X)  # which is chosen is left to chance here
        assert np.isfinite(found.cv_results_["log_likelihood"]).all()


def test_a_candidate_that_fails_is_recorded_and_never_chosen() -> None:
    X = constructed(0.5)
    space = [*grid(3.0), {"column": [1], "n_parameters": [1.0], "fail": [True]}]
    with pytest.warns(SelectionWarning, match="column=1.*left out: ValueError: out of luck"):
        search = ModelSearchCV(Given(), space).fit(X)
    assert search.best_index_ == 0
    assert search.cv_results_["failure"] == ["", "ValueError: out of luck"]
    for name in ("log_likelihood", "aic", "gap", "n_parameters"):
        assert np.isnan(search.cv_results_[name][1])


def test_too_many_components_for_a_fold() -> None:
    with pytest.warns(SelectionWarning, match="n_components=29 could not be fitted"):
        search = ModelSearchCV(Theirs(random_state=0), {"n_components": [1, 29]}, cv=3).fit(blobs(30))
    assert search.best_params_ == {"n_components": 1}
    assert np.isnan(search.cv_results_["aic"][1]), "a fit to all rows alone is no candidate"


def test_all_failing_raises() -> None:
    with pytest.raises(ValueError, match="no candidate could be fitted: ValueError: out of luck"):
        ModelSearchCV(Given(fail=True), grid(1.0, 2.0)).fit(constructed(0.5))


def test_log_densities_that_are_not_numbers_are_a_failure() -> None:
    X = constructed(0.5)
    X[3, 1] = np.nan

    class Missing(Given):
        def __sklearn_tags__(self) -> Any:
            tags = super().__sklearn_tags__()
            tags.input_tags.allow_nan = True
            return tags

    with pytest.warns(SelectionWarning, match="nan at row"):
        assert ModelSearchCV(Missing(), grid(3.0, 1.0)).fit(X).best_index_ == 0


def test_a_criterion_that_is_not_finite_is_a_failure() -> None:
    search = ModelSearchCV(Given(), grid(3.0, 1.0), criterion=lambda m, X: 0.0 if m.column == 0 else np.nan)
    with pytest.warns(SelectionWarning, match="criterion must give a finite number, got nan"):
        search.fit(constructed(0.5))
    assert search.best_index_ == 0


def test_a_density_of_zero_loses_against_any() -> None:
    X = blobs(60)
    search = ModelSearchCV(KernelDensity(kernel="tophat"), {"bandwidth": [1e-3, 100.0]}, cv=2).fit(X)
    assert search.best_params_ == {"bandwidth": 100.0}
    assert search.cv_results_["gap"][0] == np.inf
    with pytest.raises(ValueError, match="density of zero"):
        ModelSearchCV(KernelDensity(kernel="tophat"), {"bandwidth": [1e-3]}, cv=2).fit(X)


def test_unknown_sizes_are_taken_in_the_order_of_the_grid() -> None:
    X = blobs(60)
    search = ModelSearchCV(KernelDensity(), {"bandwidth": [0.8, 0.800001, 0.79999]}, cv=2).fit(X)
    gap, error = search.cv_results_["gap"], search.cv_results_["gap_error"]
    assert search.best_index_ == int(np.flatnonzero(gap <= error)[0])
    assert np.isnan(search.cv_results_["aic"]).all()
    with pytest.raises(ValueError, match="number of parameters is unknown"):
        ModelSearchCV(KernelDensity(), {"bandwidth": [0.8]}, criterion="bic", cv=2).fit(X)


def test_warnings_of_fits_are_kept_and_reported_once() -> None:
    with pytest.warns(SelectionWarning, match="fits of 2 of 2 candidates warned") as record:
        search = ModelSearchCV(
            boxloop.GaussianMixture(random_state=0, max_iter=1, tol=0.0),
            {"n_components": [2, 3]},
            cv=2,
            refit=False,
        ).fit(blobs(60))
    assert len(record) == 1
    assert record[0].filename == __file__
    assert any("max_iter" in line for line in search.cv_results_["warnings"][0])


def test_progress_is_shown_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    X = constructed(0.5)
    ModelSearchCV(Given(), grid(1.0, 2.0), cv=2).fit(X)
    assert capsys.readouterr() == ("", "")
    ModelSearchCV(Given(), grid(1.0, 2.0), cv=2, verbose=True).fit(X)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "ModelSearchCV" in shown.err
    assert "6/6" in shown.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"param_grid": {"colum": [1]}}, "colum"),
        ({"param_grid": []}, "no candidate"),
        ({"param_grid": {"column": []}}, "column"),
        ({"param_grid": 3}, "param_grid"),
        ({"rule": "median"}, "rule"),
        ({"criterion": "likelihood"}, "criterion"),
        ({"cv": 1}, "cv"),
        ({"estimator": StandardScaler()}, "estimator"),
    ],
)
def test_bad_parameters(more: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        ModelSearchCV(**{"estimator": Given(), "param_grid": grid(1.0), **more}).fit(constructed(0.5))


def test_bad_rows() -> None:
    search = ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1]})
    with pytest.raises(ValueError, match="n_samples=3"):
        search.fit(np.ones((3, 2)))
    with pytest.raises(ValueError, match="infinity"):
        search.fit(np.full((30, 2), np.inf))
    with pytest.raises(ValueError, match="'b' holds an infinite value"):
        search.fit(pd.DataFrame({"a": np.ones(30), "b": np.full(30, np.inf)}))
    with pytest.raises(FileNotFoundError, match="no such file"):
        search.fit("rows.csv")


def test_results_have_the_columns_of_scikit_learn() -> None:
    """Of a grid search with the mean log-likelihood as score, over the same folds."""
    from sklearn.model_selection import GridSearchCV

    X = np.random.default_rng(0).normal(size=(60, 2)) + 4.0 * np.arange(2).repeat(30)[:, None]
    folds = [(np.delete(np.arange(60), part), part) for part in np.arange(60).reshape(4, 15)]
    space = [{"n_components": [1, 2]}, {"n_components": [1], "covariance_type": ["diag"]}]
    ours = ModelSearchCV(Theirs(random_state=0), space, cv=folds, rule="best").fit(X)
    theirs = GridSearchCV(Theirs(random_state=0), space, cv=folds, refit=False).fit(X)
    for name, column in theirs.cv_results_.items():
        if "time" in name:
            continue
        if name.startswith("param_"):
            assert ours.cv_results_[name].tolist() == column.tolist()
            assert ours.cv_results_[name].mask.tolist() == column.mask.tolist()
        elif name == "params":
            assert ours.cv_results_[name] == column
        else:
            np.testing.assert_allclose(ours.cv_results_[name], column, rtol=1e-10)
    assert (ours.best_index_, ours.best_score_) == (theirs.best_index_, pytest.approx(theirs.best_score_))
    assert ours.best_params_ == theirs.best_params_
    assert ours.n_splits_ == theirs.n_splits_


def test_a_failed_candidate_has_the_last_rank() -> None:
    space = [*grid(3.0), {"column": [1], "n_parameters": [1.0], "fail": [True]}, *grid(2.0)]
    with pytest.warns(SelectionWarning, match="could not be fitted"):
        found = (
            ModelSearchCV(Given(), space, cv=2).fit(np.random.default_rng(0).normal(size=(20, 2))).cv_results_
        )
    assert found["rank_test_score"][1] == 3
    assert np.isnan(found["mean_test_score"][1])
    assert np.isnan(found["split0_test_score"][1])


def test_a_search_is_a_table_in_a_notebook() -> None:
    search = ModelSearchCV(boxloop.GaussianMixture(), {"n_components": [1, 2]}, cv=2)
    assert "mean_test_score" not in search._repr_html_()
    found = search.fit(np.random.default_rng(0).normal(size=(60, 2)))._repr_html_()
    assert "mean_test_score" in found
    assert "n_components=2" in found
