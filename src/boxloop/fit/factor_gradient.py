r"""Online stochastic gradient ascent for factor analysis of long vectors (Brownlie, 2021, Algorithm 1).

.. math:: \nabla_F = \psi^{-1} \odot (d m^\top - F (\Sigma + m m^\top)), \qquad
          \nabla_\beta = \tfrac12 \psi^{-1} \odot E[(d - F h)^2] - \tfrac12, \qquad \psi = e^\beta

(eq. 4.24 to 4.26). Both follow from one small symmetric matrix, the second moment of (h, -1) given the observation:

.. math:: M = \begin{pmatrix} \Sigma + m m^\top & -m \\ -m^\top & 1 \end{pmatrix}, \qquad
          W = \begin{pmatrix} F^\top \\ d^\top \end{pmatrix}, \qquad
          \nabla_F = -\psi^{-1} \odot (M W)_{1..K}^\top, \qquad E[(d - F h)^2] = \mathrm{colsum}(W \odot M W).

As in :mod:`boxloop.fit.factor_stream` a step is carried out in the pass of the next observation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.fit.column_tiles import (
    PreparedProduct,
    Tile,
    check_observation,
    choose_tile_width,
    draw_orthonormal_rows,
    prepare_outer_sum,
    prepare_product,
    split_into_tiles,
    update_mean_and_deviations,
)
from boxloop.fit.factor_stream import RELATIVE_ROUNDING, Variant, compute_factor_posterior
from boxloop.models import FactorModel
from boxloop.numeric import ConditionError
from boxloop.tree import Tree


@dataclass(frozen=True)
class GradientState(Tree):
    """State of a gradient stream."""

    rows: Tensor  # F transposed over the b deviations of the last observation, (K + b, D)
    mean: Tensor  # running mean, (D,)
    noise: Tensor  # psi, (D,)
    moment: Tensor | None  # M of the pending step, (K + b, K + b), float64
    rank: int  # K
    count: int  # observations so far; a mini-batch is one
    learning_rate: float  # alpha
    warmup: int  # observations before the first step
    variant: Variant


class GradientTile:
    """The work of a pass on one tile of columns, with its products bound to the shared matrices."""

    def __init__(self, tile: Tile, moment: Tensor, products: Tensor) -> None:
        self.tile = tile
        self.scaled_upper: Tensor = tile.scaled[: len(tile.upper)]
        self.multiply_moment: PreparedProduct = prepare_product(moment, tile.rows, tile.fresh)
        self.add_products: PreparedProduct = prepare_outer_sum(self.scaled_upper, tile.rows, products)

    def take_step(self, rate: float) -> None:
        """The pending step: F along its gradient, and log psi along its own."""
        tile = self.tile
        self.multiply_moment()
        torch.mul(tile.fresh, tile.rows, out=tile.scaled)
        torch.sum(tile.scaled, 0, out=tile.gap)
        tile.upper.addcdiv_(tile.fresh_upper, tile.noise, value=-rate)
        tile.gap.div_(tile.noise).sub_(1.0).mul_(0.5 * rate).exp_()
        tile.noise.mul_(tile.gap)

    def observe(self, values: Tensor, step: float, shrink: float) -> None:
        """Write the new deviations, and add this tile's part of the products for the E step."""
        update_mean_and_deviations(self.tile, values, step, shrink, self.tile.lower)
        torch.div(self.tile.upper, self.tile.noise, out=self.scaled_upper)
        self.add_products()


