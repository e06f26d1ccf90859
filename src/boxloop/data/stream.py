"""Rows that stay in files, read in batches and cut into the same tiles as an array's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from boxloop.data.folder import file_readers
from boxloop.data.source import ArraySource, TiledSource, tile_rows
from boxloop.data.validation import (
    check_finite,
    check_shape,
    check_weight,
    check_weight_values,
    choose_columns,
)

BATCH_ROWS = 1 << 16
BATCH_VALUES = 1 << 22
"""Most rows, and most values (32 MB of float64), that are read at once."""


class Reader(Protocol):
    """Something that can be read from the first row to the last, as often as needed."""

    @property
    def label(self) -> str:
        """How messages name it."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """All its columns."""
        ...

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        ...

    @property
    def non_numeric(self) -> dict[str, str]:
        """The columns that hold no numbers, and what they hold instead."""
        ...

    def pieces(self, rows: int) -> list[tuple[Reader, int]]:
        """Readers of about so many rows each, which together read what this one does, and how many each reads."""
        ...

    def batches(self, names: tuple[str, ...], rows: int) -> Iterator[Tensor]:
        """Yield the columns ``names`` in row order, as float64, NaN where missing, at most ``rows`` at once."""
        ...


@dataclass(frozen=True)
class StreamSource(TiledSource):
    """A table that every pass reads again, in batches.

    Tiles have the sizes of :class:`ArraySource`'s whatever the batches of the file, so that a sum over a file is
    the sum over the array to rounding. Values are checked as they are read.

    Args:
        reader: the file.
        names: the columns used, in this order.
        weight: a column of the file, or one weight per row; all ones when omitted.
        part: whether there are other rows elsewhere, so that here all weights may be zero.
    """

    reader: Reader
    names: tuple[str, ...]
    weight: Tensor | str | None = None
    part: bool = False

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.reader.n_rows

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return len(self.names)

    def chunks(self, size: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(rows, weight)`` tiles in row order."""
        d, start, total_weight = self.n_columns, 0, 0.0
        for tile in retile(self._batches(size or tile_rows(d)), size or tile_rows(d)):
            stop = start + tile.shape[0]
            if self.weight is None:
                weight = torch.ones(tile.shape[0], dtype=torch.float64)
            else:
                weight = tile[:, d] if isinstance(self.weight, str) else self.weight[start:stop]
            total_weight += float(weight.sum())
            yield tile[:, :d], weight
            start = stop
        check_shape(start, d, f"{self.reader.label}: the table has no rows. ")
        if total_weight == 0.0 and not self.part:
            raise ValueError(f"{self.reader.label}: the weights are all zero")

    def _batches(self, step: int) -> Iterator[Tensor]:
        """Batches with the weights as last column if they are one, checked."""
        d, rows = self.n_columns, max(1, min(BATCH_ROWS, BATCH_VALUES // max(self.n_columns, 1)))
        wanted = (*self.names, self.weight) if isinstance(self.weight, str) else self.names
        for file in file_readers(self.reader):
            start = 0
            for batch in file.batches(wanted, max(rows // step * step, min(rows, step))):
                check_finite(batch, wanted, start, file.label)
                check_weight_values(batch[:, d:].flatten(), start, file.label)
                yield batch
                start += batch.shape[0]


def stream_source(
    reader: Reader, weight: object = None, columns: Sequence[str] | None = None
) -> StreamSource:
    """A source over a reader, its columns and weights checked."""
    names = choose_columns(reader.names, columns, weight, reader.label)
    if weight is None or isinstance(weight, str):
        return StreamSource(reader, names, weight)
    return StreamSource(reader, names, check_weight(weight, reader.n_rows))


def load_small(source: StreamSource, limit: int) -> StreamSource | ArraySource:
    """The same rows in memory if they take at most ``limit`` bytes, else the source itself.
    An iterative fit reads its rows a hundred times; a small file should be parsed once."""
    tiles: list[tuple[Tensor, Tensor]] = []
    left = limit // 8
    if left <= 0:
        return source
    for rows, weight in source.chunks(BATCH_ROWS):
        left -= rows.numel()
        if left < 0:
            return source
        tiles.append((rows, weight))
    rows, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
    return ArraySource(rows, None if source.weight is None else weight, source.names)


def retile(batches: Iterator[Tensor], step: int) -> Iterator[Tensor]:
    """Cut batches of any sizes into tiles of ``step`` rows; only the last may be shorter."""
    waiting: list[Tensor] = []
    count = 0
    for batch in batches:
        waiting.append(batch)
        count += batch.shape[0]
        if count >= step:
            block = _concatenate_rows(waiting)
            full = count - count % step
            yield from torch.split(block[:full], step)
            waiting, count = [block[full:]] if count > full else [], count - full
    if count:
        yield _concatenate_rows(waiting)


def _concatenate_rows(parts: list[Tensor]) -> Tensor:
    """One table, columns-major: as formats by columns give them, and as matrix products want them."""
    return parts[0] if len(parts) == 1 else torch.cat([part.mT for part in parts], 1).mT
