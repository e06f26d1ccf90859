"""Faults that a source must catch, one test a row of the table of faults."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from pyarrow import parquet
from scipy import sparse
from torch import Tensor

from boxloop.data import fit_standardisation, open_source, write_table
from boxloop.tree import Tree

NAMES = ("height", "width", "depth")
ROWS = np.random.default_rng(8).normal(size=(3000, 3))
FILES = ("t.npy", "t.csv", "t.csv.gz", "t.parquet")


def table(rows: np.ndarray, names: tuple[str, ...] = NAMES) -> dict[str, np.ndarray]:
    return dict(zip(names, rows.T, strict=True))


def write(path: Path, rows: np.ndarray) -> Path:
    if path.suffix == ".npy":
        np.save(path, rows)
    elif path.suffix == ".parquet":
        parquet.write_table(pyarrow.table(table(rows)), path, row_group_size=1000)
    else:
        write_table(path, table(rows))
    return path


@dataclass(frozen=True)
class Sum(Tree):
    value: Tensor


def second(data: object, **options: object) -> np.ndarray:
    return open_source(data, **options).reduce(lambda x, w: Sum((x.mT * w) @ x)).value.numpy()


def spoilt(value: float, row: int = 2500, column: int = 1) -> np.ndarray:
    rows = ROWS.copy()
    rows[row, column] = value
    return rows


@pytest.mark.parametrize("file", FILES)
def test_f01_missing_value(tmp_path: Path, file: str) -> None:
    frame = fit_standardisation(open_source(write(tmp_path / file, spoilt(np.nan)), memory=0))
    assert frame.missing
    assert frame.observed.tolist() == [3000.0, 2999.0, 3000.0]
    np.testing.assert_allclose(frame.origin[1], np.nanmean(spoilt(np.nan)[:, 1]), rtol=1e-12)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_f02_infinite_value(value: float) -> None:
    message = rf"column 'width' holds an infinite value \({value}\) at row 2500"
    rows = spoilt(value)
    for data in (pandas.DataFrame(table(rows)), polars.DataFrame(table(rows)), pyarrow.table(table(rows))):
        with pytest.raises(ValueError, match=message):
            open_source(data)
    for data in (rows, torch.from_numpy(rows), rows.tolist(), rows.astype(np.float32), rows.astype(object)):
        with pytest.raises(ValueError, match=message):
            open_source(data, columns=NAMES)


@pytest.mark.parametrize("value", [np.inf, -np.inf])
@pytest.mark.parametrize("file", FILES)
def test_f02_infinite_value_in_a_file(tmp_path: Path, file: str, value: float) -> None:
    path = write(tmp_path / file, spoilt(value))
    message = rf"{file}: column '(width|x1)' holds an infinite value \({value}\) at row 2500"
    with pytest.raises(ValueError, match=message):
        open_source(path)
    source = open_source(path, memory=0)
    with pytest.raises(ValueError, match=message):
        source.reduce(lambda x, w: Sum(x.sum()))


def test_f02_infinite_value_beside_missing_and_large_ones() -> None:
    rows = spoilt(np.inf)
    rows[0, 0], rows[1, 0] = np.nan, 1.7e308
    with pytest.raises(ValueError, match="column 'x1' holds an infinite value"):
        open_source(rows)
    rows[2500, 1], rows[2, 0] = 0.0, 1.7e308
    assert open_source(rows).n_rows == 3000, "a sum that overflows is no infinite value"


@pytest.mark.parametrize(
    "data",
    [np.zeros((0, 3)), torch.zeros(0, 3), pandas.DataFrame(np.zeros((0, 3))), sparse.csr_array((0, 3))],
    ids=["array", "tensor", "frame", "sparse"],
)
def test_f03_no_rows(data: object) -> None:
    message = r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\) while a minimum of 1 is required\."
    with pytest.raises(ValueError, match=message):
        open_source(data)


@pytest.mark.parametrize("memory", [0, 1 << 20])
@pytest.mark.parametrize("file", FILES)
def test_f03_no_rows_in_a_file(tmp_path: Path, file: str, memory: int) -> None:
    path = write(tmp_path / file, ROWS[:0])
    with pytest.raises(ValueError, match=r"Found array with 0 sample\(s\) \(shape=\(0, 3\)\)"):
        fit_standardisation(open_source(path, memory=memory))


@pytest.mark.parametrize("data", [np.zeros((4, 0)), torch.zeros(4, 0), sparse.csr_array((4, 0))])
def test_f03_no_columns(data: object) -> None:
    message = r"Found array with 0 feature\(s\) \(shape=\(4, 0\)\) while a minimum of 1 is required\."
    with pytest.raises(ValueError, match=message):
        open_source(data)


@pytest.mark.parametrize("kind", ["array", "tensor", "frame", "npy", "parquet"])
def test_f14_large_float32_is_promoted(tmp_path: Path, kind: str) -> None:
    rows = (ROWS * 1e30).astype(np.float32)
    data = {
        "array": lambda: rows,
        "tensor": lambda: torch.from_numpy(rows),
        "frame": lambda: pandas.DataFrame(rows),
        "npy": lambda: write(tmp_path / "t.npy", rows),
        "parquet": lambda: write(tmp_path / "t.parquet", rows),
    }[kind]()
    for memory in (0, 1 << 20):
        moment = second(data, memory=memory)
        assert moment.dtype == np.float64
        np.testing.assert_allclose(moment, rows.astype(float).T @ rows.astype(float), rtol=1e-10)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        (np.zeros(3000), "the weights are all zero"),
        (
            np.r_[np.ones(2999), -1.0],
            r"the weight at row 2999 .* is -1\.0; weights must be finite and not neg",
        ),
        (np.r_[np.nan, np.ones(2999)], r"the weight at row 0 .* is nan"),
        (np.r_[np.inf, np.ones(2999)], r"the weight at row 0 .* is inf"),
        (np.ones(2999), r"shape \(3000,\) is needed, \(2999,\) was given"),
        (np.ones((3000, 1)), r"shape \(3000,\) is needed, \(3000, 1\) was given"),
        (["a"] * 3000, "the weights must be numbers"),
        (torch.ones(3000, dtype=torch.complex128), "not complex"),
    ],
)
def test_f18_weights(tmp_path: Path, weight: object, message: str) -> None:
    files = [write(tmp_path / file, ROWS) for file in FILES]
    for data in (ROWS, torch.from_numpy(ROWS), pandas.DataFrame(ROWS), sparse.csr_array(abs(ROWS)), *files):
        with pytest.raises(ValueError, match=message):
            open_source(data, weight=weight, memory=0)


@pytest.mark.parametrize("file", ["t.csv", "t.parquet"])
@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (-1.0, r": the weight at row 2500 .* is -1\.0"),
        (np.nan, r": the weight at row 2500 .* is nan"),
        (0.0, ": the weights are all zero"),
    ],
)
def test_f18_a_column_of_weights(tmp_path: Path, file: str, bad: float, message: str) -> None:
    rows = ROWS.copy()
    rows[:, 1] = 0.0
    rows[2500, 1] = bad
    source = open_source(write(tmp_path / file, rows), weight="width", memory=0)
    with pytest.raises(ValueError, match=file + message):
        source.reduce(lambda x, w: Sum(w.sum()))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.array([[1.0, "red"], [2.0, "blue"]], dtype=object), "column 1 of the array is not numeric.*red"),
        (np.array([["a", "b"]]), "a table of numbers is needed, not one of type <U1"),
        (np.array([[1 + 2j]]), "Complex data not supported"),
        (torch.ones(2, 2, dtype=torch.complex64), "Complex data not supported"),
        (np.array([[object()]]), "column 0 of the array is not numeric"),
        (np.ones(3), "Expected 2D array, got 1D array instead"),
        (torch.ones(2, 2, 2), "Expected 2D array, got 3D array instead"),
        (pandas.DataFrame({"a": [1], "colour": ["red"]}), "column 'colour' is not numeric"),
    ],
)
def test_f21_what_is_not_numeric(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(data)


def test_f21_numbers_kept_as_objects_are_converted() -> None:
    rows = spoilt(np.nan)[2490:].astype(object)
    rows[0, 0], rows[1, 0], rows[2, 0] = None, 7, True
    held = open_source(rows).rows
    assert held.dtype == torch.float64
    expected = spoilt(np.nan)[2490:]
    expected[:3, 0] = np.nan, 7.0, 1.0
    np.testing.assert_array_equal(held.numpy(), expected)


def test_f22_any_layout_of_the_same_numbers(tmp_path: Path) -> None:
    fixed = ROWS.copy()
    fixed.flags.writeable = False
    wide = np.repeat(np.repeat(ROWS, 2, 0), 3, 1)
    layouts = {
        "read-only": fixed,
        "Fortran": np.asfortranarray(ROWS),
        "strided": wide[::2, ::3],
        "negative strides": ROWS[::-1, ::-1].copy()[::-1, ::-1],
        "big-endian": ROWS.astype(">f8"),
        "memory map": np.load(write(tmp_path / "t.npy", ROWS), mmap_mode="r"),
        "Fortran file": write(tmp_path / "f.npy", np.asfortranarray(ROWS)),
        "expanded tensor": torch.from_numpy(ROWS.copy()).mT.contiguous().mT,
    }
    expected = second(ROWS.copy())
    for name, data in layouts.items():
        for memory in (0, 1 << 20):
            moment = second(data, memory=memory)
            np.testing.assert_allclose(moment, expected, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(
    "names", [("height", "width"), ("height", "depth", "width"), ("height", "width", "z"), (*NAMES, "extra")]
)
def test_f47_partition_with_other_columns(tmp_path: Path, suffix: str, names: tuple[str, ...]) -> None:
    for i in range(3):
        write_table(tmp_path / f"part{i}{suffix}", table(ROWS[:10]))
    write_table(tmp_path / f"part1{suffix}", dict.fromkeys(names, ROWS[:10, 0]))
    with pytest.raises(ValueError, match=rf"part1{suffix}: its columns are {', '.join(names)}; those of"):
        open_source(tmp_path)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("empty", [0, 1, 2])
@pytest.mark.parametrize("names", [NAMES, ("height",), None])
def test_f47_empty_partition(tmp_path: Path, suffix: str, empty: int, names: tuple[str, ...] | None) -> None:
    parts = np.array_split(ROWS, 2)
    for i, part in zip((i for i in range(3) if i != empty), parts, strict=True):
        write_table(tmp_path / f"part{i}{suffix}", table(part))
    path = tmp_path / f"part{empty}{suffix}"
    if names is None:
        path.touch()
    else:
        write_table(path, {name: np.zeros(0) for name in names})
    source = open_source(tmp_path, memory=0)
    assert (source.n_rows, source.names) == (3000, NAMES)
    np.testing.assert_array_equal(torch.cat([rows for rows, _ in source.chunks()]).numpy(), ROWS)


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
def test_f47_nothing_but_empty_partitions(tmp_path: Path, suffix: str) -> None:
    for i, names in enumerate([NAMES, ("z",)]):
        write_table(tmp_path / f"part{i}{suffix}", {name: np.zeros(0) for name in names})
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        open_source(tmp_path)


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none"])
@pytest.mark.parametrize("checksum", [True, False])
def test_f49_corrupt_row_group(tmp_path: Path, compression: str, checksum: bool) -> None:
    path = tmp_path / "t.parquet"
    options = {"row_group_size": 1000, "use_dictionary": False, "write_page_checksum": checksum}
    parquet.write_table(pyarrow.table(table(ROWS)), path, compression=compression, **options)
    column = parquet.ParquetFile(path).metadata.row_group(1).column(2)
    # Without checksums only damage to the frame of a page shows; with them, damage to a value does.
    with path.open("r+b") as file:
        file.seek(column.data_page_offset + (column.total_compressed_size // 2 if checksum else 0))
        file.write(bytes(range(64)))
    with pytest.raises(ValueError, match=r"t\.parquet: row group 1 cannot be read"):
        open_source(path)
    assert second(path, columns=["height"]).shape == (1, 1), "the other columns are whole"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1.0,2.0", r"t\.csv: row 2002 \(the header is row 1\): Expected 3 columns, got 2"),
        ("1.0,2.0,3.0,4.0", r"t\.csv: row 2002 \(the header is row 1\): Expected 3 columns, got 4"),
        ("1.0,2.0,3.0x", r"t\.csv: row 2002 .*: column 'depth' is not numeric: .*'3\.0x'"),
    ],
)
def test_f49_malformed_csv_row(tmp_path: Path, row: str, message: str) -> None:
    path = write(tmp_path / "t.csv", ROWS)
    lines = path.read_text().splitlines()
    lines[2001] = row
    path.write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        open_source(path)
