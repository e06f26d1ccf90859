"""Row selections (mask, indices, folds), evaluated tile by tile where the rows live.

A selection travels to workers as what it is: a mask as one bit per row, a few indices as themselves, the folds of a
shuffle as their seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data.source import ArraySource, MappedSource, PlacedTile, SourceView
from boxloop.data.sparse import SparseSource
from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)

COUNT_BLOCK = 4096
"""Rows of a mask between two stored counts, so that no tile counts all selected rows before it."""

SHUFFLE_BLOCK = 1 << 16
"""About how many neighbouring rows are shuffled among themselves."""


@runtime_checkable
class RowSelection(Protocol):
    """A subset of the rows of a table."""

    def mask_between(self, start: int, stop: int) -> Tensor:
        """Which of the rows from ``start`` to ``stop`` are selected, (stop - start,) booleans."""

    def count_before(self, start: int) -> int:
        """How many of the rows before ``start`` are selected."""


@dataclass(frozen=True, eq=False)
class MaskSelection:
    """The rows where a mask is true, (n,) on the CPU.

    Example:
        >>> selection = MaskSelection(torch.tensor([True, False, True]))
        >>> selection.count_before(3), selection.mask_between(1, 3)
        (2, tensor([False,  True]))
    """

    mask: Tensor

    @cached_property
    def _block_counts(self) -> Tensor:
        whole = len(self.mask) // COUNT_BLOCK * COUNT_BLOCK
        return self.mask[:whole].reshape(-1, COUNT_BLOCK).sum(1).cumsum(0)

    def mask_between(self, start: int, stop: int) -> Tensor:
        """A slice of the mask."""
        return self.mask[start:stop]

    def count_before(self, start: int) -> int:
        """Counted by blocks."""
        block = start // COUNT_BLOCK
        return int(self.mask[block * COUNT_BLOCK : start].sum()) + (
            int(self._block_counts[block - 1]) if block else 0
        )


@dataclass(frozen=True, eq=False)
class IndexSelection:
    """The rows at given indices, or all others.

    Args:
        indices: row numbers counted from 0, increasing, (m,) on the CPU.
        complement: whether the other rows are selected.

    Example:
        >>> IndexSelection(torch.tensor([1, 4]), complement=True).mask_between(0, 5)
        tensor([ True, False,  True,  True, False])
    """

    indices: Tensor
    complement: bool = False

    def mask_between(self, start: int, stop: int) -> Tensor:
        """Found by bisection."""
        a, b = torch.searchsorted(self.indices, torch.tensor([start, stop])).tolist()
        mask = torch.full((stop - start,), self.complement)
        mask[self.indices[a:b] - start] = not self.complement
        return mask

    def count_before(self, start: int) -> int:
        """Counted by bisection."""
        count = int(torch.searchsorted(self.indices, start))
        return start - count if self.complement else count


@dataclass(frozen=True)
class Folds:
    """A random partition of the rows into folds that depends on the seed alone, not on tiles; nothing is stored.

    Blocks of about 65,000 neighbours are shuffled and dealt out, each by a seed of its own: fold sizes differ by one
    row at most, and in a sorted table each fold still has its share of every part. A table of one block is split as
    ``sklearn.model_selection.KFold`` splits it.

    Args:
        n_rows: of the table.
        n_folds: number of folds.
        seed: of the shuffles.

    Raises:
        ValueError: fewer than two folds, or more folds than rows.

    Example:
        >>> folds = Folds(6, 3, seed=0)
        >>> folds.labels(0, 6).tolist(), folds.test_rows(0).count_before(6)
        ([2, 1, 0, 1, 2, 0], 2)
    """

    n_rows: int
    n_folds: int
    seed: int

    def __post_init__(self) -> None:
        if self.n_folds < 2:
            raise ValueError(f"at least 2 folds are needed, not {self.n_folds}")
        if self.n_folds > self.n_rows:
            raise ValueError(
                f"Cannot have number of splits n_splits={self.n_folds} greater than the number of samples: "
                f"n_samples={self.n_rows}."
            )

    @property
    def block_rows(self) -> int:
        """Rows of a block: a multiple of the number of folds."""
        return self.n_folds * max(1, SHUFFLE_BLOCK // self.n_folds)

    def labels(self, start: int, stop: int) -> Tensor:
        """The fold of each row from ``start`` to ``stop``, (stop - start,)."""
        labels = [
            self.block_labels(block)[max(0, start - block * self.block_rows) : stop - block * self.block_rows]
            for block in range(start // self.block_rows, -(-stop // self.block_rows))
        ]
        return torch.from_numpy(np.concatenate([np.empty(0, dtype=np.int32), *labels]))

    def block_labels(self, block: int) -> NDArray[np.int32]:
        """The fold of each row of a block."""
        rows = min(self.block_rows, self.n_rows - block * self.block_rows)
        return _shuffle_labels(rows, self.n_folds, self.seed + block)

    def test_rows(self, fold: int) -> FoldSelection:
        """The rows of a fold."""
        return FoldSelection(self, fold)

    def train_rows(self, fold: int) -> FoldSelection:
        """All rows but those of a fold."""
        return FoldSelection(self, fold, complement=True)


@lru_cache(maxsize=16)
def _shuffle_labels(rows: int, folds: int, seed: int) -> NDArray[np.int32]:
    order, numbers = np.arange(rows), np.arange(folds, dtype=np.int32)
    np.random.RandomState(seed % 2**32).shuffle(order)
    labels = np.empty(rows, dtype=np.int32)
    labels[order] = np.repeat(numbers, rows // folds + (numbers < rows % folds))
    return labels


@dataclass(frozen=True)
class FoldSelection:
    """The rows of one fold, or all others."""

    folds: Folds
    fold: int
    complement: bool = False

    def mask_between(self, start: int, stop: int) -> Tensor:
        """By the labels."""
        return (self.folds.labels(start, stop) == self.fold) != self.complement

    def count_before(self, start: int) -> int:
        """An equal share of every whole block, and a count in the last."""
        blocks, rest = divmod(start, self.folds.block_rows)
        count = blocks * (self.folds.block_rows // self.folds.n_folds)
        if rest:
            count += int(np.count_nonzero(self.folds.block_labels(blocks)[:rest] == self.fold))
        return start - count if self.complement else count


@dataclass(frozen=True)
class SelectedRows(SourceView):
    """The selected rows of a source, tile by tile.

    Args:
        source: all rows.
        selection: which of them are used.

    Example:
        >>> import torch
        >>> mask = MaskSelection(torch.tensor([True, False, True]))
        >>> rows = SelectedRows(ArraySource(torch.arange(3.0)[:, None]), mask)
        >>> rows.n_rows, next(rows.chunks())[0][:, 0]
        (2, tensor([0., 2.]))
    """

    source: Source
    selection: RowSelection

    @property
    def n_rows(self) -> int:
        """Number of selected rows."""
        return self.selection.count_before(self.source.n_rows)

    def tile_transform(self) -> Callable[[Tensor, Tensor, int], PlacedTile]:
        """The selected rows of each tile."""
        selection = self.selection

        def transform(rows: Tensor, weight: Tensor, start: int) -> PlacedTile:
            mask = selection.mask_between(start, start + len(weight)).to(rows.device)
            return rows[mask], weight[mask], selection.count_before(start)

        return transform


def select_rows(source: Source, selection: RowSelection | Tensor) -> Source:
    """The rows of a selection or a mask: taken at once where they are in memory, else as they are read."""
    if isinstance(source, ArraySource):
        mask = selection if isinstance(selection, Tensor) else selection.mask_between(0, source.n_rows)
        return source.take(mask.nonzero()[:, 0].to(source.rows.device))
    return SelectedRows(source, MaskSelection(selection) if isinstance(selection, Tensor) else selection)


def shuffle_rows(source: Source, generator: Generator) -> Source:
    """Rows in random order, where they are in memory; a stream is taken to be in random order already."""
    if isinstance(source, MappedSource):
        return replace(source, source=shuffle_rows(source.source, generator))
    if not isinstance(source, ArraySource | SparseSource):
        return source
    order = torch.randperm(source.n_rows, generator=generator, device=generator.device).to(source.rows.device)
    return source.take(order)


@dataclass(frozen=True)
class _WeightRange(Tree):
    """The smallest and the largest weight; a sum of two is the range of both."""

    smallest: Tensor
    largest: Tensor

    @classmethod
    def of(cls, rows: Tensor, weight: Tensor) -> Self:
        return cls(*torch.aminmax(weight))

    def __add__(self, other: Self) -> Self:
        smallest = torch.minimum(self.smallest, other.smallest)
        return type(self)(smallest, torch.maximum(self.largest, other.largest))


def has_equal_weights(source: Source) -> bool:
    """Whether all rows have the same weight, in one pass where they live."""
    if isinstance(source, ArraySource) and source.weight is None:
        return True
    weights = source.reduce(_WeightRange.of)
    return bool(weights.smallest == weights.largest)
