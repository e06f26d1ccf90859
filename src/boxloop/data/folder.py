"""Several files as one table."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from boxloop.data.stream import Reader

MERGED_FILES, MERGED_VALUES = 16, 1 << 20
"""Most files, and most values, that are read as one: opening so many takes as long as reading so much."""


@dataclass(frozen=True)
class FolderReader:
    """Files with the same columns, one after the other."""

    path: PathLike[str] | str
    readers: tuple[Reader, ...]

    @property
    def label(self) -> str:
        return str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that all files have."""
        return self.readers[0].names

    @property
    def n_rows(self) -> int:
        return sum(reader.n_rows for reader in self.readers)

    @property
    def non_numeric(self) -> dict[str, str]:
        """The columns that hold no numbers in one of the files."""
        return {name: what for reader in self.readers for name, what in reader.non_numeric.items()}

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Those of each file in turn."""
        return [piece for reader in self.readers for piece in reader.pieces(rows)]

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        for reader in self.readers:
            yield from reader.batches(names, rows)


def join_readers(path: PathLike[str] | str, readers: list[Reader]) -> FolderReader:
    """Check that files agree on their columns; files without rows are left out."""
    if any(reader.names != readers[0].names for reader in readers):
        readers = [reader for reader in readers if reader.n_rows > 0] or readers[:1]
    first = readers[0]
    for reader in readers:
        if reader.names != first.names:
            raise ValueError(
                f"{reader.label}: its columns are {', '.join(reader.names)}; "
                f"those of {first.label} are {', '.join(first.names)}"
            )
    return FolderReader(path, tuple(readers))


def natural_sort_key(name: str) -> tuple[list[str | int], str]:
    """Key of names in natural order, as Dask reads the files of a folder: runs of digits count as numbers."""
    pieces = re.split("([0-9]+)", name)  # text and digits in turn, so that like meets like
    return [int(piece) if i % 2 else piece for i, piece in enumerate(pieces)], name


def is_glob(name: str) -> bool:
    """Whether a path looks like one for many files; where there is a file of that name, it is none."""
    return any(sign in name for sign in "*?[")


def missing_path_error(name: str) -> FileNotFoundError:
    """The message about a path or URL that does not exist."""
    more = "; patterns of names are not taken: give the folder" if is_glob(name) else ""
    return FileNotFoundError(f"{name}: no such file or folder{more}")


def file_readers(reader: Reader) -> tuple[Reader, ...]:
    """What is read one after the other: the files of a folder, or the one file itself."""
    return reader.readers if isinstance(reader, FolderReader) else (reader,)


def merge_pieces(pieces: list[tuple[Reader, int]], rows: int) -> list[tuple[Reader, int]]:
    """Small neighbours as one of at most ``rows`` rows, where there are many of them."""
    if len(pieces) <= MERGED_FILES:
        return pieces
    groups: list[list[tuple[Reader, int]]] = []
    for piece in pieces:
        last = groups[-1] if groups else []
        if last and len(last) < MERGED_FILES and sum(count for _, count in [*last, piece]) <= rows:
            last.append(piece)
        else:
            groups.append([piece])
    return [(_merge_readers(group), sum(count for _, count in group)) for group in groups]


def _merge_readers(group: list[tuple[Reader, int]]) -> Reader:
    readers = tuple(reader for reader, _ in group)
    first, last = readers[0], readers[-1]
    return first if len(readers) == 1 else FolderReader(f"{first.label} to {last.label}", readers)
