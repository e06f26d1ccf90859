"""Several files as one table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike

from torch import Tensor

from boxloop.data.stream import Reader


@dataclass(frozen=True)
class FolderReader:
    """Files with the same columns, one after the other.

    Args:
        path: the folder.
        readers: its files, in order.
    """

    path: PathLike[str] | str
    readers: tuple[Reader, ...]

    @property
    def label(self) -> str:
        """How messages name it."""
        return str(self.path)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that all files have."""
        return self.readers[0].names

    @property
    def n_rows(self) -> int:
        """Number of rows of all files."""
        return sum(reader.n_rows for reader in self.readers)

    @property
    def aside(self) -> dict[str, str]:
        """The columns that hold no numbers in one of the files."""
        return {name: what for reader in self.readers for name, what in reader.aside.items()}

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Those of each file in turn."""
        return [piece for reader in self.readers for piece in reader.pieces(rows)]

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        """Yield the batches of each file in turn."""
        for reader in self.readers:
            yield from reader.batches(names, rows)


def join_readers(path: PathLike[str] | str, readers: list[Reader]) -> FolderReader:
    """Check that files agree on their columns; files without rows are left out.

    Args:
        path: the folder, for messages.
        readers: one for each file, in order.
    """
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
