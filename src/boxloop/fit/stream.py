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

Where psi may be a few vectors old, they share a pass: with psi held, U after each of them is a small matrix times the
sheet of U and their deviations, and the Gram matrix of the sheet is all that their E steps, one after another, need.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Self

import torch
from numpy.typing import ArrayLike
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.fit.stream_sheet import Sheet, Waiting
from boxloop.fit.stream_small import Run, advance
from boxloop.fit.stream_state import StreamSettings, StreamState, Variant, unchanged
from boxloop.fit.stream_tiles import checked, orthonormal
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
        self._waiting = Waiting(state.gathered, state.settings.refresh)
        self._sheet = Sheet(state, tile)

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
            refresh: so many vectors at most share a pass, and the psi before it, but no more than a quarter of those
                seen: at 16 a quarter of the cost, for memory for twice as many vectors. ``model()`` is never stale.
            expand: the parameter-expanded step of :func:`boxloop.models.linear_gaussian.expanded`, which finds the
                scale of the loadings in a few steps and costs nothing here. True for "exact" when None; the paper has
                none.
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
            *(
                rows,
                zeros,
                zeros.clone(),
                zeros + 1.0,
                first if paper else None,
                zeros.new_empty(0, n_columns),
            ),
            *(eye, torch.zeros_like(eye) if paper else eye, eye, unchanged(rank, 1), 0, settings),
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
        names = "rows", "mean", "square", "noise", "gathered"
        moved: dict[str, Any] = {name: getattr(state, name).to(device) for name in names}
        return cls(replace(state, start=start, **moved), tile)

    def state(self) -> StreamState:
        """A copy of all that the stream knows, for a checkpoint."""
        self._whole()
        return replace(self._state, gathered=self._waiting.vectors()).map(torch.clone)

    @property
    def count(self) -> int:
        """Observations so far; a mini-batch is one."""
        return self._state.count + len(self._waiting)

    def observe(self, values: Tensor | ArrayLike) -> None:
        """Learn from one vector (D,), or from b vectors (b, D) in one update with their averaged statistics.

        Deferring the update needs memory for ``rank + b`` rows of D.

        Raises:
            ValueError: wrong shape, or an entry that is not finite; the stream is unchanged.
        """
        self.take(checked(values, len(self._state.mean), self._state.rows))

    def take(self, values: Tensor) -> None:
        """Learn from vectors (b, D) that are known to be finite, of the stream's dtype and on its device."""
        self._whole()
        count, rules = self._state.count, self._state.settings
        if len(values) == 1 and (together := rules.together(count)) > 1:
            self._waiting.add(values[0])
            if len(self._waiting) >= together:
                self._close()
            return
        self._close()
        step = rules.schedule(self._state.count + 1)
        shrink = math.sqrt(1.0 - step) if rules.variant == "exact" else 1.0 - step
        self._learn(values, Run.batch(len(values), step, shrink))

    def model(self) -> FactorModel:
        """The factor model solved from all observations so far; the stream is unchanged.

        Raises:
            ValueError: fewer than two observations.
        """
        self._whole()
        if len(self._waiting):
            return self._ahead().model()
        state = self._state
        if state.count < 2:
            raise ValueError(f"a model needs two observations at least, the stream has {state.count}")
        if state.start is not None:
            return FactorModel(state.mean.clone(), state.start.mT.contiguous(), state.noise.clone())
        return FactorModel(state.mean.clone(), *self._sheet.solution(state))

    def _ahead(self) -> Self:
        """A stream that has learned from the vectors that wait, in memory of its own."""
        state, waiting = self._state, self._waiting.vectors()
        own: dict[str, Any] = {name: getattr(state, name).clone() for name in ("mean", "square", "noise")}
        rows, update = self._sheet.grown(state.update, len(waiting)), unchanged(state.rank, len(waiting))
        ahead = type(self)(replace(state, rows=rows, update=update, gathered=waiting, **own), self._tile)
        ahead._close()
        return ahead

    def _close(self) -> None:
        """Learn from the vectors that wait."""
        if len(self._waiting):
            count, schedule = self._state.count, self._state.settings.schedule
            steps = [schedule(count + t) for t in range(1, len(self._waiting) + 1)]
            self._learn(self._waiting.vectors(), Run.of(steps))
            self._waiting.clear()

    def _learn(self, values: Tensor, run: Run) -> None:
        """One pass that carries out the waiting update and measures vectors, then the small matrices."""
        if self._state.rank + len(values) != len(self._state.rows):
            self._make_room(len(values))
        if run.several != self._sheet.several:
            self._sheet = Sheet(self._state, self._tile, run.several)
        state, rules = self._state, self._state.settings
        self._torn = True
        if state.count == 0 and run.steps[0] == 1.0:
            state.mean.copy_(
                values[0]
            )  # what was before has no share in the mean, and gaps to it would be long
        if rules.variant == "exact" and state.count < rules.warmup:
            self._survey(values, run)
        else:
            self._state = advance(state, self._sheet.sweep(state.update, values, run), run)
            if state.start is not self._state.start:
                self._sheet = Sheet(self._state, self._tile)
        self._torn = False

    def _survey(self, values: Tensor, run: Run) -> None:
        """Warm-up of the exact variant: mean and variance alone; at its end the loadings take the data's scale."""
        state = self._state
        self._sheet.survey(values, run)
        if state.count + 1 == state.settings.warmup:
            if not bool(state.square.any()):
                raise ConditionError("the vectors of the warm-up are all alike: no scale to start from")
            self._sheet.rescale()
        self._state = replace(state, count=state.count + 1)

    def _make_room(self, batch: int) -> None:
        """Carry out the waiting update and give the sheet ``batch`` rows for deviations."""
        rank = self._state.rank
        rows = self._sheet.grown(self._state.update, batch)
        self._state = replace(self._state, rows=rows, update=unchanged(rank, batch))
        self._sheet = Sheet(self._state, self._tile)

    def _whole(self) -> None:
        if self._torn:
            raise RuntimeError("an observation was cut short and left the stream torn: restore a checkpoint")
