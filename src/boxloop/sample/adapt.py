r"""Tuning in warm-up: the scale to the best acceptance, the metric to the covariance of the chains.

.. math:: \log h_{t+1} = \log h_t + \gamma_t (\bar\alpha_t - \alpha^*), \qquad \gamma_t = 2 t^{-1/2}

The covariance is a running average over the chains and over a window of the warm-up. Windows grow, and each starts
afresh: where chains were before they found the target is forgotten. The metric is that of the last window, unless a
chain was still elsewhere in it: then chains vary far less afterwards, in some direction, and the metric is that of
where they were afterwards. In the rest of the warm-up only the scale moves, and its average is kept. After warm-up
nothing moves, so that draws are exact.

References: Robbins and Monro (1951); Haario, Saksman and Tamminen (2001); Andrieu and Thoms (2008).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from boxloop.average import Power, Running
from boxloop.chain import Kernel, Path
from boxloop.sample.chees import LONGEST, SHORTEST, Reach, reached
from boxloop.sample.hmc import HMC, MOST_GRADIENTS
from boxloop.sample.metric import Metric, make_factor, narrowest_width
from boxloop.sample.target import Target
from boxloop.tree import Tree

WINDOWS = (0.05, 0.1, 0.2, 0.4, 0.75)
"""Shares of the warm-up between which covariances are averaged."""

CHECKED = 0.9
"""Share of the warm-up up to which the positions after the last window are compared with its metric."""

NARROWED = 1 / 4
"""Standard deviation of those positions in some direction, in units of the metric, below which they make another one.
A chain that was far away in the last window stretches the metric, and steps suit the narrowest direction."""

RESCUE, SHORTER = 0.5, (0.25, 1 / 16, 1 / 64)
"""Up to which share of the warm-up every fourth block is shorter, and how much: a chain far out, where the scale of the
others is too long for any move to be accepted, comes in by these."""

FIRST_GRADIENTS = 16
"""Most gradients of a trajectory before the last metric is known: with a poor one steps are short, and many."""

SETTLED, STARTING = 0.85, 0.05
"""Share of the warm-up after which scales are averaged, and share of it that a new metric is left to find a scale."""

ENOUGH = 32
"""Proposals that one update of the scale looks at."""

WIDE = 64
"""Columns up to which the metric is a full matrix, unless one asks otherwise."""

HOPELESS = 0.05
"""Smallest chance that counts in a harmonic mean: a trajectory off the edge of a support should not rule the rest."""

FALL = 0.65
"""How fast acceptance falls with log h near the best one: of a log-ratio N(-s²/2, s²) with s in proportion to h²."""

EVEN = Power(1.0)
"""Steps of 1/t: a plain average."""


@runtime_checkable
class Tunable(Protocol):
    """An algorithm whose steps warm-up can tune: those with a ``scale`` of None."""

    scale: Any
    metric: Any
    dense: bool | None
    keeps_slopes: ClassVar[bool]

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target's law as it is."""

    def first_scale(self, columns: int) -> float:
        """Where tuning starts."""

    def goal(self, columns: int) -> float:
        """The share of moves that is best accepted."""

    def tuned(self, scale: float, metric: Metric) -> Self:
        """The same algorithm with other steps."""


