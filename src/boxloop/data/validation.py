"""Validation of arguments, tables, weights and names of columns, and conversion of arrays, tensors and data frames.

Messages name the column, row or argument at fault. :func:`validate_rows` is scikit-learn's validation of estimator
input, after what it would not see or not name: masks, times, text. Data frames are read through narwhals.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from boxloop.data.source import AnySource, ArraySource, MappedSource
from boxloop.numeric import join_words
from boxloop.types import Source

P = ParamSpec("P")
R = TypeVar("R")

ARRAY_LIKE = ("__array__", "__array_interface__", "__dlpack__")
"""What NumPy makes an array of has one of these."""


def check_parameters(method: Callable[P, R]) -> Callable[P, R]:
    """A method of an estimator that checks its parameters first; scikit-learn's own decorator, with types kept."""
    from sklearn.base import _fit_context  # takes half a second to import

    return cast(Callable[P, R], _fit_context(prefer_skip_nested_validation=True)(method))


def check_nested_parameters(method: Callable[P, R]) -> Callable[P, R]:
    """:func:`check_parameters` for an estimator that fits others, whose own parameters are then checked too."""
    from sklearn.base import _fit_context

    return cast(Callable[P, R], _fit_context(prefer_skip_nested_validation=False)(method))


def suggest_names(name: str, known: Iterable[str]) -> str:
    """Close matches as the end of a message, such as `` (did you mean 'iris'?)``; empty where there are none."""
    near = get_close_matches(name, list(known), n=2)
    return f" (did you mean {join_words(list(map(repr, near)), 'or')}?)" if near else ""


def check_list(value: object, name: str, what: str) -> Iterable[Any]:
    """Refuse what is not iterable, and text, which is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {describe_value(value)}")
    return value


def check_count(value: object, name: str, least: int | None = 1) -> int:
    """A whole number of at least ``least``; of any size where that is None."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be a whole number, got {describe_value(value)}")
    if least is not None and value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return int(value)


def check_number(value: object, name: str) -> float:
    """A real number."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {describe_value(value)}")
    return float(value)


def check_kind(value: object, name: str, kind: type, remedy: str) -> None:
    """Refuse what is not of a class, saying what makes one."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {describe_value(value)}: {remedy}")


def check_level(value: object, name: str = "level") -> float:
    """A probability above 0 and below 1."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number between 0 and 1, got {describe_value(value)}")
    if not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")
    return float(value)


def check_choice(value: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a value that is not among the choices."""
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}; got {describe_value(value)}")


def check_callable(value: object, name: str, what: str) -> None:
    """Refuse what cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function of {what}, got {describe_value(value)}")


def describe_value(value: object) -> str:
    """A value as a message names it: itself where it is short, else its class."""
    return repr(value) if isinstance(value, Real | str | None) else f"a {type(value).__name__}"


def check_shape(n_rows: int, n_columns: int, where: str = "") -> None:
    """Refuse a table without rows or without columns, in scikit-learn's words, after ``where`` it is from."""
    for count, word in ((n_rows, "sample"), (n_columns, "feature")):
        if count == 0:
            shape = f"(shape=({n_rows}, {n_columns}))"
            raise ValueError(f"{where}Found array with 0 {word}(s) {shape} while a minimum of 1 is required.")


def check_array_type(dtype: np.dtype, shape: tuple[int, ...], label: str = "") -> None:
    """Refuse what cannot be a table of real numbers; an array of objects may be one."""
    if dtype.kind == "c":
        raise ValueError(f"{_label_prefix(label)}Complex data not supported")
    if dtype.kind not in "biufO":
        raise ValueError(f"{_label_prefix(label)}a table of numbers is needed, not one of type {dtype}")
    if len(shape) != 2:
        raise ValueError(
            f"{_label_prefix(label)}Expected 2D array, got {len(shape)}D array instead (shape={shape})"
        )


def check_no_paths(data: object) -> None:
    """Refuse a list of paths or of other text."""
    if isinstance(data, list | tuple) and data and all(isinstance(item, str | PathLike) for item in data):
        raise ValueError(
            f"a list of text is no table (it begins with {str(data[0])!r}): of several files give the folder, or what "
            "dask.dataframe.read_parquet makes of them"
        )


