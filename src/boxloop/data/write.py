"""Tables written out."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def write_table(path: str | Path, columns: Mapping[str, np.ndarray]) -> None:
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
    path = Path(path)
    arrays = {name: np.asarray(values) for name, values in columns.items()}
    if (
        not arrays
        or len({array.shape for array in arrays.values()}) != 1
        or next(iter(arrays.values())).ndim != 1
    ):
        shapes = ", ".join(f"{name}: {array.shape}" for name, array in arrays.items())
        raise ValueError(f"columns of equal length are needed, not {shapes or 'none'}")
    name = path.name.lower()
    if name.endswith((".csv", ".csv.gz")):
        _write_csv(path, arrays)
    elif name.endswith((".parquet", ".pq")):
        _write_parquet(path, arrays)
    else:
        raise ValueError(f"{path}: the name must end in .csv, .csv.gz or .parquet")


def _write_csv(path: Path, columns: dict[str, np.ndarray]) -> None:
    opened = gzip.open if path.suffix.lower() == ".gz" else open
    with opened(path, "wt", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(columns)
        out.writerows(zip(*(_cells(values) for values in columns.values()), strict=True))


def _cells(values: np.ndarray) -> list[object]:
    cells: list[object] = values.tolist()
    return ["" if cell != cell else cell for cell in cells] if values.dtype.kind == "f" else cells


def _write_parquet(path: Path, columns: dict[str, np.ndarray]) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise ImportError("writing Parquet needs pyarrow: pip install boxloop[parquet]") from error
    parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)
