"""BayesianLinearRegression: scikit-learn's contract, sources, files, and error bars that hold."""

from __future__ import annotations

import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.datasets import load_diabetes
from sklearn.linear_model import BayesianRidge, LinearRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import boxloop
from boxloop import FitWarning
from boxloop.data import ArraySource, open_source
from boxloop.estimators import BayesianLinearRegression
from boxloop.persist import ModelFileError


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_diabetes(return_X_y=True)
    return x * 20.0, y


@parametrize_with_checks(
    [
        BayesianLinearRegression(),
        BayesianLinearRegression(standardise=True),
        BayesianLinearRegression(1.0, 2.0, fit_intercept=False),
    ]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        check(estimator)


def test_it_is_scikit_learns_on_centred_rows(diabetes: Any) -> None:
    x, y = diabetes
    x, y = x - x.mean(0), y - y.mean()
    flat = {"alpha_1": 0.0, "alpha_2": 0.0, "lambda_1": 0.0, "lambda_2": 0.0}
    peer = BayesianRidge(**flat, fit_intercept=False, max_iter=10_000, tol=1e-13).fit(x, y)
    found = BayesianLinearRegression(fit_intercept=False).fit(x, y)
    assert found.alpha_ == pytest.approx(peer.lambda_, rel=1e-8)
    assert found.beta_ == pytest.approx(peer.alpha_, rel=1e-8)
    mean, deviation = found.predict(x, return_std=True)
    for ours, theirs in zip((mean, deviation), peer.predict(x, return_std=True), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-6)
    np.testing.assert_allclose(found.covariance_, peer.sigma_, rtol=1e-7, atol=1e-9)


def test_the_intercept_costs_one_row(diabetes: Any) -> None:
    """Against scikit-learn, which does not count it: beta differs by (n - 1) / n, nearly."""
    x, y = diabetes
    peer = BayesianRidge(alpha_1=0.0, alpha_2=0.0, lambda_1=0.0, lambda_2=0.0, tol=1e-12, max_iter=9999).fit(
        x, y
    )
    found = BayesianLinearRegression().fit(x, y)
    assert found.beta_ == pytest.approx(peer.alpha_ * (len(x) - 1) / len(x), rel=1e-4)
    np.testing.assert_allclose(found.coef_, peer.coef_, atol=0.05)
    assert found.intercept_ == pytest.approx(peer.intercept_, rel=1e-6)
    parts = found.predictive(x)
    at_mean = found.predictive(x.mean(0, keepdims=True))
    assert float(at_mean.epistemic_std**2) == pytest.approx(1.0 / (found.beta_ * len(x)), rel=1e-9)
    np.testing.assert_allclose(parts.std**2, parts.epistemic_std**2 + parts.noise**2, rtol=1e-12)


def test_a_weak_prior_is_least_squares(diabetes: Any) -> None:
    x, y = diabetes
    found = BayesianLinearRegression(alpha=1e-12, beta=1.0).fit(x, y)
    peer = LinearRegression().fit(x, y)
    np.testing.assert_allclose(found.coef_, peer.coef_, rtol=1e-8)
    assert found.score(x, y) == pytest.approx(peer.score(x, y), rel=1e-12)


def test_units_do_not_matter_where_columns_are_standardised(diabetes: Any) -> None:
    x, y = diabetes
    unit = np.logspace(-8.0, 8.0, x.shape[1])
    plain = BayesianLinearRegression(standardise=True).fit(x, y)
    wild = BayesianLinearRegression(standardise=True).fit(x * unit + 3.0 * unit, y)
    piped = make_pipeline(StandardScaler(), BayesianLinearRegression()).fit(x, y)
    np.testing.assert_allclose(wild.coef_ * unit, plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(wild.covariance_ * np.outer(unit, unit), plain.covariance_, rtol=1e-6)
    assert wild.log_evidence_ == pytest.approx(plain.log_evidence_, rel=1e-9)
    np.testing.assert_allclose(piped.predict(x), plain.predict(x), rtol=1e-9)


def test_unlike_units_are_reported_where_they_matter(diabetes: Any) -> None:
    x, y = diabetes
    with pytest.warns(FitWarning, match="differ in size by a factor of"):
        found = BayesianLinearRegression().fit(x * np.logspace(0.0, 6.0, x.shape[1]), y)
    assert "standardise=True" in found.events_[0]


def test_intervals_hold_what_they_say() -> None:
    """400 problems from the prior, one new row each: 95% intervals hold 0.95 within 4 errors; false alarms 6e-5.

    Alpha and beta are those of the prior, so that the statement is exact; intervals of noise alone hold fewer.
    """
    rng = np.random.default_rng(0)
    inside, bare = [], []
    for _ in range(400):
        theta, x = rng.normal(size=10) * 2.0, rng.normal(size=(16, 10))
        y = x[:15] @ theta + 3.0 + 0.5 * rng.normal(size=15)
        mean, deviation = BayesianLinearRegression(0.25, 4.0).fit(x[:15], y).predict(x[15:], return_std=True)
        gap = abs(mean[0] - (x[15] @ theta + 3.0 + 0.5 * rng.normal()))
        inside.append(gap < 1.96 * deviation[0])
        bare.append(gap < 1.96 * 0.5)
    assert abs(np.mean(inside) - 0.95) < 4.0 * (0.95 * 0.05 / 400) ** 0.5
    assert np.mean(bare) < 0.75


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "source", "pandas", "polars", "tensor", "memmap"])
def test_any_table_gives_the_same(kind: str, diabetes: Any, tmp_path: Path) -> None:
    x, y = diabetes
    frame = pd.DataFrame(x, columns=[f"c{j}" for j in range(x.shape[1])])
    if kind == "csv":
        frame.to_csv(tmp_path / "x.csv", index=False)
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "x.parquet")
    elif kind in ("npy", "memmap"):
        np.save(tmp_path / "x.npy", x)
    table: Any = {
        "source": ArraySource(torch.from_numpy(x)),
        "pandas": frame,
        "polars": pl.from_pandas(frame),
        "tensor": torch.from_numpy(x),
    }.get(kind, tmp_path / f"x.{kind}")
    if kind == "memmap":
        table = np.load(tmp_path / "x.npy", mmap_mode="r")
    found, plain = BayesianLinearRegression().fit(table, y), BayesianLinearRegression().fit(x, y)
    np.testing.assert_allclose(found.coef_, plain.coef_, rtol=1e-9)
    np.testing.assert_allclose(found.predict(table), plain.predict(x), rtol=1e-9)
    assert found.n_features_in_ == x.shape[1]


