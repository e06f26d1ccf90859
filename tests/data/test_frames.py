"""Data frames of three libraries."""

from __future__ import annotations

import datetime
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas
import polars
import pyarrow as pa
import pytest
import torch

from boxloop import GaussianMixture
from boxloop.data import open_source

NAN = np.nan
MIXED = {"i": [1, 2, 3], "f": [0.5, NAN, 2.5], "b": [True, False, True]}
NULLS = {"i": [1, None, 3], "f": [0.5, None, 2.5], "b": [True, None, False], "big": [2**60, 1, 2]}


@pytest.mark.parametrize(
    "frame", [pandas.DataFrame(MIXED), polars.DataFrame(MIXED), pa.table(MIXED)], ids=type
)
def test_numbers_and_truth_values(frame: object) -> None:
    source = open_source(frame)
    assert source.names == ("i", "f", "b")
    np.testing.assert_array_equal(source.rows.numpy(), [[1, 0.5, 1], [2, NAN, 0], [3, 2.5, 1]])


@pytest.mark.parametrize(
    "frame",
    [
        pandas.DataFrame(NULLS).convert_dtypes(),
        pandas.DataFrame(NULLS).convert_dtypes(dtype_backend="pyarrow"),
        polars.DataFrame(NULLS),
        polars.LazyFrame(NULLS),
        pa.table(NULLS),
    ],
    ids=["pandas", "pandas over Arrow", "polars", "polars, lazy", "Arrow"],
)
def test_nulls_are_missing(frame: object) -> None:
    expected = [[1, 0.5, 1, 2.0**60], [NAN, NAN, NAN, 1], [3, 2.5, 0, 2]]
    np.testing.assert_array_equal(open_source(frame).rows.numpy(), expected)


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pa.table])
@pytest.mark.parametrize("odd", [["x", "y"], [datetime.date(2020, 1, 1)] * 2])
def test_other_columns_are_refused_by_name(make: type, odd: list[object]) -> None:
    with pytest.raises(ValueError, match=r"column 'odd' is not numeric \(its type is"):
        open_source(make({"a": [1.0, 2.0], "odd": odd}))


@pytest.mark.parametrize(
    "column", [pandas.Categorical(["x", "y"]), pandas.array([1, "y"], dtype=object), np.array([1 + 2j, 2])]
)
def test_pandas_categories_objects_and_complex_are_refused(column: object) -> None:
    with pytest.raises(ValueError, match="column 'odd' is not numeric"):
        open_source(pandas.DataFrame({"odd": column}))


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame, pa.table])
def test_columns_are_chosen_and_weights_taken_by_name(make: type) -> None:
    frame = make({"a": [1.0, 2.0], "label": ["x", "y"], "w": [1, 3], "b": [5.0, 6.0]})
    source = open_source(frame, weight="w", columns=["b", "a"])
    assert source.names == ("b", "a")
    np.testing.assert_array_equal(source.rows.numpy(), [[5.0, 1.0], [6.0, 2.0]])
    np.testing.assert_array_equal(source.weight.numpy(), [1.0, 3.0])
    with pytest.raises(ValueError, match="there is no column 'v'; there are a, label, w, b"):
        open_source(frame, weight="v")


def test_names_that_are_numbers_become_text() -> None:
    assert open_source(pandas.DataFrame(np.ones((2, 3)))).names == ("0", "1", "2")


def test_a_name_that_occurs_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="more than once"):
        open_source(pandas.DataFrame(np.ones((2, 2)), columns=["a", "a"]))


def test_a_frame_of_one_column_of_weights_has_no_columns() -> None:
    with pytest.raises(ValueError, match=r"0 feature\(s\) \(shape=\(2, 0\)\)"):
        open_source(pandas.DataFrame({"w": [1.0, 2.0]}), weight="w")


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("values", [[3, 1, None, 3], [0.5, NAN, 2.0, 0.5], [True, False, None, True]])
def test_categories_that_are_numbers(values: list[float | None], ordered: bool, tmp_path: Path) -> None:
    """The same from pandas, Arrow, Parquet and Dask."""
    frame = pandas.DataFrame({"a": pandas.Categorical(values, ordered=ordered), "b": np.arange(4.0)})
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = np.stack([np.array(values, dtype=float), np.arange(4.0)], 1)
    for data in (
        frame,
        pa.table({"a": pa.array(values, from_pandas=True).dictionary_encode(), "b": np.arange(4.0)}),
        tmp_path / "t.parquet",
        dd.from_pandas(frame, npartitions=2),
    ):
        rows = torch.cat([tile for tile, _ in open_source(data).chunks()])
        np.testing.assert_array_equal(rows, wanted)


@pytest.mark.parametrize("make", [pandas.DataFrame, polars.DataFrame])
@pytest.mark.parametrize("odd", [["x", "y"] * 3, [datetime.datetime(2020, 1, 1)] * 6])
@pytest.mark.parametrize("alone", [True, False])
def test_estimators_refuse_text_and_times_as_dask_does(make: type, odd: list[object], alone: bool) -> None:
    frame = make({"odd": odd} if alone else {"odd": odd, "a": np.arange(6.0)})
    with pytest.raises(ValueError, match=r"^column 'odd' is not numeric \(its type is"):
        GaussianMixture(1).fit(frame)
    if make is pandas.DataFrame:
        with pytest.raises(ValueError, match=r"^partition 0: column 'odd' is not numeric \(its type is"):
            GaussianMixture(1).fit(dd.from_pandas(frame, npartitions=1))


def test_estimators_convert_objects_that_are_numbers() -> None:
    frame = pandas.DataFrame({"a": np.array([1, 2.5, True, None], dtype=object), "b": np.arange(4.0)})
    np.testing.assert_allclose(GaussianMixture(1).fit(frame[:3]).means_, [[1.5, 1.0]])
