"""Counts as sparse rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from scipy import sparse
from torch import Tensor

from boxloop.data.source import HeldSource
from boxloop.data.validation import check_column_names, check_counts, check_shape, check_weight

TILE_ROWS = 8192
"""Rows of a tile: a row's size is its count of stored values, not the width of the table."""


@dataclass(frozen=True)
class SparseSource(HeldSource):
    """A table held as one sparse CSR tensor; its tiles are sparse CSR tensors too.

    Args:
        rows: (n, d), sparse CSR, float64.
        weight: (n,), one non-negative weight per row; all ones when omitted.
        columns: column names; ``x0, x1, ...`` when omitted.

    Example:
        >>> from scipy.sparse import eye_array
        >>> source = sparse_source(eye_array(5))
        >>> [tuple(rows.shape) for rows, weight in source.chunks(3)]
        [(3, 5), (2, 5)]
    """

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(rows, weight)`` tiles in row order."""
        step = size or TILE_ROWS
        ends, column, value = self.rows.crow_indices(), self.rows.col_indices(), self.rows.values()
        weight = self.weight
        if weight is None:
            weight = torch.ones(self.n_rows, dtype=torch.float64, device=value.device)
        for start in range(0, self.n_rows, step):
            tile = ends[start : start + step + 1]
            a, b = int(tile[0]), int(tile[-1])
            shape = (tile.shape[0] - 1, self.n_columns)
            yield csr_tensor(tile - a, column[a:b], value[a:b], shape), weight[start : start + step]

    def take(self, indices: Tensor) -> SparseSource:
        """The rows at ``indices``, in that order."""
        ends, column, value = self.rows.crow_indices(), self.rows.col_indices(), self.rows.values()
        size = ends.diff()[indices]
        moved = torch.cat([ends.new_zeros(1), size.cumsum(0).to(ends.dtype)])
        place = torch.arange(int(moved[-1]), device=ends.device)
        place += (ends[:-1][indices] - moved[:-1]).repeat_interleave(size)
        rows = csr_tensor(moved, column[place], value[place], (len(indices), self.n_columns))
        return SparseSource(rows, None if self.weight is None else self.weight[indices], self.columns)


def sparse_source(matrix: Any, weight: object = None, columns: Sequence[str] | None = None) -> SparseSource:
    """Counts from a SciPy sparse matrix or array of any format, checked."""
    if matrix.ndim != 2:
        raise ValueError(f"Expected 2D array, got {matrix.ndim}D array instead (shape={matrix.shape})")
    if matrix.dtype.kind not in "biuf":
        raise ValueError(
            "Complex data not supported" if matrix.dtype.kind == "c" else "counts must be numbers"
        )
    check_shape(*matrix.shape)
    table = sparse.csr_array(matrix, dtype="float64")
    if not table.has_canonical_format:
        table = table.copy()
        table.sum_duplicates()
    ends, column, value = (torch.from_numpy(part) for part in (table.indptr, table.indices, table.data))
    source = SparseSource(
        csr_tensor(ends, column, value, table.shape), None, check_column_names(columns, table.shape[1])
    )
    check_counts(source.rows, source.names)
    if weight is None:
        return source
    return SparseSource(source.rows, check_weight(weight, source.n_rows), source.columns)


def csr_tensor(ends: Tensor, column: Tensor, value: Tensor, shape: tuple[int, int]) -> Tensor:
    """A sparse CSR tensor from its three parts."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta state")
        warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled")
        return torch.sparse_csr_tensor(ends, column, value, size=shape, check_invariants=False)
