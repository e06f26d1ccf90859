"""Outliers: the guarantee of the p-values, the threshold, the reasons."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from scipy.stats import betabinom, binom
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.neighbors import KernelDensity
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import boxloop
from boxloop.select import OutlierDetector, SelectionWarning, conformal_p_values
from estimators.cases import CASES, Case, blobs, over

ALARM = 1e-4
"""Chance that a test of the guarantee fails where nothing is wrong."""


def skewed(n: int, seed: int) -> np.ndarray:
    """Rows that no Gaussian fits."""
    return np.exp(np.random.default_rng(seed).normal(size=(n, 2)))


@pytest.mark.parametrize("level", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(
    "estimator", [boxloop.GaussianMixture(), KernelDensity(bandwidth=0.3)], ids=["wrong", "kernel"]
)
def test_false_alarms_follow_their_distribution(estimator: Any, level: float) -> None:
    """Given n calibration rows with continuous scores, the alarms among m new rows are beta-binomial, exactly.

    r = floor(level (n + 1)) of n + 1 equally likely ranks raise one: BetaBinomial(m, r, n + 1 - r), mean at most
    m * level. The bounds leave out ALARM of it.
    """
    detector = OutlierDetector(estimator, level=level).fit(skewed(400, 0))
    n, m = len(detector.calibration_scores_), 3000
    rank = int(level * (n + 1))
    alarms = int((detector.predict(skewed(m, 1)) == -1).sum())
    low, high = betabinom(m, rank, n + 1 - rank).ppf([ALARM / 2, 1.0 - ALARM / 2])
    assert low <= alarms <= high
    assert rank / (n + 1) <= level


def test_the_guarantee_holds_with_a_handful_of_rows() -> None:
    """Over 1000 splits of tiny samples a false alarm at level 0.2 has chance floor(0.2 * 9) / 9 = 1/9, exactly.

    Every repetition is independent, so the count is binomial; the bounds leave out ALARM of it.
    """

    class Distance(KernelDensity):
        def fit(self, X: np.ndarray, y: object = None) -> Any:
            self.centre_ = X.mean(0)
            self.n_features_in_ = X.shape[1]
            return self

        def score_samples(self, X: np.ndarray) -> np.ndarray:
            return -np.abs(X - self.centre_).sum(1)

    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(1000):
        rows = rng.standard_cauchy((17, 1))
        detector = OutlierDetector(Distance(), level=0.2, random_state=rng).fit(rows[:16])
        alarms += int(detector.predict(rows[16:])[0] == -1)
    low, high = binom(1000, 1.0 / 9.0).ppf([ALARM / 2, 1.0 - ALARM / 2])
    assert low <= alarms <= high


def test_p_values_are_counts() -> None:
    detector = OutlierDetector(boxloop.GaussianMixture(), calibration=0.25).fit(blobs(200))
    assert len(detector.calibration_scores_) == 50
    new = blobs(300, seed=1)
    scores = detector.score_samples(new)
    counted = [(1 + np.sum(detector.calibration_scores_ <= s)) / 51 for s in scores]
    np.testing.assert_allclose(detector.p_values(new), counted, rtol=1e-15)


@pytest.mark.parametrize("level", [0.05, 0.29, 0.07, 0.5, 0.99, 1 / 51, 3 / 51])
def test_flagged_means_p_at_most_level(level: float) -> None:
    """Also for calibration rows, whose scores tie with one of the calibration scores."""
    X = blobs(200)
    detector = OutlierDetector(boxloop.GaussianMixture(), level=level, calibration=0.25).fit(X)
    assert ((detector.predict(X) == -1) == (detector.p_values(X) <= level)).all()
    assert ((detector.decision_function(X) < 0) == (detector.predict(X) == -1)).all()


def test_the_estimator_does_not_see_the_calibration_rows() -> None:
    seen = []

    class Spy(KernelDensity):
        def fit(self, X: np.ndarray, y: object = None) -> Any:
            seen.append(X)
            return super().fit(X)

    X = np.arange(40.0)[:, None]
    detector = OutlierDetector(Spy(), calibration=0.3, level=0.1).fit(X)
    assert len(seen[0]) == 28
    held = np.setdiff1d(X, seen[0])
    np.testing.assert_allclose(
        detector.calibration_scores_, np.sort(detector.estimator_.score_samples(held[:, None]))
    )


def test_too_few_rows_to_flag_any() -> None:
    with pytest.warns(SelectionWarning, match="5 calibration rows give no p-value below 0.167") as record:
        detector = OutlierDetector(boxloop.GaussianMixture()).fit(blobs(10)[:, :1])
    assert record[0].filename == __file__
    far = [[1e6]]
    assert detector.predict(far) == 1
    assert detector.p_values(far) == pytest.approx(1 / 6)
    assert detector.decision_function(far) == np.inf


@pytest.mark.parametrize("share", [0.1, 0.35, 0.5])
def test_a_share_of_the_training_rows(share: float) -> None:
    X = blobs(351)
    detector = OutlierDetector(boxloop.GaussianMixture(2), contamination=share).fit(X)
    flagged = detector.predict(X) == -1
    assert flagged.sum() == int(np.ceil(share * 350))
    scores = detector.score_samples(X)
    assert scores[flagged].max() < scores[~flagged].min()
    assert detector.offset_ == pytest.approx(np.quantile(scores, share), rel=1e-8)
    with pytest.raises(AttributeError, match="p_values"):
        detector.p_values(X)


def test_planted_outliers_are_found_with_their_columns() -> None:
    """Each row breaks the dependence between two columns or leaves the range of one; only that column is named."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(600, 1))
    X = np.hstack([base, base + 0.1 * rng.normal(size=(600, 1)), rng.normal(size=(600, 2))])
    scale, shift = np.array([1.0, 1e6, 1e-6, 1.0]), np.array([0.0, -3e6, 0.0, 5.0])
    strange = np.zeros((3, 4))
    strange[0, 2] = 7.0
    strange[1, 3] = -8.0
    strange[2, :2] = 1.0, -1.0
    frame = pd.DataFrame(X * scale + shift, columns=["a", "b", "c", "d"])
    planted = pd.DataFrame(strange * scale + shift, columns=frame.columns, index=["x", "y", "z"])
    detector = OutlierDetector(boxloop.GaussianMixture(), level=0.01).fit(frame)
    assert (detector.predict(planted) == -1).all()
    found = detector.reasons(planted, top=2)
    assert found.index.tolist() == ["x", "y", "z"]
    assert found["column 1"].tolist()[:2] == ["c", "d"], "whatever the units"
    assert set(found.loc["z", ["column 1", "column 2"]]) == {"a", "b"}
    assert (found["drop 1"] > 10.0).all()
    assert (found.loc[["x", "y"], "drop 2"] < 3.0).all()


