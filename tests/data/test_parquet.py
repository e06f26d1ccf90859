"""Parquet: types, nulls, pandas' index, damage."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from boxloop.data import open_source


def values(path: Path, **options: object) -> np.ndarray:
    return torch.cat([rows for rows, _ in open_source(path, memory=0, **options).chunks()]).numpy()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3], pa.int8()),
        pa.array([1, None, 2**60], pa.int64()),
        pa.array([1.5, None, 3], pa.float32()),
        pa.array(np.array([1.5, 0, 3], np.float16), mask=np.array([False, True, False])),
        pa.array([True, None, False]),
        pa.array([decimal.Decimal("1.25"), None, decimal.Decimal("3.5")]),
        pa.array([None, None, None], pa.null()),
    ],
    ids=lambda column: str(column.type),
)
def test_numbers_of_every_type(tmp_path: Path, column: pa.Array) -> None:
    parquet.write_table(pa.table({"a.b": column}), tmp_path / "t.parquet")
    expected = [np.nan if v is None else float(v) for v in column.to_pylist()]
    np.testing.assert_array_equal(values(tmp_path / "t.parquet")[:, 0], expected)


@pytest.mark.parametrize(
    "column",
    [
        pa.array(["x", "y"]),
        pa.array(["x", "y"]).dictionary_encode(),
        pa.array([datetime.date(2020, 1, 1)] * 2),
        pa.array([[1.0], [2.0]]),
        pa.array([{"z": 1.0}] * 2),
    ],
    ids=lambda column: str(column.type),
)
def test_other_types_are_refused_unless_left_out(tmp_path: Path, column: pa.Array) -> None:
    parquet.write_table(pa.table({"a": [1.0, 2.0], "odd": column}), tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: column 'odd' is not numeric \(its type is"):
        open_source(tmp_path / "t.parquet")
    np.testing.assert_array_equal(values(tmp_path / "t.parquet", columns=["a"]), [[1.0], [2.0]])


def test_the_index_of_pandas_is_not_a_column(tmp_path: Path) -> None:
    frame = pandas.DataFrame({"a": [1.0, 2.0]}, index=pandas.Index([7, 9], name="id"))
    frame.to_parquet(tmp_path / "t.parquet")
    assert open_source(tmp_path / "t.parquet").names == ("a",)


def test_the_number_of_rows_needs_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"a": np.zeros(1000)}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet", memory=0)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    assert source.n_rows == 1000


def test_a_file_that_is_not_parquet_is_named(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"t\.parquet: cannot be read as Parquet"):
        open_source(tmp_path / "t.parquet")


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": np.arange(1000.0)}), tmp_path / "t.parquet")
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.parquet"):
        open_source(tmp_path / "t.parquet")


def test_a_missing_file_is_not_a_fault_of_its_content(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"a": [1.0]}), tmp_path / "t.parquet")
    source = open_source(tmp_path / "t.parquet", memory=0)
    (tmp_path / "t.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        next(source.chunks())
