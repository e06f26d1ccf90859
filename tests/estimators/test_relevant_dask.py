"""Two views whose rows are elsewhere: in partitions, or in files that are not held."""

import pickle
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone

from boxloop import RelevantClassifier, RelevantFeatures, RelevantGenerator
from boxloop.data import ConcatenatedRows, MapReader, StreamSource, dask_source, open_source
from boxloop.numeric import generator
from boxloop.twoview import BLOCK, GaussianNoise, draw_second_view

N = 300
LINEAR = {"x_features": "linear", "y_features": "linear"}


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
    fit = RelevantFeatures(1, **LINEAR).fit(X, Y)
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


def halved(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """A channel of other columns than it is given."""
    return rows[:, :2] + torch.randn(len(rows), 1, generator=generator)


def test_a_channel_draws_the_same_in_every_tile(tmp_path: Path) -> None:
    parts = dask_source(da.from_array(np.vstack([table()] * 3), chunks=(170, 3)))
    held = open_source(np.vstack([table()] * 3))
    stream = StreamSource(MapReader(held.rows.numpy()), parts.names)
    one, other = (draw_second_view(halved, first, generator(0)) for first in (parts, stream))
    assert (one.names, one.n_rows) == (("x0", "x1"), 3 * N)
    whole = torch.cat([rows for rows, _ in one.chunks(BLOCK)])
    for again in (one, other):
        for size in (None, 17, 300):
            assert torch.equal(torch.cat([rows for rows, _ in again.chunks(size)]), whole)
        assert torch.equal(again.reduce(lambda rows, weight: ConcatenatedRows.of(rows)).concatenate(), whole)
    noise = (whole - held.rows[:, :2])[:, 0]
    assert len(noise.unique()) > 0.99 * len(noise)
    assert abs(float(noise.mean())) < 4.0 / len(noise) ** 0.5


def test_a_channel_works_where_the_rows_are() -> None:
    smooth = RelevantFeatures(2, channel=GaussianNoise(0.5), random_state=0, **LINEAR)
    parts = da.from_array(table(), chunks=(100, 3))
    stream = StreamSource(MapReader(table()), ("x0", "x1", "x2"))
    one, other = (clone(smooth).fit(rows) for rows in (parts, stream))
    np.testing.assert_allclose(one.correlation_, other.correlation_, rtol=1e-10)
    assert one.score(parts) == pytest.approx(other.score(stream), rel=1e-10)
    np.testing.assert_allclose(one.correlation_, clone(smooth).fit(table()).correlation_, atol=0.1)
    again = pickle.loads(pickle.dumps(one))
    np.testing.assert_allclose(again.expect(given=parts).mean, one.expect(given=parts).mean, rtol=1e-12)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_a_generator_is_trained_on_rows_that_are_elsewhere(tmp_path: Path) -> None:
    start = RelevantGenerator(1, hidden=(8,), max_iter=2, learning_rate=0.02, random_state=0)
    parts = da.from_array(table(), chunks=(100, 3))
    stream = StreamSource(MapReader(table()), ("x0", "x1", "x2"))
    one, other = (clone(start).fit(rows) for rows in (parts, stream))
    assert one.error_ == pytest.approx(other.error_, rel=1e-4)  # networks are in float32
    assert one.transform(parts).shape == (N, 1)
