"""A table as a report needs it: some of its rows in memory, its columns described, its content fingerprinted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
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
    is_dask_collection,
    make_empty_frame,
    map_on_cluster,
    open_named_reader,
    open_source,
    open_table,
    sample_rows,
)
from boxloop.numeric import generator
from boxloop.types import Source

Array = NDArray[np.float64]

TWO_VALUES, MOSTLY_ONE, TAIL, SKEWED = 2, 0.5, 3.0, 1.5
"""What is remarkable: so few values, a value that so many rows share, so much excess kurtosis, so much skewness."""

RARE = 10
"""A column that differs from its usual value in fewer rows is left out."""

CONTINUOUS, COUNTS, BINARY = "measurements", "counts", "yes or no"


@dataclass(frozen=True)
class Column:
    """One column of a table: what models make of it, and of the values present their distribution.

    ``left_out`` is why no model uses it, empty where one does; ``common`` the share of the most frequent value. Numbers
    are NaN for a column that holds none.
    """

    name: str
    left_out: str = ""
    missing: float = 0.0
    distinct: int = 0
    lowest: float = float("nan")
    highest: float = float("nan")
    mean: float = float("nan")
    std: float = float("nan")
    skewness: float = float("nan")
    excess_kurtosis: float = float("nan")
    common: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> bool:
        """Whether the models see it."""
        return not self.left_out

    @property
    def is_right_skewed(self) -> bool:
        """Whether its values are positive and skewed to the right, so that their logarithm may be easier to model."""
        return self.skewness > SKEWED and self.lowest > 0.0

    @property
    def is_mostly_one_value(self) -> bool:
        """Whether most of its many values are the same one."""
        return self.common >= MOSTLY_ONE and self.distinct > TWO_VALUES


def describe_columns(names: Sequence[str], rows: Array, words: Mapping[str, str]) -> tuple[Column, ...]:
    """Describe every column, and say why models leave one out.

    Columns are in the order of the table; those that hold no numbers are in ``words``, with what they hold, and the
    others in ``rows``, (n, d), NaN where missing.

    Example:
        >>> rows = np.array([[1.0, 5.0], [2.5, 5.0], [4.0, 5.0]])
        >>> [column.left_out for column in describe_columns(["a", "b", "c"], rows, {"b": "text"})]
        ['', 'text', 'the same value in every row']
    """
    numbers = [name for name in names if name not in words]
    found = {name: _describe_column(name, rows[:, j]) for j, name in enumerate(numbers)}
    for j, name in enumerate(numbers):
        twin = next((a for i, a in enumerate(numbers[:j]) if _is_rescaled_copy(rows[:, i], rows[:, j])), None)
        if twin is not None and found[twin].used:
            found[name] = replace(found[name], left_out=f"the same as {twin} in other units")
    whole = infer_kind(rows[:, [found[name].used for name in numbers]])
    for name in numbers:
        column = found[name]
        if whole == CONTINUOUS and column.used and column.distinct <= TWO_VALUES:
            reason = "two values only: among measurements a density would collapse onto them"
            found[name] = replace(column, left_out=reason)
    return tuple(found.get(name, Column(name, left_out=words.get(name, ""))) for name in names)


def infer_kind(rows: Array) -> str:
    """What the values of a table are: measurements, counts, or yes and no.

    Example:
        >>> [infer_kind(np.array([values]).T) for values in ([0.0, 3.0], [0.0, 1.0], [0.5])]
        ['counts', 'yes or no', 'measurements']
    """
    values = rows[~np.isnan(rows)]
    if values.size == 0 or (values < 0.0).any() or (values != np.floor(values)).any():
        return CONTINUOUS
    if values.max() <= 1.0:
        return BINARY
    small = float(np.nanmin(rows, axis=0).max()) <= 1.0 and float(values.mean()) < 100.0
    return COUNTS if small else CONTINUOUS


def _describe_column(name: str, values: Array) -> Column:
    known = values[~np.isnan(values)]
    missing = 1.0 - len(known) / max(len(values), 1)
    if len(known) == 0:
        return Column(name, "no value is present", missing)
    levels, counts = np.unique(known, return_counts=True)
    mean, std = float(known.mean()), float(known.std())
    column = Column(name, "", missing, len(levels), float(levels[0]), float(levels[-1]), mean, std)
    if len(levels) == 1:
        return replace(column, left_out="the same value in every row")
    others = len(known) - int(counts.max())
    if others < RARE and len(known) >= 10 * RARE:
        return replace(column, left_out=f"the same value in all but {others} rows")
    if len(known) > 10 and _is_row_number(known):
        return replace(column, left_out="numbers the rows")
    z = (known - mean) / std
    skewness, kurtosis = float((z**3).mean()), float((z**4).mean()) - 3.0
    column = replace(
        column, skewness=skewness, excess_kurtosis=kurtosis, common=float(counts.max()) / len(known)
    )
    return replace(column, notes=tuple(_list_remarks(column, float(levels[counts.argmax()]))))


def _list_remarks(column: Column, value: float) -> list[str]:
    found = []
    if column.missing > 0.0:
        found.append(f"{column.missing:.0%} missing" if column.missing >= 0.01 else "a few values missing")
    if column.is_mostly_one_value:
        found.append(f"{column.common:.0%} of the values are {value:g}")
    if column.is_right_skewed:
        found.append("skewed to the right: its logarithm may fit better")
    elif abs(column.skewness) > SKEWED:
        found.append(f"skewed to the {'right' if column.skewness > 0 else 'left'}")
    if column.excess_kurtosis > TAIL:
        found.append("heavy tails")
    return found


def _is_row_number(values: Array) -> bool:
    """Whether the values count the rows up or down."""
    steps = np.diff(values)
    return bool((steps == steps[0]).all() and abs(steps[0]) == 1.0)


def _is_rescaled_copy(one: Array, other: Array) -> bool:
    """Whether a column is another one in other units."""
    if not np.array_equal(np.isnan(one), np.isnan(other)):
        return False
    a, b = one[~np.isnan(one)], other[~np.isnan(other)]
    if len(a) < 3 or a.std() == 0.0 or b.std() == 0.0:
        return False
    x, y = (a - a.mean()) / a.std(), (b - b.mean()) / b.std()
    sign = 1.0 if x[np.abs(x).argmax()] * y[np.abs(x).argmax()] > 0 else -1.0
    return bool(np.abs(x - sign * y).max() < 1e-7)


MOST_ROWS = 50_000
"""Rows that a report works with; of more, so many are drawn."""


@dataclass(frozen=True, eq=False)
class Table:
    """Rows in memory, (n, d) of the columns used, NaN where missing; with the file that they come from.

    Row numbers are those in the file, counted from 0; the digest is the SHA-256 of its content.
    """

    label: str
    columns: tuple[Column, ...]
    kind: str
    rows: Array
    row_numbers: NDArray[np.int64]
    n_rows: int
    digest: str

    @property
    def names(self) -> tuple[str, ...]:
        """Of the columns used."""
        return tuple(column.name for column in self.columns if column.used)


@dataclass(frozen=True)
class _UnreadTable:
    """A table before it is read: its name, columns, which of them hold no numbers, and how to open the others."""

    label: str
    names: tuple[str, ...]
    non_numeric: Mapping[str, str]
    open: Callable[[Sequence[str]], Source]


def _inspect_table(data: Any, cluster: bool) -> _UnreadTable:
    """What a table holds, before any row is read."""
    if isinstance(data, str | PathLike):
        reader = open_named_reader(data)
        return _UnreadTable(
            reader.label,
            reader.names,
            reader.non_numeric,
            lambda names: open_table(data, columns=names, cluster=cluster),
        )
    frame = as_frame(make_empty_frame(data))
    if frame is not None:
        names = tuple(map(str, frame.columns))
        text = {str(s.name): str(s.dtype) for s in frame.iter_columns() if not holds_numbers(s)}
        whole = data if is_dask_collection(data) else frame
        return _UnreadTable("table", names, text, lambda names: open_source(whole, columns=names))
    source = open_source(data)
    return _UnreadTable("table", source.names, {}, lambda names: source)


def read_table(
    data: Any,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    rows: int = MOST_ROWS,
    seed: int = 0,
    cluster: bool = False,
) -> Table:
    """Read a table, or about so many rows of it, drawn with equal chance; on a cluster, its workers read files.

    Example:
        >>> table = read_table("iris")
        >>> table.rows.shape, table.kind
        ((150, 4), 'measurements')
    """
    unread = _inspect_table(data, cluster)
    choose_columns(unread.names, [*(columns or ()), *drop], None, unread.label)
    wanted = [name for name in (columns or unread.names) if name not in drop]
    words = {name: what for name, what in unread.non_numeric.items() if name in wanted}
    numbers = [name for name in wanted if name not in words]
    if not numbers:
        raise ValueError(f"{unread.label}: no column holds numbers")
    source = unread.open(numbers)
    kept = sample_rows(source, rows, generator(seed))
    if not bool((kept.weight == 1.0).all()):
        raise ValueError(
            f"{unread.label}: a report takes no weights, as every row counts once; leave them out"
        )
    drawn = kept.rows.numpy()[:, [source.names.index(name) for name in numbers]]
    found = describe_columns(wanted, drawn, words)
    used = [column.used for column in found if column.name in numbers]
    if not any(used):
        reasons = "; ".join(f"{column.name}: {column.left_out}" for column in found)
        raise ValueError(f"{unread.label}: no column can be used ({reasons})")
    values = drawn[:, used]
    present = ~np.isnan(values).all(1)
    return Table(
        unread.label,
        found,
        infer_kind(values),
        np.ascontiguousarray(values[present]),
        kept.indices.numpy()[present],
        source.n_rows,
        fingerprint_table(data, values, cluster),
    )


def fingerprint_table(data: Any, rows: Array, cluster: bool = False) -> str:
    """SHA-256 of the bytes of a file, or of all files of a folder; of the values where there is no file."""
    path, each = Path(data) if isinstance(data, str | PathLike) else None, map_on_cluster if cluster else map
    if path is not None and path.is_file():
        return next(iter(each(fingerprint_file, [path])))
    if path is not None and path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file())
        content = "".join(each(fingerprint_file, files)).encode()
    else:
        content = np.ascontiguousarray(rows).tobytes()
    return fingerprint_values(content)
