"""What every source refuses: no rows, infinite values, unusable weights, unknown columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor


def check_shape(n_rows: int, n_columns: int, where: str = "") -> None:
    """Refuse a table without rows or without columns, in scikit-learn's words, after words on where it is from."""
    for count, word in ((n_rows, "sample"), (n_columns, "feature")):
        if count == 0:
            shape = f"(shape=({n_rows}, {n_columns}))"
            raise ValueError(f"{where}Found array with 0 {word}(s) {shape} while a minimum of 1 is required.")


def check_no_paths(data: object) -> None:
    """Refuse a list of paths, or of other text, where a table is needed."""
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


def check_weight(weight: object, n_rows: int) -> Tensor:
    """One finite, non-negative weight a row, not all zero, as float64.

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


def given_names(columns: Sequence[str] | None, n_columns: int) -> tuple[str, ...] | None:
    """Names given to the columns of an array, checked against its width."""
    if columns is None:
        return None
    if len(columns) != n_columns:
        raise ValueError(f"{len(columns)} column names were given for {n_columns} columns")
    return check_names(listed(columns))


def listed(columns: Sequence[str]) -> list[str]:
    """Names of columns as texts, which those of a frame need not be; one text is no list of them."""
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
    wanted = [] if columns is None else listed(columns)
    for name in [*wanted, *extra]:
        if name not in names:
            near = near_misses(name, names)
            raise ValueError(
                f"{_prefix(label)}there is no column {name!r}{near}; there are {', '.join(names)}"
            )
    if columns is None and "" in names:
        # A row index, as pandas writes it, would otherwise be fitted like a measurement.
        raise ValueError(f"{_prefix(label)}a column has no name; say which columns to use")
    return check_names(wanted or [name for name in names if name not in extra], label)


def column_place(names: Sequence[str], key: object) -> int:
    """The place of a column given by its name or its place.

    Example:
        >>> column_place(("height", "weight"), "weight"), column_place(("height", "weight"), 0)
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


def column_places(names: Sequence[str], keys: object) -> list[int]:
    """The places of columns given by a list of their names or places."""
    return [column_place(names, key) for key in check_list(keys, "columns", "names or places")]


def check_list(value: object, name: str, what: str) -> Iterable[Any]:
    """Refuse what cannot be gone through, and a text, which is one value."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list of {what}, got {_described(value)}")
    return value


def check_count(value: object, name: str, least: int | None = 1) -> int:
    """A whole number that is large enough, whatever its size with None.

    Raises:
        TypeError: no whole number.
        ValueError: too small a one.

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
        TypeError: no number.
        ValueError: one that is no such probability.

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
    """Refuse what is none of some words.

    Raises:
        ValueError: anything else.

    Example:
        >>> check_choice("auto", "method", ("auto", "exact"))
    """
    if not isinstance(value, str) or value not in choices:
        known = ", ".join(map(repr, choices))
        raise ValueError(f"{name} must be one of {known}; got {_described(value)}")


def check_callable(value: object, name: str, what: str) -> None:
    """Refuse what cannot be called.

    Raises:
        TypeError: anything but a function.

    Example:
        >>> check_callable(len, "psi", "the rows")
    """
    if not callable(value):
        raise TypeError(f"{name} must be a function of {what}, got {_described(value)}")


def _described(value: object) -> str:
    return repr(value) if isinstance(value, Real | str | None) else f"a {type(value).__name__}"


def near_misses(name: str, known: Iterable[str]) -> str:
    """Names that may have been meant, as the end of a message; empty where none is near.

    Example:
        >>> near_misses("irsi", ["iris", "wine"])
        " (did you mean 'iris'?)"
    """
    near = get_close_matches(name, list(known), n=2)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def _prefix(label: str) -> str:
    return f"{label}: " if label else ""


def _numbers(weight: object) -> np.ndarray:
    try:
        return np.array(weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the weights must be numbers, one a row; got a {type(weight).__name__}") from error
