"""Searches and detectors on disk: with the estimator inside they come back as they were; damaged files are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.frozen import FrozenEstimator
from sklearn.mixture import GaussianMixture as Theirs

import boxloop
from boxloop import FactorAnalysis, GaussianMixture, ModelSearchCV, OutlierDetector
from boxloop.persist import ModelFileError, load_tree, read_container, save_tree

GRID = {"n_components": range(1, 3), "covariance_type": ["full", "diag"]}


def rows(n: int = 200) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.normal(size=(n, 3)) + 4.0 * rng.integers(2, size=(n, 1))


def frame() -> pd.DataFrame:
    return pd.DataFrame(rows(), columns=["age", "height", "weight"])


@pytest.mark.parametrize("make", [rows, frame])
def test_a_search_comes_back(tmp_path: Path, make: Any) -> None:
    X = make()
    search = ModelSearchCV(GaussianMixture(random_state=0), GRID, cv=3).fit(X)
    search.save(tmp_path / "search.boxloop")
    back = boxloop.load(tmp_path / "search.boxloop")
    assert type(back) is ModelSearchCV
    for name in ("best_params_", "best_score_", "best_index_", "n_splits_", "n_features_in_"):
        assert getattr(back, name) == getattr(search, name)
    assert list(back.cv_results_) == list(search.cv_results_)
    for name, column in search.cv_results_.items():
        assert type(back.cv_results_[name]) is type(column)
        np.testing.assert_array_equal(back.cv_results_[name], column)
    np.testing.assert_array_equal(back.score_samples(X), search.score_samples(X))
    assert back.param_grid == {"n_components": [1, 2], "covariance_type": ["full", "diag"]}
    assert back.set_params(checkpoint=None).fit(X).best_params_ == search.best_params_


@pytest.mark.parametrize("make", [rows, frame])
@pytest.mark.parametrize("contamination", ["auto", 0.1])
def test_a_detector_comes_back(tmp_path: Path, make: Any, contamination: Any) -> None:
    X = make()
    detector = OutlierDetector(GaussianMixture(2, random_state=0), contamination=contamination).fit(X)
    detector.save(tmp_path / "detector.boxloop")
    back = boxloop.load(tmp_path / "detector.boxloop")
    assert type(back) is OutlierDetector
    assert back.offset_ == detector.offset_
    np.testing.assert_array_equal(back.predict(X), detector.predict(X))
    pd.testing.assert_frame_equal(back.reasons(X[:5]), detector.reasons(X[:5]))
    if contamination == "auto":
        np.testing.assert_array_equal(back.p_values(X), detector.p_values(X))
    else:
        assert not hasattr(back, "p_values")


def test_a_detector_of_a_file_names_its_columns_again(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "rows.csv", index=False)
    detector = OutlierDetector(GaussianMixture(2, random_state=0), level=0.001)
    with pytest.warns(UserWarning, match="no row can be flagged"):
        detector.fit(tmp_path / "rows.csv")
    detector.save(tmp_path / "detector.boxloop")
    back = boxloop.load(tmp_path / "detector.boxloop")
    assert back.offset_ == -np.inf
    first, second = (one.reasons(tmp_path / "rows.csv") for one in (back, detector))
    pd.testing.assert_frame_equal(first, second)
    assert set(first["column 1"]) <= {"age", "height", "weight"}


def test_a_frozen_estimator_is_saved_as_it_is(tmp_path: Path) -> None:
    X = rows()
    fitted = FactorAnalysis(1).fit(X)
    detector = OutlierDetector(FrozenEstimator(fitted)).fit(X)
    detector.save(tmp_path / "detector.boxloop")
    back = boxloop.load(tmp_path / "detector.boxloop")
    np.testing.assert_array_equal(back.score_samples(X), fitted.score_samples(X))


def test_what_cannot_be_saved_says_why(tmp_path: Path) -> None:
    X = rows()
    path = tmp_path / "m.boxloop"
    with pytest.raises(TypeError, match="needs an estimator of boxloop inside"):
        OutlierDetector(Theirs(2)).fit(X).save(path)
    with pytest.raises(ValueError, match="refit=True"):
        ModelSearchCV(GaussianMixture(), {"n_components": [1]}, refit=False).fit(X).save(path)
    search = ModelSearchCV(GaussianMixture(), {"random_state": [np.random.RandomState(0)]}, cv=2).fit(X)
    with pytest.raises(ModelFileError, match="param_grid holds a RandomState"):
        search.save(path)
    assert not path.exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d["extra"].pop("inner"), "without the estimator inside"),
        (lambda d: d["extra"]["inner"].update(estimator="OutlierDetector"), "cannot be read"),
        (lambda d: d["extra"]["inner"].update(estimator="Popen"), "cannot be read"),
        (lambda d: d["extra"]["params"].update(contamination=0.1), "calibration scores do not belong"),
        (lambda d: d["extra"]["params"].update(level=7), "parameters that OutlierDetector refuses"),
        (lambda d: d["extra"]["inner"]["params"].update(n_components="many"), "GaussianMixture refuses"),
        (lambda d: d["extra"]["facts"].update(n_features_in_=2), "the model has 3 columns"),
    ],
)
def test_files_of_others_are_refused(tmp_path: Path, change: Any, message: str) -> None:
    path = tmp_path / "m.boxloop"
    OutlierDetector(GaussianMixture(2, random_state=0)).fit(rows()).save(path)
    rewrite(path, change)
    with pytest.raises(ModelFileError, match=message):
        boxloop.load(path)


def rewrite(path: Path, change: Any) -> None:
    """The same file with another description."""
    from boxloop.distributions import FullGaussian
    from boxloop.models import Mixture
    from boxloop.persist import Wrapped
    from boxloop.select import DetectorState

    classes = {kind.__name__: kind for kind in (Wrapped, Mixture, FullGaussian, DetectorState)}
    saved = load_tree(path, classes)
    document = {"extra": json.loads(json.dumps(read_container(path).document["extra"]))}
    change(document)
    save_tree(path, saved.tree, columns=saved.columns, extra=document["extra"])
