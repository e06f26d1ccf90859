"""Rows in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.data.tiles import Tiled, View
from boxloop.types import Source

TILE_VALUES = 1 << 19
"""Values per tile: 2^19 float64 are four megabytes, so a tile and what is made from it stay in cache."""

WIDE_VALUES = 1 << 21
"""Values per tile of a wide table, whose d x d statistics cost as much to add as d rows cost to multiply."""

GPU_VALUES = 1 << 23
"""Values per tile on a GPU, where a tile must be large enough to hide the cost of starting a kernel."""


def tile_rows(n_columns: int) -> int:
    """Rows per tile for a table of this width: between 512 and 12288."""
    d = max(n_columns, 1)
    return max(512, min(12288, max(TILE_VALUES // d, min(2 * d, WIDE_VALUES // d))))


@dataclass(frozen=True)
class ArraySource(Tiled):
    """A table held as one tensor.

    Args:
        rows: (n, d); NaN marks a missing value.
        weight: (n,), one non-negative weight a row; all ones when omitted.
        columns: column names; ``x0, x1, ...`` when omitted.

    Example:
        >>> import torch
        >>> source = ArraySource(torch.zeros(5, 2))
        >>> source.n_rows, source.names
        (5, ('x0', 'x1'))
    """

    rows: Tensor
    weight: Tensor | None = None
    columns: tuple[str, ...] | None = None

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.rows.shape[0]

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.rows.shape[1]

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.columns or tuple(f"x{j}" for j in range(self.n_columns))

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(rows, weight)`` tiles in row order."""
        on_gpu = self.rows.device.type == "cuda"
        d = max(self.n_columns, 1)
        step = size or (max(1, GPU_VALUES // d) if on_gpu else tile_rows(d))
        weight = self.weight
        if weight is None:
            weight = torch.ones(self.n_rows, dtype=torch.float64, device=self.rows.device)
        for start in range(0, self.n_rows, step):
            yield self.rows[start : start + step], weight[start : start + step]

    def taken(self, order: Tensor) -> ArraySource:
        """The rows at ``order``."""
        return ArraySource(
            self.rows[order], None if self.weight is None else self.weight[order], self.columns
        )


def array_of(source: Source) -> ArraySource | None:
    """The rows in memory that a source looks at; None where there are none."""
    while isinstance(source, View):
        source = source.source
    return source if isinstance(source, ArraySource) else None
