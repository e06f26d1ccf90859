"""Validation of tables, weights, column names and arguments: every ``check_*``, and conversions of what users give.

Messages name the column, row or argument at fault. :func:`validate_rows` is scikit-learn's validation of estimator
input, after what it would not see or not name: masks, times, text.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from boxloop.data.frames import as_frame, check_numbers, object_columns
from boxloop.data.source import MappedSource
from boxloop.numeric import join_words
from boxloop.types import Source

ARRAY_LIKE = ("__array__", "__array_interface__", "__dlpack__")
"""What NumPy makes an array of has one of these."""


def check_shape(n_rows: int, n_columns: int, where: str = "") -> None:
    """Refuse a table without rows or without columns, in scikit-learn's words, after ``where`` it is from."""
    for count, word in ((n_rows, "sample"), (n_columns, "feature")):
        if count == 0:
            shape = f"(shape=({n_rows}, {n_columns}))"
            raise ValueError(f"{where}Found array with 0 {word}(s) {shape} while a minimum of 1 is required.")


def check_array(dtype: np.dtype, shape: tuple[int, ...], label: str = "") -> None:
    """Refuse what cannot be a table of real numbers; an array of objects may be one."""
    where = _prefix(label)
    if dtype.kind == "c":
        raise ValueError(f"{where}Complex data not supported")
    if dtype.kind not in "biufO":
        raise ValueError(f"{where}a table of numbers is needed, not one of type {dtype}")
    if len(shape) != 2:
        raise ValueError(f"{where}Expected 2D array, got {len(shape)}D array instead (shape={shape})")


def check_no_paths(data: object) -> None:
    """Refuse a list of paths or of other text."""
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | PathLike) for item in data):
        raise ValueError(
            f"a list of text is no table (it begins with {str(data[0])!r}): of several files give the folder, or what "
            "dask.dataframe.read_parquet makes of them"
        )


def check_finite(rows: Tensor, names: Sequence[str], start: int = 0, label: str = "") -> None:
    """Refuse an infinite value; NaN passes, since it marks a missing one.

    Args:
        rows: (n, d).
        names: the d column names.
        start: number of the first row, for the message.
        label: the file, for the message.
    """
    # A finite sum proves that all values are finite, without a temporary of the size of the rows.
    if bool(torch.isfinite(rows.sum())):
        return
    infinite = torch.isinf(rows)
    if bool(infinite.any()):
        row, column = (int(i) for i in infinite.nonzero()[0])
        raise ValueError(
            f"{_prefix(label)}column {names[column]!r} holds an infinite value ({float(rows[row, column])}) "
            f"at row {start + row} (counted from 0)"
        )


def check_counts(rows: Tensor, names: Sequence[str]) -> None:
    """Refuse a stored value of sparse CSR rows that is infinite, missing or negative, naming its column and row."""
    value = rows.values()
    bad = ~((value >= 0) & torch.isfinite(value))
    if not bool(bad.any()):
        return
    place = int(bad.nonzero()[0, 0])
    row = int(torch.searchsorted(rows.crow_indices(), place, right=True)) - 1
    name = names[int(rows.col_indices()[place])]
    raise ValueError(
        f"column {name!r} holds {float(value[place])} at row {row} (counted from 0); "
        "counts must be finite and not negative"
    )


def check_range(source: Source, low: float, high: float, what: str, *, whole: str = "") -> Source:
    """The source, which refuses values outside [low, high] as they are read, naming the column.

    Args:
        source: where rows come from.
        low: smallest value.
        high: largest value.
        what: name of the estimator, for messages.
        whole: what to do about values that are not whole numbers, which are then refused too.
    """
    names = source.names

    def check(rows: Tensor) -> Tensor:
        values = rows.values() if rows.layout != torch.strided else rows
        if not bool(_out_of_range(values, low, high, bool(whole)).any()):
            return rows
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        outside = dense < low if bool((dense < low).any()) else _out_of_range(dense, low, high, bool(whole))
        row, column = torch.nonzero(outside)[0].tolist()
        name, value = names[column], float(dense[row, column])
        if value < 0.0:
            fault = f"Negative values in data passed to {what}: column {name!r} holds {value:g}"
        elif not low <= value <= high:
            fault = f"Values outside [{low:g}, {high:g}] in data passed to {what}: column {name!r} holds {value:g}"
        else:
            fault = f"{what} needs whole numbers, but column {name!r} holds {value:g}"
        raise ValueError(f"{fault}; {whole}" if whole else fault)

    return MappedSource(source, check)


