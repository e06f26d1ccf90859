r"""Adaptation in warm-up: the scale to the best acceptance, the metric to the covariance, trajectories across chains.

.. math:: \log h_{t+1} = \log h_t + \gamma_t (\bar\alpha_t - \alpha^*), \qquad \gamma_t = 2 t^{-1/2}

The covariance is a running average over the chains and over a window of the warm-up. Windows grow, and each starts
afresh, which discards positions from before the chains reached the target. The metric is that of the last window,
unless a chain was still elsewhere in it: then chains vary far less afterwards, in some direction, and the metric is
that of the positions afterwards. In the rest of the warm-up only the scale moves, and its average is kept. Nothing
moves after warm-up, so that the chains leave the target invariant.

The length T of Hamiltonian trajectories follows the ChEES criterion (Hoffman, Radul and Sountsov 2021): how much the
squared distance from the centre m changes between the ends of a trajectory, in the metric's coordinates,

.. math:: C(T) = \tfrac14 \, E\left[ \left( |x' - m|^2 - |x - m|^2 \right)^2 \right], \qquad
          \frac{dC}{dT} = E\left[ u \left( |x' - m|^2 - |x - m|^2 \right) (x' - m)^\top p' \right] ,

averaged over all chains and weighted by acceptance probabilities, so that many chains tune it in few steps.

References: Robbins and Monro (1951); Haario, Saksman and Tamminen (2001); Andrieu and Thoms (2008).

Deviation: :math:`C(T) / \sqrt T` is maximised rather than C, by bounded steps in log T. Longer trajectories cost more,
    and in heavy tails C alone grows without bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import torch
from torch import Tensor

from boxloop.average import Power, Running
from boxloop.chain import Kernel, Path
from boxloop.sample.kernels.hmc import HMC, MAX_GRADIENTS, TrajectoryEnds, is_divergent
from boxloop.sample.kernels.metropolis import Metric, make_metric, measure_narrowest_width
from boxloop.sample.target import Target
from boxloop.tree import Tree

WINDOWS = (0.05, 0.1, 0.2, 0.4, 0.75)
"""Shares of the warm-up between which covariances are averaged."""

METRIC_CHECK = 0.9
"""Share of the warm-up at which the positions after the last window are compared with its metric."""

NARROWED = 1 / 4
"""Standard deviation of those positions in some direction, in units of the metric, below which they make a new one.
A chain that was far away in the last window stretches the metric, and steps suit the narrowest direction."""

SHORT_STEPS_UNTIL, SHORT_STEPS = 0.5, (0.25, 1 / 16, 1 / 64)
"""Share of the warm-up up to which every fourth block has shorter steps, and their factors in turn: they bring in a
chain far out, where no move is accepted at the scale of the others."""

FIRST_GRADIENTS = 16
"""Most gradients of a trajectory before the last metric is known: with a poor one steps are short, and many."""

AVERAGED_AFTER, METRIC_DELAY = 0.85, 0.05
"""Share of the warm-up after which scales are averaged, and share of it that a new metric has to find a scale."""

PROPOSALS = 32
"""Proposals behind one update of the scale."""

DENSE_COLUMNS = 64
"""Columns up to which the metric is a full matrix, unless requested otherwise."""

LEAST_CHANCE = 0.05
"""Smallest probability in a harmonic mean: one trajectory beyond the edge of a support should not dominate."""

ACCEPTANCE_SLOPE = 0.65
"""How fast acceptance falls with log h near the best one: of a log-ratio N(-s²/2, s²) with s in proportion to h²."""

PLAIN_AVERAGE = Power(1.0)
"""Steps of 1/t."""

COST = 0.5
"""Power of the length that divides the ChEES criterion."""

MEMORY = 0.9
"""Weight of earlier values in the averages behind a step of the length."""

SHORTEST, LONGEST = 1.9, 16.0
"""Bounds of T in the coordinates of a metric. The shortest is best for a Gaussian whose covariance the metric has: one
step, or three quarters of it, on either side of the quarter turn, pi / 2, after which position and square are those of
a fresh draw; further on means gain and squares lose. Longer ones are better if the metric is wrong or the target is
curved. Estimates from few chains would leave both bounds."""


@runtime_checkable
class TunableAlgorithm(Protocol):
    """An algorithm whose steps warm-up can tune: those with a ``scale`` of None."""

    scale: Any
    metric: Any
    dense: bool | None
    stores_gradient: ClassVar[bool]

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant."""

    def initial_scale(self, columns: int) -> float:
        """The scale at which tuning starts."""

    def target_acceptance(self, columns: int) -> float:
        """The acceptance rate that tuning aims at."""

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """The same algorithm with another scale and metric."""


