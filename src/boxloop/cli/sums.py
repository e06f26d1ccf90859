"""A pass of a command over a table: what its rows come to adds up, and a line for each is written as it comes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from boxloop.cli import console
from boxloop.cli.models import Fitted
from boxloop.data import ArraySource, table_writer
from boxloop.estimators import Array
from boxloop.tree import Tree
from boxloop.types import Source

LOWEST = 5
"""Number of rows of lowest density in a sum."""


def sum_log_densities(estimator: Fitted, source: Source) -> LogDensitySums:
    """Log-densities of all rows under a model, computed where the rows are."""
    names = source.names

    def sum_tile(rows: Tensor, weight: Tensor, start: int) -> LogDensitySums:
        density = estimator.score_samples(ArraySource(rows, None, names))
        return LogDensitySums.from_tile(density, weight.cpu().numpy(), start)

    return source.reduce_at(sum_tile)


@dataclass(frozen=True)
class LogDensitySums(Tree):
    """Weighted mean of values with its standard error, and the lowest values with their rows; additive over parts.

    Example:
        >>> sums = LogDensitySums.from_tile(np.array([1.0, 2.0])) + LogDensitySums.from_tile(np.array([6.0]), start=2)
        >>> sums.mean, round(sums.error, 3), sums.lowest[0]
        (3.0, 1.528, (1.0, 0))
    """

    rows: int = 0
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    lowest: tuple[tuple[float, int], ...] = ()

    @classmethod
    def from_tile(cls, value: Array, weight: Array | None = None, start: int = 0) -> LogDensitySums:
        """Of a tile of rows, the first of which has the number ``start``."""
        share = np.ones(len(value)) if weight is None else weight
        mass, order = float(share.sum()), np.argsort(value)[:LOWEST]
        with np.errstate(invalid="ignore"):  # a row of density zero makes the mean -inf, its error NaN
            total = float(value @ share)
            square = float((value - (total / mass if mass else 0.0)) ** 2 @ share)
        lowest = tuple((float(value[i]), start + int(i)) for i in order)
        return cls(len(value), mass, total, square, lowest)

    def __add__(self, other: LogDensitySums) -> LogDensitySums:
        square = self.square + other.square
        if self.weight and other.weight:  # merged without cancellation
            both = self.weight + other.weight
            square += (other.mean - self.mean) ** 2 * self.weight * other.weight / both
        return LogDensitySums(
            self.rows + other.rows,
            self.weight + other.weight,
            self.total + other.total,
            square,
            tuple(sorted([*self.lowest, *other.lowest])[:LOWEST]),
        )

    @property
    def mean(self) -> float:
        """Weighted mean."""
        return self.total / self.weight if self.weight else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single row."""
        return math.sqrt(self.square / (self.weight - 1.0) / self.weight) if self.weight > 1.0 else math.nan


@dataclass(frozen=True)
class LowestRows(Tree):
    """The rows of lowest density, and the number of outliers; additive over parts of a table.

    Example:
        >>> density = np.array([-9.0, 0.0, -1.0])
        >>> parts = [LowestRows.from_tile(density, np.zeros((3, 2)), 1, start, most=2) for start in (0, 3)]
        >>> (parts[0] + parts[1]).places.tolist(), parts[0].places.tolist()
        ([0, 3], [0, 2])
    """

    most: int
    rows: int
    flagged: int
    density: Array
    places: NDArray[np.int64]
    values: Array

    @classmethod
    def from_tile(cls, density: Array, values: Array, flagged: int, start: int, most: int) -> LowestRows:
        """Of a tile of rows, the first of which has the number ``start``."""
        order = np.argsort(density, kind="stable")[:most]
        return cls(most, len(density), flagged, density[order], start + order, values[order])

    def __add__(self, other: LowestRows) -> LowestRows:
        density = np.concatenate([self.density, other.density])
        places = np.concatenate([self.places, other.places])
        order = np.lexsort((places, density))[: self.most]
        values = np.concatenate([self.values, other.values])[order]
        count, flagged = self.rows + other.rows, self.flagged + other.flagged
        return LowestRows(self.most, count, flagged, density[order], places[order], values)


T = TypeVar("T", bound=Tree)

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class PartialSum(Tree, Generic[T]):
    """What some rows come to; those of parts add up."""

    rows: int
    total: T
    lines: tuple[Columns, ...] = ()

    def __add__(self, other: PartialSum[T]) -> PartialSum[T]:
        return PartialSum(self.rows + other.rows, self.total + other.total, self.lines + other.lines)


@dataclass(frozen=True)
class ColumnSummary(Tree):
    """Mean, deviation and range of columns of numbers; those of parts add up.

    Example:
        >>> one, two = ({"a": np.array(values)} for values in ([1.0, 3.0], [5.0]))
        >>> both = ColumnSummary.from_columns(one) + ColumnSummary.from_columns(two)
        >>> both.names, both.mean, both.high
        (('a',), array([3.]), array([5.]))
    """

    names: tuple[str, ...]
    rows: int
    total: Array
    square: Array
    low: Array
    high: Array

    @classmethod
    def from_columns(cls, columns: Columns) -> ColumnSummary:
        """That of some rows; words are left out."""
        numbers = {name: values for name, values in columns.items() if values.dtype.kind in "biuf"}
        values = np.column_stack(list(numbers.values())).astype(np.float64)
        sums = values.sum(0), (values**2).sum(0), values.min(0), values.max(0)
        return cls(tuple(numbers), len(values), *sums)

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        return ColumnSummary(
            self.names,
            self.rows + other.rows,
            self.total + other.total,
            self.square + other.square,
            np.minimum(self.low, other.low),
            np.maximum(self.high, other.high),
        )

    @property
    def mean(self) -> Array:
        """Of each column."""
        return self.total / self.rows

    @property
    def deviation(self) -> Array:
        """Of each column."""
        return np.sqrt(np.maximum(self.square / self.rows - self.mean**2, 0.0))


def sum_parts(parts: Iterable[PartialSum[T]], n_rows: int, output: Path | None, watch: bool) -> T:
    """Add up what one part after the other comes to, and write its lines: memory stays bounded by a part."""
    total: T | None = None
    done = 0
    with (
        nullcontext() if output is None else table_writer(output) as write,
        console.show_progress("rows", watch) as moved,
    ):
        for part in parts:
            total = part.total if total is None else total + part.total
            moved(done := done + part.rows, n_rows, "rows")
            if write is not None:
                for columns in part.lines:
                    write(console.escape_csv_formulas(output, columns))
    if total is None:
        raise ValueError("the table has no rows")
    return total
