r"""Online stochastic gradient ascent for factor analysis of long vectors (document 004, Algorithm 1).

.. math:: \nabla_F = \psi^{-1} \odot (d m^\top - F (\Sigma + m m^\top)), \qquad
          \nabla_\beta = \tfrac12 \psi^{-1} \odot E[(d - F h)^2] - \tfrac12, \qquad \psi = e^\beta

(eq. 4.24 to 4.26). Both come from one small symmetric matrix, the second moment of (h, -1) given the observation:

.. math:: M = \begin{pmatrix} \Sigma + m m^\top & -m \\ -m^\top & 1 \end{pmatrix}, \qquad
          W = \begin{pmatrix} F^\top \\ d^\top \end{pmatrix}, \qquad
          \nabla_F = -\psi^{-1} \odot (M W)_{1..K}^\top, \qquad E[(d - F h)^2] = \mathrm{colsum}(W \odot M W).

As in :mod:`boxloop.fit.stream` the step waits for the next observation, so that one pass serves both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.fit.stream_small import posterior, rounding_of
from boxloop.fit.stream_state import Variant
from boxloop.fit.stream_tiles import Tile, checked, cut, deviate, gather, orthonormal, spread, tile_columns
from boxloop.models import FactorModel
from boxloop.numeric import ConditionError
from boxloop.tree import Tree


@dataclass(frozen=True)
class GradientState(Tree):
    """All that a gradient stream knows.

    Args:
        rows: F transposed over the b deviations of the last observation, (K + b, D).
        mean: running mean, (D,).
        noise: psi, (D,).
        moment: M of the step that waits, (K + b, K + b), float64, or None.
        rank: K.
        count: observations so far; a mini-batch is one.
        learning_rate: alpha.
        warmup: observations before the first step.
        variant: which deviation is taken.
    """

    rows: Tensor
    mean: Tensor
    noise: Tensor
    moment: Tensor | None
    rank: int
    count: int
    learning_rate: float
    warmup: int
    variant: Variant


class GradientTile:
    """One tile, with its products bound to the small matrices that all tiles share."""

    def __init__(self, tile: Tile, moment: Tensor, measured: Tensor) -> None:
        self.tile = tile
        self.scaled_upper = tile.scaled[: len(tile.upper)]
        self.turn = spread(moment, tile.rows, tile.fresh)
        self.measure = gather(self.scaled_upper, tile.rows, measured)

    def climb(self, rate: float) -> None:
        """The step that waits: F along its gradient, and psi by the gradient of its logarithm."""
        tile = self.tile
        self.turn()
        torch.mul(tile.fresh, tile.rows, out=tile.scaled)
        torch.sum(tile.scaled, 0, out=tile.gap)
        tile.upper.addcdiv_(tile.fresh_upper, tile.noise, value=-rate)
        tile.gap.div_(tile.noise).sub_(1.0).mul_(0.5 * rate).exp_()
        tile.noise.mul_(tile.gap)

    def look(self, values: Tensor, step: float, shrink: float) -> None:
        """The new deviations, and what the E step needs."""
        deviate(self.tile, values, step, shrink, self.tile.lower)
        torch.div(self.tile.upper, self.tile.noise, out=self.scaled_upper)
        self.measure()


class GradientStream:
    """Factor analysis of a stream of vectors by gradient ascent, from the paper's unit start.

    The learning rate is in units of the data: scale columns of very different spread first.
    :class:`boxloop.fit.stream.FactorStream` needs neither and is better in every experiment of chapter 5.

    Deviation: ``variant="exact"`` scales the deviation from the old mean by sqrt(1 - 1/t), whose square has the right
    mean; ``variant="paper"`` takes it from the new mean, as Algorithm 1 does.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> stream = GradientStream.start(3, 1, draws, learning_rate=0.01, warmup=10)
        >>> for _ in range(50):
        ...     stream.observe(torch.randn(3, generator=draws))
        >>> stream.model().loadings.shape
        torch.Size([3, 1])
    """

    def __init__(self, state: GradientState, tile: int | None = None) -> None:
        """Adopt ``state`` without a copy, in tiles of ``tile`` columns (chosen from the cache when None)."""
        self._state = state
        self._tile = tile
        self._torn = False
        self._cut()

    @classmethod
    def start(
        cls,
        n_columns: int,
        rank: int,
        generator: Generator,
        *,
        learning_rate: float = 1e-3,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        warmup: int = 100,
        variant: Variant = "exact",
        tile: int | None = None,
    ) -> Self:
        """A stream that has seen nothing; arguments as for the factor stream, with alpha for its step sizes."""
        if not 1 <= rank <= n_columns:
            raise ValueError(f"rank must lie between 1 and the {n_columns} columns, got {rank}")
        if not 0.0 < learning_rate < math.inf or warmup < 1 or variant not in ("exact", "paper"):
            raise ValueError("need a positive learning_rate, warmup >= 1, and a variant 'exact' or 'paper'")
        zeros = torch.zeros(n_columns, dtype=dtype, device=device)
        rows = torch.cat([orthonormal(rank, n_columns, generator, zeros), zeros[None]])
        return cls(
            GradientState(rows, zeros, zeros + 1.0, None, rank, 0, learning_rate, warmup, variant), tile
        )

    @classmethod
    def restore(
        cls, state: GradientState, *, device: torch.device | str | None = None, tile: int | None = None
    ) -> Self:
        """A stream that continues from a copy of ``state``: on the same device, bit for bit as the one that gave it."""
        state = state.map(torch.clone)
        rows, mean, noise = (x.to(device) for x in (state.rows, state.mean, state.noise))
        return cls(replace(state, rows=rows, mean=mean, noise=noise), tile)

    def state(self) -> GradientState:
        """A copy of all that the stream knows, for a checkpoint."""
        self._whole()
        return self._state.map(torch.clone)

    @property
    def count(self) -> int:
        """Observations so far; a mini-batch is one."""
        return self._state.count

    def observe(self, values: Tensor) -> None:
        """Climb by one vector (D,), or by the mean gradient of b vectors (b, D).

        Raises:
            ValueError: wrong shape, or an entry that is not finite; the stream is unchanged.
        """
        self._whole()
        found = checked(values, len(self._state.mean), self._state.rows)
        if len(self._state.rows) != self._state.rank + len(found):
            self._make_room(len(found))
        state = self._state
        step = 1.0 / (state.count + 1)
        shrink = math.sqrt(1.0 - step) if state.variant == "exact" else 1.0 - step
        self._torn = True
        moment = self._pass(found, step, shrink)
        self._state = replace(state, moment=moment, count=state.count + 1)
        self._torn = False

    def model(self) -> FactorModel:
        """The factor model after all observations so far; the stream is unchanged."""
        ahead = type(self).restore(self.state(), tile=self._tile)
        ahead._finish()
        state = ahead._state
        return FactorModel(state.mean, state.rows[: state.rank].mT.contiguous(), state.noise)

    def _pass(self, values: Tensor, step: float, shrink: float) -> Tensor | None:
        """M of the new observation, after the step of the last one."""
        state = self._state
        learning = state.count >= state.warmup
        self._measured.zero_()
        if state.moment is not None:
            self._moment.copy_(state.moment)
        for work, part in zip(self._tiles, values.split(self._width, dim=1), strict=True):
            if state.moment is not None:
                work.climb(state.learning_rate)
            if learning:
                work.look(part, step, shrink)
            else:
                deviate(work.tile, part, step, shrink, work.tile.lower)
        if not math.isfinite(float(state.noise.sum())):
            raise ConditionError("psi has overflowed: lower the learning rate, or scale the columns")
        return _moment(self._measured.cpu(), rounding_of(state.rows.dtype)) if learning else None

    def _finish(self) -> None:
        """Carry out the step that waits."""
        if self._state.moment is not None:
            self._moment.copy_(self._state.moment)
            for work in self._tiles:
                work.climb(self._state.learning_rate)
            self._state = replace(self._state, moment=None)

    def _make_room(self, batch: int) -> None:
        """Carry out the step that waits and give the sheet ``batch`` rows for deviations."""
        self._finish()
        state = self._state
        rows = state.rows.new_zeros(state.rank + batch, len(state.mean))
        rows[: state.rank] = state.rows[: state.rank]
        self._state = replace(state, rows=rows)
        self._cut()

    def _cut(self) -> None:
        """Bind the tiles and their products to the tensors of the state."""
        state = self._state
        self._width = min(self._tile or tile_columns(state.rows), len(state.mean))
        self._moment = state.rows.new_zeros(len(state.rows), len(state.rows))
        self._measured = state.rows.new_zeros(state.rank, len(state.rows), dtype=torch.float64)
        tiles = cut(state.rows, state.mean, state.noise, state.rank, self._width)
        self._tiles = [GradientTile(tile, self._moment, self._measured) for tile in tiles]

    def _whole(self) -> None:
        if self._torn:
            raise RuntimeError("an observation was cut short and left the stream torn: restore a checkpoint")


def _moment(measured: Tensor, rounding: float) -> Tensor:
    r"""Mean over the batch of the second moment of (h, -1 at its own deviation), (K + b, K + b).

    Args:
        measured: :math:`F^\top \Psi^{-1} [F, D^\top]`, (K, K + b).
        rounding: of its sums.
    """
    rank, batch = len(measured), measured.shape[1] - len(measured)
    found = measured.numpy()
    reach, sigma = posterior(found[:, :rank], rounding)
    scores = reach @ found[:, rank:]
    if not math.isfinite(scores.sum()):
        raise ConditionError("the gradient has overflowed: lower the learning rate, or scale the columns")
    moment = np.eye(rank + batch) / batch
    moment[:rank, :rank] = sigma + scores @ scores.T / batch
    moment[:rank, rank:] = -scores / batch
    moment[rank:, :rank] = moment[:rank, rank:].T
    return torch.from_numpy(moment)
