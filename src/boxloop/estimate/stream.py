r"""Online EM for factor analysis of long vectors: one read and one write of D x K numbers an observation.

The recursion is that of every online engine, running means and then solve (document 004, Algorithm 2):

.. math:: A_t = (1 - \gamma_t) A_{t-1} + \gamma_t d_t m_t^\top, \qquad
          H_t = (1 - \gamma_t) H_{t-1} + \gamma_t (\Sigma_t + m_t m_t^\top), \qquad
          s_t = (1 - \gamma_t) s_{t-1} + \gamma_t d_t^2

with :math:`F = A H^{-1}` and :math:`\psi = s - \mathrm{rowsum}(F \odot A)`. What makes it fast is that F is never
formed. With :math:`H = L L^\top` the rows :math:`U = L^{-1} A^\top` (K x D) are kept; then
:math:`\psi = s - \mathrm{colsum}(U^2)`, and the E step needs only :math:`G = U \Psi^{-1} U^\top` and
:math:`v = U \Psi^{-1} d`: with :math:`P = L^{-\top}` (so :math:`F^\top = P U`),

.. math:: \Sigma = (I + P G P^\top)^{-1}, \qquad m = \Sigma P v.

The update of U by :math:`d_t m_t^\top` waits for observation t + 1, whose pass computes U, psi, G and v together.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.estimate import stream_fused
from boxloop.estimate.stream_pass import FactorTile, residual
from boxloop.estimate.stream_state import StreamSettings, StreamState, Variant, advance, unchanged
from boxloop.estimate.stream_tiles import checked, cut, orthonormal, tile_columns
from boxloop.models import FactorModel
from boxloop.numeric import ConditionError


class FactorStream:
    """Factor analysis of a stream of vectors (D,), each seen once.

    Deviation: ``variant="exact"`` averages Sigma_t + m_t m_tᵀ instead of adding the newest Sigma to older averages;
    scales the deviation from the old mean by sqrt(1 - gamma), which makes ``square`` the variance of all vectors seen
    (the paper's deviation from the new mean shrinks it); and starts at the data's scale: the warm-up measures only
    mean and variance, then the paper's start, in units of each column's deviation, enters the averages as if it had
    been observed during the warm-up. ``variant="paper"`` is Algorithm 2 to the letter, its unit start included.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> factor = torch.tensor([3.0, -2.0, 1.0, 0.0])
        >>> stream = FactorStream.start(4, 1, draws, schedule=Power(1.0, scale=2.0), warmup=20)
        >>> for _ in range(2000):
        ...     z, noise = torch.randn(1, generator=draws), torch.randn(4, generator=draws)
        ...     stream.observe(5.0 + factor * z + noise)
        >>> covariance = stream.model().moments()[1].dense()[0]
        >>> bool((covariance - factor.outer(factor) - torch.eye(4)).abs().max() < 0.5)
        True
    """

    def __init__(self, state: StreamState, tile: int | None = None) -> None:
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
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        schedule: Schedule | None = None,
        warmup: int = 100,
        variant: Variant = "exact",
        refresh: int = 1,
        expand: bool | None = None,
        floor: float | None = None,
        tile: int | None = None,
    ) -> Self:
        """A stream that has seen nothing.

        Args:
            n_columns: D.
            rank: K, number of factors.
            generator: source of the initial loadings.
            dtype: of everything D long; float32 or float64.
            device: where everything D long lives.
            schedule: step sizes gamma_t; 1/t when None, the plain mean of Algorithm 2. ``Power(1.0, scale=2.0)``
                weighs observation t by t: it forgets the start much sooner, for 15% more noise.
            warmup: observations before the loadings first change.
            variant: "exact", or "paper" for document 004's Algorithm 2 to the letter.
            refresh: psi and G are computed anew every so many observations; above 1, posteriors in between use
                a psi that is a few observations old, at half the cost on a CPU and no gain with the fused kernel of
                a GPU. ``model()`` is never stale.
            expand: the parameter-expanded step of :func:`boxloop.models.linear.expanded`, which finds the scale of
                the loadings in a few steps and costs nothing here. True for "exact" when None; the paper has none.
            floor: smallest psi, as a share of each column's variance; when None the square root of the rounding
                error, below which psi is lost in it. The paper has none.
            tile: columns a tile, for measurements.
        """
        if not 1 <= rank <= n_columns:
            raise ValueError(f"rank must lie between 1 and the {n_columns} columns, got {rank}")
        if dtype not in (torch.float32, torch.float64):
            raise ValueError(f"dtype must be float32 or float64, got {dtype}")
        paper = variant == "paper"
        if paper and expand:
            raise ValueError("the paper's variant has no parameter-expanded step")
        expand = not paper if expand is None else expand
        floor = 0.0 if paper else math.sqrt(torch.finfo(dtype).eps) if floor is None else floor
        settings = StreamSettings(schedule or Power(exponent=1.0), warmup, variant, refresh, expand, floor)
        zeros = torch.zeros(n_columns, dtype=dtype, device=device)
        first = orthonormal(rank, n_columns, generator, zeros)
        rows = zeros.new_zeros(rank + 1, n_columns)
        if not paper:
            rows[:rank] = first
        eye = torch.eye(rank, dtype=torch.float64)
        state = StreamState(
            *(rows, zeros, zeros.clone(), zeros + 1.0, first if paper else None),
            *(eye, torch.zeros_like(eye) if paper else eye, eye, eye),
            *(unchanged(rank, 1), not paper, 0, settings),
        )
        return cls(state, tile)

    @classmethod
    def restore(
        cls, state: StreamState, *, device: torch.device | str | None = None, tile: int | None = None
    ) -> Self:
        """A stream that continues from a copy of ``state``: on the same device, bit for bit as the one that gave it.

        Args:
            state: from :meth:`state`, or read from a file.
            device: where everything D long goes; where it is when None.
            tile: columns a tile, for measurements.
        """
        state = state.map(torch.clone)
        start = None if state.start is None else state.start.to(device)
        rows, mean, square, noise = (
            x.to(device) for x in (state.rows, state.mean, state.square, state.noise)
        )
        return cls(replace(state, rows=rows, mean=mean, square=square, noise=noise, start=start), tile)

    def state(self) -> StreamState:
        """A copy of all that the stream knows, for a checkpoint."""
        self._whole()
        return self._state.map(torch.clone)

    @property
    def count(self) -> int:
        """Observations so far; a mini-batch is one."""
        return self._state.count

    def observe(self, values: Tensor) -> None:
        """Learn from one vector (D,), or from b vectors (b, D) in one update with their averaged statistics.

        Deferring the update needs memory for ``rank + b`` rows of D.

        Raises:
            ValueError: wrong shape, or an entry that is not finite; the stream is unchanged.
        """
        self._whole()
        state = self._state
        found = checked(values, state.mean.shape[0], state.rows)
        if state.rank + len(found) != len(state.rows):
            self._make_room(len(found))
        step = state.settings.schedule(state.count + 1)
        exact = state.settings.variant == "exact"
        shrink = math.sqrt(1.0 - step) if exact else 1.0 - step
        self._torn = True
        if exact and state.count < state.settings.warmup:
            self._survey(found, step, shrink)
        else:
            self._learn(found, step, shrink)
        self._torn = False

    def model(self) -> FactorModel:
        """The factor model solved from all observations so far; the stream is unchanged.

        Raises:
            ValueError: fewer than two observations.
        """
        self._whole()
        state = self._state
        if state.count < 2:
            raise ValueError(f"a model needs two observations at least, the stream has {state.count}")
        if state.start is not None:
            return FactorModel(state.mean.clone(), state.start.mT.contiguous(), state.noise.clone())
        loadings = state.rows.new_empty(len(state.mean), state.rank)
        noise = torch.empty_like(state.mean)
        self._update.copy_(state.update)
        turn, basis = state.turn.to(loadings), state.basis.to(loadings)
        unscaled = state.settings.variant == "exact" and state.count < state.settings.warmup
        parts = zip(self._tiles, loadings.split(self._width), noise.split(self._width), strict=True)
        for work, out, psi in parts:
            rows = work.grown() * (work.square.sqrt() if unscaled else 1.0)
            out.copy_((turn @ rows).mT)
            psi.copy_(residual(work.square, (out.mT * (basis @ rows)).sum(0), state.settings.floor))
        return FactorModel(state.mean.clone(), loadings, noise)

    def _survey(self, values: Tensor, step: float, shrink: float) -> None:
        """Warm-up of the exact variant: mean and variance alone; at its end the loadings take the data's scale."""
        state = self._state
        for work, part in zip(self._tiles, values.split(self._width, dim=1), strict=True):
            work.survey(part, step, shrink)
        if state.count + 1 == state.settings.warmup:
            if not bool(state.square.any()):
                raise ConditionError("the vectors of the warm-up are all alike: no scale to start from")
            for work in self._tiles:
                work.tile.upper.mul_(work.square.sqrt())
        self._state = replace(state, count=state.count + 1)

    def _learn(self, values: Tensor, step: float, shrink: float) -> None:
        """One pass that carries out the last observation's update and measures this one, then the small matrices."""
        state, rank = self._state, self._state.rank
        self._update.copy_(state.update)
        found = self._sweep(values, step, shrink)
        if state.due:
            inner, cross, quadratic = found[:rank, :rank], found[:rank, rank:], found[rank:, rank:]
            inner = 0.5 * (inner + inner.mT)
        else:
            inner, cross, quadratic = state.inner, found[:rank], found[rank:]
        self._state = advance(state, inner, cross, quadratic, step)
        if state.start is not self._state.start:
            self._cut()

    def _sweep(self, values: Tensor, step: float, shrink: float) -> Tensor:
        state = self._state
        if state.due and len(values) == 1 and stream_fused.fits(state.rows):
            long = state.mean, state.square, state.noise
            return stream_fused.solve(
                state.rows, long, values[0], state.update, step, shrink, state.settings.floor
            )
        parts = zip(self._tiles, values.split(self._width, dim=1), strict=True)
        if state.due:
            self._measured.zero_()
            for work, part in parts:
                work.solve(part, step, shrink)
            return self._measured.cpu()
        keep = float(state.update[0, 0])
        self._held.zero_()
        for work, part in parts:
            work.hold(part, keep, step, shrink)
        return self._held.cpu()

    def _make_room(self, batch: int) -> None:
        """Carry out the waiting update and give the sheet ``batch`` rows for deviations."""
        state, rank = self._state, self._state.rank
        rows = state.rows.new_zeros(rank + batch, len(state.mean))
        self._update.copy_(state.update)
        for work, out in zip(self._tiles, rows.split(self._width, dim=1), strict=True):
            out[:rank] = work.grown()
        self._state = replace(state, rows=rows, update=unchanged(rank, batch))
        self._cut()

    def _cut(self) -> None:
        """Bind the tiles and their products to the tensors of the state."""
        state = self._state
        rows, rank, height = state.rows, state.rank, len(state.rows)
        self._width = min(self._tile or tile_columns(rows), len(state.mean))
        self._update = rows.new_zeros(rank, height)
        lazy, initial = state.settings.refresh > 1, state.start is not None
        self._measured = rows.new_zeros(height if lazy else rank, height, dtype=torch.float64)
        self._held = rows.new_zeros(rank if initial else height, height - rank, dtype=torch.float64)
        tiles, squares = (
            cut(rows, state.mean, state.noise, rank, self._width),
            state.square.split(self._width),
        )
        starts = [None] * len(tiles) if state.start is None else state.start.split(self._width, dim=1)
        update, measured, held, floor = self._update, self._measured, self._held, state.settings.floor
        self._tiles = [
            FactorTile(tile, square, start, update, measured, held, floor)
            for tile, square, start in zip(tiles, squares, starts, strict=True)
        ]

    def _whole(self) -> None:
        if self._torn:
            raise RuntimeError("an observation was cut short and left the stream torn: restore a checkpoint")
