"""What a factor stream does to one tile of columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from boxloop.estimate.stream_tiles import Tile, deviate, gather, spread


@dataclass(frozen=True)
class Shared:
    """The small matrices that all tiles share, in the sheet's dtype but for sums over tiles, which are float64.

    Args:
        update: what times the sheet makes the next U, (K, K + b).
        measured: receives [U; D] Psi^-1 [U; D]ᵀ, (K + b, K + b), or its first K rows, which are enough for one
            observation; of the initial loadings F0 Dᵀ, (K, b).
        share: of each vector in the new mean, (b,), when vectors come one after another.
    """

    update: Tensor
    measured: Tensor
    share: Tensor

    @classmethod
    def of(cls, rows: Tensor, rank: int, *, held: bool, several: bool) -> Self:
        """Room for all of them."""
        height, batch = len(rows), len(rows) - rank
        seen = (rank, batch) if held else (height if several else rank, height)
        update, measured = rows.new_zeros(rank, height), rows.new_zeros(seen, dtype=torch.float64)
        return cls(update, measured, rows.new_zeros(batch if several else 0))


class FactorTile:
    """One tile, with its products bound to the small matrices that all tiles share.

    Args:
        tile: views of the sheet.
        square: running mean of squared deviations, (c,).
        start: initial loadings of these columns while the E step reads them instead of U, (K, c).
        shared: the small matrices.
        floor: smallest share of a column's variance that is noise.
    """

    def __init__(
        self, tile: Tile, square: Tensor, start: Tensor | None, shared: Shared, floor: float
    ) -> None:
        self.tile, self.square, self.floor, self.shared = tile, square, floor, shared
        rank, batch, seen = len(tile.upper), len(tile.lower), len(shared.measured)
        self.weighed, self.scaled = tile.fresh[:seen], tile.scaled[:seen]
        self.squares, self.weighted = tile.scaled[:rank], tile.scaled[:batch]
        self.grow = spread(shared.update, tile.rows, tile.fresh_upper)
        if start is not None:
            self.measure = gather(start, tile.fresh_lower, shared.measured)
        else:
            sheet = tile.rows if len(shared.share) else tile.fresh
            self.measure = gather(self.scaled, sheet, shared.measured)

    def survey(self, values: Tensor, step: float, shrink: float) -> None:
        """Mean and variance alone."""
        self._deviate(values, step, shrink)

    def solve(self, values: Tensor, step: float, shrink: float) -> None:
        """U and psi from the waiting update, the new deviations D, and what the E step needs of them."""
        self._settle()
        self._deviate(values, step, shrink)
        torch.div(self.weighed, self.tile.noise, out=self.scaled)
        self.measure()
        self.tile.rows.copy_(self.tile.fresh)

    def solve_each(self, values: Tensor, keep: float) -> None:
        r"""U and psi from the waiting update, the gaps E of vectors to the mean before them, and what E steps need.

        .. math:: c \leftarrow c + \Delta, \quad \Delta = \textstyle\sum_t \omega_t e_t, \qquad
                  s \leftarrow (1 - \textstyle\sum_t \omega_t) s + \sum_t \omega_t e_t^2 - \Delta^2

        A column that was constant until now has next to no psi: there it is the floor after them.
        """
        tile, share = self.tile, self.shared.share
        self._settle()
        tile.upper.copy_(tile.fresh_upper)
        torch.sub(values, tile.mean, out=tile.lower)
        torch.mul(tile.lower, tile.lower, out=self.weighted)
        self.square.addmv_(self.weighted.mT, share, beta=keep)
        torch.mv(tile.lower.mT, share, out=tile.gap)
        tile.mean.add_(tile.gap)
        self.square.addcmul_(tile.gap, tile.gap, value=-1.0).clamp_(min=0.0)
        if self.floor > 0.0:
            torch.mul(self.square, self.floor, out=tile.gap)
            torch.maximum(tile.noise, tile.gap, out=tile.noise)
        torch.div(tile.rows, tile.noise, out=self.scaled)
        self.measure()

    def hold(self, values: Tensor, step: float, shrink: float) -> None:
        """U from the waiting update, the new deviations, and F0 Dᵀ of the initial loadings; psi is 1."""
        self.grow()
        self._deviate(values, step, shrink)
        self.measure()
        self.tile.rows.copy_(self.tile.fresh)

    def grown(self) -> Tensor:
        """U with the waiting update carried out, (K, c), as a new tensor."""
        return self.shared.update @ self.tile.rows

    def _settle(self) -> None:
        """U from the waiting update, and psi."""
        tile = self.tile
        self.grow()
        torch.mul(tile.fresh_upper, tile.fresh_upper, out=self.squares)
        torch.sum(self.squares, 0, out=tile.noise)
        residual(self.square, tile.noise, self.floor, out=tile.noise, spare=tile.gap)

    def _deviate(self, values: Tensor, step: float, shrink: float) -> None:
        out = self.tile.fresh_lower
        deviate(self.tile, values, step, shrink, out)
        self.square.mul_(1.0 - step)
        if len(out) == 1:
            self.square.addcmul_(out[0], out[0], value=step)
            return
        torch.mul(out, out, out=self.weighted)
        torch.sum(self.weighted, 0, out=self.tile.gap)
        self.square.add_(self.tile.gap, alpha=step / len(out))


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
