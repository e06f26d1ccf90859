"""Tables as commands name them: a path or a bundled data set, with some of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path

from boxloop.data.bundled import CATALOGUE, bundled
from boxloop.data.checks import choose_columns, near_misses
from boxloop.data.dask import in_parts
from boxloop.data.folder import is_pattern
from boxloop.data.npy import MapReader
from boxloop.data.open import MEMORY, open_reader, rooted
from boxloop.data.remote import is_remote
from boxloop.data.stream import Reader, hold, stream
from boxloop.types import Source


def open_table(
    data: str | PathLike[str],
    weight: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    cluster: bool = False,
) -> Source:
    """Open a file, a folder or a bundled data set, and choose among its columns by name.

    Columns that are not used are not read, so they may hold text. The columns of a ``.npy`` file are
    ``x0, x1, ...``.

    Args:
        data: a path, the URL of Parquet files, or the name of a bundled data set; a path that exists comes first.
        weight: the column that holds one non-negative weight a row.
        columns: the columns to use, in this order; all others when omitted.
        drop: columns to leave out.
        cluster: whether the rows are read and summed by the workers of the current Dask client, and none is held here.

    Raises:
        ValueError: a column that is not there, none that is left, or a table that cannot be read.

    Example:
        >>> open_table("iris", drop=["sepal length (cm)", "sepal width (cm)"]).names
        ('petal length (cm)', 'petal width (cm)')
    """
    reader = open_reader_of(rooted(data) if cluster and Path(data).exists() else data)
    choose_columns(reader.names, drop, weight, reader.label)
    left = tuple(name for name in reader.names if name not in drop)
    names = choose_columns(left, columns, weight, reader.label)
    if not names:
        raise ValueError(f"{reader.label}: no column is left to use")
    if not cluster:
        return hold(stream(reader, weight, names), MEMORY)
    return in_parts(reader, weight, names)


def open_reader_of(data: str | PathLike[str]) -> Reader:
    """The reader of a path or of a bundled data set; a path that exists comes first."""
    path = Path(data)
    if path.exists() or is_remote(data) or is_pattern(str(data)):
        return open_reader(data)
    if str(data) in CATALOGUE:
        found = bundled(str(data))
        return MapReader(found.rows, found.names, str(data))
    beside = [str(path.with_name(p.name)) for p in path.parent.iterdir()] if path.parent.is_dir() else []
    near = near_misses(str(data), [*CATALOGUE, *beside])
    raise FileNotFoundError(
        f"{path}: no such file or folder, nor a bundled data set{near}; `boxloop datasets` lists what is bundled"
    )