@dataclass(frozen=True)
class Spread(Tree):
    """Mean (d,) and covariance (d,) or (d, d) of positions."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def of(cls, rows: Tensor, dense: bool) -> Self:
        """Those of rows (n, d)."""
        mean = rows.mean(0)
        apart = rows - mean
        return cls(mean, apart.mT @ apart / len(rows) if dense else apart.square().mean(0))

    def beside(self, other: Spread, share: float) -> Self:
        """What, averaged into ``other`` with this share, gives the covariance of both taken together."""
        apart = self.mean - other.mean
        between = torch.outer(apart, apart) if self.covariance.dim() == 2 else apart.square()
        return replace(self, covariance=self.covariance + (1.0 - share) * between)


@dataclass(frozen=True)
class Tuning(Tree):
    """How far warm-up has come.

    Args:
        log_scale: of the next steps.
        metric: of the next steps; None before the first window has closed.
        centre: mean of the positions behind the metric.
        steady: average of the last log-scales.
        steadied: how many these are.
        spread: running average over the open window.
        seen: positions in it.
        updates: of the scale, since the metric last changed.
        reach: of trajectories, for algorithms that have them.
    """

    log_scale: float
    metric: Tensor | None = None
    centre: Tensor | None = None
    steady: float = 0.0
    steadied: int = 0
    spread: Running[Spread] = field(default_factory=Running)
    seen: int = 0
    updates: int = 0
    reach: Reach | None = None


@dataclass(frozen=True, eq=False)
class Tuner:
    """The plan of a warm-up.

    Args:
        algorithm: what is tuned.
        columns: d.
        steps: of the whole warm-up.
        chains: c.
    """

    algorithm: Any
    columns: int
    steps: int
    chains: int

    def begin(self) -> Tuning:
        """Before the first step."""
        first = self.algorithm.first_scale(self.columns)
        return Tuning(
            math.log(first), self.algorithm.metric, reach=Reach.of(5.0 * first) if self._reaches else None
        )

    def tuned(self, tuning: Tuning, done: int) -> Any:
        """The algorithm as it is tuned after so many steps; for good when warm-up is over."""
        over = done >= self.steps
        log_scale = tuning.steady if over and tuning.steadied else tuning.log_scale
        shorter = self._shorter(done)
        if tuning.reach is None:
            return self.algorithm.tuned(shorter * min(math.exp(log_scale), self._longest), tuning.metric)
        length = math.exp(tuning.reach.steady if over else tuning.reach.log_length)
        known = self.algorithm.metric is not None or done >= WINDOWS[-1] * self.steps
        most = MOST_GRADIENTS if known else FIRST_GRADIENTS
        scale, length = evened(math.exp(log_scale), length, self.algorithm.stages, most)
        return replace(self.algorithm.tuned(shorter * scale, tuning.metric), trajectory=shorter * length)

    @property
    def block(self) -> int:
        """Steps between two updates."""
        return max(1, ENOUGH // self.chains)

    def update(self, tuning: Tuning, path: Path, before: int, chance: Tensor) -> Tuning:
        """After a path that began ``before`` steps into the warm-up, with its chances of acceptance."""
        after = before + len(path.position)
        accepted = self._accepted(chance) - FALL * self._beyond(tuning, before)
        if self.algorithm.metric is None:
            if any(self._passes(before, after, mark) for mark in WINDOWS):
                tuning = self._closed(tuning)
            if self._passes(before, after, CHECKED):
                tuning = self._checked(tuning)
            if WINDOWS[0] * self.steps <= after <= CHECKED * self.steps:
                tuning = self.average_positions(tuning, path)
        if self._shorter(before) < 1.0:
            return tuning
        if tuning.reach is not None:
            tuning = replace(tuning, reach=self._reached(tuning, tuning.reach, path))
        return self._moved(tuning, accepted, settled=after > SETTLED * self.steps)

    def _beyond(self, tuning: Tuning, done: int) -> float:
        """How far the logarithm of the scale is above that of the steps made, whose number is whole."""
        return 0.0 if tuning.reach is None else tuning.log_scale - math.log(self.tuned(tuning, done).scale)

    @property
    def _longest(self) -> float:
        """A step goes no further than a trajectory whose length is given: it might come to half a turn, and not mix."""
        given = self.algorithm.trajectory if isinstance(self.algorithm, HMC) else None
        return math.inf if given is None else given / self.algorithm.stages

    @property
    def _reaches(self) -> bool:
        return isinstance(self.algorithm, HMC) and self.algorithm.trajectory is None

    def _reached(self, tuning: Tuning, reach: Reach, path: Path) -> Reach:
        if tuning.metric is not None:
            return reached(reach, path, tuning.metric, tuning.centre, (SHORTEST, LONGEST))
        scale = math.exp(tuning.log_scale)
        bounds = self.algorithm.stages * scale, FIRST_GRADIENTS * scale
        return reached(reach, path, torch.ones_like(path.position[0, 0]), None, bounds)

    def _shorter(self, done: int) -> float:
        turn, place = divmod(done // self.block, 4)
        return SHORTER[turn % len(SHORTER)] if place == 3 and done < RESCUE * self.steps else 1.0

    def _passes(self, before: int, after: int, mark: float) -> bool:
        return before < math.ceil(mark * self.steps) <= after

    def average_positions(self, tuning: Tuning, path: Path) -> Tuning:
        """The tuning with the positions of a path in its running covariance."""
        rows = path.position.reshape(-1, self.columns)
        dense = self.columns <= WIDE if self.algorithm.dense is None else self.algorithm.dense
        fresh = Spread.of(rows, dense)
        if tuning.spread.value is not None:
            fresh = fresh.beside(tuning.spread.value, EVEN(tuning.spread.count + 1))
        return replace(tuning, spread=tuning.spread.update(fresh, EVEN), seen=tuning.seen + len(rows))

    def _closed(self, tuning: Tuning) -> Tuning:
        """The metric of the window that ends; scales are in other units from now on, and start over."""
        if tuning.spread.value is None:
            return tuning
        metric = make_factor(tuning.spread.value.covariance, tuning.seen)
        if metric is None:
            return tuning
        first = math.log(self.algorithm.first_scale(self.columns))
        reach = None if tuning.reach is None else Reach.of(SHORTEST)
        return Tuning(first, metric, tuning.spread.value.mean, reach=reach)

    def _checked(self, tuning: Tuning) -> Tuning:
        """The metric of the last window, or of the positions since then where these are far narrower."""
        if tuning.metric is None or tuning.spread.value is None:
            return tuning
        later = make_factor(tuning.spread.value.covariance, tuning.seen)
        if later is None or narrowest_width(later, tuning.metric) >= NARROWED:
            return tuning
        return self._closed(tuning)

    def _accepted(self, chance: Tensor) -> float:
        """Mean chance; of trajectories the harmonic one: steps are short enough where the target bends most."""
        if isinstance(self.algorithm, HMC):
            return 1.0 / float((1.0 / chance.clamp(min=HOPELESS)).mean())
        return float(chance.mean())

    def _moved(self, tuning: Tuning, accepted: float, settled: bool) -> Tuning:
        updates = tuning.updates + 1
        log_scale = tuning.log_scale + 2.0 * updates**-0.5 * (accepted - self.algorithm.goal(self.columns))
        count = tuning.steadied + (settled and updates * self.block > STARTING * self.steps)
        steady = tuning.steady + (log_scale - tuning.steady) / count if count else tuning.steady
        return replace(tuning, log_scale=log_scale, updates=updates, steady=steady, steadied=count)


def evened(scale: float, length: float, stages: int, most: int) -> tuple[float, float]:
    """Scale and length of trajectories such that whole steps make up the length, the scale the nearest one to it."""
    length = min(length, most * scale)
    steps = max(1, round(length / (stages * scale)))
    return length / (stages * steps), length
