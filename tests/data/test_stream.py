"""A pass over any source adds up to the pass over the array."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
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

from boxloop.data import (
    BATCH_ROWS,
    ArraySource,
    StreamSource,
    fit_standardisation,
    identity_standardisation,
    load_small,
    open_source,
    retile,
    stream_source,
    tile_rows,
    write_table,
)
from boxloop.tree import Tree
from boxloop.types import Source

NAMES = ("a", "b", "c")
N = 9001
RNG = np.random.default_rng(4)
ROWS = RNG.normal(size=(N, 3)) * [1.0, 1e-6, 1e5] + [0.0, 3.0, 1e7]
ROWS[RNG.random(ROWS.shape) < 0.02] = np.nan
WEIGHT = RNG.integers(0, 4, N).astype(float)


@dataclass(frozen=True)
class Second(Tree):
    weight: Tensor
    second: Tensor


def second(rows: Tensor, weight: Tensor) -> Second:
    full = torch.nan_to_num(rows.to_dense())
    return Second(weight.sum(), (full * weight[:, None]).mT @ full)


def table(rows: np.ndarray = ROWS, names: tuple[str, ...] = NAMES) -> dict[str, np.ndarray]:
    return dict(zip(names, rows.T, strict=True))


def as_npy(folder: Path, rows: np.ndarray = ROWS) -> Path:
    np.save(folder / "t.npy", rows)
    return folder / "t.npy"


def as_csv(folder: Path, rows: np.ndarray = ROWS) -> Path:
    write_table(folder / "t.csv", table(rows))
    return folder / "t.csv"


def as_gzip(folder: Path) -> Path:
    (folder / "t.csv.gz").write_bytes(gzip.compress(as_csv(folder).read_bytes()))
    return folder / "t.csv.gz"


def as_parquet(folder: Path, rows: np.ndarray = ROWS) -> Path:
    parquet.write_table(pyarrow.table(table(rows)), folder / "t.parquet", row_group_size=701)
    return folder / "t.parquet"


def as_folder(folder: Path, rows: np.ndarray = ROWS, suffix: str = ".parquet") -> Path:
    inside = folder / "parts"
    inside.mkdir()
    for i, part in enumerate(np.array_split(rows, 7)):
        write_table(inside / f"part{i}{suffix}", table(part))
    return inside


def as_nulls(folder: Path) -> polars.DataFrame:
    return polars.DataFrame(table()).fill_nan(None)


KINDS: dict[str, Callable[[Path], object]] = {
    "array": lambda folder: ROWS,
    "list": lambda folder: ROWS.tolist(),
    "tensor": lambda folder: torch.from_numpy(ROWS.copy()),
    "pandas": lambda folder: pandas.DataFrame(table()),
    "polars": as_nulls,
    "arrow": lambda folder: as_nulls(folder).to_arrow(),
    "npy": as_npy,
    "npy, by columns": lambda folder: as_npy(folder, np.asfortranarray(ROWS)),
    "npy, big-endian": lambda folder: as_npy(folder, ROWS.astype(">f8")),
    "memory map": lambda folder: np.load(as_npy(folder), mmap_mode="r"),
    "csv": as_csv,
    "csv.gz": as_gzip,
    "parquet": as_parquet,
    "folder of parquet": as_folder,
    "folder of csv": lambda folder: as_folder(folder, suffix=".csv"),
}
NAMED = ["csv", "csv.gz", "parquet", "folder of parquet", "folder of csv"]


@pytest.fixture(params=list(KINDS))
def data(request: pytest.FixtureRequest, tmp_path: Path) -> object:
    return KINDS[request.param](tmp_path)


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-10, atol=0.0)


def same_passes(source: Source, array: ArraySource) -> None:
    assert (source.n_rows, source.n_columns) == (array.n_rows, array.n_columns)
    ours, theirs = fit_standardisation(source), fit_standardisation(array)
    for a, b in (
        (ours.origin, theirs.origin),
        (ours.scale, theirs.scale),
        (ours.observed, theirs.observed),
    ):
        close(a, b)
    assert (ours.weight, ours.missing) == (theirs.weight, theirs.missing)
    ours, theirs = source.reduce(second), array.reduce(second)
    close(ours.weight, theirs.weight)
    close(ours.second, theirs.second)


@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_every_source_adds_up_to_the_array(data: object, memory: int, weight: np.ndarray | None) -> None:
    rows = torch.from_numpy(ROWS.copy())
    array = ArraySource(rows, None if weight is None else torch.from_numpy(weight))
    same_passes(open_source(data, weight, memory=memory), array)


@pytest.mark.parametrize("size", [13, 700, 2048, 9001, 10**6])
def test_tiles_of_any_size_hold_the_same_rows(data: object, size: int) -> None:
    source = open_source(data, WEIGHT, memory=0)
    tiles = list(source.chunks(size))
    assert {rows.shape[0] for rows, _ in tiles[:-1]} <= {size}
    rows, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    np.testing.assert_array_equal(rows.numpy(), ROWS)
    np.testing.assert_array_equal(weight.numpy(), WEIGHT)


def test_a_file_has_the_tiles_of_the_array(data: object) -> None:
    expected = [rows.shape for rows, _ in ArraySource(torch.from_numpy(ROWS.copy())).chunks()]
    assert [rows.shape for rows, _ in open_source(data, memory=0).chunks()] == expected


@pytest.mark.parametrize("make", [as_csv, as_parquet, as_folder])
def test_weights_may_be_a_column(tmp_path: Path, make: Callable[..., Path]) -> None:
    rows = np.column_stack([ROWS[:, 0], WEIGHT, ROWS[:, 2]])
    path = make(tmp_path, rows)
    source = open_source(path, weight="b", memory=0)
    assert source.names == ("a", "c")
    array = ArraySource(torch.from_numpy(rows[:, [0, 2]]), torch.from_numpy(WEIGHT), ("a", "c"))
    same_passes(source, array)
    same_passes(open_source(path, weight="b"), array)


@pytest.mark.parametrize("kind", NAMED)
def test_only_the_columns_asked_for_in_their_order(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    source = open_source(path, columns=["c", "a"], memory=0)
    assert source.names == ("c", "a")
    np.testing.assert_array_equal(torch.cat([rows for rows, _ in source.chunks()]).numpy(), ROWS[:, [2, 0]])
    with pytest.raises(ValueError, match="no column 'z'") as raised:
        open_source(path, columns=["z"])
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("kind", ["npy", *NAMED])
def test_small_files_are_held_and_large_ones_are_not(kind: str, tmp_path: Path) -> None:
    path = KINDS[kind](tmp_path)
    assert isinstance(open_source(path), ArraySource)
    assert isinstance(open_source(path, memory=ROWS.nbytes), ArraySource)
    assert isinstance(open_source(path, memory=ROWS.nbytes - 8), StreamSource)


def test_sparse_counts_add_up_to_the_array() -> None:
    counts = RNG.poisson(0.3, (1700, 40)).astype(float)
    weight = RNG.random(1700)
    source, array = open_source(sparse.csc_array(counts), weight), open_source(counts, weight)
    close(source.reduce(second).second, array.reduce(second).second)
    ours, theirs = identity_standardisation(source), identity_standardisation(array)
    assert (ours.weight, ours.missing) == (theirs.weight, theirs.missing)


@pytest.mark.parametrize("sizes", [[5], [1] * 9, [0, 3, 0, 4, 2], [4, 4, 4], []])
@pytest.mark.parametrize("step", [1, 2, 4, 100])
def test_retiling_keeps_every_row_once(sizes: list[int], step: int) -> None:
    rows = torch.arange(2.0 * sum(sizes)).reshape(-1, 2)
    tiles = list(retile(iter(rows.split(sizes)), step))
    assert [len(tile) for tile in tiles[:-1]] == [step] * (len(tiles) - 1)
    assert torch.equal(torch.cat([rows[:0], *tiles]), rows)


@dataclass(frozen=True)
class Endless:
    """A table too long to hold, to see how much of it is read."""

    asked: list[int]
    label: str = "endless"
    names: tuple[str, ...] = ("a", "b")
    n_rows: int = 10**9

    def batches(self, names: tuple[str, ...], rows: int) -> object:
        while True:
            self.asked.append(rows)
            yield torch.zeros(rows, len(names), dtype=torch.float64)


def test_no_more_is_read_than_needed() -> None:
    reader = Endless([])
    source = stream_source(reader)
    next(source.chunks())
    assert reader.asked == [BATCH_ROWS // tile_rows(2) * tile_rows(2)]
    assert load_small(source, 1 << 22) is source
    assert sum(reader.asked) <= BATCH_ROWS + (1 << 22) // 16 + 2 * BATCH_ROWS


def test_files_are_closed_when_a_pass_is_left_early(tmp_path: Path) -> None:
    for path in (as_csv(tmp_path), as_parquet(tmp_path), as_npy(tmp_path)):
        tiles = open_source(path, memory=0).chunks(10)
        next(tiles)
        tiles.close()
        path.unlink()


def test_sources_can_be_sent_to_another_process(tmp_path: Path) -> None:
    for path in (as_csv(tmp_path), as_parquet(tmp_path), as_npy(tmp_path)):
        source = open_source(path, memory=0)
        expected = source.reduce(second).second
        assert torch.equal(pickle.loads(pickle.dumps(source)).reduce(second).second, expected)