class GradientStream:
    """Factor analysis of a stream of vectors by gradient ascent, from the paper's unit start.

    The learning rate is in units of the data: scale columns of very different standard deviations first.

    Deviation: ``variant="exact"`` scales the deviation from the old mean by sqrt(1 - 1/t), whose square has the right
    mean; ``variant="paper"`` takes it from the new mean, as Algorithm 1 does.
    """

    def __init__(self, state: GradientState, tile: int | None = None) -> None:
        """Adopt ``state`` without a copy, in tiles of ``tile`` columns (chosen from the cache when None)."""
        self._state = state
        self._tile = tile
        self._interrupted = False
        self._bind_tiles()

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
        """A stream without observations; arguments as for the factor stream, with alpha for its step sizes."""
        if not 1 <= rank <= n_columns:
            raise ValueError(f"rank must lie between 1 and the {n_columns} columns, got {rank}")
        if not 0.0 < learning_rate < math.inf:
            raise ValueError(f"learning_rate must be positive and finite, got {learning_rate}")
        if warmup < 1 or variant not in ("exact", "paper"):
            raise ValueError(
                f"warmup must be >= 1 and variant 'exact' or 'paper', got {warmup} and {variant!r}"
            )
        zeros = torch.zeros(n_columns, dtype=dtype, device=device)
        rows = torch.cat([draw_orthonormal_rows(rank, n_columns, generator, zeros), zeros[None]])
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
        """A copy of the state, for a checkpoint."""
        self._check_intact()
        return self._state.map(torch.clone)

    @property
    def count(self) -> int:
        """Observations so far; a mini-batch is one."""
        return self._state.count

    def observe(self, values: Tensor) -> None:
        """Observe one vector (D,), or b vectors (b, D) in one step along their mean gradient; all or nothing."""
        self._check_intact()
        vectors = check_observation(values, len(self._state.mean), self._state.rows)
        if len(self._state.rows) != self._state.rank + len(vectors):
            self._resize_batch(len(vectors))
        state = self._state
        step = 1.0 / (state.count + 1)
        shrink = math.sqrt(1.0 - step) if state.variant == "exact" else 1.0 - step
        self._interrupted = True
        moment = self._run_pass(vectors, step, shrink)
        self._state = replace(state, moment=moment, count=state.count + 1)
        self._interrupted = False

    def model(self) -> FactorModel:
        """The factor model after all observations so far; the stream is unchanged."""
        copy = type(self).restore(self.state(), tile=self._tile)
        copy._take_pending_step()
        state = copy._state
        return FactorModel(state.mean, state.rows[: state.rank].mT.contiguous(), state.noise)

    def _run_pass(self, values: Tensor, step: float, shrink: float) -> Tensor | None:
        """Carry out the pending step and observe vectors; M of the next step, None in the warm-up."""
        state = self._state
        learning = state.count >= state.warmup
        self._products.zero_()
        if state.moment is not None:
            self._moment.copy_(state.moment)
        for work, part in zip(self._tiles, values.split(self._width, dim=1), strict=True):
            if state.moment is not None:
                work.take_step(state.learning_rate)
            if learning:
                work.observe(part, step, shrink)
            else:
                update_mean_and_deviations(work.tile, part, step, shrink, work.tile.lower)
        if not math.isfinite(float(state.noise.sum())):
            raise ConditionError("psi has overflowed: lower learning_rate, or scale the columns.")
        rounding = RELATIVE_ROUNDING * torch.finfo(state.rows.dtype).eps
        return compute_second_moment(self._products.cpu(), rounding) if learning else None

    def _take_pending_step(self) -> None:
        """Carry out the pending step."""
        if self._state.moment is not None:
            self._moment.copy_(self._state.moment)
            for work in self._tiles:
                work.take_step(self._state.learning_rate)
            self._state = replace(self._state, moment=None)

    def _resize_batch(self, batch: int) -> None:
        """Carry out the pending step and give the sheet ``batch`` rows for deviations."""
        self._take_pending_step()
        state = self._state
        rows = state.rows.new_zeros(state.rank + batch, len(state.mean))
        rows[: state.rank] = state.rows[: state.rank]
        self._state = replace(state, rows=rows)
        self._bind_tiles()

    def _bind_tiles(self) -> None:
        """Bind the tiles and their products to the tensors of the state."""
        state = self._state
        self._width = min(self._tile or choose_tile_width(state.rows), len(state.mean))
        self._moment = state.rows.new_zeros(len(state.rows), len(state.rows))
        self._products = state.rows.new_zeros(state.rank, len(state.rows), dtype=torch.float64)
        tiles = split_into_tiles(state.rows, state.mean, state.noise, state.rank, self._width)
        self._tiles = [GradientTile(tile, self._moment, self._products) for tile in tiles]

    def _check_intact(self) -> None:
        if self._interrupted:
            raise RuntimeError(
                "An observation was interrupted and left the stream inconsistent: restore it from a checkpoint."
            )


def compute_second_moment(products: Tensor, rounding: float) -> Tensor:
    r"""Mean over the batch of the second moment of (h, -1), from the products :math:`F^\top \Psi^{-1} [F, D^\top]`."""
    rank, batch = len(products), products.shape[1] - len(products)
    array = products.numpy()
    mean_map, sigma = compute_factor_posterior(array[:, :rank], rounding)
    scores = mean_map @ array[:, rank:]
    if not math.isfinite(scores.sum()):
        raise ConditionError("The gradient has overflowed: lower learning_rate, or scale the columns.")
    moment = np.eye(rank + batch) / batch
    moment[:rank, :rank] = sigma + scores @ scores.T / batch
    moment[:rank, rank:] = -scores / batch
    moment[rank:, :rank] = moment[:rank, rank:].T
    return torch.from_numpy(moment)
