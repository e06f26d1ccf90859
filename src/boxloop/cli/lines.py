"""A pass of a command over a table: what its rows come to adds up, and a line for each is written as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np

from boxloop.cli.output import for_spreadsheets
from boxloop.cli.watch import watched
from boxloop.data import table_writer
from boxloop.estimators import Array
from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Found(Tree, Generic[T]):
    """What some rows come to; those of parts add up.

    Args:
        rows: how many.
        total: what is said of all of them.
        lines: one for each, as columns of a tile after the other; none where no table is written.
    """

    rows: int
    total: T
    lines: tuple[Columns, ...] = ()

    def __add__(self, other: Found[T]) -> Found[T]:
        return Found(self.rows + other.rows, self.total + other.total, self.lines + other.lines)


@dataclass(frozen=True)
class Summary(Tree):
    """Mean, deviation and range of columns of numbers; those of parts add up.

    Example:
        >>> one, two = ({"a": np.array(values)} for values in ([1.0, 3.0], [5.0]))
        >>> both = Summary.of(one) + Summary.of(two)
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
    def of(cls, columns: Columns) -> Summary:
        """That of some rows; words are left out."""
        numbers = {name: values for name, values in columns.items() if values.dtype.kind in "biuf"}
        values = np.column_stack(list(numbers.values())).astype(np.float64)
        sums = values.sum(0), (values**2).sum(0), values.min(0), values.max(0)
        return cls(tuple(numbers), len(values), *sums)

    def __add__(self, other: Summary) -> Summary:
        return Summary(
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


def passed(parts: Iterable[Found[T]], n_rows: int, output: Path | None, watch: bool) -> T:
    """Add up what one part after the other comes to, and write its lines: memory stays bounded by a part.

    Args:
        parts: in row order.
        n_rows: of all of them.
        output: table to write, or None.
        watch: whether to show progress.
    """
    total: T | None = None
    done = 0
    with (
        nullcontext() if output is None else table_writer(output) as write,
        watched("rows", watch) as moved,
    ):
        for part in parts:
            total = part.total if total is None else total + part.total
            moved(done := done + part.rows, n_rows, "rows")
            if write is not None:
                for columns in part.lines:
                    write(for_spreadsheets(output, columns))
    if total is None:
        raise ValueError("the table has no rows")
    return total
