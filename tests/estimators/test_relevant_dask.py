"""Two views whose rows are elsewhere: in partitions, or in files that are not held."""

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from boxloop import RelevantClassifier, RelevantFeatures
from boxloop.data import dask_source, open_source

N = 300


def table() -> np.ndarray:
    rng = np.random.default_rng(0)
    shared = rng.normal(size=(N, 1))
    return np.hstack([shared + rng.normal(size=(N, 2)), shared])


def files(folder: Path) -> Path:
    pd.DataFrame(table(), columns=["a", "b", "c"]).to_parquet(folder / "rows.parquet", row_group_size=100)
    return folder / "rows.parquet"


def array(_: Path) -> tuple[Any, Any]:
    rows = da.from_array(table(), chunks=(100, 3))
    return rows[:, :2], rows[:, 2:]


def frame(_: Path) -> tuple[Any, Any]:
    rows = dd.from_pandas(pd.DataFrame(table(), columns=["a", "b", "c"]), npartitions=3)
    return rows[["a", "b"]], rows[["c"]]


def shared(folder: Path) -> tuple[Any, Any]:
    path = files(folder)
    return dask_source(path, columns=["a", "b"]), dask_source(path, columns=["c"])


def streamed(folder: Path) -> tuple[Any, Any]:
    path = files(folder)
    return open_source(path, columns=["a", "b"], memory=0), open_source(path, columns=["c"], memory=0)


@pytest.mark.parametrize("opened", [array, frame, shared, streamed])
def test_features_are_pickled(opened: Any, tmp_path: Path) -> None:
    X, Y = opened(tmp_path)
    fit = RelevantFeatures(1, x_features="linear", y_features="linear").fit(X, Y)
    again = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(again.transform(X), fit.transform(X))
    inferred = [one.expect(given=X).mean for one in (fit, again)]  # which goes back to the rows of the fit
    np.testing.assert_allclose(inferred[1], inferred[0], rtol=1e-12)


@pytest.mark.parametrize("opened", [array, frame, shared, streamed])
def test_a_classifier_is_pickled(opened: Any, tmp_path: Path) -> None:
    labels = np.where(table()[:, 2] > 0.0, "up", "down")
    given = opened(tmp_path)[0]
    fit = RelevantClassifier(1, features="linear", random_state=0).fit(given, labels)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fit)).predict(given), fit.predict(given))
