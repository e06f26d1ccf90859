"""All tiles of a factor stream and the passes over them, and the vectors that wait for a pass."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from boxloop.fit import stream_fused
from boxloop.fit.stream_pass import FactorTile, Shared, residual
from boxloop.fit.stream_small import Array, Run
from boxloop.fit.stream_state import StreamState
from boxloop.fit.stream_tiles import cut, tile_columns

FEW = 1 << 17
"""Columns a tile beside kernels: their scratch takes little memory."""


class Sheet:
    """The long tensors of a state, cut into tiles that share small matrices; passes change them in place.

    Args:
        state: whose tensors these are.
        tile: columns a tile; chosen from the cache when None.
        several: whether vectors come one after another, and not as one observation.
    """

    def __init__(self, state: StreamState, tile: int | None, several: bool = False) -> None:
        rows, rank, floor = state.rows, state.rank, state.settings.floor
        self.several, self._held = several, state.start is not None
        self._fused: stream_fused.Pass | None = None
        if not self._held and tile is None and stream_fused.fits(rows, rank):
            tile = FEW  # which are then only for what is rare
            self._fused = stream_fused.Pass(rows, state.mean, state.square, state.noise, rank, floor)
        self._width = min(tile or tile_columns(rows), rows.shape[1])
        self._shared = Shared.of(rows, rank, held=self._held, several=several)
        tiles = cut(rows, state.mean, state.noise, rank, self._width)
        squares = state.square.split(self._width)
        starts = [None] * len(tiles) if state.start is None else state.start.split(self._width, dim=1)
        self._tiles = [
            FactorTile(tile, square, start, self._shared, floor)
            for tile, square, start in zip(tiles, squares, starts, strict=True)
        ]

    def survey(self, values: Tensor, run: Run) -> None:
        """Mean and variance alone."""
        keep = self._told(run)
        for work, part in self._parts(values):
            work.survey(part, keep, run.back)

    def rescale(self) -> None:
        """U in units of each column's deviation."""
        for work in self._tiles:
            work.tile.upper.mul_(work.square.sqrt())

    def sweep(self, update: Tensor, values: Tensor, run: Run) -> Array:
        """Carry out the waiting update and observe vectors.

        Returns:
            [U; E] Psi^-1 [U; E]ᵀ with their gaps E to the mean before them, (K + n, K + n), or its first K rows, which
            are enough for one observation.
        """
        keep = self._told(run)
        self._shared.update.copy_(update)
        if self._fused is not None:
            return self._fused(values, self._shared.update, self._shared.share, keep, run.back)
        self._shared.measured.zero_()
        for work, part in self._parts(values):
            work.solve(part, keep, run.back)
        found: Array = self._shared.measured.cpu().numpy()
        return np.concatenate([np.eye(len(found)), found], axis=1) if self._held else found

    def grown(self, update: Tensor, batch: int) -> Tensor:
        """U with the waiting update carried out, over ``batch`` rows of zeros, as a new tensor (K + b, D)."""
        first = self._tiles[0].tile.rows
        columns = sum(work.tile.rows.shape[1] for work in self._tiles)
        rows = first.new_zeros(len(update) + batch, columns)
        self._shared.update.copy_(update)
        for work, out in self._parts(rows):
            out[: len(update)] = work.grown()
        return rows

    def solution(self, state: StreamState) -> tuple[Tensor, Tensor]:
        """F and psi after all that was observed, (D, K) and (D,)."""
        loadings = state.rows.new_empty(len(state.mean), state.rank)
        noise = torch.empty_like(state.mean)
        self._shared.update.copy_(state.update)
        turn, basis = state.turn.to(loadings), state.basis.to(loadings)
        unscaled = state.settings.variant == "exact" and state.count < state.settings.warmup
        parts = zip(self._tiles, loadings.split(self._width), noise.split(self._width), strict=True)
        for work, out, psi in parts:
            rows = work.grown() * (work.square.sqrt() if unscaled else 1.0)
            out.copy_((turn @ rows).mT)
            psi.copy_(residual(work.square, (out.mT * (basis @ rows)).sum(0), state.settings.floor))
        return loadings, noise

    def _told(self, run: Run) -> float:
        """The share of what was seen before in the new mean; those of the vectors go to where tiles find them."""
        self._shared.share.copy_(torch.from_numpy(run.share))
        return 1.0 - float(run.share.sum())

    def _parts(self, values: Tensor) -> Iterator[tuple[FactorTile, Tensor]]:
        return zip(self._tiles, values.split(self._width, dim=1), strict=True)


class Waiting:
    """Vectors that wait for others, to share a pass with them.

    Args:
        vectors: those that wait already, (n, D).
        room: how many there may be.
    """

    def __init__(self, vectors: Tensor, room: int) -> None:
        self._held, self._room, self._count = vectors, room, len(vectors)

    def __len__(self) -> int:
        return self._count

    def vectors(self) -> Tensor:
        """Those that wait, in order; a view."""
        return self._held[: self._count]

    def add(self, vector: Tensor) -> None:
        """Let a copy of a vector wait too."""
        if len(self._held) < self._room:
            whole = self._held.new_empty(self._room, len(vector))
            whole[: self._count] = self._held
            self._held = whole
        self._held[self._count] = vector
        self._count += 1

    def clear(self) -> None:
        """Nobody waits any more."""
        self._count = 0
