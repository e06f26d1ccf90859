"""Two views at their edges: what a stranger gives to the estimators, and what they say of it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import cross_val_score
from torch import Generator, Tensor

from boxloop import FitWarning, RelevantClassifier, RelevantFeatures, RelevantGenerator, load
from boxloop.persist import ModelFileError
from boxloop.twoview import GaussianNoise, PixelShuffle, TimeShift, self_views

Array = NDArray[np.float64]
LINEAR = {"x_features": "linear", "y_features": "linear"}
SHORT: dict[str, Any] = {"hidden": (8,), "max_iter": 2, "patience": None, "random_state": 0}


def tables(n: int = 200) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Three columns and two."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 3))
    return pd.DataFrame(x, columns=list("abc")), pd.DataFrame(
        x[:, :2] + rng.normal(size=(n, 2)), columns=list("de")
    )


@pytest.fixture(scope="module")
def fitted() -> RelevantFeatures:
    return RelevantFeatures(2, **LINEAR).fit(*tables())


def warned(fit: RelevantFeatures | RelevantClassifier, *rows: Any) -> str:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit.fit(*rows)
    return "\n".join(str(one.message) for one in caught)


@pytest.mark.parametrize("kind", ["pandas", "polars"])
def test_a_series_keeps_its_name(kind: str, tmp_path: Path) -> None:
    X, Y = tables()
    y = Y["d"] if kind == "pandas" else pl.Series("d", Y["d"].to_numpy())
    fit = RelevantFeatures(1, **LINEAR).fit(X, y)
    assert fit.expect(given=X[:2]).names == ("d",)
    fit.save(tmp_path / "one.boxloop")
    back = RelevantFeatures.load(tmp_path / "one.boxloop")
    found = back.expect(given=Y["d"][:2].to_numpy(), direction="x_given_y", data=(X, y))
    assert found.names == ("a", "b", "c")


def test_one_column_as_a_tensor_with_a_gradient() -> None:
    X, Y = (torch.tensor(table.to_numpy(), requires_grad=True) for table in tables())
    assert RelevantFeatures(1, **LINEAR).fit(X, Y[:, 0]).predict(X[:2]).shape == (2,)


@pytest.mark.parametrize("kind", ["series", "frame", "polars"])
def test_numbers_of_a_categorical_type_are_labels(kind: str) -> None:
    X, _ = tables()
    codes = np.arange(len(X)) % 3
    y: Any = pd.Series(pd.Categorical(codes), name="k")
    if kind == "frame":
        y = y.to_frame()
    elif kind == "polars":
        y = pl.Series("k", codes.astype(str)).cast(pl.Categorical)
    fit = RelevantFeatures(2, x_features="linear").fit(X, y)
    assert fit.expect(given=X[:2]).names == ("0", "1", "2")
    assert fit.y_schema_.names == ("k",)


def test_labels_of_several_types_are_refused() -> None:
    X, _ = tables(6)
    with pytest.raises(ValueError, match=r"Y mixes labels of several types \(int, str\)"):
        RelevantFeatures(1, x_features="linear").fit(X, np.array([1, "a", "b", 2, 3, "c"], dtype=object))


def test_rows_of_y_in_another_order_or_shape_say_what_to_give(fitted: RelevantFeatures) -> None:
    _, Y = tables()
    with pytest.raises(ValueError, match=r"\(d, e\): give these, in this order"):
        fitted.expect(given=Y[["e", "d"]], direction="x_given_y")
    with pytest.raises(ValueError, match=r"one row is a table \(1, d\)"):
        fitted.expect(given=Y.iloc[0].to_numpy(), direction="x_given_y")


@pytest.mark.parametrize(
    ("theta", "message"),
    [
        (lambda rows: None, "theta must give numbers"),
        (lambda rows: torch.complex(rows[:, 0], rows[:, 1]), "complex"),
        (np.zeros(3), "rows are given="),
    ],
)
def test_functions_that_give_no_numbers_are_refused(
    fitted: RelevantFeatures, theta: Any, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        fitted.expect(theta, given=tables()[0][:2])


def test_functions_may_give_frames(fitted: RelevantFeatures) -> None:
    X, _ = tables()
    found = fitted.expect(lambda rows: pd.DataFrame(rows.numpy()) ** 2, given=X[:2])
    np.testing.assert_allclose(found.mean, fitted.expect(lambda rows: rows**2, given=X[:2]).mean)


def test_questions_without_an_answer_are_refused(fitted: RelevantFeatures) -> None:
    X, Y = tables()
    found = fitted.expect(given=X[:2])
    with pytest.raises(ValueError, match="q must be one number"):
        found.quantile([0.1, 0.9])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="missing"):
        found.tail(float("nan"))
    with pytest.raises(ValueError, match="whole number"):
        found.covariance(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="refits must be"):
        fitted.expect(given=X[:2], refits=-1)
    with pytest.raises(ValueError, match="pair of tables"):
        fitted.expect(given=X[:2], data=X)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="data has 1 rows"):
        fitted.expect(given=X[:2], data=(X[:1], Y[:1]))
    with pytest.raises(ValueError, match="both X and y"):
        fitted.significance(y=Y)
    with pytest.raises(ValueError, match="row i of one"):
        fitted.score(X[:3], Y[:2])


def test_a_file_is_diagnosed_on_rows_that_are_given(fitted: RelevantFeatures, tmp_path: Path) -> None:
    fitted.save(tmp_path / "views.boxloop")
    back = RelevantFeatures.load(tmp_path / "views.boxloop")
    assert str(back.diagnose(data=tables())) == str(fitted.diagnose())
    with pytest.raises(ValueError, match="give X and y"):
        back.significance()


def test_files_are_recognised_by_the_name_of_their_estimator(
    fitted: RelevantFeatures, tmp_path: Path
) -> None:
    X, _ = tables()
    views, drawn = tmp_path / "views.boxloop", tmp_path / "generator.boxloop"
    fitted.save(views)
    generator = RelevantGenerator(2, features=fitted, **SHORT).fit(X)
    generator.save(drawn)
    with pytest.raises(ModelFileError, match="holds the estimator 'RelevantFeatures'"):
        RelevantGenerator.load(views)
    with pytest.raises(ModelFileError, match="holds the estimator 'RelevantGenerator'"):
        RelevantFeatures.load(drawn)
    np.testing.assert_array_equal(load(drawn).transform(X), generator.transform(X))


def test_a_constant_view_tells_nothing_and_is_quiet(capfd: pytest.CaptureFixture[str]) -> None:
    X, _ = tables()
    with pytest.warns(FitWarning, match="0 canonical variables, fewer than n_features=2: constant"):
        fit = RelevantFeatures(2, **LINEAR).fit(X, np.ones((len(X), 2)))
    np.testing.assert_array_equal(fit.expect(given=X[:2]).mean, 1.0)
    assert capfd.readouterr().err == ""


def test_warnings_say_why() -> None:
    X, Y = tables()
    assert "no more functions of Y" in warned(RelevantFeatures(2, **LINEAR), X, Y["d"])
    few = warned(RelevantFeatures(2, **LINEAR), X[:3], Y[:3])
    assert "any rows are then related perfectly" in few
    assert "share a column" not in few
    assert "share a column" in warned(RelevantFeatures(2, **LINEAR), X, X)
    assert "set ridge" not in warned(RelevantFeatures(2, ridge=0.1, **LINEAR), X[:3], Y[:3])


def test_a_channel_scores_without_a_second_view() -> None:
    X, _ = tables()
    smooth = RelevantFeatures(2, channel=GaussianNoise(0.5), random_state=0, **LINEAR)
    assert np.all(cross_val_score(smooth, X, cv=3) > 1.5)
    assert smooth.fit(X).expect(given=X[:1]).names == ("y:a", "y:b", "y:c")


@pytest.mark.parametrize(
    ("channel", "message"),
    [
        (TimeShift(5), "self_views"),
        (lambda rows, _: rows[:3], "it returned"),
        (lambda rows, _: rows.numpy(), "it returned ndarray"),
        (lambda rows, _: rows / 0.0, "missing or infinite"),
        (lambda rows, _: rows.add_(1.0), "in place"),
        (PixelShuffle((2, 2), 0.5), r"images of shape \(2, 2\)"),
        (GaussianNoise(torch.ones(4)), "sd has 4 values"),
    ],
)
def test_channels_that_make_no_second_view_are_refused(channel: Any, message: str) -> None:
    X = tables()[0].to_numpy()
    kept = X.copy()
    with pytest.raises(ValueError, match=message):
        RelevantFeatures(1, channel=channel, **LINEAR).fit(X)
    np.testing.assert_array_equal(X, kept)


def test_labels_are_not_disturbed() -> None:
    with pytest.raises(ValueError, match="X holds labels"):
        RelevantFeatures(1, channel=GaussianNoise()).fit(np.array(["a", "b"] * 10))


def test_a_channel_may_change_the_columns_of_images() -> None:
    def half(rows: Tensor, _: Generator) -> Tensor:
        return rows[:, :8] + 1.0

    images = np.random.default_rng(0).normal(size=(80, 4, 4))
    fit = RelevantFeatures(2, channel=half, x_features="linear", y_features="linear", ridge=0.1)
    assert fit.fit(images).predict(images[:2]).shape == (2, 8)


@pytest.mark.parametrize("sd", [[0.0, 1.0, 2.0], np.array([0.0, 1.0, 2.0]), torch.tensor([0.0, 1.0, 2.0])])
def test_noise_takes_a_number_a_column(sd: Any) -> None:
    _x, y = self_views(np.zeros((400, 3)), GaussianNoise(sd), random_state=0)
    # five standard errors of a standard deviation: 5 / sqrt(800); one in a million
    np.testing.assert_allclose(y.std(0), [0.0, 1.0, 2.0], rtol=0.18)


def test_noise_is_as_exact_as_the_rows() -> None:
    _x, y = self_views(np.zeros((3, 1)), GaussianNoise(0.1), random_state=0)
    one = self_views(np.zeros((3, 1)), GaussianNoise(1.0), random_state=0)[1]
    np.testing.assert_allclose(y, 0.1 * one, rtol=1e-14)


def test_lags_are_whole() -> None:
    with pytest.raises(ValueError, match="whole number"):
        TimeShift(1.5)  # type: ignore[arg-type]


def test_a_module_for_other_columns_is_reported() -> None:
    with pytest.raises(ValueError, match="Linear does not take rows of 3 columns"):
        RelevantFeatures(2, x_features=torch.nn.Linear(4, 2), y_features="linear").fit(*tables())


def test_a_generator_of_few_rows_or_of_nothing() -> None:
    X, _ = tables()
    assert RelevantGenerator(2, **SHORT).fit(X[:10]).sample(3)[0].shape == (3, 3)
    with pytest.raises(ValueError, match="are all columns constant"):
        RelevantGenerator(1, **SHORT).fit(np.ones((50, 2)))


def test_a_generator_says_when_its_features_are_not_fitted(fitted: RelevantFeatures) -> None:
    X, _ = tables()
    with pytest.raises(ValueError, match="FrozenEstimator"):
        cross_val_score(RelevantGenerator(2, features=fitted, **SHORT), X, cv=2, error_score="raise")
    frozen = RelevantGenerator(2, features=FrozenEstimator(fitted), **SHORT)
    assert cross_val_score(frozen, X, cv=2, error_score="raise").shape == (2,)


def test_codes_may_be_read_only(fitted: RelevantFeatures) -> None:
    X, _ = tables()
    fit = RelevantGenerator(2, features=fitted, **SHORT).fit(X)
    codes = fit.transform(X[:2])
    codes.setflags(write=False)
    assert fit.inverse_transform(codes).shape == (2, 3)


def test_parameters_of_a_search_can_be_saved(tmp_path: Path) -> None:
    X, Y = tables()
    fit = RelevantFeatures(np.int64(2), **{**SHORT, "hidden": np.array([8])}).fit(X, Y)
    fit.save(tmp_path / "views.boxloop")
    np.testing.assert_array_equal(
        RelevantFeatures.load(tmp_path / "views.boxloop").predict(X), fit.predict(X)
    )
    sort = RelevantClassifier(np.int64(2), **SHORT).fit(X, Y["d"] > 0)
    sort.save(tmp_path / "classes.boxloop")
    back = RelevantClassifier.load(tmp_path / "classes.boxloop")
    np.testing.assert_array_equal(back.predict_proba(X), sort.predict_proba(X))


def test_labels_that_are_missing_are_reported_whatever_says_so() -> None:
    X, _ = tables(6)
    for gone in (None, float("nan"), pd.NA):
        with pytest.raises(ValueError, match="Y has a missing value in row 1"):
            RelevantFeatures(1, x_features="linear").fit(
                X, pd.Series(["a", gone, "b", "c", "d", "e"], dtype=object)
            )


def test_sparse_views_are_refused() -> None:
    X, Y = tables()
    with pytest.raises(ValueError, match="Y is sparse"):
        RelevantFeatures(1, **LINEAR).fit(X, csr_array(Y.to_numpy()))


def test_a_column_of_labels_has_a_name_and_forgets_those_before_it() -> None:
    X, Y = tables()
    labels = np.where(X["a"] > 0, "up", "down")
    fit = RelevantFeatures(1, y_features="linear", x_features="linear").fit(X, Y)
    fit.set_params(x_features="auto").fit(pd.DataFrame({"sort": labels}), Y)
    assert fit.feature_names_in_.tolist() == ["sort"]
    assert "feature_names_in_" not in vars(fit.fit(labels, Y))


def test_relations_that_few_rows_force_are_reported_as_such() -> None:
    X, Y = tables()
    forced = warned(RelevantFeatures(2, **LINEAR), X[:5], Y[:5])
    assert "5 rows for 5 features of both views: any rows are then related perfectly" in forced
    rough = warned(RelevantFeatures(2, **LINEAR), X[:6], Y[:6])
    assert "look stronger than they are" in rough
    constant = warned(RelevantFeatures(1, x_features="linear"), X, ["a"] * len(X))
    assert "constant or collinear" in constant


def test_few_rows_with_weight_are_not_judged() -> None:
    X, Y = tables()
    fit = RelevantFeatures(1, ridge=0.1, **LINEAR).fit(X, Y, sample_weight=np.arange(len(X)) < 4)
    with pytest.raises(ValueError, match="give more rows"):
        fit.significance()


def test_frames_with_names_take_weights() -> None:
    X, Y = tables()
    weight = np.arange(len(X)) % 3
    named = RelevantFeatures(2, **LINEAR).fit(X, Y, sample_weight=weight)
    plain = RelevantFeatures(2, **LINEAR).fit(X.to_numpy(), Y.to_numpy(), sample_weight=weight)
    np.testing.assert_array_equal(named.relevance_, plain.relevance_)
    sort = Y["d"] > 0
    fitted_by_name = RelevantClassifier(features="linear").fit(X, sort, sample_weight=weight)
    bare = RelevantClassifier(features="linear").fit(X.to_numpy(), sort, sample_weight=weight)
    np.testing.assert_array_equal(fitted_by_name.predict_proba(X), bare.predict_proba(X.to_numpy()))
    drawn = RelevantGenerator(2, **SHORT).fit(X, sample_weight=weight)
    assert drawn.error_ == RelevantGenerator(2, **SHORT).fit(X.to_numpy(), sample_weight=weight).error_
