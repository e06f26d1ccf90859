"""Log-densities of a table: their mean with its standard error, and the rows of lowest density."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from boxloop.cli.describe import Fitted
from boxloop.data import ArraySource
from boxloop.estimators import Array
from boxloop.tree import Tree
from boxloop.types import Source

LOWEST = 5
"""Number of rows of lowest density in a sum."""


def sum_log_densities(estimator: Fitted, source: Source) -> LogDensitySums:
    """Log-densities of all rows under a model, computed where the rows are."""
    names = source.names

    def tile(rows: Tensor, weight: Tensor, start: int) -> LogDensitySums:
        density = estimator.score_samples(ArraySource(rows, None, names))
        return LogDensitySums.of(density, weight.cpu().numpy(), start)

    return source.reduce_at(tile)


@dataclass(frozen=True)
class LogDensitySums(Tree):
    """Weighted mean of values with its standard error, and the lowest values with their rows; additive over parts.

    Example:
        >>> sums = LogDensitySums.of(np.array([1.0, 2.0])) + LogDensitySums.of(np.array([6.0]), start=2)
        >>> sums.mean, round(sums.error, 3), sums.lowest[0]
        (3.0, 1.528, (1.0, 0))
    """

    rows: int = 0
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    lowest: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, value: Array, weight: Array | None = None, start: int = 0) -> LogDensitySums:
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

    Args:
        most: most rows to hold.
        rows: number of rows.
        flagged: number of outliers.
        density: lowest log-densities, increasing, (m,).
        places: their row numbers, counted from 0, (m,).
        values: their values, (m, d).

    Example:
        >>> parts = [LowestRows.of(np.array([-9.0, 0.0, -1.0]), np.zeros((3, 2)), 1, start, most=2) for start in (0, 3)]
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
    def of(cls, density: Array, values: Array, flagged: int, start: int, most: int) -> LowestRows:
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
