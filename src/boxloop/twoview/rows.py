"""Rows that are chosen, or put into folds, by their place alone: the same whatever tiles they come in."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.types import Source

Words = NDArray[np.uint64]


def scrambled(place: Words, key: int) -> Words:
    """A random 64-bit word for each place: SplitMix64 (Steele, Lea and Flood 2014).

    Example:
        >>> import numpy as np
        >>> scrambled(np.arange(1, dtype=np.uint64), 0)
        array([16294208416658607535], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        word = (place + np.uint64(key % 2**64) * np.uint64(0xD1342543DE82EF95) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))


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


def chosen_rows(source: Source, most: int, key: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Tiles of about ``most`` rows with weight, each as likely as any other; all of them where there are no more.

    Args:
        source: rows in order.
        most: how many.
        key: of the choice.

    Yields:
        Rows, weights, places counted from 0.
    """
    chance, start = min(1.0, most / source.n_rows), 0
    for rows, weight in source.chunks():
        place = torch.arange(start, start + len(weight))
        start += len(weight)
        keep = weight.cpu() > 0.0
        if chance < 1.0:
            word = scrambled(place.numpy().astype(np.uint64), key ^ 0x5DEECE66D)
            keep &= torch.from_numpy(word / 2.0**64 < chance)
        if bool(keep.all()):
            yield rows, weight, place
        elif bool(keep.any()):
            yield rows[keep.to(rows.device)], weight[keep.to(weight.device)], place[keep]
