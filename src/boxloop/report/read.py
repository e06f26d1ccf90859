"""A table as a report needs it: some of its rows in memory, its columns described, its content fingerprinted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import (
    as_frame,
    choose_columns,
    fingerprint_file,
    fingerprint_values,
    holds_numbers,
    is_collection,
    map_on_cluster,
    open_named_reader,
    open_source,
    open_table,
    outline,
    sample_rows,
)
from boxloop.numeric import generator
from boxloop.report.columns import Array, Column, describe, kind_of
from boxloop.types import Source

MOST_ROWS = 50_000
"""Rows that a report works with; of more, so many are drawn."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows and what they are.

    Args:
        label: the file or the bundled data set.
        columns: all columns, described.
        kind: of the values that are used: measurements, counts, or yes and no.
        rows: (n, d) of the columns used, NaN where missing.
        places: which rows of the file they are, counted from 0, (n,).
        n_rows: of the file.
        digest: SHA-256 of its content.
    """

    label: str
    columns: tuple[Column, ...]
    kind: str
    rows: Array
    places: NDArray[np.int64]
    n_rows: int
    digest: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns used."""
        return tuple(column.name for column in self.columns if column.used)


@dataclass(frozen=True)
class _Door:
    """A table before it is read: its name, columns, which of them hold no numbers, and how to open the others."""

    label: str
    names: tuple[str, ...]
    aside: Mapping[str, str]
    open: Callable[[Sequence[str]], Source]


def _door(data: Any, cluster: bool) -> _Door:
    if isinstance(data, str | PathLike):
        reader = open_named_reader(data)
        return _Door(
            reader.label,
            reader.names,
            reader.non_numeric,
            lambda names: open_table(data, columns=names, cluster=cluster),
        )
    frame = as_frame(outline(data))
    if frame is not None:
        names = tuple(map(str, frame.columns))
        aside = {str(s.name): str(s.dtype) for s in frame.iter_columns() if not holds_numbers(s)}
        whole = data if is_collection(data) else frame
        return _Door("table", names, aside, lambda names: open_source(whole, columns=names))
    source = open_source(data)
    return _Door("table", source.names, {}, lambda names: source)


def read_table(
    data: Any,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    rows: int = MOST_ROWS,
    seed: int = 0,
    cluster: bool = False,
) -> Table:
    """Read a table, or about so many rows of it, drawn with equal chance.

    Args:
        data: a path, the name of a bundled data set, a data frame, an array, a Dask collection or a source.
        columns: the columns to look at; all when omitted.
        drop: columns to leave out.
        rows: most rows to keep.
        seed: of the draw.
        cluster: whether the workers of the current Dask client read files, and send the rows that are drawn.

    Raises:
        ValueError: a table that cannot be read, that has weights, or in which no column can be used.

    Example:
        >>> table = read_table("iris")
        >>> table.rows.shape, table.kind
        ((150, 4), 'measurements')
    """
    door = _door(data, cluster)
    choose_columns(door.names, [*(columns or ()), *drop], None, door.label)
    wanted = [name for name in (columns or door.names) if name not in drop]
    words = {name: what for name, what in door.aside.items() if name in wanted}
    numbers = [name for name in wanted if name not in words]
    if not numbers:
        raise ValueError(f"{door.label}: no column holds numbers")
    source = door.open(numbers)
    kept = sample_rows(source, rows, generator(seed))
    if not bool((kept.weight == 1.0).all()):
        raise ValueError(f"{door.label}: a report takes no weights, as every row counts once; leave them out")
    drawn = kept.rows.numpy()[:, [source.names.index(name) for name in numbers]]
    found = describe(wanted, drawn, words)
    used = [column.used for column in found if column.name in numbers]
    if not any(used):
        reasons = "; ".join(f"{column.name}: {column.aside}" for column in found)
        raise ValueError(f"{door.label}: no column can be used ({reasons})")
    values = drawn[:, used]
    present = ~np.isnan(values).all(1)
    return Table(
        door.label,
        found,
        kind_of(values),
        np.ascontiguousarray(values[present]),
        kept.indices.numpy()[present],
        source.n_rows,
        fingerprint(data, values, cluster),
    )


def fingerprint(data: Any, rows: Array, cluster: bool = False) -> str:
    """SHA-256 of the bytes of a file, or of all files of a folder; of the values where there is no file.

    Args:
        data: what was read.
        rows: the values.
        cluster: whether workers read the files.
    """
    path, each = Path(data) if isinstance(data, str | PathLike) else None, map_on_cluster if cluster else map
    if path is not None and path.is_file():
        return next(iter(each(fingerprint_file, [path])))
    if path is not None and path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        content = "".join(each(fingerprint_file, files)).encode()
    else:
        content = np.ascontiguousarray(rows).tobytes()
    return fingerprint_values(content)
