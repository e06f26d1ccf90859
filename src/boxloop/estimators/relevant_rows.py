"""The edge of a two-view estimator: tables, images and labels as rows of one view."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from boxloop.data import (
    ArraySource,
    SparseSource,
    as_frame,
    holds_numbers,
    is_read_in_place,
    on_device,
    open_source,
)
from boxloop.estimators._input import Shape, flatten_images, refuse_rows
from boxloop.types import Source


@dataclass(frozen=True)
class Edge:
    """What is known of one view from the fit: how later rows of it are read.

    Args:
        word: ``X`` or ``Y``, for messages.
        names: of the columns.
        image: shape of one image, None for plain rows.
        values: of a finite view, in order, as they came; None for numbers.
        flat: whether the rows came as one dimension.
    """

    word: str
    names: tuple[str, ...]
    image: Shape | None = None
    values: tuple[Any, ...] | None = None
    flat: bool = False

    @classmethod
    def of(cls, table: Any, word: str, finite: bool | None) -> Edge:
        """Look at the table of a fit.

        Args:
            table: what the user gave.
            word: its name.
            finite: whether one column is to be taken for labels; None decides by whether it holds text.
        """
        column = _column(table)
        single = _single(table)
        if finite or (finite is None and labelled(table)):
            if column is None:
                raise ValueError(f"a finite view is one column of values: {word} has more, or is a file")
            _whole(column, word)
            found = _distinct(column, word)
            return cls(word, (name_of(table) or f"{word.lower()}0",), None, found, single)
        rows, image = flatten_images(table)
        names = _opened(_as_table(rows), word).names
        own = name_of(table) if single else None
        return cls(word, names if own is None else (own,), image, None, single)

    def open(self, table: Any, device: torch.device, weight: Any = None) -> Source:
        """Rows of this view as a source on a device, checked against those of the fit."""
        if self.values is not None:
            return on_device(self._coded(table, weight), device)
        rows, image = flatten_images(table)
        if image is not None and image != self.image:
            raise ValueError(
                f"images of shape {image} were given as {self.word}, the fit had {self.image or 'rows'}"
            )
        single = _single(table)
        own = list(self.names) if len(self.names) == 1 and single else None
        source = _opened(_as_table(rows), self.word, weight, own)
        if source.n_columns != len(self.names) or not _alike(source.names, self.names):
            raise ValueError(
                f"{self.word} has {source.n_columns} columns ({', '.join(source.names[:9])}), but the fit had "
                f"{len(self.names)} ({', '.join(self.names[:9])}): give these, in this order"
                + ("; one row is a table (1, d)" if single else "")
            )
        return _complete(on_device(source, device), self.word)

    def _coded(self, table: Any, weight: Any) -> ArraySource:
        column = _column(table)
        if column is None or self.values is None:
            raise ValueError(f"{self.word} was one column of values in the fit; one column is needed")
        _whole(column, self.word)
        place = {value: code for code, value in enumerate(self.values)}
        items = np.asarray(column).tolist()
        strange = next((item for item in items if item not in place), None)
        if strange is not None:
            known = ", ".join(map(repr, self.values[:9]))
            raise ValueError(
                f"{self.word} holds {strange!r}, which the fit has not seen: its values are {known}"
            )
        codes = torch.tensor([float(place[item]) for item in items], dtype=torch.float64)[:, None]
        source = open_source(codes, weight, list(self.names))
        assert isinstance(source, ArraySource)
        return source

    def shown(self, rows: Any) -> Any:
        """Columns of this view in the shape in which they came."""
        if self.image is not None:
            return rows.reshape(len(rows), *self.image)
        return rows[:, 0] if self.flat and self.values is None else rows

    @property
    def labels(self) -> list[str]:
        """Names of the columns, or the values of a finite view."""
        return [str(name) for name in (self.names if self.values is None else self.values)]


def _as_table(rows: Any) -> Any:
    """One dimension as one column."""
    if isinstance(rows, list | tuple):
        rows = np.asarray(rows)
    if isinstance(rows, np.ndarray | Tensor):
        return rows[:, None] if rows.ndim == 1 else rows
    frame = as_frame(rows)
    column = None if frame is not None else _column(rows)
    return rows if column is None else np.asarray(column)[:, None]


def _opened(table: Any, word: str, weight: Any = None, names: list[str] | None = None) -> Source:
    if issparse(table) or isinstance(table, SparseSource):
        raise ValueError(f"{word} is sparse: two views take dense rows")
    if not is_read_in_place(table):
        _numeric(table, word)
    if isinstance(table, ArraySource) and table.weight is None and weight is not None:
        return open_source(table.rows, weight, list(table.names))
    return open_source(table, weight, names)


def _complete(source: Source, word: str) -> Source:
    """The source, refusing missing values: at once where it is in memory, else as it is read."""
    checked = refuse_rows(source, torch.isnan, partial(_hole, word))
    if not isinstance(source, ArraySource):
        return checked
    if not bool(torch.isfinite(source.rows.sum())):  # a finite sum proves that nothing is missing
        for _ in checked.chunks():
            pass
    return source


def _hole(word: str, name: str, _: float) -> str:
    return (
        f"{word} has a missing value (NaN) in column {name!r}: two views need whole rows; impute or drop it"
    )


def _numeric(table: Any, word: str) -> None:
    """Refuse text among several columns, by name."""
    frame = as_frame(table)
    if frame is not None:
        for series in frame.iter_columns():
            if not holds_numbers(series):
                raise ValueError(
                    f"column {series.name!r} of {word} is not numeric ({series.dtype}): encode it as numbers, or "
                    "give it alone as a finite view"
                )


def _column(table: Any) -> Any:
    """The values of a table of one column, None for anything else."""
    if isinstance(table, Tensor):
        table = table.detach().cpu().numpy()
    if isinstance(table, list | tuple):
        table = np.asarray(table)
    if isinstance(table, np.ndarray):
        if table.ndim == 1:
            return table
        return table[:, 0] if table.ndim == 2 and table.shape[1] == 1 else None
    if is_read_in_place(table):
        return None
    frame = as_frame(table)
    if frame is not None:
        return frame.to_numpy()[:, 0] if frame.shape[1] == 1 else None
    values = np.asarray(table)
    return values if values.ndim == 1 else None


def _single(table: Any) -> bool:
    """Whether a table came as one dimension."""
    if isinstance(table, np.ndarray | Tensor):
        return table.ndim == 1
    return _column(table) is not None and np.asarray(table).ndim == 1


def name_of(table: Any) -> str | None:
    """Of the one column of a frame or series."""
    frame = as_frame(table)
    found = getattr(table, "name", None) if frame is None else frame.columns[0]
    return None if found is None else str(found)


def _textual(column: Any) -> bool:
    kind = np.asarray(column).dtype.kind
    return kind in "USb" or (kind == "O" and any(isinstance(value, str | bool) for value in column))


def labelled(table: Any) -> bool:
    """Whether a table is one column of text, of true and false, or of a categorical type."""
    column = _column(table)
    return column is not None and (_textual(column) or _categorical(table))


def _categorical(table: Any) -> bool:
    """Whether the type of one column says that its values, numbers too, are labels."""
    frame = as_frame(table)
    kind = getattr(table, "dtype", None) if frame is None else frame.schema[frame.columns[0]]
    return str(kind).lower().startswith(("categor", "enum"))


def _distinct(column: Any, word: str) -> tuple[Any, ...]:
    """The values of a column, in order."""
    try:
        return tuple(np.unique(np.asarray(column, dtype=object if _textual(column) else None)).tolist())
    except TypeError as error:
        kinds = ", ".join(sorted({type(value).__name__ for value in np.asarray(column).tolist()}))
        raise ValueError(f"{word} mixes labels of several types ({kinds}): make them all text") from error


def _whole(column: Any, word: str) -> None:
    for place, value in enumerate(np.asarray(column).tolist()):
        if _missing(value):
            raise ValueError(f"{word} has a missing value in row {place}: two views need whole rows")


def _missing(value: Any) -> bool:
    try:
        return value is None or bool(value != value)
    except TypeError:  # pandas' NA is neither the same nor another
        return True


def _alike(names: tuple[str, ...], known: tuple[str, ...]) -> bool:
    """Whether columns are those of the fit, where both have names."""
    plain = tuple(f"x{j}" for j in range(len(names)))
    return names == known or plain in (names, known)
