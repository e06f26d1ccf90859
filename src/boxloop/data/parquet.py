"""Parquet files: record batches of the columns needed, one row group after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from boxloop.data.arrow import batch_to_tensor, is_numeric, raise_with_place
from boxloop.data.remote import open_remote
from boxloop.data.stream import Reader
from boxloop.data.validation import check_names

BUFFER_BYTES = 1 << 16
"""Bytes read ahead in each column, so that a row group larger than memory can be read."""


@dataclass(frozen=True)
class ParquetReader:
    """One Parquet file. Columns that pandas wrote as a row index are not among its names."""

    path: Path | str  # the file, or its URL
    groups: tuple[int, ...] | None = None  # numbers of the row groups that are read; all of them when omitted

    @property
    def label(self) -> str:
        return str(self.path) if self.groups is None else f"{self.path} (from row group {self.groups[0]})"

    @property
    def names(self) -> tuple[str, ...]:
        return self._header[0]

    @property
    def n_rows(self) -> int:
        """Number of rows, from the file's metadata."""
        return self._header[1]

    @cached_property
    def _header(self) -> tuple[tuple[str, ...], int]:
        with open_parquet(self.path) as file:
            index = (file.schema_arrow.pandas_metadata or {}).get("index_columns", [])
            names = [name for name in file.schema_arrow.names if name not in index]
            sizes = [file.metadata.row_group(group).num_rows for group in self._groups(file)]
            return check_names(names, self.label), sum(sizes)

    @cached_property
    def non_numeric(self) -> dict[str, str]:
        """The columns that hold no numbers, by their types."""
        with open_parquet(self.path) as file:
            fields = [field for field in file.schema_arrow if field.name in self.names]
        return {field.name: str(field.type) for field in fields if not is_numeric(field.type)}

    def _groups(self, file: Any) -> tuple[int, ...]:
        return tuple(range(file.num_row_groups)) if self.groups is None else self.groups

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Consecutive row groups, as many as have about so many rows."""
        pieces: list[tuple[list[int], int]] = []
        with open_parquet(self.path) as file:
            for group in self._groups(file):
                count = file.metadata.row_group(group).num_rows
                if pieces and pieces[-1][1] + count <= rows:
                    pieces[-1] = ([*pieces[-1][0], group], pieces[-1][1] + count)
                else:
                    pieces.append(([group], count))
        if len(pieces) <= 1:
            return [(self, self.n_rows)]
        return [(ParquetReader(self.path, tuple(groups)), count) for groups, count in pieces]

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        with open_parquet(self.path) as file:
            for group in self._groups(file):
                place = f"{self.path}: row group {group} cannot be read"
                left = file.metadata.row_group(group).num_rows
                with raise_with_place(place):
                    for batch in file.iter_batches(rows, [group], list(names), use_threads=False):
                        left -= batch.num_rows
                        yield batch_to_tensor(batch, names, self.label)
                if left != 0:
                    raise ValueError(f"{place}: {left} of its rows are not there")


def open_parquet(path: Path | str) -> Any:
    """Open a file so that memory does not grow with its row groups; checksums are verified where present."""
    import pyarrow.parquet as pq

    with raise_with_place(f"{path}: cannot be read as Parquet"):
        return pq.ParquetFile(
            path if isinstance(path, Path) else open_remote(path),
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