def _out_of_range(values: Tensor, low: float, high: float, whole: bool) -> Tensor:
    """Values that are refused; NaN, which marks a missing one, is not."""
    found = (values < low) | (values > high)
    return found | (values.frac().abs() > 0.0) if whole else found


def check_weight(weight: object, n_rows: int) -> Tensor:
    """Weights as float64: one per row, finite, not negative and not all zero.

    Args:
        weight: an array, tensor, list or column of a frame.
        n_rows: how many there must be.

    Returns:
        The weights, (n,).
    """
    values = weight if isinstance(weight, Tensor) else torch.from_numpy(_numbers(weight))
    if values.is_complex():
        raise ValueError("the weights must be real numbers, not complex ones")
    values = values.detach().to(torch.float64)
    if values.ndim != 1 or values.shape[0] != n_rows:
        raise ValueError(
            f"the weights must have one entry a row: shape ({n_rows},) is needed, {tuple(values.shape)} was given"
        )
    check_weight_values(values)
    if not bool(values.sum() > 0):
        raise ValueError("the weights are all zero")
    return values


def check_weight_values(weight: Tensor, start: int = 0, label: str = "") -> None:
    """Refuse a negative, infinite or missing weight, naming its row."""
    bad = ~((weight >= 0) & torch.isfinite(weight))
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"{_prefix(label)}the weight at row {start + row} (counted from 0) is {float(weight[row])}; "
            "weights must be finite and not negative"
        )


def check_names(names: Sequence[str], label: str = "") -> tuple[str, ...]:
    """Refuse a name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{_prefix(label)}the column name {name!r} occurs more than once")
        seen.add(name)
    return tuple(names)


def check_given_names(columns: Sequence[str] | None, n_columns: int) -> tuple[str, ...] | None:
    """Names given to the columns of an array, checked against its width."""
    if columns is None:
        return None
    if len(columns) != n_columns:
        raise ValueError(f"{len(columns)} column names were given for {n_columns} columns")
    return check_names(names_as_text(columns))


def names_as_text(columns: Sequence[str]) -> list[str]:
    """Column names as text, which those of a frame need not be; a single text is refused."""
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, not the text {columns!r}")
    return [str(name) for name in columns]


def choose_columns(
    names: Sequence[str], columns: Sequence[str] | None, weight: object = None, label: str = ""
) -> tuple[str, ...]:
    """The columns to use: those asked for, else all but the one that holds the weights.

    Args:
        names: the columns there are.
        columns: the ones wanted, in the order wanted.
        weight: the name of the column of weights, or anything that is not a name.
        label: the file, for messages.
    """
    extra = [weight] if isinstance(weight, str) else []
    wanted = [] if columns is None else names_as_text(columns)
    for name in [*wanted, *extra]:
        if name not in names:
            near = suggest_names(name, names)
            raise ValueError(
                f"{_prefix(label)}there is no column {name!r}{near}; there are {', '.join(names)}"
            )
    if columns is None and "" in names:
        # A row index, as pandas writes it, would otherwise be fitted like a measurement.
        raise ValueError(f"{_prefix(label)}a column has no name; say which columns to use")
    return check_names(wanted or [name for name in names if name not in extra], label)


def column_index(names: Sequence[str], key: object) -> int:
    """The index of a column given by its name or its index.

    Example:
        >>> column_index(("height", "weight"), "weight"), column_index(("height", "weight"), 0)
        (1, 0)
    """
    if isinstance(key, str):
        if key not in names:
            raise ValueError(f"there is no column {key!r}; columns are {', '.join(names)}")
        return names.index(key)
    if isinstance(key, bool) or not isinstance(key, Integral):
        raise TypeError(f"a column is given by its name or its place, not by {_described(key)}")
    if not 0 <= int(key) < len(names):
        raise ValueError(f"there is no column {key}; there are {len(names)}")
    return int(key)


def column_indices(names: Sequence[str], keys: object) -> list[int]:
    """The indices of columns given by a list of their names or indices."""
    return [column_index(names, key) for key in check_list(keys, "columns", "names or places")]


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Close matches as the end of a message; empty where there are none.

    Example:
        >>> suggest_names("irsi", ["iris", "wine"])
        " (did you mean 'iris'?)"
    """
    near = get_close_matches(name, list(known), n=2)
    return f" (did you mean {join_words(list(map(repr, near)), 'or')}?)" if near else ""


