"""What the columns of a table are, and which of them a model can use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

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
