"""Columns of a table as a command line names them: numbers, or one column of labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor

from boxloop.data import (
    CATALOGUE,
    MISSING,
    CsvReader,
    FolderReader,
    MappedSource,
    ParquetReader,
    Reader,
    choose_columns,
    load_dataset,
    open_named_reader,
    open_parquet,
    open_source,
    open_table,
    read_records,
    select_rows,
)
from boxloop.types import Source

TARGET = "target"
"""The column of bundled data that holds classes or responses: it is read only where it is named."""


@dataclass(frozen=True, eq=False)
class SelectedColumns:
    """Columns of numbers of a table, or one column of labels."""

    names: tuple[str, ...]
    source: Source | None
    labels: Any = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.source.n_rows if self.source is not None else len(self.labels)

    @property
    def n_labels(self) -> int:
        """Number of distinct labels."""
        return len(set(self.labels.tolist()))

    def select(self, mask: Tensor) -> Any:
        """The rows of a mask, in the form that an estimator takes."""
        if self.source is None:
            return self.labels[mask.numpy()]
        rows = select_rows(self.source, mask)
        return rows if isinstance(self.source, type(rows)) else MappedSource(rows, lambda tile: tile)

    def to_labels(self, option: str) -> SelectedColumns:
        """The one column of numbers as labels."""
        if self.source is None:
            return self
        if len(self.names) != 1:
            raise click.UsageError(
                f"{option} finite: labels are one column, and {', '.join(self.names)} are {len(self.names)}"
            )
        values = torch.cat([rows[:, 0] for rows, _ in self.source.chunks()]).numpy()
        integers = bool((values == np.round(values)).all())  # NaN is none: it is refused with its row
        return SelectedColumns(self.names, None, values.astype(np.int64) if integers else values)


def read_columns(data: str, names: Sequence[str] | None, drop: Sequence[str], option: str) -> SelectedColumns:
    """Open columns of a table; a text column that is alone is read as labels."""
    reader = open_named_reader(data)
    known = reader.names
    target = not Path(data).exists() and data in CATALOGUE
    if target and list(names or ()) == [TARGET]:
        return _read_target(data)
    choose_columns(known, names, None, reader.label)
    wanted = [name for name in names or known if name not in drop]
    if not wanted:
        raise ValueError(f"{reader.label}: no column is left for {option}")
    text = {name: what for name, what in reader.non_numeric.items() if name in wanted}
    if not text:
        return SelectedColumns(tuple(wanted), open_table(data, columns=wanted))
    name, what = next(iter(text.items()))
    if len(wanted) > 1:
        raise ValueError(
            f"{reader.label}: column {name!r} holds no numbers ({what}): text is read as labels, one column alone; "
            f"name it alone with {option}, or leave it out with --drop"
        )
    labels = read_text(reader, name)
    if len(labels) < 2 * len(set(labels)):
        raise ValueError(
            f"{reader.label}: column {name!r} holds {len(set(labels))} different texts in {len(labels)} rows, too many "
            "for labels; leave it out with --drop"
        )
    return SelectedColumns((name,), None, np.asarray(labels, dtype=object))


def _read_target(data: str) -> SelectedColumns:
    dataset = load_dataset(data)
    if not dataset.classes:
        column = open_source(dataset.target[:, None], columns=[TARGET])
        return SelectedColumns((TARGET,), MappedSource(column, lambda rows: rows))
    labels = np.asarray(dataset.classes, dtype=object)[dataset.target.astype(int)]
    return SelectedColumns((TARGET,), None, labels)


def read_text(reader: Reader, name: str) -> list[str]:
    """The texts of a column, in row order."""
    if isinstance(reader, FolderReader):
        return [value for part in reader.readers for value in read_text(part, name)]
    if isinstance(reader, CsvReader):
        values = _read_csv_text(reader, name)
    elif isinstance(reader, ParquetReader):
        with open_parquet(reader.path) as file:
            values = file.read([name], use_threads=False).column(name).to_pylist()
    else:
        raise ValueError(f"{reader.label}: column {name!r} holds no text")
    for row, value in enumerate(values):
        if not isinstance(value, str):
            what = "is empty" if value is None else f"holds {value!r}, which is not text,"
            raise ValueError(
                f"{reader.label}: column {name!r} {what} in row {row} (counted from 0): fill it, or drop the row"
            )
    return values


def _read_csv_text(reader: CsvReader, name: str) -> list[Any]:
    place, width = reader.names.index(name), len(reader.names)
    values: list[Any] = []
    lines = enumerate(read_records(reader.path, blank=width == 1), 1)
    for line, cells in islice(lines, 1, None):
        if len(cells) != width:
            raise reader.problem(line, f"Expected {width} columns, got {len(cells)}: {','.join(cells)}")
        values.append(None if cells[place] in MISSING else cells[place])
    return values
