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

from boxloop.data.array import GPU_VALUES
from boxloop.data.tiles import Tile, Tiled
from boxloop.types import Source

T = TypeVar("T")

AHEAD = 2
"""Tiles that are read while one is in use: each may be 128 MB."""


@dataclass(frozen=True)
class Prefetched(Tiled):
    """A stream whose tiles are read by a thread, and copied to a device beside the work there.

    Tiles have the sizes of an array's on a GPU, so that a sum over a file is the sum over the array to rounding.

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
        tiles = self.source.chunks(size or max(1, GPU_VALUES // max(self.n_columns, 1)))
        if self.device.type != "cuda":
            yield from ahead((rows.to(self.device), weight.to(self.device)) for rows, weight in tiles)
            return
        with closing(ahead(_copied(tiles, self.device))) as moved:
            for tile, copied in moved:
                here = torch.cuda.current_stream(self.device)
                here.wait_event(copied)
                for part in tile:  # its memory belongs to the stream that copied
                    part.record_stream(here)
                yield tile


def _copied(tiles: Iterator[Tile], device: torch.device) -> Iterator[tuple[Tile, torch.cuda.Event]]:
    """Tiles copied by a stream of their own, each with what tells that its copy is done."""
    side = torch.cuda.Stream(device)
    for rows, weight in tiles:
        with torch.cuda.stream(side):
            tile, copied = (_sent(rows, device), _sent(weight, device)), side.record_event()
        yield tile, copied


def _sent(part: Tensor, device: torch.device) -> Tensor:
    """A copy that nobody waits for: only from pinned memory does it run beside other work."""
    return part.pin_memory().to(device, non_blocking=True)


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
