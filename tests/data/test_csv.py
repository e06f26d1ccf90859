"""CSV files: the values that are read, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from boxloop.data import CsvReader, stream_source

NAN = np.nan


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str, columns: list[str] | None = None, name: str = "t.csv") -> np.ndarray:
        raw = text.encode()
        (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
        source = stream_source(CsvReader(tmp_path / name), None, columns)
        rows = torch.cat([rows for rows, _ in source.chunks(2)]).numpy()
        assert source.n_rows == rows.shape[0]
        return rows

    return read


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2\n3,4\n", [[1, 2], [3, 4]]),
        ("a,b\n1,2\n3,4", [[1, 2], [3, 4]]),
        ("a,b\r\n1,2\r\n3,4\r\n", [[1, 2], [3, 4]]),
        ("\ufeffa,b\n1,2\n", [[1, 2]]),
        ("a,b\n,NA\nNaN,nan\nN/A,null\n", [[NAN, NAN]] * 3),
        ("a,b\n1,2\n\n3,4\n\n", [[1, 2], [3, 4]]),
        ("a\n1\n\n3\n", [[1], [NAN], [3]]),
        ('"a","b"\n"1.5","-2e3"\n', [[1.5, -2000]]),
        ("a,b\n 1 ,\t2\n", [[1, 2]]),
        ("a,b\ntrue,False\nTRUE,\n", [[1, 0], [1, NAN]]),
        ("a,b\n1,\n2,\n3.5,7\n", [[1, NAN], [2, NAN], [3.5, 7]]),
        ("a,b\n12345678901234567890,1\n", [[12345678901234567890, 1]]),
    ],
)
def test_values(read, text: str, expected: list[list[float]]) -> None:
    np.testing.assert_array_equal(read(text), np.array(expected, dtype=float))


def test_gzip(read) -> None:
    np.testing.assert_array_equal(read("a,b\n1,2\n", name="t.csv.gz"), [[1.0, 2.0]])


def test_a_text_column_that_is_not_used_is_not_parsed(read) -> None:
    np.testing.assert_array_equal(read("id,a\nx,1\ny,2\n", ["a"]), [[1.0], [2.0]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n3,4\n5\n", r"t\.csv: row 4 \(the header is row 1\): Expected 2 columns, got 1"),
        ("a,b\n1,2\n3,4,5\n", r"t\.csv: row 3 .*: Expected 2 columns, got 3"),
        ("a,b\n1,2\n3,red\n", r"t\.csv: row 3 .*: column 'b' is not numeric: .*invalid value 'red'"),
        ("a,b\n1_000,2\n", r"t\.csv: row 2 .*: column 'a' is not numeric"),
        ("1,2\n3,4\n", r"t\.csv: the first row holds numbers; a header row"),
        ("", r"t\.csv: the file is empty; a header row"),
        ("a,a\n1,2\n", r"t\.csv: the column name 'a' occurs more than once"),
        (",a\n0,1\n1,2\n", r"t\.csv: a column has no name; say which"),
        ("a,b\n", r"0 sample\(s\) \(shape=\(0, 2\)\)"),
        ("a,b\n1,inf\n", r"t\.csv: column 'b' holds an infinite value \(inf\) at row 0"),
        ("a,b\n1,1e999\n", r"t\.csv: column 'b' holds an infinite value"),
    ],
)
def test_refusals(read, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(text)


def test_a_malformed_row_far_down_has_its_number(read) -> None:
    lines = ["a,b"] + ["0.125,0.5"] * 70_000
    lines[65_537] = "0.125,0.5,1"
    with pytest.raises(ValueError, match=r"row 65538 \(the header"):
        read("\n".join(lines))


def test_a_kind_of_number_that_comes_late(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("boxloop.data.csv.BLOCK_BYTES", 64)
    text = "a,b\n" + "1,\n" * 100 + "2.5,7\n"
    np.testing.assert_array_equal(read(text)[-1], [2.5, 7.0])


def test_a_torn_gzip_file_is_named(tmp_path: Path) -> None:
    whole = gzip.compress(b"a,b\n" + b"1.25,2.5\n" * 5000)
    (tmp_path / "t.csv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match=r"t\.csv\.gz"):
        list(stream_source(CsvReader(tmp_path / "t.csv.gz")).chunks())
