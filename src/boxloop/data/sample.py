"""Rows kept by chance while others pass."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from boxloop.types import Source


class Reservoir:
    """About ``size`` of the rows that pass, each with equal chance; all of them when there are no more.

    Args:
        n_rows: how many will pass.
        size: how many to keep.
        generator: of the chances.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> reservoir = Reservoir(5, 100, torch.Generator())
        >>> for rows, weight in ArraySource(torch.zeros(5, 2)).chunks():
        ...     reservoir.add(rows, weight)
        >>> reservoir.rows.shape
        torch.Size([5, 2])
    """

    def __init__(self, n_rows: int, size: int, generator: Generator) -> None:
        self.chance = size / n_rows
        self.generator = generator
        self._room = min(n_rows, size + int(10 * size**0.5))  # ten deviations: cut short by chance never
        self._rows = self._weight = torch.empty(0)
        self._places = torch.empty(self._room, dtype=torch.int64)
        self._passed = self._filled = 0

    @property
    def rows(self) -> Tensor:
        """The rows kept, (m, d), float64."""
        return self._rows[: self._filled]

    @property
    def weight(self) -> Tensor:
        """Their weights, (m,)."""
        return self._weight[: self._filled]

    @property
    def places(self) -> Tensor:
        """Which rows they are, counted from 0, (m,)."""
        return self._places[: self._filled]

    @property
    def whole(self) -> bool:
        """Whether every row is kept."""
        return self.chance >= 1.0

    def add(self, rows: Tensor, weight: Tensor) -> None:
        """Let a tile pass."""
        if not self._filled:  # one block for all: small ones kept between tiles would scatter the heap
            self._rows = torch.empty(self._room, rows.shape[1], dtype=torch.float64, device=rows.device)
            self._weight = weight.new_empty(self._room)
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        places = torch.arange(self._passed, self._passed + len(weight))
        self._passed += len(weight)
        if not self.whole:
            drawn = torch.rand(len(weight), generator=self.generator, device=self.generator.device)
            keep = (drawn < self.chance).cpu()
            dense, weight, places = dense[keep.to(dense.device)], weight[keep.to(weight.device)], places[keep]
        stop = min(self._filled + len(weight), self._room)
        self._rows[self._filled : stop] = dense[: stop - self._filled]
        self._weight[self._filled : stop] = weight[: stop - self._filled]
        self._places[self._filled : stop] = places[: stop - self._filled]
        self._filled = stop


def kept_rows(source: Source, size: int, generator: Generator) -> Reservoir:
    """About ``size`` rows of a source, in one pass."""
    reservoir = Reservoir(source.n_rows, size, generator)
    for rows, weight in source.chunks():
        reservoir.add(rows, weight)
    return reservoir
