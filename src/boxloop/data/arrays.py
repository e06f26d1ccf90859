"""Tables in memory: arrays, tensors and data frames as checked float64 rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from boxloop.data.frames import numeric_column
from boxloop.data.source import SourceView, TiledSource
from boxloop.data.validation import (
    check_array,
    check_finite,
    check_given_names,
    check_shape,
    check_weight,
    choose_columns,
)
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
class ArraySource(TiledSource):
    """A table held as one tensor.

    Args:
        rows: (n, d); NaN marks a missing value.
        weight: (n,), one non-negative weight per row; all ones when omitted.
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

    def take(self, indices: Tensor) -> ArraySource:
        """The rows at ``indices``, in that order."""
        weight = None if self.weight is None else self.weight[indices]
        return ArraySource(self.rows[indices], weight, self.columns)


def find_array(source: Source) -> ArraySource | None:
    """The rows in memory behind any views of them; None where there are none."""
    while isinstance(source, SourceView):
        source = source.source
    return source if isinstance(source, ArraySource) else None


def dense_source(
    data: np.ndarray | Tensor, weight: object = None, columns: Sequence[str] | None = None
) -> ArraySource:
    """A checked source over an array or tensor; float64 input is shared, anything else converted.

    Args:
        data: (n, d), real numbers; NaN marks a missing value.
        weight: one non-negative weight per row.
        columns: names for the d columns.

    Example:
        >>> import numpy as np
        >>> dense_source(np.arange(6).reshape(3, 2), columns=["a", "b"]).rows.dtype
        torch.float64
    """
    rows = _convert_tensor(data) if isinstance(data, Tensor) else share_memory(to_float64(data))
    check_shape(*rows.shape)
    source = ArraySource(rows, None, check_given_names(columns, rows.shape[1]))
    start = 0
    for tile, _ in source.chunks():
        check_finite(tile, source.names, start)
        start += len(tile)
    if weight is None:
        return source
    return ArraySource(rows, check_weight(weight, source.n_rows).to(rows.device), source.columns)


def frame_source(frame: Any, weight: object = None, columns: Sequence[str] | None = None) -> ArraySource:
    """Numeric and boolean columns of a frame as one table; nulls become NaN.

    Args:
        frame: what :func:`boxloop.data.as_frame` gave.
        weight: one non-negative weight per row, or the name of a column.
        columns: the columns used, in this order; all but the weights when omitted.

    Example:
        >>> import pandas
        >>> from boxloop.data import as_frame
        >>> frame = pandas.DataFrame({"a": [1.5, None], "b": [True, False]})
        >>> frame_source(as_frame(frame)).rows
        tensor([[1.5000, 1.0000],
                [   nan, 0.0000]], dtype=torch.float64)
    """
    series = {str(column.name): column for column in frame.iter_columns()}
    names = choose_columns(tuple(series), columns, weight)
    rows = np.empty((frame.shape[0], len(names)), order="F")
    for j, name in enumerate(names):
        rows[:, j] = numeric_column(name, series[name])
    if isinstance(weight, str):
        weight = numeric_column(weight, series[weight])
    return dense_source(rows, weight, names)


def to_float64(array: np.ndarray) -> np.ndarray:
    """The same numbers as native float64, shared where possible; NaN where they are masked.

    Objects are converted if they are numbers.
    """
    check_array(array.dtype, array.shape)
    if isinstance(array, np.ma.MaskedArray):
        array = np.ma.filled(array.astype(np.float64), np.nan)
    if array.dtype.kind == "O":
        return np.stack(
            [_convert_objects(array[:, j], j) for j in range(array.shape[1])], 1, dtype=np.float64
        )
    # An overflow can only come from a longer float than float64; it is then refused as infinite.
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def share_memory(array: np.ndarray) -> Tensor:
    """A tensor over a native float64 array; shares its memory unless torch cannot."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        # Sources only ever read, so a read-only array can be shared.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _convert_tensor(rows: Tensor) -> Tensor:
    if rows.is_complex():
        raise ValueError("Complex data not supported")
    if rows.ndim != 2:
        raise ValueError(f"Expected 2D array, got {rows.ndim}D array instead (shape={tuple(rows.shape)})")
    return rows.detach().to(torch.float64)


def _convert_objects(values: np.ndarray, number: int) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {number} of the array is not numeric: {error}") from error
