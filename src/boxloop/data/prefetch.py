"""Rows of a stream on their way to a device: while one tile is summed there, the next is read and copied."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from boxloop.data.array import GPU_VALUES, tile_rows
from boxloop.data.tiles import Tile, Tiled
from boxloop.types import Source

T = TypeVar("T")

AHEAD = 2
"""Tiles that are read while one is in use: each may be 64 MB."""

ROOMS = 4
"""Pieces on their way to a GPU at once."""


@dataclass(frozen=True)
class Prefetched(Tiled):
    """A stream whose tiles are read by a thread, and copied to a device beside the work there.

    Tiles have about the sizes of an array's on a GPU.

    Args:
        source: where rows come from.
        device: where they go.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> source = Prefetched(ArraySource(torch.arange(6.0).reshape(3, 2)), torch.device("cpu"))
        >>> [rows.shape[0] for rows, _ in source.chunks(2)]
        [2, 1]
    """

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
            yield from ahead((rows.to(self.device), weight.to(self.device)) for rows, weight in tiles)
            return
        used: deque[torch.cuda.Event] = deque()
        with closing(ahead(_filled(self.source.chunks(step), step, size, self.device))) as moved:
            for tile, copied in moved:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(copied)
                for part in tile:  # its memory belongs to the stream that copied
                    part.record_stream(here)
                yield tile
                used.append(here.record_event())
                if len(used) > AHEAD:  # nobody else may wait for the work, and copies would fill the device
                    used.popleft().synchronize()


def _filled(
    pieces: Iterator[Tile], step: int, size: int, device: torch.device
) -> Iterator[tuple[Tile, torch.cuda.Event]]:
    """Tiles of up to ``size`` rows, each with what tells that it is full.

    A stream of their own fills them with pieces of up to ``step`` rows: a CPU reads best what its cache holds, a GPU
    wants more at once.
    """
    side = torch.cuda.Stream(device)
    rooms: deque[_Room] = deque()
    tile: list[Tensor] = []
    filled = 0
    for piece in pieces:
        count = len(piece[1])
        if filled + count > size:
            yield (tile[0][:filled], tile[1][:filled]), side.record_event()
            tile, filled = [], 0
        rooms = rooms or deque(_Room(piece, step) for _ in range(ROOMS))
        with torch.cuda.stream(side):
            tile = tile or [part.new_empty((size, *part.shape[1:]), device=device) for part in piece]
            rooms[0].send(piece, [part[filled : filled + count] for part in tile])
        rooms.rotate()
        filled += count
    if filled:
        yield (tile[0][:filled], tile[1][:filled]), side.record_event()


class _Room:
    """Pinned memory for a piece: only from there does a copy run beside other work, and pinning takes long."""

    def __init__(self, piece: Tile, step: int) -> None:
        self.parts = [
            torch.empty((step, *part.shape[1:]), dtype=part.dtype, pin_memory=True) for part in piece
        ]
        self.free = torch.cuda.Event()

    def send(self, piece: Tile, places: list[Tensor]) -> None:
        """Copy a piece by the current stream, once the last has left."""
        self.free.synchronize()
        for part, room, place in zip(piece, self.parts, places, strict=True):
            place.copy_(room[: len(part)].copy_(part), non_blocking=True)
        self.free.record()


def ahead(items: Iterator[T], most: int = AHEAD) -> Generator[T, None, None]:
    """The same items, made by a thread while earlier ones are in use.

    What goes wrong in the thread is raised here, in its place. The thread ends with this iterator: when it is used up,
    closed, or left by an exception.

    Args:
        items: an iterator; only the thread touches it.
        most: items that are made before they are asked for.

    Example:
        >>> list(ahead(iter("abc")))
        ['a', 'b', 'c']
    """
    end = object()
    reader = ThreadPoolExecutor(1, "boxloop-prefetch")
    try:
        waiting = deque(reader.submit(next, items, end) for _ in range(most))
        while (item := waiting.popleft().result()) is not end:
            waiting.append(reader.submit(next, items, end))
            yield item  # type: ignore[misc]
    finally:
        reader.shutdown(cancel_futures=True)
