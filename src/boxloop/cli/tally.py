"""Log-densities of a table, tile by tile, and their mean with its standard error."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from boxloop.data import ArraySource
from boxloop.estimators.base import Array
from boxloop.types import Source

LOWEST = 5
"""How many of the least likely rows are remembered."""


def tiles(source: Source) -> Iterator[tuple[ArraySource, Array]]:
    """Each tile of a source as a source of its own, with its weights: memory stays bounded by the tile."""
    for rows, weight in source.chunks():
        yield ArraySource(rows, None, source.names), weight.cpu().numpy()


@dataclass(frozen=True)
class Tally:
    """Weighted mean and spread of what has been added so far, and the lowest values with their rows.

    Example:
        >>> tally = Tally().add(np.array([1.0, 2.0])).add(np.array([6.0]))
        >>> tally.mean, round(tally.error, 3), tally.lowest[0]
        (3.0, 1.528, (1.0, 0))
    """

    rows: int = 0
    weight: float = 0.0
    total: float = 0.0
    square: float = 0.0
    lowest: tuple[tuple[float, int], ...] = ()

    def add(self, value: Array, weight: Array | None = None) -> Tally:
        """With the values of more rows; the parts are merged without cancellation."""
        share = np.ones(len(value)) if weight is None else weight
        fresh, order = float(share.sum()), np.argsort(value)[:LOWEST]
        low = [(float(value[i]), self.rows + int(i)) for i in order]
        with np.errstate(invalid="ignore"):  # a row of density zero makes the mean -inf, its error NaN
            part = float(value @ share)
            centre = part / fresh if fresh else 0.0
            square = float((value - centre) ** 2 @ share)
        if self.weight and fresh:
            square += (centre - self.mean) ** 2 * self.weight * fresh / (self.weight + fresh)
        return Tally(
            self.rows + len(value),
            self.weight + fresh,
            self.total + part,
            self.square + square,
            tuple(sorted([*self.lowest, *low])[:LOWEST]),
        )

    @property
    def mean(self) -> float:
        """Weighted mean."""
        return self.total / self.weight if self.weight else math.nan

    @property
    def error(self) -> float:
        """Standard error of the mean; NaN for a single row."""
        return math.sqrt(self.square / (self.weight - 1.0) / self.weight) if self.weight > 1.0 else math.nan
