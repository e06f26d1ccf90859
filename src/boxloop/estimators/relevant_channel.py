"""The second view that a channel makes of the first: drawn once for rows in memory, else as they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, PlacedTile, SourceView
from boxloop.fit import generator_at
from boxloop.numeric import generator, seed
from boxloop.twoview import Channel, TimeShift
from boxloop.types import Source

BLOCK = 256
"""Rows that share a stream, so that a row is disturbed in the same way in every pass, whatever its tile."""


def drawn(channel: Any, first: Source, stream: Generator) -> Source:
    """What a channel makes of rows, with their names where it keeps the columns.

    Args:
        channel: of the user.
        first: the rows.
        stream: on the CPU.

    Raises:
        ValueError: a channel that does not give a whole row for each, or changes what it is given.
    """
    if isinstance(channel, TimeShift):
        raise ValueError(
            "TimeShift leaves fewer rows: boxloop.twoview.self_views(X, TimeShift(lag)) gives X and Y for fit(X, Y)"
        )
    if isinstance(first, ArraySource):
        own = generator(stream, first.rows.device)
        whole = torch.cat([_made(channel, rows, own) for rows, _ in first.chunks()])
        return ArraySource(whole, None, first.names if whole.shape[1] == first.n_columns else None)
    key = seed(stream)
    rows, _ = next(iter(first.chunks(BLOCK)))
    width = _made(channel, rows, generator_at(key, device=rows.device)).shape[1]
    names = first.names if width == first.n_columns else tuple(f"x{j}" for j in range(width))
    return Drawn(first, channel, key, names)


@dataclass(frozen=True)
class Drawn(SourceView):
    """A second view that is drawn where the rows are, the same in every pass.

    Args:
        source: the first view.
        channel: of the user.
        key: seed of all draws.
        seen: names of the columns that are drawn.
    """

    source: Source
    channel: Channel
    key: int
    seen: tuple[str, ...]

    @property
    def n_columns(self) -> int:
        """Columns that are drawn."""
        return len(self.seen)

    @property
    def names(self) -> tuple[str, ...]:
        """Column names."""
        return self.seen

    def tile_transform(self) -> Callable[[Tensor, Tensor, int], PlacedTile]:
        """The draws of a tile, block by block; rows of a block that are elsewhere are stood for by another."""
        channel, key = self.channel, self.key

        def draw(rows: Tensor, weight: Tensor, start: int) -> PlacedTile:
            found, stop = [], start + len(rows)
            for block in range(start // BLOCK, -(-stop // BLOCK)):
                here = slice(max(start, block * BLOCK) - start, min(stop, (block + 1) * BLOCK) - start)
                place = slice(start + here.start - block * BLOCK, start + here.stop - block * BLOCK)
                whole = rows[here.start].expand(BLOCK, -1).clone()
                whole[place] = rows[here]
                found.append(_made(channel, whole, generator_at(key, block, device=rows.device))[place])
            return torch.cat(found), weight, start

        return draw


def _made(channel: Channel, rows: Tensor, stream: Generator) -> Tensor:
    """What a channel makes of some rows, checked."""
    own = rows.clone()
    found = channel(own, stream)
    if not isinstance(found, Tensor) or found.dim() != 2 or len(found) != len(rows):
        told = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(f"a channel makes of {len(rows)} rows a tensor of as many, (n, d); it gave {told}")
    if not torch.equal(own, rows):
        raise ValueError(
            "the channel changes its rows in place: both views would be the same; copy them first"
        )
    if not bool(torch.isfinite(found).all()):
        raise ValueError("the channel gave a missing or infinite value")
    return found