def test_a_file_that_is_not_held(diabetes: Any, tmp_path: Path) -> None:
    x, y = diabetes
    pd.DataFrame(x, columns=[f"c{j}" for j in range(x.shape[1])]).to_csv(tmp_path / "x.csv", index=False)
    pd.DataFrame({"y": y}).to_csv(tmp_path / "y.csv", index=False)
    found = BayesianLinearRegression().fit(open_source(tmp_path / "x.csv", memory=0), tmp_path / "y.csv")
    np.testing.assert_allclose(found.coef_[0], BayesianLinearRegression().fit(x, y).coef_, rtol=1e-8)


def test_several_outputs(diabetes: Any) -> None:
    x, y = diabetes
    both = np.stack([y, 3.0 - 0.1 * y], 1)
    found = BayesianLinearRegression().fit(x, both)
    one = BayesianLinearRegression().fit(x, y)
    assert found.coef_.shape == (2, 10)
    assert found.covariance_.shape == (2, 10, 10)
    np.testing.assert_allclose(found.coef_, np.stack([one.coef_, -0.1 * one.coef_]), rtol=1e-8)
    np.testing.assert_allclose(found.beta_, [one.beta_, 100.0 * one.beta_], rtol=1e-8)
    mean, deviation = found.predict(x[:3], return_std=True)
    assert mean.shape == deviation.shape == (3, 2)
    assert found.score(x, both) == pytest.approx(one.score(x, y), rel=1e-9)


