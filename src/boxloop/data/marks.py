"""Which rows of a table are meant, told wherever they are: by a mask, by their places, or by a shuffle nobody holds.

Rows are chosen on workers, tile by tile. A mask travels as a bit a row and a few places as what they are; the folds of
a shuffle travel as its seed, and cost nothing that grows with the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

COUNTED = 4096
"""Rows whose number of marked ones is known, so that no tile counts all before it."""

BLOCK = 1 << 16
"""Rows that are shuffled among themselves, about."""


@runtime_checkable
class Marks(Protocol):
    """Some rows of a table."""

    def among(self, start: int, stop: int) -> Tensor:
        """Which of the rows from ``start`` to ``stop`` are meant, (stop - start,) booleans."""

    def before(self, start: int) -> int:
        """How many are meant of the rows before ``start``."""


@dataclass(frozen=True, eq=False)
class Mask:
    """The rows that a mask marks, (n,) on the CPU.

    Example:
        >>> marks = Mask(torch.tensor([True, False, True]))
        >>> marks.before(3), marks.among(1, 3)
        (2, tensor([False,  True]))
    """

    mask: Tensor

    @cached_property
    def _counted(self) -> Tensor:
        whole = len(self.mask) // COUNTED * COUNTED
        return self.mask[:whole].reshape(-1, COUNTED).sum(1).cumsum(0)

    def among(self, start: int, stop: int) -> Tensor:
        """A slice of the mask."""
        return self.mask[start:stop]

    def before(self, start: int) -> int:
        """Counted by blocks."""
        block = start // COUNTED
        return int(self.mask[block * COUNTED : start].sum()) + (int(self._counted[block - 1]) if block else 0)


@dataclass(frozen=True, eq=False)
class At:
    """The rows at places, or all others.

    Args:
        places: counted from 0, rising, (m,) on the CPU.
        others: whether the other rows are meant.

    Example:
        >>> At(torch.tensor([1, 4]), others=True).among(0, 5)
        tensor([ True, False,  True,  True, False])
    """

    places: Tensor
    others: bool = False

    def among(self, start: int, stop: int) -> Tensor:
        """Found by bisection."""
        a, b = torch.searchsorted(self.places, torch.tensor([start, stop])).tolist()
        found = torch.full((stop - start,), self.others)
        found[self.places[a:b] - start] = not self.others
        return found

    def before(self, start: int) -> int:
        """Counted by bisection."""
        count = int(torch.searchsorted(self.places, start))
        return start - count if self.others else count


@dataclass(frozen=True)
class Folds:
    """Rows dealt into folds by chance, the same wherever and in whatever tiles they are read; none is held.

    Blocks of about 65,000 neighbours are shuffled and dealt, each by a seed of its own: folds differ by one row at
    most, and in a table that is sorted each still has its share of every part. A table of one block is dealt as
    ``sklearn.model_selection.KFold`` deals it.

    Args:
        n_rows: of the table.
        count: folds.
        seed: of the shuffles.

    Raises:
        ValueError: fewer than two folds, or more than rows.

    Example:
        >>> folds = Folds(6, 3, seed=0)
        >>> folds.labels(0, 6).tolist(), folds.held(0).before(6)
        ([2, 1, 0, 1, 2, 0], 2)
    """

    n_rows: int
    count: int
    seed: int

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ValueError(f"at least 2 folds are needed, not {self.count}")
        if self.count > self.n_rows:
            raise ValueError(
                f"Cannot have number of splits n_splits={self.count} greater than the number of samples: "
                f"n_samples={self.n_rows}."
            )

    @property
    def block(self) -> int:
        """Rows of a block: a multiple of the number of folds."""
        return self.count * max(1, BLOCK // self.count)

    def labels(self, start: int, stop: int) -> Tensor:
        """The fold that each of some rows belongs to, (stop - start,)."""
        found = [
            self.dealt(block)[max(0, start - block * self.block) : stop - block * self.block]
            for block in range(start // self.block, -(-stop // self.block))
        ]
        return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int32), *found]))

    def dealt(self, block: int) -> NDArray[np.int32]:
        """The fold of each row of a block."""
        return _dealt(min(self.block, self.n_rows - block * self.block), self.count, self.seed + block)

    def held(self, fold: int) -> InFold:
        """The rows of a fold."""
        return InFold(self, fold)

    def others(self, fold: int) -> InFold:
        """All rows but those of a fold."""
        return InFold(self, fold, others=True)


@lru_cache(maxsize=16)
def _dealt(rows: int, folds: int, seed: int) -> NDArray[np.int32]:
    order, numbers = np.arange(rows), np.arange(folds, dtype=np.int32)
    np.random.RandomState(seed % 2**32).shuffle(order)
    found = np.empty(rows, dtype=np.int32)
    found[order] = np.repeat(numbers, rows // folds + (numbers < rows % folds))
    return found


@dataclass(frozen=True)
class InFold:
    """The rows of one fold, or all others."""

    folds: Folds
    fold: int
    others: bool = False

    def among(self, start: int, stop: int) -> Tensor:
        """By the labels."""
        return (self.folds.labels(start, stop) == self.fold) != self.others

    def before(self, start: int) -> int:
        """A share of every block, and those that are counted in the last."""
        blocks, rest = divmod(start, self.folds.block)
        count = blocks * (self.folds.block // self.folds.count)
        if rest:
            count += int(np.count_nonzero(self.folds.dealt(blocks)[:rest] == self.fold))
        return start - count if self.others else count
