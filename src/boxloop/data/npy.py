"""A ``.npy`` file, or a memory map: read in slices, never whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.lib.format import MAGIC_PREFIX
from torch import Tensor

from boxloop.data.stream import Reader, StreamSource, stream_source
from boxloop.data.validation import check_array_type, check_column_names


@dataclass(frozen=True)
class MapReader:
    """An array that is not to be converted whole: a memory map, or one of another type than float64."""

    array: np.ndarray  # (n, d), any order, byte order or real type
    columns: tuple[str, ...] | None = None  # names; ``x0, x1, ...`` when omitted
    label: str = "the array"  # how messages name it

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns or tuple(f"x{j}" for j in range(self.array.shape[1]))

    @property
    def n_rows(self) -> int:
        return int(self.array.shape[0])

    @property
    def non_numeric(self) -> dict[str, str]:
        return {}

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Slices of the array."""
        cut = [self.array[start : start + rows] for start in range(0, self.n_rows, rows)]
        return [(MapReader(part, self.names, self.label), len(part)) for part in cut]

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        for start in range(0, self.n_rows, rows):
            yield _copy_columns(self.array[start : start + rows], self.names, names)


@dataclass(frozen=True)
class NpyReader:
    """A ``.npy`` file of two axes."""

    path: Path
    columns: tuple[str, ...] | None = None  # names; ``x0, x1, ...`` when omitted
    start: int = 0  # number of the first row that is read
    count: int | None = None  # how many rows are read; all from there on when omitted

    @property
    def label(self) -> str:
        return f"{self.path} (from row {self.start})" if self.start else str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        return self.columns or tuple(f"x{j}" for j in range(self.shape[1]))

    @property
    def n_rows(self) -> int:
        """Number of rows, from the header."""
        return self.shape[0]

    @cached_property
    def shape(self) -> tuple[int, int]:
        """Rows that are read, and columns, from the header."""
        array = open_memory_map(self.path)
        check_array_type(array.dtype, array.shape, self.label)
        left = int(array.shape[0]) - self.start
        return left if self.count is None else min(left, self.count), int(array.shape[1])

    @property
    def non_numeric(self) -> dict[str, str]:
        return {}

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        stop = self.start + self.n_rows
        for start in range(self.start, stop, rows):
            # A new map for each slice: the pages of the last one leave the process with it.
            yield _copy_columns(
                open_memory_map(self.path)[start : min(start + rows, stop)], self.names, names
            )

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Slices of the file."""
        counts = [min(rows, self.n_rows - start) for start in range(0, self.n_rows, rows)]
        return [
            (NpyReader(self.path, self.columns, self.start + i * rows, count), count)
            for i, count in enumerate(counts)
        ]


def npy_source(path: Path, weight: object = None, columns: Sequence[str] | None = None) -> StreamSource:
    """Rows of a ``.npy`` file, real numbers in any order and byte order, with weights one per row or in a column."""
    return stream_source(NpyReader(path, check_column_names(columns, NpyReader(path).shape[1])), weight)


def open_memory_map(path: Path) -> np.ndarray:
    """Map a ``.npy`` file read-only; nothing in it is run."""
    try:
        array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        with path.open("rb") as file:
            if (
                file.read(len(MAGIC_PREFIX)) != MAGIC_PREFIX
            ):  # NumPy takes it for a pickle, and advises to run it
                raise ValueError(f"{path}: cannot be read as a .npy file, which numpy.save writes") from error
        raise ValueError(f"{path}: cannot be read as a .npy file: {error}") from error
    return array


def _copy_columns(array: np.ndarray, names: tuple[str, ...], wanted: tuple[str, ...]) -> Tensor:
    if wanted != names:
        array = array[:, [names.index(name) for name in wanted]]
    with np.errstate(over="ignore"):
        return torch.from_numpy(np.array(array, dtype=np.float64, order="K", subok=False))
