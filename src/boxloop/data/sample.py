"""Rows kept by chance while others pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Self, TypeVar

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.numeric import seed
from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)

SMALL = 1 << 16
"""Values up to which parts are joined at once: few rows of each of many tiles, left among the tiles' temporaries, would
keep the memory between them from being used again."""


@dataclass(frozen=True)
class Gathered(Tree):
    """Rows of several tiles, one after the other: statistics whose sum is to stand beside one another.

    Example:
        >>> import torch
        >>> (Gathered.of(torch.zeros(2)) + Gathered.of(torch.ones(1))).joined()
        tensor([0., 0., 1.])
    """

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Those of one tile."""
        return cls((rows,))

    def __add__(self, other: Self) -> Self:
        last, first = self.parts[-1], other.parts[0]
        if last.numel() + first.numel() > SMALL:
            return type(self)(self.parts + other.parts)
        return type(self)((*self.parts[:-1], torch.cat([last, first]), *other.parts[1:]))

    def joined(self) -> Tensor:
        """All of them."""
        return torch.cat(self.parts)


@dataclass(frozen=True)
class Both(Tree, Generic[T]):
    """Two sums of one pass."""

    first: T
    second: Gathered


@dataclass(frozen=True)
class Lot:
    """Which rows are kept: drawn before any of them passes, so that it does not matter where and in what tiles they do.

    Args:
        places: numbers of the rows kept, counted from 0, rising, (m,).
        chance: of each row.

    Example:
        >>> import torch
        >>> Lot.drawn(5, 100, torch.Generator()).places
        tensor([0, 1, 2, 3, 4])
    """

    places: Tensor
    chance: float

    @classmethod
    def drawn(cls, n_rows: int, size: int, generator: Generator) -> Lot:
        """``size`` of ``n_rows``, each with equal chance; all of them when there are no more."""
        if size >= n_rows:
            return cls(torch.arange(n_rows), 1.0)
        draw = np.random.default_rng(seed(generator))
        places = draw.choice(
            n_rows, size, replace=False, shuffle=False
        )  # in time that does not grow with the rows
        return cls(torch.from_numpy(np.sort(places)), size / n_rows)

    def among(self, start: int, stop: int) -> Tensor:
        """Those of the rows from ``start`` to ``stop`` that are kept, counted from ``start``."""
        a, b = torch.searchsorted(self.places, torch.tensor([start, stop])).tolist()
        return self.places[a:b] - start

    def taken(self, rows: Tensor, weight: Tensor, start: int) -> Gathered:
        """What is kept of a tile: its rows in float64 beside their weights."""
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        chosen = self.among(start, start + len(weight)).to(rows.device)
        return Gathered.of(torch.cat([dense[chosen].double(), weight[chosen, None].double()], 1))


@dataclass(frozen=True)
class Kept:
    """Some rows of a source.

    Args:
        rows: (m, d), float64.
        weight: (m,).
        places: which they are, counted from 0, (m,).
        chance: of each row to be kept.
    """

    rows: Tensor
    weight: Tensor
    places: Tensor
    chance: float

    @classmethod
    def of(cls, lot: Lot, gathered: Gathered) -> Kept:
        """What a pass gathered by lot."""
        joined = gathered.joined()
        return cls(joined[:, :-1].contiguous(), joined[:, -1].contiguous(), lot.places, lot.chance)

    @property
    def whole(self) -> bool:
        """Whether every row is kept."""
        return self.chance == 1.0


def kept_rows(source: Source, size: int, generator: Generator) -> Kept:
    """``size`` rows of a source, each with equal chance, in one pass; all of them when there are no more.

    Args:
        source: rows.
        size: how many to keep.
        generator: of the chances.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> kept_rows(ArraySource(torch.zeros(5, 2)), 100, torch.Generator()).rows.shape
        torch.Size([5, 2])
    """
    lot = Lot.drawn(source.n_rows, size, generator)
    return Kept.of(lot, source.reduce_at(lot.taken))