def test_the_drop_is_a_conditional_density() -> None:
    X = blobs(300)
    model = boxloop.GaussianMixture(covariance_type="full")
    detector = OutlierDetector(model).fit(X)
    new = blobs(5, seed=1)
    found = detector.reasons(new, top=3)
    mean, cov = detector.estimator_.means_[0], detector.estimator_.covariances_[0]
    precision = np.linalg.inv(cov)

    def conditional(rows: np.ndarray) -> np.ndarray:
        variance = 1.0 / np.diag(precision)
        off = (rows - mean) @ precision * variance
        return -0.5 * (off**2 / variance + np.log(2 * np.pi * variance))

    held = np.isclose(detector.score_samples(X)[:, None], detector.calibration_scores_, rtol=1e-10).any(1)
    assert held.sum() == len(detector.calibration_scores_)
    usual = np.median(conditional(X[held]), axis=0)
    drop = np.sort(usual - conditional(new), axis=1)[:, ::-1]
    np.testing.assert_allclose(found[["drop 1", "drop 2", "drop 3"]], drop, rtol=1e-6, atol=1e-9)


def test_the_reasons_do_not_depend_on_units() -> None:
    X, new = blobs(200), blobs(20, seed=1)
    scale = np.array([1e-5, 1.0, 1e7])
    one = OutlierDetector(boxloop.GaussianMixture()).fit(X).reasons(new)
    two = OutlierDetector(boxloop.GaussianMixture()).fit(X * scale).reasons(new * scale)
    assert (one["column 1"] == two["column 1"]).all()
    np.testing.assert_allclose(one["drop 1"], two["drop 1"], rtol=1e-5, atol=1e-7)


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
@over(CASES)
def test_every_estimator_of_ours_gives_reasons(case: Case) -> None:
    detector = OutlierDetector(case.quick()).fit(case.rows(100))
    found = detector.reasons(case.rows(4, 1), top=99)
    assert found.shape == (4, 2 * case.rows(1).shape[1])
    assert (np.diff(found.filter(like="drop").to_numpy(), axis=1) <= 0.0).all()


def test_a_missing_value_is_no_reason() -> None:
    X = blobs(200)
    X[::7, 0] = np.nan
    detector = OutlierDetector(boxloop.GaussianMixture()).fit(X)
    found = detector.reasons([[np.nan, 30.0, 0.0], [0.0, 0.0, 0.0]], top=3)
    assert found.loc[0, "column 1"] == "x1"
    assert pd.isna(found.loc[0, "column 3"])
    assert pd.isna(found.loc[0, "drop 3"])
    one = OutlierDetector(boxloop.GaussianMixture()).fit(X[:, 1:2]).reasons([[50.0]])
    assert one.loc[0, "column 1"] == "x0"