def check_finite(rows: Tensor, names: Sequence[str], start: int = 0, label: str = "") -> None:
    """Refuse an infinite value in rows that begin at row ``start``; NaN passes, since it marks a missing one."""
    # A finite sum proves that all values are finite, without a temporary of the size of the rows.
    if bool(torch.isfinite(rows.sum())):
        return
    infinite = torch.isinf(rows)
    if bool(infinite.any()):
        row, column = (int(i) for i in infinite.nonzero()[0])
        raise ValueError(
            f"{_label_prefix(label)}column {names[column]!r} holds an infinite value ({float(rows[row, column])}) "
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
        if values.numel() and not whole:
            least, most = values.aminmax()  # NaN where one value is, which is then looked for
            if low <= float(least) and float(most) <= high:
                return rows
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
    """Weights as float64, (n,): one per row, finite, not negative and not all zero."""
    values = weight if isinstance(weight, Tensor) else torch.from_numpy(_to_numbers(weight))
    if values.is_complex():
        raise ValueError("the weights must be real numbers, not complex ones")
    values = values.detach().to(torch.float64)
    if values.ndim != 1 or values.shape[0] != n_rows:
        raise ValueError(
            f"the weights must have one entry per row: shape ({n_rows},) is needed, {tuple(values.shape)} was given"
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
            f"{_label_prefix(label)}the weight at row {start + row} (counted from 0) is {float(weight[row])}; "
            "weights must be finite and not negative"
        )


def check_names(names: Sequence[str], label: str = "") -> tuple[str, ...]:
    """Refuse a name that occurs twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{_label_prefix(label)}the column name {name!r} occurs more than once")
        seen.add(name)
    return tuple(names)


def check_column_names(columns: Sequence[str] | None, n_columns: int) -> tuple[str, ...] | None:
    """Names given to the columns of an array, checked against its width."""
    if columns is None:
        return None
    if len(columns) != n_columns:
        raise ValueError(f"{len(columns)} column names were given for {n_columns} columns")
    return check_names(names_to_text(columns))


def names_to_text(columns: Sequence[str]) -> list[str]:
    """Column names as text, which those of a frame need not be; a single text is refused."""
    if isinstance(columns, str):
        raise ValueError(f"columns must be a list of names, not the text {columns!r}")
    return [str(name) for name in columns]


def choose_columns(
    names: Sequence[str], columns: Sequence[str] | None, weight: object = None, label: str = ""
) -> tuple[str, ...]:
    """The columns to use: those asked for, else all but the one that holds the weights."""
    extra = [weight] if isinstance(weight, str) else []
    wanted = [] if columns is None else names_to_text(columns)
    for name in [*wanted, *extra]:
        if name not in names:
            near = suggest_names(name, names)
            raise ValueError(
                f"{_label_prefix(label)}there is no column {name!r}{near}; there are {', '.join(names)}"
            )
    if columns is None and "" in names:
        # A row index, as pandas writes it, would otherwise be fitted like a measurement.
        raise ValueError(f"{_label_prefix(label)}a column has no name; say which columns to use")
    return check_names(wanted or [name for name in names if name not in extra], label)


def column_index(names: Sequence[str], key: object) -> int:
    """The index of a column given by its name or its index."""
    if isinstance(key, str):
        if key not in names:
            raise ValueError(f"there is no column {key!r}; columns are {', '.join(names)}")
        return names.index(key)
    if isinstance(key, bool) or not isinstance(key, Integral):
        raise TypeError(f"a column is given by its name or its place, not by {describe_value(key)}")
    if not 0 <= int(key) < len(names):
        raise ValueError(f"there is no column {key}; there are {len(names)}")
    return int(key)


def column_indices(names: Sequence[str], keys: object) -> list[int]:
    """The indices of columns given by a list of their names or indices."""
    return [column_index(names, key) for key in check_list(keys, "columns", "names or places")]


def validate_rows(owner: Any, X: Any, *given: Any, **options: Any) -> Any:
    """:func:`sklearn.utils.validation.validate_data`, with NaN for what a mask hides in X or y; refuses text and
    times by the name or number of their column."""
    from sklearn.utils.validation import validate_data  # takes half a second to import

    if isinstance(X, list | tuple):
        check_no_paths(X)
    table = fill_masked(X) if options.get("skip_check_array", False) else check_table(X)
    return validate_data(owner, table, *map(fill_masked, given), **options)


def check_table(X: Any, name: str = "X") -> Any:
    """A table as NumPy may read it, NaN where it is masked; refuses what is not one of numbers, naming the column."""
    if isinstance(X, np.ndarray) and X.dtype.kind in "biufc" and not isinstance(X, np.ma.MaskedArray):
        return X
    if issparse(X):
        return X
    frame = as_frame(X)
    if frame is not None:
        _check_columns(frame, name)
        return X
    if not (isinstance(X, list | tuple | Real) or any(method in dir(X) for method in ARRAY_LIKE)):
        batches = isinstance(X, Iterable) and not isinstance(X, str | Collection)
        hint = "; gather its batches into one array" if batches else ""
        raise TypeError(
            f"{name} must be a table of rows, as an array or a data frame; got {_describe_type(X)}{hint}"
        )
    _check_tensor(X, name)
    array = to_array(X, name)
    if isinstance(array, np.ndarray) and array.dtype.kind == "V":
        raise TypeError(
            f"{name} must be a table of numbers, not of records or bytes ({array.dtype}); give its fields as columns"
        )
    if isinstance(array, np.ndarray) and array.dtype.kind in "mM":
        raise TypeError(f"{name} holds times ({array.dtype}): give them as numbers, or leave the columns out")
    if isinstance(array, np.ndarray) and array.ndim and array.dtype.kind in "USO":
        table = array.reshape(len(array), -1) if array.size else array[:, None][:0]
        for j in range(table.shape[1]):
            _check_values(table[:, j], f"column {j} of {name}")
    return fill_masked(X)


def _check_columns(frame: Any, name: str) -> None:
    """Refuse a column of text, times or lists; of one of objects only a conversion tells, and an empty one passes."""
    import narwhals.stable.v2 as nw

    for series in frame.iter_columns():
        if series.dtype in (nw.Object, nw.Unknown):
            _check_values(series.to_numpy(), f"column {series.name!r} of {name}")
        elif not holds_numbers(series) and not series.is_null().all():
            raise _non_numeric_error(series.name, series)


def to_float_table(table: Any, name: str, columns: int | None = None) -> Any:
    """A table as float64, with ``columns`` columns where that is given."""
    if issparse(table):
        raise TypeError(f"{name} must be a dense table; give {name}.toarray()")
    given = np.asarray(check_table(table, name))
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
        raise ValueError(f"{name} must be a list of numbers; got {_describe_type(values)}") from error
    if found.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be a list of numbers; got {_describe_type(values)} of {found.dtype}")
    return found.astype(np.float64)


def to_labels(values: Any, name: str) -> Any:
    """A list of labels as an array; its shape is the caller's to check."""
    try:
        return np.asarray(_detach(values))
    except ValueError as error:
        raise ValueError(
            f"{name} must be a list of labels, one per row; got rows of different lengths"
        ) from error


def to_array(rows: Any, name: str) -> Any:
    """A list of rows as an array; anything else as it is."""
    try:
        return np.asarray(rows) if isinstance(rows, list | tuple) else rows
    except ValueError as error:
        raise ValueError(f"{name} must be a table: its rows are of different lengths") from error


def flatten_images(X: Any) -> tuple[Any, tuple[int, ...] | None]:
    """Images (n, H, W) or (n, C, H, W) as rows, and the shape of one; anything else unchanged, and None."""
    if isinstance(X, np.ndarray | Tensor) and X.ndim in (3, 4):
        return X.reshape(X.shape[0], -1), tuple(int(size) for size in X.shape[1:])
    return X, None


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
            f"{name} holds {_describe_type(value)}: each argument must be a string that is a number, or a real number"
        ) from error


