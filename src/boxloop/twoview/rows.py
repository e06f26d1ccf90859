"""Rows that are chosen, or put into folds, by their place alone: the same whatever tiles they come in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from boxloop.data import ConcatenatedRows
from boxloop.numeric import scrambled
from boxloop.tree import Tree


@dataclass(frozen=True)
class Columns(Tree):
    """Several numbers of each row, of tile after tile."""

    parts: tuple[ConcatenatedRows, ...]

    @classmethod
    def of(cls, *lines: tuple[Tensor, ...]) -> Columns:
        """Those of one tile, in one or more pieces."""
        return cls(tuple(ConcatenatedRows.of(torch.cat(pieces)) for pieces in zip(*lines, strict=True)))

    def concatenate(self) -> tuple[Tensor, ...]:
        """Those of all rows."""
        return tuple(part.concatenate() for part in self.parts)


def folds_of(start: int, stop: int, folds: int, key: int) -> Tensor:
    """Folds of the rows from ``start`` to ``stop``: of every ``folds`` rows in turn, one in each, in random order.

    Example:
        >>> whole = folds_of(0, 12, 3, 0)
        >>> bool((whole[5:9] == folds_of(5, 9, 3, 0)).all()), whole.bincount()
        (True, tensor([4, 4, 4]))
    """
    first, last = start // folds, -(-stop // folds)
    words = scrambled(np.arange(first * folds, last * folds, dtype=np.uint64), key)
    found = words.reshape(-1, folds).argsort(1).reshape(-1)
    return torch.from_numpy(found[start - first * folds : stop - first * folds])


def chosen_rows(weight: Tensor, start: int, chance: float, key: int) -> Tensor:
    """Which rows of a tile are chosen, (n,): those with weight, each as likely as any other.

    Args:
        weight: of the rows, (n,).
        start: number of the first.
        chance: of each; 1 takes them all.
        key: of the choice.
    """
    keep = weight > 0.0
    if chance < 1.0:
        place = np.arange(start, start + len(weight), dtype=np.uint64)
        word = scrambled(place, key ^ 0x5DEECE66D)
        keep &= torch.from_numpy(word / 2.0**64 < chance).to(keep.device)
    return keep
