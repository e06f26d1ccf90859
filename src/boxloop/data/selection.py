"""Row selections (mask, indices, folds) and row samples, evaluated tile by tile where the rows live.

A selection travels to workers as what it is: a mask as one bit per row, a few indices as themselves, the folds of a
shuffle as their seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Generic, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.data.source import ArraySource, MappedSource, PlacedTile, SourceView
from boxloop.data.sparse import SparseSource
from boxloop.numeric import seed
from boxloop.tree import Tree
from boxloop.types import Source

T = TypeVar("T", bound=Tree)

COUNT_BLOCK = 4096
"""Rows of a mask between two stored counts, so that no tile counts all selected rows before it."""

SHUFFLE_BLOCK = 1 << 16
"""About how many neighbouring rows are shuffled among themselves."""

CONCATENATED_VALUES = 1 << 16
"""Values up to which parts are concatenated at once: few rows of each of many tiles, left among the tiles' temporaries,
would keep the memory between them from being used again."""


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
    chosen = MaskSelection(selection) if isinstance(selection, Tensor) else selection
    if isinstance(source, ArraySource):
        return source.take(chosen.mask_between(0, source.n_rows).nonzero()[:, 0].to(source.rows.device))
    return SelectedRows(source, chosen)


def shuffle_rows(source: Source, generator: Generator) -> Source:
    """Rows in random order, where they are in memory; a stream is taken to be in random order already."""
    if isinstance(source, MappedSource):
        return replace(source, source=shuffle_rows(source.source, generator))
    if not isinstance(source, ArraySource | SparseSource):
        return source
    order = torch.randperm(source.n_rows, generator=generator, device=generator.device).to(source.rows.device)
    return source.take(order)


@dataclass(frozen=True)
class ConcatenatedRows(Tree):
    """Rows of several tiles, one after the other: a statistic whose sum is the concatenation.

    Example:
        >>> import torch
        >>> (ConcatenatedRows.of(torch.zeros(2)) + ConcatenatedRows.of(torch.ones(1))).concatenate()
        tensor([0., 0., 1.])
    """

    parts: tuple[Tensor, ...]

    @classmethod
    def of(cls, rows: Tensor) -> Self:
        """Those of one tile."""
        return cls((rows,))

    def __add__(self, other: Self) -> Self:
        last, first = self.parts[-1], other.parts[0]
        if last.numel() + first.numel() > CONCATENATED_VALUES:
            return type(self)(self.parts + other.parts)
        return type(self)((*self.parts[:-1], torch.cat([last, first]), *other.parts[1:]))

    def concatenate(self) -> Tensor:
        """All of them as one tensor."""
        return torch.cat(self.parts)


@dataclass(frozen=True)
class SumAndRows(Tree, Generic[T]):
    """A sum over all rows, and some of the rows, from one pass."""

    sum: T
    rows: ConcatenatedRows


@dataclass(frozen=True)
class RowSampler:
    """Indices of a random sample, drawn before the rows are read, so that the sample does not depend on tiles.

    Args:
        indices: numbers of the sampled rows, counted from 0, increasing, (m,).
        probability: of each row to be in the sample.

    Example:
        >>> import torch
        >>> RowSampler.draw(5, 100, torch.Generator()).indices
        tensor([0, 1, 2, 3, 4])
    """

    indices: Tensor
    probability: float

    @classmethod
    def draw(cls, n_rows: int, size: int, generator: Generator) -> RowSampler:
        """``size`` of ``n_rows`` without replacement; all of them when there are no more."""
        if size >= n_rows:
            return cls(torch.arange(n_rows), 1.0)
        numbers = np.random.default_rng(seed(generator))
        # Without a shuffle: in time that does not grow with the rows.
        indices = numbers.choice(n_rows, size, replace=False, shuffle=False)
        return cls(torch.from_numpy(np.sort(indices)), size / n_rows)

    def indices_between(self, start: int, stop: int) -> Tensor:
        """The sampled rows from ``start`` to ``stop``, counted from ``start``."""
        a, b = torch.searchsorted(self.indices, torch.tensor([start, stop])).tolist()
        return self.indices[a:b] - start

    def take(self, rows: Tensor, weight: Tensor, start: int) -> ConcatenatedRows:
        """The sampled rows of a tile in float64, beside their weights."""
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        chosen = self.indices_between(start, start + len(weight)).to(rows.device)
        return ConcatenatedRows.of(torch.cat([dense[chosen].double(), weight[chosen, None].double()], 1))


@dataclass(frozen=True)
class RowSample:
    """A random sample of the rows of a source.

    Args:
        rows: (m, d), float64.
        weight: (m,).
        indices: row numbers counted from 0, (m,).
        probability: of each row to be in the sample.
    """

    rows: Tensor
    weight: Tensor
    indices: Tensor
    probability: float

    @classmethod
    def of(cls, sampler: RowSampler, taken: ConcatenatedRows) -> RowSample:
        """From what :meth:`RowSampler.take` gave in one pass."""
        joined = taken.concatenate()
        rows, weight = joined[:, :-1].contiguous(), joined[:, -1].contiguous()
        return cls(rows, weight, sampler.indices, sampler.probability)

    @property
    def is_complete(self) -> bool:
        """Whether every row is in the sample."""
        return self.probability == 1.0


def sample_rows(source: Source, size: int, generator: Generator) -> RowSample:
    """``size`` rows of a source without replacement, in one pass; all of them when there are no more.

    Args:
        source: rows.
        size: of the sample.
        generator: of random numbers.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> sample_rows(ArraySource(torch.zeros(5, 2)), 100, torch.Generator()).rows.shape
        torch.Size([5, 2])
    """
    sampler = RowSampler.draw(source.n_rows, size, generator)
    return RowSample.of(sampler, source.reduce_at(sampler.take))


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
    """Whether all rows have the same weight, in one pass where they live.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> rows = torch.zeros(2, 1)
        >>> has_equal_weights(ArraySource(rows)), has_equal_weights(ArraySource(rows, torch.tensor([1.0, 2.0])))
        (True, False)
    """
    weights = source.reduce(_WeightRange.of)
    return bool(weights.smallest == weights.largest)
