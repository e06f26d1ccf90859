"""What a factor stream does to one tile of columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import torch
from torch import Tensor

from boxloop.fit.stream_tiles import Tile, gather, spread


@dataclass(frozen=True)
class Shared:
    """The small matrices that all tiles share, in the sheet's dtype but for sums over tiles, which are float64.

    Args:
        update: what times the sheet makes the next U, (K, K + b).
        measured: receives [U; E] Psi^-1 [U; E]ᵀ, (K + b, K + b), or its first K rows, which are enough for one
            observation; of the initial loadings F0 Eᵀ, (K, b).
        share: of each vector in the new mean, (b,).
    """

    update: Tensor
    measured: Tensor
    share: Tensor

    @classmethod
    def of(cls, rows: Tensor, rank: int, *, held: bool, several: bool) -> Self:
        """Room for all of them."""
        height, batch = len(rows), len(rows) - rank
        seen = (rank, batch) if held else (height if several else rank, height)
        return cls(
            rows.new_zeros(rank, height), rows.new_zeros(seen, dtype=torch.float64), rows.new_zeros(batch)
        )


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
        self.held = start is not None
        self.seen, self.scaled = tile.rows[:seen], tile.scaled[:seen]
        self.squares, self.weighted = tile.scaled[:rank], tile.scaled[:batch]
        self.grow = spread(shared.update, tile.rows, tile.fresh_upper)
        pair = (self.scaled, tile.rows) if start is None else (start, tile.lower)
        self.measure = gather(*pair, shared.measured)

    def survey(self, values: Tensor, keep: float, back: float) -> None:
        r"""The gaps E of vectors to the mean c before them, then mean and variance.

        .. math:: c \leftarrow c + \Delta, \quad \Delta = \textstyle\sum_t \omega_t e_t, \qquad
                  s \leftarrow (1 - \textstyle\sum_t \omega_t) s + \sum_t \omega_t e_t^2 - \beta \Delta^2
        """
        tile, share = self.tile, self.shared.share
        torch.sub(values, tile.mean, out=tile.lower)
        torch.mul(tile.lower, tile.lower, out=self.weighted)
        self.square.addmv_(self.weighted.mT, share, beta=keep)
        torch.mv(tile.lower.mT, share, out=tile.gap)
        tile.mean.add_(tile.gap)
        self.square.addcmul_(tile.gap, tile.gap, value=-back).clamp_(min=0.0)

    def solve(self, values: Tensor, keep: float, back: float) -> None:
        """U and psi from the waiting update, the gaps of vectors, and what their E steps need.

        A column that was constant until now has next to no psi: there it is the floor after them. While the initial
        loadings are held psi is 1.
        """
        tile = self.tile
        self.grow()
        if not self.held:
            torch.mul(tile.fresh_upper, tile.fresh_upper, out=self.squares)
            torch.sum(self.squares, 0, out=tile.noise)
            residual(self.square, tile.noise, self.floor, out=tile.noise, spare=tile.gap)
        tile.upper.copy_(tile.fresh_upper)
        self.survey(values, keep, back)
        if not self.held:
            if self.floor > 0.0:
                torch.mul(self.square, self.floor, out=tile.gap)
                torch.maximum(tile.noise, tile.gap, out=tile.noise)
            torch.div(self.seen, tile.noise, out=self.scaled)
        self.measure()

    def grown(self) -> Tensor:
        """U with the waiting update carried out, (K, c), as a new tensor."""
        return self.shared.update @ self.tile.rows


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