@dataclass(frozen=True)
class PositionMoments(Tree):
    """Mean (d,) and covariance (d,) or (d, d) of positions."""

    mean: Tensor
    covariance: Tensor

    @classmethod
    def from_positions(cls, rows: Tensor, dense: bool) -> Self:
        """Those of rows (n, d)."""
        mean = rows.mean(0)
        centred = rows - mean
        return cls(mean, centred.mT @ centred / len(rows) if dense else centred.square().mean(0))

    def pool_with(self, other: PositionMoments, share: float) -> Self:
        """What, averaged into ``other`` with this share, gives the covariance of both samples pooled."""
        difference = self.mean - other.mean
        between = torch.outer(difference, difference) if self.covariance.dim() == 2 else difference.square()
        return replace(self, covariance=self.covariance + (1.0 - share) * between)


@dataclass(frozen=True)
class TrajectoryLength(Tree):
    """State of the tuning of the length of trajectories."""

    log_length: float  # log T, of the next trajectories
    averaged: float  # average of the later log T
    slope: float = 0.0  # running average of dC / d log T
    criterion: float = 0.0  # running average of C
    updates: int = 0  # made so far

    @classmethod
    def from_length(cls, length: float) -> Self:
        """Before the first update."""
        return cls(math.log(length), math.log(length))

    def update(self, path: Path, metric: Tensor, centre: Tensor | None, bounds: tuple[float, float]) -> Self:
        """After a path of trajectories; distances are from the centre, or from the chains' mean without one."""
        assert path.log_ratio is not None
        found = [
            measure_chees_criterion(*ends, metric, centre)
            for ends in zip(path.details, path.log_ratio, strict=True)
        ]
        slope = MEMORY * self.slope + sum(slope for slope, _ in found) / len(found)
        criterion = MEMORY * self.criterion + sum(value for _, value in found) / len(found)
        if not (math.isfinite(slope) and math.isfinite(criterion) and criterion > 0.0):
            return self
        updates = self.updates + 1
        step = 0.5 * updates**-0.5 * min(1.0, max(-1.0, slope / criterion - COST))
        log_length = min(max(self.log_length + step, math.log(bounds[0])), math.log(bounds[1]))
        averaged = self.averaged + (log_length - self.averaged) * max(0.1, 1.0 / updates)
        return type(self)(log_length, averaged, slope, criterion, updates)


def measure_chees_criterion(
    end: TrajectoryEnds, log_ratio: Tensor, metric: Tensor, centre: Tensor | None
) -> tuple[float, float]:
    """dC / d log T and C of one trajectory of every chain; one with a non-finite end has weight zero."""
    finite = torch.isfinite(end.position).all(1) & torch.isfinite(log_ratio) & ~is_divergent(log_ratio)
    chance = torch.where(finite, log_ratio.clamp(max=0.0).exp(), 0.0)
    middle = end.start.mean(0) if centre is None else centre
    after, before = _whiten(end.position - middle, metric), _whiten(end.start - middle, metric)
    gain = after.square().sum(1) - before.square().sum(1)
    slope = chance * gain * (after * end.momentum).sum(1)
    criterion = 0.25 * chance * gain.square()
    both = torch.where(finite, torch.stack([end.length * slope, criterion]), 0.0).sum(1) / len(chance)
    first, second = both.tolist()
    return first, second


