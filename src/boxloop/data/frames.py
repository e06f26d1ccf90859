"""Data frames: pandas, polars, Arrow tables and whatever else narwhals knows."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def is_collection(data: object) -> bool:
    """Whether a table is a Dask DataFrame or array; Dask is not loaded to find out."""
    dask = sys.modules.get("dask")
    return dask is not None and bool(dask.is_dask_collection(data))


def as_column(data: Any) -> Any:
    """A Dask series or one-dimensional Dask array as a table of one column; anything else as it is."""
    if not is_collection(data):
        return data
    import dask.array as da

    if isinstance(data, da.Array):
        return data[:, None] if data.ndim == 1 else data
    import dask.dataframe as dd

    return data.to_frame() if isinstance(data, dd.Series) else data


def outline(data: Any) -> Any:
    """A frame without rows that has the columns of a Dask DataFrame; None for a Dask array, anything else as it is."""
    if not is_collection(data):
        return data
    import dask.array as da

    return None if isinstance(data, da.Array) else data._meta


def as_frame(data: object) -> Any:
    """The data as a narwhals frame, or None if it is no data frame, or one whose rows are to stay where they are."""
    if isinstance(data, np.ndarray) or is_collection(data):
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

    kind = series.cat.get_categories().dtype if _categorical(series) else series.dtype
    return bool(kind == nw.Boolean or kind.is_numeric())


def object_columns(frame: Any) -> list[Any]:
    """Columns of which only a conversion tells whether they are numbers."""
    import narwhals.stable.v2 as nw

    return [series for series in frame.iter_columns() if series.dtype in (nw.Object, nw.Unknown)]


def check_numbers(data: object) -> None:
    """Refuse a column of a frame that holds text, times or lists, by its name, where data are one.

    Columns of objects pass, as only a conversion tells whether they are numbers, and so do those without any value.
    """
    import narwhals.stable.v2 as nw

    frame = as_frame(data)
    for series in () if frame is None else frame.iter_columns():
        if holds_numbers(series) or series.dtype in (nw.Object, nw.Unknown) or series.is_null().all():
            continue
        raise _refused(str(series.name), series)


def _categorical(series: Any) -> bool:
    import narwhals.stable.v2 as nw

    return bool(series.dtype == nw.Categorical or series.dtype == nw.Enum)


def _refused(name: str, series: Any) -> ValueError:
    return ValueError(f"column {name!r} is not numeric (its type is {series.dtype})")


def numeric_column(name: str, series: Any) -> np.ndarray:
    """The values of a column as float64, NaN where missing."""
    import narwhals.stable.v2 as nw

    if not holds_numbers(series):
        raise _refused(name, series)
    if series.dtype == nw.Boolean or _categorical(series):
        series = series.cast(nw.Float64)
    return np.asarray(series.to_numpy(), dtype=np.float64)


def make_frame(columns: Mapping[str, Sequence[Any]], index: Sequence[Any] | None = None) -> Any:
    """A pandas frame, for summaries."""
    import pandas as pd

    return pd.DataFrame(dict(columns), index=index)