def test_weights_are_repetitions(diabetes: Any) -> None:
    x, y = diabetes
    weight = np.random.default_rng(0).integers(0, 3, len(x))
    heavy = BayesianLinearRegression().fit(x, y, sample_weight=weight)
    often = BayesianLinearRegression().fit(np.repeat(x, weight, 0), np.repeat(y, weight))
    np.testing.assert_allclose(heavy.coef_, often.coef_, rtol=1e-8)
    assert heavy.log_evidence_ == pytest.approx(often.log_evidence_, rel=1e-10)
    assert heavy.n_samples_seen_ == weight.sum()


@pytest.mark.parametrize("several", [False, True])
def test_files_bring_back_what_was_saved(several: bool, diabetes: Any, tmp_path: Path) -> None:
    x, y = diabetes
    frame = pd.DataFrame(x, columns=[f"c{j}" for j in range(x.shape[1])])
    fit = BayesianLinearRegression(standardise=True).fit(frame, np.stack([y, -y], 1) if several else y)
    fit.save(tmp_path / "fit.boxloop")
    back = boxloop.load(tmp_path / "fit.boxloop")
    assert isinstance(back, BayesianLinearRegression)
    for ours, theirs in zip(
        back.predict(frame, return_std=True), fit.predict(frame, return_std=True), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(back.covariance_, fit.covariance_)
    assert back.get_params() == fit.get_params()
    assert list(back.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame.rename(columns={"c0": "other"}))


def test_a_file_of_another_estimator(tmp_path: Path, diabetes: Any) -> None:
    boxloop.ProbabilisticPCA(1).fit(diabetes[0]).save(tmp_path / "fa.boxloop")
    with pytest.raises(ModelFileError):
        BayesianLinearRegression.load(tmp_path / "fa.boxloop")


def test_bad_input_is_reported_by_name(diabetes: Any) -> None:
    x, y = diabetes
    missing = pd.DataFrame(x, columns=[f"c{j}" for j in range(x.shape[1])])
    missing.loc[3, "c4"] = np.nan
    fit = BayesianLinearRegression()
    with pytest.raises(ValueError, match="'c4' has a missing value"):
        fit.fit(missing, y)
    with pytest.raises(ValueError, match="Input y contains NaN"):
        fit.fit(x, np.where(np.arange(len(y)) == 5, np.nan, y))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        fit.fit(x, y[:-1])
    with pytest.raises(ValueError, match="target y is None"):
        fit.fit(x, None)
    with pytest.raises(ValueError, match="one dimension or two"):
        fit.fit(x, np.zeros((len(x), 1, 1)))
    with pytest.raises(ValueError, match="442 rows and the second 441"):
        fit.fit(ArraySource(torch.from_numpy(x)), y[:-1])
    with pytest.raises(TypeError, match="Sparse data was passed"):
        fit.fit(csr_array(x), y)
    with pytest.raises(ValueError, match="'alpha' parameter"):
        BayesianLinearRegression(-1.0).fit(x, y)


@pytest.mark.parametrize("y", [np.zeros(20), np.full(20, 7.0)])
def test_outputs_that_are_all_alike(y: np.ndarray) -> None:
    x = np.random.default_rng(0).normal(size=(20, 3))
    with pytest.warns(FitWarning):
        found = BayesianLinearRegression().fit(x, y)
    mean, deviation = found.predict(x, return_std=True)
    np.testing.assert_allclose(mean, y, atol=1e-6)
    assert np.isfinite(deviation).all()
    assert np.isfinite(found.log_evidence_)


def test_it_is_a_good_citizen(diabetes: Any) -> None:
    x, y = diabetes
    fit = BayesianLinearRegression(standardise=True)
    assert cross_val_score(fit, x, y, cv=5).mean() > 0.45
    assert clone(fit).get_params() == fit.get_params()
    assert repr(fit) == "BayesianLinearRegression(standardise=True)"
    assert 0.0 < fit.fit(x, y).n_effective_ < fit.rank_ == 10


def test_values_far_from_zero_lose_no_noise() -> None:
    draws = np.random.default_rng(0)
    X = draws.normal(size=(200, 3))
    y = X @ [1.0, -2.0, 0.5] + 0.1 * draws.normal(size=200)
    near, far = BayesianLinearRegression().fit(X, y), BayesianLinearRegression().fit(X + 1e8, y + 1e8)
    assert far.beta_ == pytest.approx(near.beta_, rel=1e-4)
    np.testing.assert_allclose(far.coef_, near.coef_, rtol=1e-5)


SIZES = (1e-150, 1e-70, 1e-8, 1e8, 1e70, 1e150)


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("fit_intercept", [False, True])
def test_sizes_of_columns_and_outputs_change_units_alone(fit_intercept: bool, standardise: bool) -> None:
    """The same fit in other units, or a refusal that names the sizes where alpha is beyond float64."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 3))
    y = 2.0 + X @ [1.0, -2.0, 0.5] + 0.5 * rng.normal(size=100)
    made = {"fit_intercept": fit_intercept, "standardise": standardise}
    one = BayesianLinearRegression(**made).fit(X, y)
    mean, deviation = one.predict(X, return_std=True)
    refused = 0
    for a, b in itertools.product((1.0, *SIZES), (1.0, *SIZES)):
        try:
            other = BayesianLinearRegression(**made).fit(a * X, b * y)
        except ValueError as error:
            assert "columns (about" in str(error)  # noqa: PT017 - which of the two sizes are too far apart varies
            assert abs(np.log10(a / b)) > 150.0
            refused += 1
            continue
        found, spread = other.predict(a * X, return_std=True)
        np.testing.assert_allclose(found / b, mean, rtol=1e-6)
        np.testing.assert_allclose(spread / b, deviation, rtol=1e-6)
        np.testing.assert_allclose(other.coef_ * (a / b), one.coef_, rtol=1e-6)
        count = 99 if fit_intercept else 100
        assert other.log_evidence_ == pytest.approx(one.log_evidence_ - count * np.log(b), rel=1e-6, abs=1e-6)
        np.testing.assert_allclose(
            [other.n_effective_, other.beta_ * b * b], [one.n_effective_, one.beta_], rtol=1e-6
        )
    assert refused <= 12


@pytest.mark.parametrize(("size", "words"), [(1e200, "above 1e\\+152"), (1e153, "of size [1-9]")])
def test_columns_whose_squares_overflow_are_refused_with_their_size(size: float, words: str) -> None:
    """Of the larger ones the message said that their values have the size nan."""
    X = np.random.default_rng(0).normal(size=(60, 3)) * [1.0, size, 1.0]
    with pytest.raises(ValueError, match=f"(?i)column 'x1' has values {words}.*, whose squares"):
        BayesianLinearRegression().fit(X, X[:, 0])


def test_given_precisions_are_in_the_units_of_the_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(50, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=50)
    one = BayesianLinearRegression(alpha=2.0, beta=0.7).fit(X, y)
    other = BayesianLinearRegression(alpha=2.0 * 1e6, beta=0.7e-6).fit(1e6 * X, 1e3 * y)
    assert other.alpha_ == pytest.approx(2e6, rel=1e-12)
    np.testing.assert_allclose(other.coef_ * 1e3, one.coef_, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-200, 1e-160, 1e160, 1e200])
def test_a_column_beyond_float64_is_named(size: float) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2)) * [1.0, size]
    with pytest.raises(ValueError, match="x1"):
        BayesianLinearRegression().fit(X, np.arange(50.0))
