"""A source seen through a function of its rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.data.sparse import SparseSource
from boxloop.data.tiles import Placed, View
from boxloop.types import Source


@dataclass(frozen=True)
class Mapped(View):
    """Rows changed one tile at a time: moved to a device, cut into zeros and ones, checked.

    Args:
        source: where rows come from.
        function: (n, d) -> (n, d), row by row.
        device: where weights go, with the rows.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> next(Mapped(ArraySource(torch.ones(1, 2)), lambda rows: rows * 3).chunks())[0]
        tensor([[3., 3.]])
    """

    source: Source
    function: Callable[[Tensor], Tensor]
    device: torch.device | None = None

    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """Changed tiles."""
        function, device = self.function, self.device
        return lambda rows, weight, start: (function(rows), weight.to(device or weight.device), start)


def within(source: Source, low: float, high: float, what: str, *, whole: str = "") -> Source:
    """The source, refusing any value outside [low, high] by column name, as it is read.

    Args:
        source: where rows come from.
        low: smallest value.
        high: largest value.
        what: name of the estimator, for messages.
        whole: what to do about values that are not whole numbers, which are then refused too.
    """
    names = source.names

    def check(rows: Tensor) -> Tensor:
        values = rows.values() if rows.layout != torch.strided else rows
        if not bool(_faults(values, low, high, bool(whole)).any()):
            return rows
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        outside = dense < low if bool((dense < low).any()) else _faults(dense, low, high, bool(whole))
        row, column = torch.nonzero(outside)[0].tolist()
        name, value = names[column], float(dense[row, column])
        if value < 0.0:
            fault = f"Negative values in data passed to {what}: column {name!r} holds {value:g}"
        elif not low <= value <= high:
            fault = f"Values outside [{low:g}, {high:g}] in data passed to {what}: column {name!r} holds {value:g}"
        else:
            fault = f"{what} needs whole numbers, but column {name!r} holds {value:g}"
        raise ValueError(f"{fault}; {whole}" if whole else fault)

    return Mapped(source, check)


def _faults(values: Tensor, low: float, high: float, whole: bool) -> Tensor:
    """Values that are refused; NaN, which marks a missing one, is not."""
    found = (values < low) | (values > high)
    return found | (values.frac().abs() > 0.0) if whole else found


def shuffled(source: Source, generator: torch.Generator) -> Source:
    """Rows in random order, where they are in memory; a stream is taken to be in random order already."""
    if isinstance(source, Mapped):
        return replace(source, source=shuffled(source.source, generator))
    if not isinstance(source, ArraySource | SparseSource):
        return source
    order = torch.randperm(source.n_rows, generator=generator, device=generator.device).to(source.rows.device)
    return source.taken(order)
