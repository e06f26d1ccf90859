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
    is_collection,
    map_on_cluster,
    open_named_reader,
    open_source,
    open_table,
    outline,
    sample_rows,
)
from boxloop.numeric import generator
from boxloop.types import Source

Array = NDArray[np.float64]

TWO_VALUES, MOSTLY_ONE, TAIL, SKEWED, HOLES = 2, 0.5, 3.0, 1.5, 0.5
"""What is remarkable: so few values, a value that so many rows share, so much excess kurtosis, so much skewness, so
large a share of missing values."""

RARE = 10
"""A column that differs from its usual value in fewer rows tells a model nothing that lasts."""

CONTINUOUS, COUNTS, BINARY = "measurements", "counts", "yes or no"


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Args:
        name: of the column.
        aside: why no model uses it; empty where one does.
        missing: share of its values that are missing.
        distinct: how many different values it has.
        lowest: its smallest value; NaN, as all that follows, for a column that holds no numbers.
        highest: its largest.
        mean: of the values present.
        deviation: their standard deviation.
        skewness: of the values present, 0 for a normal law.
        tails: excess kurtosis, 0 for a normal law.
        common: share of the values present that are the most frequent one.
        notes: what deserves attention, in words.
    """

    name: str
    aside: str = ""
    missing: float = 0.0
    distinct: int = 0
    lowest: float = float("nan")
    highest: float = float("nan")
    mean: float = float("nan")
    deviation: float = float("nan")
    skewness: float = float("nan")
    tails: float = float("nan")
    common: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def used(self) -> bool:
        """Whether the models see it."""
        return not self.aside

    @property
    def skewed_positive(self) -> bool:
        """Whether its values are positive and skewed to the right, so that their logarithm may be easier to model."""
        return self.skewness > SKEWED and self.lowest > 0.0

    @property
    def mostly_one(self) -> bool:
        """Whether most of its many values are the same one."""
        return self.common >= MOSTLY_ONE and self.distinct > TWO_VALUES


def describe(names: Sequence[str], rows: Array, words: Mapping[str, str]) -> tuple[Column, ...]:
    """Describe every column, and set aside those that no model can use.

    Args:
        names: of all columns, in the order of the table.
        rows: (n, d) the columns that hold numbers, in this order, NaN where missing.
        words: the columns that hold none, and what they hold.

    Returns:
        One description a column, in the order of the table.

    Example:
        >>> rows = np.array([[1.0, 5.0], [2.5, 5.0], [4.0, 5.0]])
        >>> [column.aside for column in describe(["a", "b", "c"], rows, {"b": "text"})]
        ['', 'text', 'the same value in every row']
    """
    numbers = [name for name in names if name not in words]
    found = {name: _measured(name, rows[:, j]) for j, name in enumerate(numbers)}
    for j, name in enumerate(numbers):
        twin = next((a for i, a in enumerate(numbers[:j]) if _same(rows[:, i], rows[:, j])), None)
        if twin is not None and found[twin].used:
            found[name] = replace(found[name], aside=f"tells the same as {twin}")
    whole = kind_of(rows[:, [found[name].used for name in numbers]])
    for name in numbers:
        column = found[name]
        if whole == CONTINUOUS and column.used and column.distinct <= TWO_VALUES:
            reason = "two values only: among measurements a density would collapse onto them"
            found[name] = replace(column, aside=reason)
    return tuple(found.get(name, Column(name, aside=words.get(name, ""))) for name in names)


def kind_of(rows: Array) -> str:
    """What the values of a table are: measurements, counts, or yes and no.

    Example:
        >>> kind_of(np.array([[0.0, 3.0], [2.0, 1.0]])), kind_of(np.array([[0.0, 1.0]])), kind_of(np.array([[0.5]]))
        ('counts', 'yes or no', 'measurements')
    """
    values = rows[~np.isnan(rows)]
    if values.size == 0 or (values < 0.0).any() or (values != np.floor(values)).any():
        return CONTINUOUS
    if values.max() <= 1.0:
        return BINARY
    return (
        COUNTS if float(np.nanmin(rows, axis=0).max()) <= 1.0 and float(values.mean()) < 100.0 else CONTINUOUS
    )


def _measured(name: str, values: Array) -> Column:
    known = values[~np.isnan(values)]
    missing = 1.0 - len(known) / max(len(values), 1)
    if len(known) == 0:
        return Column(name, "no value is present", missing)
    levels, counts = np.unique(known, return_counts=True)
    mean, deviation = float(known.mean()), float(known.std())
    column = Column(name, "", missing, len(levels), float(levels[0]), float(levels[-1]), mean, deviation)
    if len(levels) == 1:
        return replace(column, aside="the same value in every row")
    others = len(known) - int(counts.max())
    if others < RARE and len(known) >= 10 * RARE:
        return replace(column, aside=f"the same value in all but {others} rows")
    if len(known) > 10 and _numbered(known):
        return replace(column, aside="numbers the rows")
    z = (known - mean) / deviation
    common, skewness, tails = (
        float(counts.max()) / len(known),
        float((z**3).mean()),
        float((z**4).mean()) - 3.0,
    )
    column = replace(column, skewness=skewness, tails=tails, common=common)
    return replace(column, notes=tuple(_notes(column, float(levels[counts.argmax()]))))


def _notes(column: Column, value: float) -> list[str]:
    found = []
    if column.missing > 0.0:
        found.append(f"{column.missing:.0%} missing" if column.missing >= 0.01 else "a few values missing")
    if column.mostly_one:
        found.append(f"{column.common:.0%} of the values are {value:g}")
    if column.skewed_positive:
        found.append("skewed to the right: its logarithm may fit better")
    elif abs(column.skewness) > SKEWED:
        found.append(f"skewed to the {'right' if column.skewness > 0 else 'left'}")
    if column.tails > TAIL:
        found.append("heavy tails")
    return found


def _numbered(values: Array) -> bool:
    """Whether the values count the rows up or down."""
    steps = np.diff(values)
    return bool((steps == steps[0]).all() and abs(steps[0]) == 1.0)


def _same(one: Array, other: Array) -> bool:
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