def test_sparse_rows_have_reasons_too() -> None:
    case = next(case for case in CASES if case.name == "multinomial")
    X = case.rows(100)
    detector = OutlierDetector(case.quick()).fit(sparse.csr_matrix(X))
    dense = OutlierDetector(case.quick()).fit(X)
    np.testing.assert_allclose(detector.score_samples(sparse.csr_matrix(X)), dense.score_samples(X))
    pd.testing.assert_frame_equal(detector.reasons(sparse.csr_matrix(X[:3])), dense.reasons(X[:3]))


def test_a_pipeline_inside() -> None:
    X = blobs(100)
    piped = OutlierDetector(make_pipeline(StandardScaler(), boxloop.GaussianMixture())).fit(X)
    plain = OutlierDetector(boxloop.GaussianMixture()).fit(X)
    np.testing.assert_allclose(piped.p_values(blobs(50, seed=1)), plain.p_values(blobs(50, seed=1)))


def test_estimators_without_missing_values_say_so() -> None:
    detector = OutlierDetector(KernelDensity()).fit(blobs(100))
    with pytest.raises(TypeError, match="KernelDensity does not"):
        detector.reasons(blobs(3))
    with pytest.raises(ValueError, match="NaN"):
        detector.predict(np.full((1, 3), np.nan))


def test_the_seed_decides_the_split() -> None:
    X = blobs(100)
    scores = [
        OutlierDetector(boxloop.GaussianMixture(2), random_state=seed).fit(X).calibration_scores_
        for seed in (0, 0, 1)
    ]
    assert (scores[0] == scores[1]).all()
    assert (scores[0] != scores[2]).any()


def test_a_second_fit_forgets_the_first() -> None:
    detector = OutlierDetector(boxloop.GaussianMixture()).fit(blobs(100))
    detector.reasons(blobs(3))
    detector.set_params(contamination=0.1).fit(blobs(100)[:, :2])
    assert "calibration_scores_" not in vars(detector)
    assert detector.reasons(blobs(3)[:, :2]).shape == (3, 4)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"contamination": 0.6}, "contamination"),
        ({"contamination": 0.0}, "contamination"),
        ({"contamination": "some"}, "contamination"),
        ({"level": 0.0}, "level"),
        ({"level": 1.0}, "level"),
        ({"calibration": 0.0}, "calibration"),
        ({"calibration": 1.0}, "calibration"),
        ({"estimator": StandardScaler()}, "estimator"),
    ],
)
def test_bad_parameters(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutlierDetector(**{"estimator": boxloop.GaussianMixture(), **more}).fit(blobs(50))


def test_bad_rows() -> None:
    detector = OutlierDetector(boxloop.GaussianMixture())
    with pytest.raises(NotFittedError):
        detector.predict(blobs(3))
    with pytest.raises(ValueError, match="n_samples=1"):
        detector.fit(blobs(1))
    detector.fit(blobs(50))
    with pytest.raises(ValueError, match="top"):
        detector.reasons(blobs(3), top=0)
    with pytest.raises(ValueError, match="2 features"):
        detector.reasons(blobs(3)[:, :2])


def test_scores_of_anything_serve() -> None:
    """A forest's scores are no densities, but the guarantee does not need them to be."""
    detector = OutlierDetector(IsolationForest(n_estimators=10), level=0.1).fit(skewed(200, 0))
    assert detector.predict([[1e3, 1e3]]) == -1


def test_a_model_that_is_already_fitted_is_not_fitted_again() -> None:
    rows = np.random.default_rng(0).normal(size=(200, 2))
    model = boxloop.GaussianMixture().fit(rows[:50])
    detector = OutlierDetector(FrozenEstimator(model)).fit(rows[50:])
    assert detector.estimator_.estimator is model
    np.testing.assert_array_equal(detector.score_samples(rows), model.score_samples(rows))


def test_a_row_is_a_tie_with_itself_wherever_it_is_judged() -> None:
    """The last digit of a log-density depends on the tile that its row is in."""
    X = blobs(300)
    detector = OutlierDetector(boxloop.GaussianMixture(2, random_state=0), level=0.1).fit(X)
    whole, held = detector.p_values(X), detector.calibration_scores_
    for size in (1, 7, 64):
        parts = np.concatenate([detector.p_values(X[i : i + size]) for i in range(0, 300, size)])
        np.testing.assert_array_equal(parts, whole)
    assert ((detector.predict(X) == -1) == (whole <= 0.1)).all()
    for nudge in (-1e-13, 1e-13):
        moved = conformal_p_values(held, held + nudge * abs(held))
        np.testing.assert_allclose(moved, np.arange(2.0, len(held) + 2.0) / (len(held) + 1.0))


def test_reasons_of_rows_from_a_file_know_their_names(tmp_path: Any) -> None:
    table = pd.DataFrame(blobs(200), columns=["a", "b", "c"])
    table.to_csv(tmp_path / "rows.csv", index=False)
    detector = OutlierDetector(boxloop.GaussianMixture(2, random_state=0)).fit(tmp_path / "rows.csv")
    assert set(detector.reasons(tmp_path / "rows.csv", top=1)["column 1"]) <= {"a", "b", "c"}
