"""Mean of the log-densities of a table with its standard error, and the least likely rows."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from boxloop.cli.describe import Fitted
from boxloop.data import ArraySource
from boxloop.estimators import Array
from boxloop.tree import Tree
from boxloop.types import Source

LOWEST = 5
"""How many of the least likely rows are remembered."""


def tallied(estimator: Fitted, source: Source) -> Tally:
    """Log-densities of all rows under a model, found where the rows live."""
    names = source.names

    def tile(rows: Tensor, weight: Tensor, start: int) -> Tally:
        density = estimator.score_samples(ArraySource(rows, None, names))
        return Tally.of(density, weight.cpu().numpy(), start)

    return source.reduce_at(tile)


@dataclass(frozen=True)
class Tally(Tree):
    """Weighted mean and spread of values, and the lowest of them with their rows; tallies of parts add up.

    Example:
        >>> tally = Tally.of(np.array([1.0, 2.0])) + Tally.of(np.array([6.0]), start=2)
        >>> tally.mean, round(tally.error, 3), tally.lowest[0]
        (3.0, 1.528, (1.0, 0))
    """

    rows: int = 0
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    lowest: tuple[tuple[float, int], ...] = ()

    @classmethod
    def of(cls, value: Array, weight: Array | None = None, start: int = 0) -> Tally:
        """That of some rows, of which the first has the number ``start``."""
        share = np.ones(len(value)) if weight is None else weight
        mass, order = float(share.sum()), np.argsort(value)[:LOWEST]
        with np.errstate(invalid="ignore"):  # a row of density zero makes the mean -inf, its error NaN
            total = float(value @ share)
            square = float((value - (total / mass if mass else 0.0)) ** 2 @ share)
        lowest = tuple((float(value[i]), start + int(i)) for i in order)
        return cls(len(value), mass, total, square, lowest)

    def __add__(self, other: Tally) -> Tally:
        square = self.square + other.square
        if self.weight and other.weight:  # merged without cancellation
            both = self.weight + other.weight
            square += (other.mean - self.mean) ** 2 * self.weight * other.weight / both
        return Tally(
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
