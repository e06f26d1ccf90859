"""Rows on a device: here, on that of a worker, or prefetched while earlier tiles are in use."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, TypeVar

import torch
from torch import Tensor

from boxloop.data.dask.partitions import Partition
from boxloop.data.dask.source import DaskSource
from boxloop.data.source import GPU_VALUES, ArraySource, MappedSource, Tile, TiledSource, tile_rows
from boxloop.data.stream import StreamSource
from boxloop.types import Source

T = TypeVar("T")

PREFETCHED_TILES = 2
"""Tiles that are read while one is in use: each may be 64 MB."""

PINNED_BUFFERS = 4
"""Pieces on their way to a GPU at once."""


def on_device(source: Source, device: torch.device) -> Source:
    """The source with its rows on a device, where they are read: an array moves once, a stream ahead of its use.

    Example:
        >>> from boxloop.data import ArraySource
        >>> on_device(ArraySource(torch.ones(2, 1)), torch.device("meta")).rows.device.type
        'meta'
    """
    if device.type == "cpu":
        return source
    if isinstance(source, ArraySource):
        weight = None if source.weight is None else source.weight.to(device)
        return ArraySource(source.rows.to(device), weight, source.columns)
    if isinstance(source, StreamSource):
        return PrefetchedSource(source, device)
    if isinstance(source, DaskSource):
        return replace(source, parts=tuple(DevicePartition(part, device) for part in source.parts))
    return MappedSource(source, methodcaller("to", device), device)


@dataclass(frozen=True)
class PrefetchedSource(TiledSource):
    """A stream whose tiles a thread reads and copies to a device while earlier ones are in use."""

    source: Source
    device: torch.device

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.source.n_rows

    @property
    def n_columns(self) -> int:
        """Number of columns."""
        return self.source.n_columns

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.source.names

    def chunks(self, size: int | None = None) -> Iterator[Tile]:
        """Yield tiles in row order, on the device."""
        step = size or tile_rows(self.n_columns)
        size = size or max(1, GPU_VALUES // (step * max(self.n_columns, 1))) * step
        if self.device.type != "cuda":
            tiles = self.source.chunks(size)
            yield from prefetch((rows.to(self.device), weight.to(self.device)) for rows, weight in tiles)
            return
        used: deque[torch.cuda.Event] = deque()
        with closing(prefetch(_fill_tiles(self.source.chunks(step), step, size, self.device))) as filled:
            for tile, copied in filled:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(copied)
                for part in tile:  # its memory belongs to the stream that copied
                    part.record_stream(here)
                yield tile
                used.append(here.record_event())
                if len(used) > PREFETCHED_TILES:
                    used.popleft().synchronize()  # else copies could run ahead of the work and fill the device


def _fill_tiles(
    pieces: Iterator[Tile], step: int, size: int, device: torch.device
) -> Iterator[tuple[Tile, torch.cuda.Event]]:
    """Tiles of up to ``size`` rows, each with the event of its last copy, filled in a stream of their own.
    Pieces have up to ``step`` rows: a CPU reads best what its cache holds, a GPU wants more at once."""
    side = torch.cuda.Stream(device)
    buffers: deque[_PinnedBuffer] = deque()
    tile: list[Tensor] = []
    filled = 0
    for piece in pieces:
        count = len(piece[1])
        if filled + count > size:
            yield (tile[0][:filled], tile[1][:filled]), side.record_event()
            tile, filled = [], 0
        buffers = buffers or deque(_PinnedBuffer(piece, step) for _ in range(PINNED_BUFFERS))
        with torch.cuda.stream(side):
            tile = tile or [part.new_empty((size, *part.shape[1:]), device=device) for part in piece]
            buffers[0].copy_to_device(piece, [part[filled : filled + count] for part in tile])
        buffers.rotate()
        filled += count
    if filled:
        yield (tile[0][:filled], tile[1][:filled]), side.record_event()


class _PinnedBuffer:
    """Pinned memory for a piece: only from there does a copy run beside other work, and pinning takes long."""

    def __init__(self, piece: Tile, step: int) -> None:
        self.parts = [
            torch.empty((step, *part.shape[1:]), dtype=part.dtype, pin_memory=True) for part in piece
        ]
        self.copied = torch.cuda.Event()

    def copy_to_device(self, piece: Tile, places: list[Tensor]) -> None:
        """Copy a piece by the current stream, once the last has left."""
        self.copied.synchronize()
        for part, buffer, place in zip(piece, self.parts, places, strict=True):
            place.copy_(buffer[: len(part)].copy_(part), non_blocking=True)
        self.copied.record()


def prefetch(items: Iterator[T], most: int = PREFETCHED_TILES) -> Generator[T, None, None]:
    """The same items, computed by a thread while earlier ones are in use; its exceptions are raised here.
    The thread ends with this iterator: when it is exhausted, closed, or left by an exception."""
    end = object()
    reader = ThreadPoolExecutor(1, "boxloop-prefetch")
    try:
        waiting = deque(reader.submit(next, items, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(reader.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        reader.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class DevicePartition:
    """A partition whose rows go to a device as it is opened: at once where in memory, prefetched from a file."""

    part: Partition
    device: torch.device

    @property
    def label(self) -> str:
        return self.part.label

    def is_named_in(self, message: str) -> bool:
        return self.part.is_named_in(message)

    @property
    def content(self) -> Any:
        return self.part.content

    def open(self, content: Any) -> Source:
        return on_device(self.part.open(content), self.device)

    def tasks(self) -> list[Any]:
        return self.part.tasks()

    def without_content(self) -> DevicePartition:
        return DevicePartition(self.part.without_content(), self.device)
