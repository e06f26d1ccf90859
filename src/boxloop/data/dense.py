"""Arrays and tensors made ready: two axes, real numbers, float64."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.data.checks import check_finite, check_shape, check_weight, given_names


def dense_source(
    data: np.ndarray | Tensor, weight: object = None, columns: Sequence[str] | None = None
) -> ArraySource:
    """A table in memory, checked; float64 input is shared, anything else converted.

    Args:
        data: (n, d), real numbers; NaN marks a missing value.
        weight: one non-negative weight a row.
        columns: names for the d columns.

    Example:
        >>> import numpy as np
        >>> dense_source(np.arange(6).reshape(3, 2), columns=["a", "b"]).rows.dtype
        torch.float64
    """
    rows = _real(data) if isinstance(data, Tensor) else tensor(float64(data))
    check_shape(*rows.shape)
    source = ArraySource(rows, None, given_names(columns, rows.shape[1]))
    start = 0
    for tile, _ in source.chunks():
        check_finite(tile, source.names, start)
        start += len(tile)
    if weight is None:
        return source
    return ArraySource(rows, check_weight(weight, source.n_rows).to(rows.device), source.columns)


def check_array(dtype: np.dtype, shape: tuple[int, ...], label: str = "") -> None:
    """Refuse what cannot be a table of real numbers; an array of objects may be one."""
    where = f"{label}: " if label else ""
    if dtype.kind == "c":
        raise ValueError(f"{where}Complex data not supported")
    if dtype.kind not in "biufO":
        raise ValueError(f"{where}a table of numbers is needed, not one of type {dtype}")
    if len(shape) != 2:
        raise ValueError(f"{where}Expected 2D array, got {len(shape)}D array instead (shape={shape})")


def float64(array: np.ndarray) -> np.ndarray:
    """The same numbers as native float64, shared where possible; objects are converted if they are numbers.

    What is masked is missing.
    """
    check_array(array.dtype, array.shape)
    if isinstance(array, np.ma.MaskedArray):
        array = np.ma.filled(array.astype(np.float64), np.nan)
    if array.dtype.kind == "O":
        return np.stack([_column(array[:, j], j) for j in range(array.shape[1])], 1, dtype=np.float64)
    # An overflow can only come from a longer float than float64; it is then refused as infinite.
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype=np.float64)


def tensor(array: np.ndarray) -> Tensor:
    """A tensor over a native float64 array; shares its memory unless torch cannot."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        # Sources only ever read, so a read-only array can be shared.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _real(rows: Tensor) -> Tensor:
    if rows.is_complex():
        raise ValueError("Complex data not supported")
    if rows.ndim != 2:
        raise ValueError(f"Expected 2D array, got {rows.ndim}D array instead (shape={tuple(rows.shape)})")
    return rows.detach().to(torch.float64)


def _column(values: np.ndarray, number: int) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {number} of the array is not numeric: {error}") from error
