"""The order of a folder's files: that of Dask, which is that of people."""

from pathlib import Path
from typing import Any

import dask.dataframe as dd
import fsspec
import numpy as np
import pandas as pd
import pytest

import boxloop
from boxloop.data import dask_source, natural_sort_key, open_source, write_table

PARTS = 12


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(120, 3)), columns=["a", "b", "c"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As Dask writes it: part.0.parquet to part.11.parquet."""
    dd.from_pandas(table(), npartitions=PARTS).to_parquet(tmp_path / "rows", write_index=False)
    assert (tmp_path / "rows" / "part.11.parquet").exists()
    return tmp_path / "rows"


@pytest.mark.parametrize("opened", [str, dask_source])
def test_targets_at_hand_belong_to_the_rows_of_dasks_folders(opened: Any, folder: Path) -> None:
    y = np.arange(120.0) + table()["a"]
    here = boxloop.BayesianLinearRegression().fit(table(), y)
    there = boxloop.BayesianLinearRegression().fit(opened(folder), y)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-9)


def test_weights_at_hand_belong_to_the_rows_of_dasks_folders(folder: Path) -> None:
    mass = np.arange(120.0)
    here = boxloop.GaussianMixture(1).fit(table(), sample_weight=mass).means_
    for data in (dask_source(folder, mass), open_source(folder, mass, memory=0)):
        np.testing.assert_allclose(boxloop.GaussianMixture(1).fit(data).means_, here, rtol=1e-10)


def test_a_url_is_read_in_the_same_order(folder: Path) -> None:
    system = fsspec.filesystem("memory")
    for part in folder.iterdir():
        system.pipe(f"/in-order/{part.name}", part.read_bytes())
    np.testing.assert_array_equal(open_source("memory://in-order").rows, table())


def test_dates_are_in_order(tmp_path: Path) -> None:
    for day in (10, 9, 1):
        write_table(tmp_path / f"2024-1-{day}.csv", {"day": np.array([float(day)])})
    assert open_source(tmp_path).rows[:, 0].tolist() == [1.0, 9.0, 10.0]


def test_names_of_the_same_number_are_in_order_of_text() -> None:
    names = ["1", "01", "001", "1a", "a", "2", "x1y10", "x1y9", "x01y10", ""]
    wanted = ["", "001", "01", "1", "1a", "2", "a", "x1y9", "x01y10", "x1y10"]
    for given in (names, wanted):
        assert sorted(given, key=natural_sort_key) == wanted
