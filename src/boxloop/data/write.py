"""Writing tables, at once or part by part."""

from __future__ import annotations

import csv
import gzip
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

Columns = Mapping[str, np.ndarray]

FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a text begins with, after spaces and tabs, that a spreadsheet takes for a formula; wide forms, too."""


def write_table(path: str | Path, columns: Columns) -> None:
    """Write columns of equal length to CSV (plain or gzipped) or Parquet, by the suffix of the path.

    Numbers are written so that they read back the same; NaN is an empty cell in CSV.

    Args:
        path: where to; ``.csv``, ``.csv.gz`` or ``.parquet``.
        columns: name and values of each column.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_table(f"{folder}/t.csv", {"a": np.array([1.5, np.nan]), "b": np.array(["x", "y"])})
        ...     print(Path(f"{folder}/t.csv").read_text())
        a,b
        1.5,x
        ,y
    """
    with table_writer(path) as write:
        write(columns)


@contextmanager
def table_writer(path: str | Path) -> Iterator[Callable[[Columns], None]]:
    """Write a table part by part; it takes its name when it is complete.

    Args:
        path: where to, as in :func:`write_table`.

    Yields:
        A function that appends columns, always the same ones.

    Raises:
        ValueError: another suffix, or columns of unequal length.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with table_writer(f"{folder}/t.csv") as write:
        ...         write({"a": np.array([1, 2])})
        ...         write({"a": np.array([3])})
        ...     print(Path(f"{folder}/t.csv").read_text().split())
        ['a', '1', '2', '3']
    """
    path = Path(path)
    name = path.name.lower()
    if not name.endswith((".csv", ".csv.gz", ".parquet", ".pq")):
        raise ValueError(f"{path}: the name must end in .csv, .csv.gz or .parquet")
    mode = path.stat().st_mode if path.is_file() else None
    unfinished = path.with_name(f".{path.name}.part")
    begin = _open_parquet_writer if name.endswith((".parquet", ".pq")) else _open_csv_writer
    unfinished.unlink(
        missing_ok=True
    )  # of a call that was killed, or a link, through which nothing is written
    try:
        if mode is not None:  # before the first row is written: nobody reads who may not read the old file
            unfinished.touch(stat.S_IMODE(mode))
            unfinished.chmod(stat.S_IMODE(mode))
        with begin(unfinished, name.endswith(".gz")) as write:
            yield lambda columns: write(_check_columns(columns))
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def write_text(file: IO[str], columns: Columns, header: bool = True) -> None:
    """Write columns as CSV to an open file.

    Example:
        >>> import sys
        >>> write_text(sys.stdout, {"a": np.array([1, 2]), "b": np.array([0.5, np.nan])})
        a,b
        1,0.5
        2,
    """
    out = csv.writer(file, lineterminator="\n")
    if header:
        out.writerow(columns)
    out.writerows(zip(*(_to_cells(values) for values in columns.values()), strict=True))


def escape_formulas(columns: Columns, cells: bool = False) -> dict[str, np.ndarray]:
    """Columns whose names, and with ``cells`` whose texts, no spreadsheet takes for formulas.

    An apostrophe comes before those that begin like one; numbers are left alone.

    Args:
        columns: name and values of each column.
        cells: whether to escape the texts of the columns, too.

    Example:
        >>> escape_formulas({"=1+1": np.array([-1.5]), "b": np.array(["@c"])}, cells=True)
        {"'=1+1": array([-1.5]), 'b': array(["'@c"], dtype='<U3')}
    """
    escaped: dict[str, np.ndarray] = {}
    for name, values in columns.items():
        name_in_file = _escaped_formula(name)
        while name_in_file in escaped or (name_in_file != name and name_in_file in columns):
            name_in_file = f"'{name_in_file}"
        texts = cells and values.dtype.kind in "OUS"
        escaped[name_in_file] = (
            np.array([_escaped_formula(cell) for cell in values.tolist()]) if texts else values
        )
    return escaped


def _escaped_formula(cell: Any) -> Any:
    return f"'{cell}" if isinstance(cell, str) and cell.lstrip().startswith(FORMULA) else cell


def _check_columns(columns: Columns) -> dict[str, np.ndarray]:
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    shapes = {array.shape for array in arrays.values()}
    if len(shapes) != 1 or len(next(iter(shapes))) != 1:
        shapes_by_name = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
        raise ValueError(f"columns of equal length are needed, not {shapes_by_name or 'none'}")
    return arrays


def _to_cells(values: np.ndarray) -> list[object]:
    cells: list[object] = values.tolist()
    return ["" if cell != cell else cell for cell in cells] if values.dtype.kind == "f" else cells


@contextmanager
def _open_csv_writer(path: Path, gzipped: bool) -> Iterator[Callable[[Columns], None]]:
    header = True
    open_file: Any = gzip.open if gzipped else open
    with open_file(path, "wt", newline="", encoding="utf-8") as file:

        def write(columns: Columns) -> None:
            nonlocal header
            write_text(file, columns, header)
            header = False

        yield write


@contextmanager
def _open_parquet_writer(path: Path, gzipped: bool) -> Iterator[Callable[[Columns], None]]:
    import pyarrow as pa
    from pyarrow import parquet

    out = None

    def write(columns: Columns) -> None:
        nonlocal out
        part = pa.table({name: pa.array(values) for name, values in columns.items()})
        out = out or parquet.ParquetWriter(path, part.schema)
        out.write_table(part)

    try:
        yield write
    finally:
        if out is not None:
            out.close()
