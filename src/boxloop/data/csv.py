"""CSV files with a header row, plain or gzipped, parsed by pyarrow block by block.

pandas is not used: it fills up a row that is too short, so that a torn line would pass for missing values.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from boxloop.data.arrow import batch_to_tensor
from boxloop.data.stream import Reader
from boxloop.data.validation import check_names

MISSING = ("", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "None", "#N/A")
WORDS = {"true": 1.0, "True": 1.0, "TRUE": 1.0, "false": 0.0, "False": 0.0, "FALSE": 0.0}
VALUES = WORDS | dict.fromkeys(MISSING, math.nan)
BLOCK_BYTES = 1 << 23
SCANNED_ROWS = 5000
"""Rows from which the kind of a column, text or numbers, is inferred."""
ARROW_PLACE = re.compile(r"(?:In CSV column #(\d+): )?(?:CSV parse error: )?Row #(\d+): (.*)", re.DOTALL)


@dataclass(frozen=True)
class CsvReader:
    """One CSV file, decompressed as it is read if its name ends in ``.gz``.

    Empty cells, ``NA``, ``NaN`` and the like are missing values; ``true`` and ``false`` are 1 and 0. In a file of
    one column an empty line is a missing value; in others it is skipped.
    """

    path: Path

    @property
    def label(self) -> str:
        return str(self.path)

    @cached_property
    def names(self) -> tuple[str, ...]:
        header = next(read_records(self.path), [])
        if not header:
            raise ValueError(f"{self.path}: the file is empty; a header row with names is required")
        if all(cell not in VALUES and parse_number(cell) is not None for cell in header):
            raise ValueError(f"{self.path}: the first row holds numbers; a header row with names is required")
        return check_names(header, self.label)

    @cached_property
    def n_rows(self) -> int:
        """Number of rows, counted once."""
        return sum(batch.shape[0] for batch in self.batches((), 1 << 16))

    @cached_property
    def non_numeric(self) -> dict[str, str]:
        """The columns that hold text in the first rows."""
        lines = read_records(self.path)
        next(lines, None)
        columns = list(zip(*islice(lines, SCANNED_ROWS), strict=False))
        columns_of_text = {}
        for name, cells in zip(self.names, columns, strict=False):
            words = {cell for cell in cells if parse_number(cell) is None}
            if words:
                columns_of_text[name] = f"text, {len(words)} different in the first {len(cells)} rows"
        return columns_of_text

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """The whole: rows of text begin where the one before ends."""
        return [(self, self.n_rows)]

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        return parse_blocks(self, names, rows)

    def problem(self, row: int, what: str, column: int | None = None) -> ValueError:
        """An error that names the file, the row and, if a value is at fault, its column."""
        which = "" if column is None else f"column {self.names[column]!r} is not numeric: "
        return ValueError(f"{self.path}: row {row} (the header is row 1): {which}{what}")


def parse_blocks(reader: CsvReader, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
    """Blocks of rows, as pyarrow reads them; its errors with our names of rows and columns."""
    import pyarrow as pa

    try:
        with open_arrow(reader, names) as batches:
            for batch in batches:
                for start in range(0, batch.num_rows, rows):
                    yield batch_to_tensor(batch.slice(start, rows), names, reader.label)
    except (pa.ArrowInvalid, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        place = ARROW_PLACE.match(str(error))
        if place is None:
            raise ValueError(f"{reader.path}: {error}") from error
        column = None if place[1] is None else int(place[1])
        raise reader.problem(int(place[2]), place[3], column) from error


def open_arrow(reader: CsvReader, names: tuple[str, ...]) -> Any:
    """pyarrow's streaming reader, of the first column as text where none is wanted: enough to count rows."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    def open_with(kinds: dict[str, Any]) -> Any:
        convert = arrow_csv.ConvertOptions(
            include_columns=list(names) or [reader.names[0]],
            column_types=kinds,
            null_values=list(MISSING),
            true_values=[word for word, value in WORDS.items() if value],
            false_values=[word for word, value in WORDS.items() if not value],
        )
        reading = arrow_csv.ReadOptions(use_threads=False, block_size=BLOCK_BYTES)
        parsing = arrow_csv.ParseOptions(ignore_empty_lines=len(reader.names) > 1, newlines_in_values=True)
        return arrow_csv.open_csv(reader.path, reading, parsing, convert)

    if not names:
        return open_with({reader.names[0]: pa.string()})
    # The first block only distinguishes truth values from numbers: later blocks may hold other kinds of numbers.
    with open_with({}) as first:
        words = {field.name for field in first.schema if field.type == pa.bool_()}
    return open_with({name: pa.bool_() if name in words else pa.float64() for name in names})


def read_records(path: Path, blank: bool = False) -> Iterator[list[str]]:
    """Rows of cells; an empty line is one empty cell if ``blank``, else left out."""
    open_file = gzip.open if path.suffix == ".gz" else open
    try:
        with open_file(path, "rt", newline="", encoding="utf-8-sig") as file:
            yield from (cells or [""] for cells in csv.reader(file, strict=True) if cells or blank)
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: cannot be read as CSV: {error}") from error


def parse_number(cell: str) -> float | None:
    """The value of a cell, NaN where it is missing, None where it is no number."""
    value = VALUES.get(cell)
    if value is not None:
        return value
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None