def _whiten(rows: Tensor, metric: Tensor) -> Tensor:
    """Rows in the coordinates of the metric."""
    if metric.dim() == 1:
        return rows / metric
    return torch.linalg.solve_triangular(metric, rows.mT, upper=False).mT


@dataclass(frozen=True)
class TuningState(Tree):
    """State of the warm-up."""

    log_scale: float  # of the next steps
    metric: Tensor | None = None  # of the next steps; None before the first window has closed
    centre: Tensor | None = None  # mean of the positions behind the metric
    averaged: float = 0.0  # average of the last log-scales
    n_averaged: int = 0  # number of these
    moments: Running[PositionMoments] = field(default_factory=Running)  # running average over the open window
    n_positions: int = 0  # positions in it
    updates: int = 0  # of the scale, since the metric last changed
    trajectory: TrajectoryLength | None = None  # length of trajectories, if the algorithm has any to tune


@dataclass(frozen=True, eq=False)
class Tuner:
    """The tuning of an algorithm over a warm-up."""

    algorithm: Any  # that is tuned
    columns: int  # d
    steps: int  # of the whole warm-up
    chains: int  # c

    def make_initial_state(self) -> TuningState:
        """The state before the first step."""
        first = self.algorithm.initial_scale(self.columns)
        tunes_length = isinstance(self.algorithm, HMC) and self.algorithm.trajectory is None
        trajectory = TrajectoryLength.from_length(5.0 * first) if tunes_length else None
        return TuningState(math.log(first), self.algorithm.metric, trajectory=trajectory)

    def make_tuned_algorithm(self, tuning: TuningState, steps: int) -> Any:
        """The algorithm as tuned after a number of steps; fixed once warm-up is over."""
        over = steps >= self.steps
        log_scale = tuning.averaged if over and tuning.n_averaged else tuning.log_scale
        factor = self._compute_step_factor(steps)
        if tuning.trajectory is None:
            # A step is no longer than a trajectory of given length, which could be half a turn and mix badly.
            given = self.algorithm.trajectory if isinstance(self.algorithm, HMC) else None
            longest = math.inf if given is None else given / self.algorithm.stages
            return self.algorithm.with_steps(factor * min(math.exp(log_scale), longest), tuning.metric)
        length = math.exp(tuning.trajectory.averaged if over else tuning.trajectory.log_length)
        known = self.algorithm.metric is not None or steps >= WINDOWS[-1] * self.steps
        most = MAX_GRADIENTS if known else FIRST_GRADIENTS
        scale, length = round_to_whole_steps(math.exp(log_scale), length, self.algorithm.stages, most)
        algorithm = self.algorithm.with_steps(factor * scale, tuning.metric)
        return replace(algorithm, trajectory=factor * length)

    @property
    def steps_per_update(self) -> int:
        """Steps between two updates."""
        return max(1, PROPOSALS // self.chains)

    def update(self, tuning: TuningState, path: Path, before: int, chance: Tensor) -> TuningState:
        """After a path that began ``before`` steps into the warm-up, with its acceptance probabilities."""
        after = before + len(path.position)
        if isinstance(
            self.algorithm, HMC
        ):  # The harmonic mean: steps are short enough where the target bends most.
            acceptance = 1.0 / float((1.0 / chance.clamp(min=LEAST_CHANCE)).mean())
        else:
            acceptance = float(chance.mean())
        if tuning.trajectory is not None:  # The scale of the steps made differs, as their number is whole.
            excess = tuning.log_scale - math.log(self.make_tuned_algorithm(tuning, before).scale)
            acceptance -= ACCEPTANCE_SLOPE * excess
        if self.algorithm.metric is None:
            if any(self._crosses_share_of_warmup(before, after, share) for share in WINDOWS):
                tuning = self._adopt_window_metric(tuning)
            if self._crosses_share_of_warmup(before, after, METRIC_CHECK):
                tuning = self._renew_narrow_metric(tuning)
            if WINDOWS[0] * self.steps <= after <= METRIC_CHECK * self.steps:
                tuning = self.average_positions(tuning, path)
        if self._compute_step_factor(before) < 1.0:
            return tuning
        if tuning.trajectory is not None:
            tuning = replace(tuning, trajectory=self._update_length(tuning, tuning.trajectory, path))
        return self._update_scale(tuning, acceptance, averaging=after > AVERAGED_AFTER * self.steps)

    def average_positions(self, tuning: TuningState, path: Path) -> TuningState:
        """The tuning with the positions of a path in its running covariance."""
        rows = path.position.reshape(-1, self.columns)
        dense = self.columns <= DENSE_COLUMNS if self.algorithm.dense is None else self.algorithm.dense
        moments = PositionMoments.from_positions(rows, dense)
        if tuning.moments.value is not None:
            moments = moments.pool_with(tuning.moments.value, PLAIN_AVERAGE(tuning.moments.count + 1))
        average = tuning.moments.update(moments, PLAIN_AVERAGE)
        return replace(tuning, moments=average, n_positions=tuning.n_positions + len(rows))

    def _compute_step_factor(self, steps: int) -> float:
        """Factor of the step length of the block that begins here; 1 for three blocks in four."""
        turn, place = divmod(steps // self.steps_per_update, 4)
        short = place == 3 and steps < SHORT_STEPS_UNTIL * self.steps
        return SHORT_STEPS[turn % len(SHORT_STEPS)] if short else 1.0

    def _crosses_share_of_warmup(self, before: int, after: int, share: float) -> bool:
        return before < math.ceil(share * self.steps) <= after

    def _adopt_window_metric(self, tuning: TuningState) -> TuningState:
        """The metric of the window that ends; scales have other units from now on, and start over."""
        if tuning.moments.value is None:
            return tuning
        metric = make_metric(tuning.moments.value.covariance, tuning.n_positions)
        if metric is None:
            return tuning
        first = math.log(self.algorithm.initial_scale(self.columns))
        trajectory = None if tuning.trajectory is None else TrajectoryLength.from_length(SHORTEST)
        return TuningState(first, metric, tuning.moments.value.mean, trajectory=trajectory)

    def _renew_narrow_metric(self, tuning: TuningState) -> TuningState:
        """The metric of the last window, or of the positions since then if these are far narrower."""
        if tuning.metric is None or tuning.moments.value is None:
            return tuning
        later = make_metric(tuning.moments.value.covariance, tuning.n_positions)
        if later is None or measure_narrowest_width(later, tuning.metric) >= NARROWED:
            return tuning
        return self._adopt_window_metric(tuning)

    def _update_length(
        self, tuning: TuningState, trajectory: TrajectoryLength, path: Path
    ) -> TrajectoryLength:
        if tuning.metric is not None:
            return trajectory.update(path, tuning.metric, tuning.centre, (SHORTEST, LONGEST))
        scale = math.exp(tuning.log_scale)
        bounds = self.algorithm.stages * scale, FIRST_GRADIENTS * scale
        return trajectory.update(path, torch.ones_like(path.position[0, 0]), None, bounds)

    def _update_scale(self, tuning: TuningState, acceptance: float, averaging: bool) -> TuningState:
        updates = tuning.updates + 1
        goal = self.algorithm.target_acceptance(self.columns)
        log_scale = tuning.log_scale + 2.0 * updates**-0.5 * (acceptance - goal)
        count = tuning.n_averaged + (
            averaging and updates * self.steps_per_update > METRIC_DELAY * self.steps
        )
        averaged = tuning.averaged + (log_scale - tuning.averaged) / count if count else tuning.averaged
        return replace(tuning, log_scale=log_scale, updates=updates, averaged=averaged, n_averaged=count)


def round_to_whole_steps(scale: float, length: float, stages: int, most: int) -> tuple[float, float]:
    """Scale and length of trajectories such that a whole number of steps makes up the length, at the nearest scale."""
    length = min(length, most * scale)
    steps = max(1, round(length / (stages * scale)))
    return length / (stages * steps), length
