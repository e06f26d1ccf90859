r"""The length of Hamiltonian trajectories, tuned across chains by the ChEES criterion.

.. math:: C(T) = \tfrac14 \, E\left[ \left( |x' - m|^2 - |x - m|^2 \right)^2 \right], \qquad
          \frac{dC}{dT} = E\left[ u \left( |x' - m|^2 - |x - m|^2 \right) (x' - m)^\top p' \right]

Hoffman, Radul and Sountsov (2021): how much the squared distance from the centre m changes between the ends of a
trajectory, in the metric's coordinates; ends count by their chance of acceptance. Averages are over all chains, so
that many chains tune it in few steps.

Deviation: :math:`C(T) / \sqrt T` is climbed rather than C, by steps in log T that are bounded. Longer trajectories
    cost more; in heavy tails C alone grows without end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.chain import Path
from boxloop.sample.hmc import Landing
from boxloop.sample.trajectories import is_divergent
from boxloop.tree import Tree

COST = 0.5
"""Power of the length that the criterion is divided by."""

MEMORY = 0.9
"""Share of the averages behind a step that is older than it."""

SHORTEST, LONGEST = 1.9, 16.0
"""Bounds of T in the coordinates of a metric. The shortest is best for a Gaussian whose covariance the metric has: one
step, or three quarters of it, on either side of the quarter turn, pi / 2, after which position and square are those of
a fresh draw; further on means gain and squares lose. Where the metric falls short, or the target is curved, longer ones
are. Estimates from few chains would leave both."""


@dataclass(frozen=True)
class Reach(Tree):
    """The length of trajectories.

    Args:
        log_length: log T, of the next trajectories.
        steady: average of the later log T.
        slope: running average of dC / d log T.
        worth: running average of C.
        updates: made so far.
    """

    log_length: float
    steady: float
    slope: float = 0.0
    worth: float = 0.0
    updates: int = 0

    @classmethod
    def of(cls, length: float) -> Self:
        """Before the first update."""
        return cls(math.log(length), math.log(length))


def reached(
    reach: Reach, path: Path, metric: Tensor, centre: Tensor | None, bounds: tuple[float, float]
) -> Reach:
    """The length after a path of trajectories; distances are from the centre, or the chains' own mean without one."""
    assert path.log_ratio is not None
    found = [
        measure_criterion(*ends, metric, centre) for ends in zip(path.details, path.log_ratio, strict=True)
    ]
    slope = MEMORY * reach.slope + sum(slope for slope, _ in found) / len(found)
    worth = MEMORY * reach.worth + sum(worth for _, worth in found) / len(found)
    if not (math.isfinite(slope) and math.isfinite(worth) and worth > 0.0):
        return reach
    updates = reach.updates + 1
    step = 0.5 * updates**-0.5 * min(1.0, max(-1.0, slope / worth - COST))
    log_length = min(max(reach.log_length + step, math.log(bounds[0])), math.log(bounds[1]))
    steady = reach.steady + (log_length - reach.steady) * max(0.1, 1.0 / updates)
    return Reach(log_length, steady, slope, worth, updates)


def measure_criterion(
    landing: Landing, log_ratio: Tensor, metric: Tensor, centre: Tensor | None
) -> tuple[float, float]:
    """dC / d log T and C of one trajectory of every chain; one that went nowhere counts for nothing."""
    known = torch.isfinite(landing.end).all(1) & torch.isfinite(log_ratio) & ~is_divergent(log_ratio)
    chance = torch.where(known, log_ratio.clamp(max=0.0).exp(), 0.0)
    middle = landing.start.mean(0) if centre is None else centre
    end = whitened(landing.end - middle, metric)
    start = whitened(landing.start - middle, metric)
    gain = end.square().sum(1) - start.square().sum(1)
    slope = chance * gain * (end * landing.momentum).sum(1)
    worth = 0.25 * chance * gain.square()
    both = torch.where(known, torch.stack([landing.length * slope, worth]), 0.0).sum(1) / len(chance)
    first, second = both.tolist()
    return first, second


def whitened(rows: Tensor, metric: Tensor) -> Tensor:
    """Rows in the coordinates of the metric."""
    if metric.dim() == 1:
        return rows / metric
    return torch.linalg.solve_triangular(metric, rows.mT, upper=False).mT
