"""scikit-learn's check of rows, after what it would not see or not name: masks, times, text, what is no table."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from numbers import Real
from typing import Any

import numpy as np
from scipy.sparse import issparse

from boxloop.data.checks import check_no_paths
from boxloop.data.frames import as_frame, check_numbers, object_columns

ARRAY_LIKE = ("__array__", "__array_interface__", "__dlpack__")
"""What NumPy makes an array of has one of these."""


def validated(owner: Any, X: Any, *given: Any, **options: Any) -> Any:
    """:func:`sklearn.utils.validation.validate_data`, with NaN for what a mask hides in X or y.

    Raises:
        ValueError: also for a column that holds text or times, by its name or number.
        TypeError: X is no table.
    """
    from sklearn.utils.validation import validate_data  # takes half a second to import

    if not options.get("skip_check_array", False):
        check_no_paths(X)
        check_numbers(X)
        check_table(X)
    return validate_data(owner, unmasked(X), *map(unmasked, given), **options)


def check_table(X: Any, name: str = "X") -> None:
    """Refuse what no array can be made of, and text, before NumPy does so in words that name neither X nor a remedy."""
    if issparse(X):
        return
    frame = as_frame(X)
    if frame is not None:
        for series in object_columns(frame):
            _check_values(series.to_numpy(), f"column {series.name!r} of {name}")
        return
    if not (isinstance(X, list | tuple | Real) or any(name in dir(X) for name in ARRAY_LIKE)):
        batches = isinstance(X, Iterable) and not isinstance(X, str | Collection)
        hint = "; gather its batches into one array" if batches else ""
        raise TypeError(f"{name} must be a table of rows, as an array or a data frame; got {_kind(X)}{hint}")
    _check_held(X, name)
    X = to_array(X, name)
    if isinstance(X, np.ndarray) and X.dtype.kind == "V":
        raise TypeError(
            f"{name} must be a table of numbers, not of records or bytes ({X.dtype}); give its fields as columns"
        )
    if isinstance(X, np.ndarray) and X.dtype.kind in "mM":
        raise TypeError(f"{name} holds times ({X.dtype}): give them as numbers, or leave the columns out")
    if isinstance(X, np.ndarray) and X.ndim and X.dtype.kind in "USO":
        table = X.reshape(len(X), -1) if X.size else X[:, None][:0]
        for j in range(table.shape[1]):
            _check_values(table[:, j], f"column {j} of {name}")


def _check_held(X: Any, name: str) -> None:
    """Refuse a tensor that holds no plain array of numbers."""
    from torch import Tensor, strided

    if not isinstance(X, Tensor):
        return
    if X.is_meta:
        raise TypeError(f"{name} is a tensor without values, on the meta device; give one that holds them")
    if X.layout != strided:
        raise TypeError(
            f"{name} is a tensor of layout {X.layout}; give {name}.to_dense(), or a SciPy sparse array"
        )


def to_vector(values: Any, name: str) -> Any:
    """A list of numbers as an array of float64; its shape is the caller's to check."""
    try:
        found = np.asarray(unmasked(values))
        found = found.astype(np.float64) if found.dtype.kind == "O" else found
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list of numbers; got {_kind(values)}") from error
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be a list of numbers; got {_kind(values)} of {found.dtype}")
    return found.astype(np.float64)


def to_labels(values: Any, name: str) -> Any:
    """A list of labels as an array; its shape is the caller's to check."""
    try:
        return np.asarray(detached(values))
    except ValueError as error:
        raise ValueError(
            f"{name} must be a list of labels, one a row; got rows of different lengths"
        ) from error


def to_array(rows: Any, name: str) -> Any:
    """A list of rows as an array; anything else as it is."""
    try:
        return np.asarray(rows) if isinstance(rows, list | tuple) else rows
    except ValueError as error:
        raise ValueError(f"{name} must be a table: its rows are of different lengths") from error


def to_numbers(table: Any, name: str, columns: int | None = None) -> Any:
    """A table of float64, of so many columns where this is known."""
    if issparse(table):
        raise TypeError(f"{name} must be a dense table; give {name}.toarray()")
    check_numbers(table)
    check_table(table, name)
    given = np.asarray(unmasked(table))
    if given.dtype.kind in "mM":
        raise TypeError(f"{name} must hold numbers, not times")
    if np.iscomplexobj(given):
        raise ValueError(f"{name} must hold real numbers, not complex ones")
    found = given.astype(np.float64)
    if found.ndim != 2 or columns not in (None, found.shape[1]):
        wanted = "any number of" if columns is None else columns
        raise ValueError(f"{name} must be a table of {wanted} columns, got the shape {found.shape}")
    return found


def _check_values(values: Any, name: str) -> None:
    if values.dtype.kind not in "USO":
        return
    try:
        values.astype(np.complex128)  # scikit-learn refuses complex numbers itself
    except OverflowError as error:
        raise ValueError(f"{name} holds a whole number beyond 1.8e308: bring it to another scale") from error
    except ValueError as error:
        text = next((value for value in values if isinstance(value, str)), None)
        if text is None:
            raise ValueError(f"{name} holds values that are not numbers: {error}") from error
        raise ValueError(
            f"{name} holds text, {str(text)!r}: encode it as numbers, or leave the column out"
        ) from error
    except TypeError as error:
        strange = next(value for value in values if not isinstance(value, Real | str))
        raise TypeError(
            f"{name} holds {_kind(strange)}: each argument must be a string that is a number, or a real "
            "number"
        ) from error


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def unmasked(values: Any) -> Any:
    """A masked array with NaN in its holes, a tensor without its gradient; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return detached(values)
    real = values if values.dtype.kind in "fO" else values.astype(np.float64)
    return np.ma.filled(real, np.nan)


def detached(values: Any) -> Any:
    """A tensor without its gradient, which NumPy refuses to read; anything else as it is."""
    return values.detach() if getattr(values, "requires_grad", False) is True else values
