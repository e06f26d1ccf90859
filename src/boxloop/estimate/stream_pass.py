"""What a factor stream does to one tile of columns."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from boxloop.estimate.stream_tiles import Tile, deviate, gather, spread


class FactorTile:
    """One tile, with its products bound to the small matrices that all tiles share.

    Args:
        tile: views of the sheet.
        square: running mean of squared deviations, (c,).
        start: initial loadings of these columns while the E step reads them instead of U, (K, c).
        update: what times the sheet makes the next U, (K, K + b), in the sheet's dtype.
        measured: receives [U; D] Psi^-1 [U; D]ᵀ from ``solve``: its first K rows, or all if psi may be held next.
        held: receives [U; D] Psi^-1 Dᵀ from ``hold``, (K + b, b), or that of the initial loadings, (K, b).
        floor: smallest share of a column's variance that is noise.
    """

    def __init__(
        self,
        tile: Tile,
        square: Tensor,
        start: Tensor | None,
        update: Tensor,
        measured: Tensor,
        held: Tensor,
        floor: float,
    ) -> None:
        self.tile = tile
        self.square = square
        self.floor = floor
        self.update = update
        rank, batch = len(tile.upper), len(tile.lower)
        self.gain = update[:, rank:]
        self.weighed = tile.fresh[: len(measured)]
        self.scaled, self.squares, self.weighted = (tile.scaled[:n] for n in (len(measured), rank, batch))
        self.grow = spread(update, tile.rows, tile.fresh_upper)
        self.measure = gather(self.scaled, tile.fresh, measured)
        self.project = gather(tile.rows if start is None else start, self.weighted, held)

    def survey(self, values: Tensor, step: float, shrink: float) -> None:
        """Mean and variance alone."""
        self._deviate(values, step, shrink, self.tile.fresh_lower)

    def solve(self, values: Tensor, step: float, shrink: float) -> None:
        """U and psi from the waiting update, the new deviations D, and what the E step needs of them."""
        tile = self.tile
        self.grow()
        torch.mul(tile.fresh_upper, tile.fresh_upper, out=self.squares)
        torch.sum(self.squares, 0, out=tile.noise)
        residual(self.square, tile.noise, self.floor, out=tile.noise, spare=tile.gap)
        self._deviate(values, step, shrink, tile.fresh_lower)
        torch.div(self.weighed, tile.noise, out=self.scaled)
        self.measure()
        tile.rows.copy_(tile.fresh)

    def hold(self, values: Tensor, keep: float, step: float, shrink: float) -> None:
        """U from the waiting update, ``keep`` U + gain D, the new deviations, and what the E step needs.

        psi stays, but for columns in which it falls below its floor.
        """
        tile = self.tile
        if len(values) == 1:
            tile.upper.addr_(self.gain[:, 0], tile.lower[0], beta=keep)
        else:
            tile.upper.addmm_(self.gain, tile.lower, beta=keep)
        self._deviate(values, step, shrink, tile.lower)
        if self.floor > 0.0:  # a column that was constant until now has next to no psi
            torch.mul(self.square, self.floor, out=tile.gap)
            torch.maximum(tile.noise, tile.gap, out=tile.noise)
        torch.div(tile.lower, tile.noise, out=self.weighted)
        self.project()

    def _deviate(self, values: Tensor, step: float, shrink: float, out: Tensor) -> None:
        deviate(self.tile, values, step, shrink, out)
        self.square.mul_(1.0 - step)
        if len(out) == 1:
            self.square.addcmul_(out[0], out[0], value=step)
            return
        torch.mul(out, out, out=self.weighted)
        torch.sum(self.weighted, 0, out=self.tile.gap)
        self.square.add_(self.tile.gap, alpha=step / len(out))

    def grown(self) -> Tensor:
        """U with the waiting update carried out, (K, c), as a new tensor."""
        return self.update @ self.tile.rows


def residual(
    square: Tensor, explained: Tensor, floor: float, out: Tensor | None = None, spare: Tensor | None = None
) -> Tensor:
    """psi = s - explained, at least ``floor`` times s; not zero even for a constant column."""
    noise = torch.sub(square, explained, out=out)
    if floor == 0.0:
        return noise
    least = torch.add(_tiny(square.dtype, square.device), square, alpha=floor, out=spare)
    return torch.maximum(noise, least, out=noise)


@lru_cache(maxsize=8)
def _tiny(dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(torch.finfo(dtype).tiny * 1e8, dtype=dtype, device=device)