def _describe_type(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _label_prefix(label: str) -> str:
    return f"{label}: " if label else ""


def _to_numbers(weight: object) -> np.ndarray:
    try:
        return np.array(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the weights must be numbers, one per row; got a {type(weight).__name__}"
        ) from error


def is_dask_collection(data: object) -> bool:
    """Whether a table is a Dask DataFrame or array; Dask is not loaded to find out."""
    dask = sys.modules.get("dask")
    return dask is not None and bool(dask.is_dask_collection(data))


def is_read_in_place(data: object) -> bool:
    """Whether a table is a path, a source or a Dask collection, which is read where it is, and not an array."""
    if isinstance(data, np.ndarray):
        return False
    return isinstance(data, str | PathLike | AnySource) or is_dask_collection(data)


def as_column(data: Any) -> Any:
    """A Dask series or one-dimensional Dask array as a table of one column; anything else as it is."""
    if not is_dask_collection(data):
        return data
    import dask.array as da

    if isinstance(data, da.Array):
        return data[:, None] if data.ndim == 1 else data
    import dask.dataframe as dd

    return data.to_frame() if isinstance(data, dd.Series) else data


def make_empty_frame(data: Any) -> Any:
    """A frame without rows that has the columns of a Dask DataFrame; None for a Dask array, anything else as it is."""
    if not is_dask_collection(data):
        return data
    import dask.array as da

    return None if isinstance(data, da.Array) else data._meta


def as_frame(data: object) -> Any:
    """The data as a narwhals frame, or None if it is no data frame, or one whose rows are to stay where they are."""
    if isinstance(data, np.ndarray) or is_dask_collection(data):
        return None
    import narwhals.stable.v2 as nw

    try:
        frame = nw.from_native(data, pass_through=True)
    except nw.exceptions.DuplicateError as error:
        raise ValueError(f"a column name occurs more than once: {error}") from error
    if isinstance(frame, nw.LazyFrame):
        return frame.collect()
    return frame if isinstance(frame, nw.DataFrame) else None


def holds_numbers(series: Any) -> bool:
    """Whether the values of a column are numbers, or true and false; of a categorical one, its categories."""
    import narwhals.stable.v2 as nw

    kind = series.cat.get_categories().dtype if _is_categorical(series) else series.dtype
    return bool(kind == nw.Boolean or kind.is_numeric())


def _is_categorical(series: Any) -> bool:
    import narwhals.stable.v2 as nw

    return bool(series.dtype == nw.Categorical or series.dtype == nw.Enum)


def _non_numeric_error(name: str, series: Any) -> ValueError:
    return ValueError(f"column {name!r} is not numeric (its type is {series.dtype})")


def numeric_column(name: str, series: Any) -> np.ndarray:
    """The values of a column as float64, NaN where missing."""
    import narwhals.stable.v2 as nw

    if not holds_numbers(series):
        raise _non_numeric_error(name, series)
    if series.dtype == nw.Boolean or _is_categorical(series):
        series = series.cast(nw.Float64)
    return np.asarray(series.to_numpy(), dtype=np.float64)


def make_frame(columns: Mapping[str, Sequence[Any]], index: Sequence[Any] | None = None) -> Any:
    """A pandas frame, for summaries."""
    import pandas as pd

    return pd.DataFrame(dict(columns), index=index)


def dense_source(
    data: np.ndarray | Tensor, weight: object = None, columns: Sequence[str] | None = None
) -> ArraySource:
    """A checked source over an array or tensor; float64 input is shared, anything else converted."""
    rows = to_tensor(data)
    check_shape(*rows.shape)
    return finite_source(rows, weight, check_column_names(columns, rows.shape[1]))


def finite_source(rows: Tensor, weight: object, names: tuple[str, ...] | None) -> ArraySource:
    """A source over float64 rows (n, d) without infinite values, with one weight per row; names are not checked."""
    source = ArraySource(rows, None, names)
    check_finite(rows, source.names)
    if weight is None:
        return source
    return ArraySource(rows, check_weight(weight, len(rows)).to(rows.device), names)


def to_tensor(data: np.ndarray | Tensor) -> Tensor:
    """A table as a float64 tensor over the same memory where possible; NaN where it is masked.
    Objects are converted if they are numbers."""
    if isinstance(data, Tensor):
        if data.is_complex():
            raise ValueError("Complex data not supported")
        if data.ndim != 2:
            raise ValueError(f"Expected 2D array, got {data.ndim}D array instead (shape={tuple(data.shape)})")
        return data.detach().to(torch.float64)
    check_array_type(data.dtype, data.shape)
    if isinstance(data, np.ma.MaskedArray):
        data = np.ma.filled(data.astype(np.float64), np.nan)
    if data.dtype.kind == "O":
        data = np.stack([_convert_objects(data[:, j], j) for j in range(data.shape[1])], 1)
    with np.errstate(over="ignore"):  # of a float longer than float64: infinity is refused later
        return wrap_as_tensor(np.asarray(data, dtype=np.float64))


def wrap_as_tensor(array: np.ndarray) -> Tensor:
    """A tensor over an array; shares its memory unless torch cannot."""
    if any(stride < 0 for stride in array.strides):
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        # Sources only ever read, so a read-only array can be shared.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _convert_objects(values: np.ndarray, number: int) -> np.ndarray:
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {number} of the array is not numeric: {error}") from error
