"""Two views as a command line names them: columns of one table, or of two."""

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
    open_table,
    read_records,
    select_rows,
)
from boxloop.types import Source

TARGET = "target"
"""The column in which bundled data have what their collectors wanted to tell: it is read where it is named."""


@dataclass(frozen=True, eq=False)
class Side:
    """One view: columns of numbers, or one column of labels.

    Args:
        names: of the columns.
        source: the numbers; None for labels.
        labels: one a row, (n,), text or numbers; None for columns of numbers.
    """

    names: tuple[str, ...]
    source: Source | None
    labels: Any = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.source.n_rows if self.source is not None else len(self.labels)

    @property
    def n_values(self) -> int:
        """How many labels are different."""
        return len(set(self.labels.tolist()))

    def taken(self, mask: Tensor) -> Any:
        """The rows that a mask marks, as an estimator takes them."""
        if self.source is None:
            return self.labels[mask.numpy()]
        found = select_rows(self.source, mask)
        return found if isinstance(self.source, type(found)) else MappedSource(found, lambda rows: rows)

    def as_labels(self, option: str) -> Side:
        """Its one column of numbers as labels."""
        if self.source is None:
            return self
        if len(self.names) != 1:
            raise click.UsageError(
                f"{option} finite: labels are one column, and {', '.join(self.names)} are {len(self.names)}"
            )
        values = torch.cat([rows[:, 0] for rows, _ in self.source.chunks()]).numpy()
        whole = bool((values == np.round(values)).all())  # NaN is not: it is refused with its row
        return Side(self.names, None, values.astype(np.int64) if whole else values)


def read_sides(
    data: str, other: str | None, x: Sequence[str] | None, y: Sequence[str] | None, drop: Sequence[str]
) -> tuple[Side, Side]:
    """Open both views.

    Args:
        data: a path or a bundled data set, which holds the first view, or both.
        other: a second table, row by row that of the same things.
        x: columns of the first view; all that are left when omitted.
        y: columns of the second; all of ``other`` when omitted.
        drop: columns to leave out.
    """
    if other is not None:
        left, right = read_side(data, x, drop, "--x"), read_side(other, y, drop, "--y")
        if left.n_rows != right.n_rows:
            raise ValueError(
                f"{data} has {left.n_rows} rows and {other} has {right.n_rows}: row i of one must belong to row i "
                "of the other"
            )
        return left, right
    if y is None:
        raise click.UsageError(
            "which columns are to be related to the others? Name them with --y A,B, or give a second table"
        )
    both = [name for name in y if name in (x or ())]
    if both:
        raise click.UsageError(f"--x and --y both name {', '.join(map(repr, both))}: a column has one place")
    right = read_side(data, y, drop, "--y")
    return read_side(data, x, [*drop, *y], "--x"), right


def read_side(data: str, names: Sequence[str] | None, drop: Sequence[str], option: str) -> Side:
    """Open the columns of one view; a text column that is a view alone is read as labels."""
    reader = open_named_reader(data)
    known = reader.names
    target = not Path(data).exists() and data in CATALOGUE
    if target and list(names or ()) == [TARGET]:
        return _target(data)
    choose_columns(known, names, None, reader.label)
    wanted = [name for name in names or known if name not in drop]
    if not wanted:
        raise ValueError(f"{reader.label}: no column is left for {option}")
    words = {name: what for name, what in reader.non_numeric.items() if name in wanted}
    if not words:
        return Side(tuple(wanted), open_table(data, columns=wanted))
    name, what = next(iter(words.items()))
    if len(wanted) > 1:
        raise ValueError(
            f"{reader.label}: column {name!r} holds no numbers ({what}): text is a view by itself, as labels; name it "
            f"alone with {option}, or leave it out with --drop"
        )
    found = read_words(reader, name)
    if len(found) < 2 * len(set(found)):
        raise ValueError(
            f"{reader.label}: column {name!r} holds {len(set(found))} different texts in {len(found)} rows: those are "
            "no labels; leave it out with --drop"
        )
    return Side((name,), None, np.asarray(found, dtype=object))


def _target(data: str) -> Side:
    found = load_dataset(data)
    if not found.classes:
        return Side((TARGET,), MappedSource(_column(found.target), lambda rows: rows))
    return Side((TARGET,), None, np.asarray(found.classes, dtype=object)[found.target.astype(int)])


def _column(values: Any) -> Source:
    from boxloop.data import open_source

    return open_source(values[:, None], columns=[TARGET])


def read_words(reader: Reader, name: str) -> list[str]:
    """The texts of a column, in row order.

    Raises:
        ValueError: an empty cell, a torn row, or a kind of column that is neither text nor numbers.
    """
    if isinstance(reader, FolderReader):
        return [word for part in reader.readers for word in read_words(part, name)]
    if isinstance(reader, CsvReader):
        found = _csv_words(reader, name)
    elif isinstance(reader, ParquetReader):
        with open_parquet(reader.path) as file:
            found = file.read([name], use_threads=False).column(name).to_pylist()
    else:
        raise ValueError(f"{reader.label}: column {name!r} holds no text")
    for place, word in enumerate(found):
        if not isinstance(word, str):
            what = "is empty" if word is None else f"holds {word!r}, which is no text"
            raise ValueError(
                f"{reader.label}: column {name!r} {what} in row {place} (counted from 0): two views need whole rows"
            )
    return found


def _csv_words(reader: CsvReader, name: str) -> list[Any]:
    place, width = reader.names.index(name), len(reader.names)
    found: list[Any] = []
    lines = enumerate(read_records(reader.path, blank=width == 1), 1)
    for line, cells in islice(lines, 1, None):
        if len(cells) != width:
            raise reader.problem(line, f"Expected {width} columns, got {len(cells)}: {','.join(cells)}")
        found.append(None if cells[place] in MISSING else cells[place])
    return found


def set_apart(left: Side, right: Side, share: float, most: int, seed: int) -> Tensor:
    """Which rows judge: a share of them by chance, (n,); a row whose label no other row of the fit has stays there.

    Args:
        left: the first view.
        right: the second.
        share: of the rows.
        most: rows that judge, at most.
        seed: of the chances.
    """
    from boxloop.numeric import generator

    n = left.n_rows
    wanted = min(most, round(share * n))
    order = torch.randperm(n, generator=generator(seed))
    mask = torch.zeros(n, dtype=torch.bool)
    mask[order[:wanted]] = True
    for side in (left, right):
        if side.labels is not None:
            seen = set(side.labels[(~mask).numpy()].tolist())
            mask &= torch.tensor([label in seen for label in side.labels.tolist()])
    return mask
