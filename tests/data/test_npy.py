"""Memory maps and ``.npy`` files."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from boxloop.data import NpyReader, StreamSource, open_source

ROWS = np.random.default_rng(1).normal(size=(700, 4)) * 100


def values(data: object, **options: object) -> np.ndarray:
    source = open_source(data, memory=0, **options)
    assert isinstance(source, StreamSource)
    return torch.cat([rows for rows, _ in source.chunks()]).numpy()


@pytest.mark.parametrize("dtype", ["<f8", ">f8", "<f4", ">f4", "f2", "i1", ">i4", "u8", "?", "g"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_and_order(tmp_path: Path, dtype: str, order: str) -> None:
    stored = np.abs(ROWS).astype(dtype, order=order)
    np.save(tmp_path / "t.npy", stored)
    expected = stored.astype(np.float64)
    np.testing.assert_array_equal(values(tmp_path / "t.npy"), expected)
    np.testing.assert_array_equal(values(np.load(tmp_path / "t.npy", mmap_mode="r")[::-1]), expected[::-1])
    held = open_source(tmp_path / "t.npy").rows
    assert held.dtype == torch.float64
    np.testing.assert_array_equal(held.numpy(), expected)


def test_names_and_a_column_of_weights(tmp_path: Path) -> None:
    rows = np.abs(ROWS)
    np.save(tmp_path / "t.npy", rows)
    source = open_source(tmp_path / "t.npy", "w", ["a", "b", "w", "c"], memory=0)
    assert source.names == ("a", "b", "c")
    tiles, weights = zip(*source.chunks(100), strict=True)
    np.testing.assert_array_equal(torch.cat(tiles).numpy(), rows[:, [0, 1, 3]])
    np.testing.assert_array_equal(torch.cat(weights).numpy(), rows[:, 2])
    with pytest.raises(ValueError, match="3 column names were given for 4 columns"):
        open_source(tmp_path / "t.npy", columns=["a", "b", "c"])


def test_a_large_array_of_another_type_is_not_copied_whole() -> None:
    np.testing.assert_array_equal(values(ROWS.astype(np.float32)), ROWS.astype(np.float32).astype(float))


def test_tiles_are_copies_so_that_a_file_cannot_change_under_a_fit(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", ROWS)
    tile = next(open_source(tmp_path / "t.npy", memory=0).chunks())[0]
    np.load(tmp_path / "t.npy", mmap_mode="r+")[:] = 0.0
    np.testing.assert_array_equal(tile.numpy(), ROWS)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((3, 2), complex), "Complex data not supported"),
        (np.zeros(3), r"Expected 2D array, got 1D array instead \(shape=\(3,\)\)"),
        (np.array([["a"]]), "a table of numbers is needed"),
        (np.zeros((3, 2), "M8[s]"), "a table of numbers is needed"),
        (np.zeros(3, [("a", float)]), "a table of numbers is needed"),
        (np.zeros((0, 3)), r"0 sample\(s\) \(shape=\(0, 3\)\)"),
        (np.zeros((3, 0)), r"0 feature\(s\) \(shape=\(3, 0\)\)"),
    ],
)
def test_refusals(tmp_path: Path, array: np.ndarray, message: str) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(ValueError, match=message):
        open_source(tmp_path / "t.npy")


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", ROWS)
    (tmp_path / "t.npy").write_bytes((tmp_path / "t.npy").read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"t\.npy: cannot be read as a \.npy file"):
        open_source(tmp_path / "t.npy")


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, ("raise SystemExit('a pickle was run')",)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "t.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ValueError, match=r"t\.npy: cannot be read"):
        NpyReader(tmp_path / "t.npy").n_rows  # noqa: B018
    np.save(tmp_path / "u.npy", np.array([[Bomb()]], dtype=object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"u\.npy: cannot be read"):
        open_source(tmp_path / "u.npy")
