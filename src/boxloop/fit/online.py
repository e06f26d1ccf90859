r"""Online EM: the statistics of every mini-batch enter a running mean, and the M step solves that mean.

.. math:: s_t = s_{t-1} + \gamma_t \left( \bar E_{\theta_{t-1}}[t(x, z) \mid x_{\text{batch}}] - s_{t-1} \right),
          \qquad \theta_t = \mathrm{solve}(s_t)

Cappé and Moulines (2009). On factor analysis with batches of one and :math:`\gamma_t = 1/t` it is Brownlie's (2021)
Algorithm 2 with the averages of the errata.

Steps of :math:`t^{-1/2}` forget the start quickly but leave noise; averaging the *statistics* over the later part of
the path (Polyak and Ruppert) removes it. On the hardest problem there the pair comes within a tenth of the
error of maximum likelihood in one pass; neither does so alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from torch import Tensor

from boxloop.average import Power, Running, Schedule
from boxloop.loop import Iteration
from boxloop.tree import Tree
from boxloop.types import ExpectationModel, Source

S = TypeVar("S", bound=Tree)
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class OnlinePlan:
    """How an online fit moves.

    Args:
        schedule: step size of the t-th update.
        warmup: updates during which only the averages move, not the model.
        smooth_after: update after which the path of statistics is averaged; ``None`` never.
        smoothing: step sizes of that average; ``1/t`` weighs the path evenly, ``Power(1, 1, 2)`` (that is, 2/(t+1))
            forgets its beginning, for streams whose length is unknown.
    """

    schedule: Schedule = field(default_factory=lambda: Power(0.5))
    warmup: int = 0
    smooth_after: int | None = 0
    smoothing: Schedule = field(default_factory=lambda: Power(1.0, 1.0, 2.0))


@dataclass(frozen=True)
class OnlineState(Tree, Generic[S]):
    """The model, the running mean of statistics, and the average of that mean's path."""

    model: ExpectationModel[S]
    average: Running[S] = field(default_factory=Running)
    smooth: Running[S] = field(default_factory=Running)

    @property
    def statistics(self) -> S | None:
        """Averages over the path where it is smoothed, else the latest ones."""
        return self.average.value if self.smooth.value is None else self.smooth.value

    @property
    def best(self) -> ExpectationModel[S]:
        """The model of the smoothed path where there is one."""
        if self.smooth.value is None:
            return self.model
        return self.model.solve(self.model.repair_statistics(self.smooth.value)[0])

    def update(self, rows: Tensor, weight: Tensor, plan: OnlinePlan) -> Iteration[OnlineState[S]]:
        """One mini-batch; the objective is its mean log-likelihood before the update."""
        expected = self.model.expect(rows, weight)
        fresh = expected.statistics * (1.0 / expected.weight)
        average = self.average.update(fresh, plan.schedule)
        model, smooth = self.model, self.smooth
        events: tuple[str, ...] = ()
        assert average.value is not None
        if average.count > plan.warmup:
            usable, events = model.repair_statistics(average.value)
            average = Running(usable, average.count)
            model = model.solve(usable)
            if plan.smooth_after is not None and average.count > plan.smooth_after:
                smooth = smooth.update(usable, plan.smoothing)
        objective = float(expected.log_likelihood / expected.weight)
        return Iteration(OnlineState(model, average, smooth), objective, events)


class Batches:
    """Mini-batches of a source in row order, over and over; the t-th can be asked for after a restart.

    Rows should be in random order: shuffle first, or use a source that is.
    """

    def __init__(self, source: Source, size: int) -> None:
        self.source = source
        self.size = size
        self.per_epoch: int = -(-source.n_rows // size)
        self._with_weight: list[int] = []
        self._n_read = 0
        self._rewind()

    def _rewind(self) -> None:
        self._position, self._iterator = 0, self.source.chunks(self.size)

    def __call__(self, t: int) -> Batch:
        """The batch of update t = 0, 1, ...; batches without weight are left out."""
        while self._n_read < self.per_epoch and len(self._with_weight) <= t:
            batch = self._read(self._n_read)
            if bool(batch[1].any()):
                self._with_weight.append(self._n_read)
            self._n_read += 1
            if len(self._with_weight) > t:
                return batch
        if not self._with_weight:
            raise ValueError("the weights are all zero")
        return self._read(self._with_weight[t % len(self._with_weight)])

    def _read(self, place: int) -> Batch:
        if place < self._position:
            self._rewind()
        for _ in range(place - self._position):
            next(self._iterator)
        batch = next(self._iterator)
        self._position = place + 1
        return batch


def online_em(
    batches: Callable[[int], Batch], plan: OnlinePlan
) -> Callable[[OnlineState[S]], Iteration[OnlineState[S]]]:
    """Online EM as a step for :func:`boxloop.loop.run`: one mini-batch per iteration.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.distributions import Poisson
        >>> from boxloop.models import Mixture
        >>> from boxloop.loop import run
        >>> rows = torch.tensor([[0.0], [9.0]] * 500, dtype=torch.float64)
        >>> start = Mixture(torch.zeros(2).double() - 0.693147, Poisson(torch.tensor([[2.0], [6.0]]).double()))
        >>> step = online_em(Batches(ArraySource(rows), 10), OnlinePlan())
        >>> outcome = run(step, OnlineState(start), max_iter=100)
        >>> outcome.state.best.family.mean[1].round(decimals=1)
        tensor([9.], dtype=torch.float64)
    """

    def step(state: OnlineState[S]) -> Iteration[OnlineState[S]]:
        return state.update(*batches(state.average.count), plan)

    return step