def check_list(value: object, name: str, what: str) -> Iterable[Any]:
    """Refuse what is not iterable, and text, which is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {_described(value)}")
    return value


def check_count(value: object, name: str, least: int | None = 1) -> int:
    """A whole number of at least ``least``; of any size where that is None.

    Raises:
        TypeError: not a whole number.
        ValueError: less than ``least``.

    Example:
        >>> check_count(3, "n_draws")
        3
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {_described(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_number(value: object, name: str) -> float:
    """A real number.

    Raises:
        TypeError: anything else.

    Example:
        >>> check_number(3, "ridge")
        3.0
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {_described(value)}")
    return float(value)


def check_kind(value: object, name: str, kind: type, remedy: str) -> None:
    """Refuse what is not of a class, saying what makes one.

    Raises:
        TypeError: anything else.

    Example:
        >>> check_kind(torch.ones(2), "rows", Tensor, "torch.as_tensor(rows) makes one")
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {_described(value)}: {remedy}")


def check_level(value: object, name: str = "level") -> float:
    """A probability above 0 and below 1.

    Raises:
        TypeError: not a number.
        ValueError: outside (0, 1).

    Example:
        >>> check_level(0.95)
        0.95
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number between 0 and 1, got {_described(value)}")
    if not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices.

    Raises:
        ValueError: it is not.

    Example:
        >>> check_choice("auto", "method", ("auto", "exact"))
    """
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}; got {_described(value)}")


def check_callable(value: object, name: str, what: str) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: it cannot be called.

    Example:
        >>> check_callable(len, "psi", "the rows")
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function of {what}, got {_described(value)}")


def validate_rows(owner: Any, X: Any, *given: Any, **options: Any) -> Any:
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
    return validate_data(owner, fill_masked(X), *map(fill_masked, given), **options)


def check_table(X: Any, name: str = "X") -> None:
    """Refuse what is not a table of numbers: NumPy's own errors name neither X nor a remedy."""
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
    _check_tensor(X, name)
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


def to_float_table(table: Any, name: str, columns: int | None = None) -> Any:
    """A table as float64, with ``columns`` columns where that is given."""
    if issparse(table):
        raise TypeError(f"{name} must be a dense table; give {name}.toarray()")
    check_numbers(table)
    check_table(table, name)
    given = np.asarray(fill_masked(table))
    if given.dtype.kind in "mM":
        raise TypeError(f"{name} must hold numbers, not times")
    if np.iscomplexobj(given):
        raise ValueError(f"{name} must hold real numbers, not complex ones")
    found = given.astype(np.float64)
    if found.ndim != 2 or columns not in (None, found.shape[1]):
        wanted = "any number of" if columns is None else columns
        raise ValueError(f"{name} must be a table of {wanted} columns, got the shape {found.shape}")
    return found


def to_vector(values: Any, name: str) -> Any:
    """A list of numbers as an array of float64; its shape is the caller's to check."""
    try:
        found = np.asarray(fill_masked(values))
        found = found.astype(np.float64) if found.dtype.kind == "O" else found
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a list of numbers; got {_kind(values)}") from error
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be a list of numbers; got {_kind(values)} of {found.dtype}")
    return found.astype(np.float64)


def to_labels(values: Any, name: str) -> Any:
    """A list of labels as an array; its shape is the caller's to check."""
    try:
        return np.asarray(_detach(values))
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


def fill_masked(values: Any) -> Any:
    """A masked array with NaN where it is masked, a tensor without its gradient; anything else as it is."""
    if not isinstance(values, np.ma.MaskedArray):
        return _detach(values)
    real = values if values.dtype.kind in "fO" else values.astype(np.float64)
    return np.ma.filled(real, np.nan)


def _detach(values: Any) -> Any:
    """A tensor without its gradient, which NumPy refuses to read; anything else as it is."""
    return values.detach() if getattr(values, "requires_grad", False) is True else values


def _check_tensor(X: Any, name: str) -> None:
    """Refuse a tensor without values, or in another layout than strided."""
    if not isinstance(X, Tensor):
        return
    if X.is_meta:
        raise TypeError(f"{name} is a tensor without values, on the meta device; give one that holds them")
    if X.layout != torch.strided:
        raise TypeError(
            f"{name} is a tensor of layout {X.layout}; give {name}.to_dense(), or a SciPy sparse array"
        )


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
        value = next(value for value in values if not isinstance(value, Real | str))
        raise TypeError(
            f"{name} holds {_kind(value)}: each argument must be a string that is a number, or a real number"
        ) from error


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _described(value: object) -> str:
    return repr(value) if isinstance(value, Real | str | None) else f"a {type(value).__name__}"


def _prefix(label: str) -> str:
    return f"{label}: " if label else ""


def _numbers(weight: object) -> np.ndarray:
    try:
        return np.array(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the weights must be numbers, one a row; got a {type(weight).__name__}") from error
