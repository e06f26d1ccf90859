r"""The length of Hamiltonian trajectories, tuned across chains by the ChEES criterion.

.. math:: \mathrm{ChEES}(T) = \tfrac14 \, E\left[ \left( |x' - E x'|^2 - |x - E x|^2 \right)^2 \right], \qquad
          \frac{d\,\mathrm{ChEES}}{dT} \approx \overline{ \alpha \, u \left( |x' - \bar x'|^2 - |x - \bar x|^2 \right)
          (x' - \bar x')^\top p' }

Hoffman, Radul and Sountsov (2021): how much squared distances from the centre change between the ends of a trajectory, in
the metric's coordinates. Averages are over all chains, so that many chains tune it in few steps. It is climbed by Adam in
the logarithm of T. The criterion rises as long as longer trajectories decorrelate; the division by their cost is the
criterion of this file, :math:`\mathrm{ChEES}(T) / \sqrt{T}`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.chain import Path
from boxloop.sample.hmc import MOST_STEPS, Landing
from boxloop.tree import Tree

RATE = 0.05
DECAY = (0.9, 0.95)


@dataclass(frozen=True)
class Reach(Tree):
    """The length of trajectories, and the state of its optimiser.

    Args:
        log_length: log T, of the next trajectories.
        steady: average of the later log T.
        first: moment of the gradients.
        second: moment of the gradients.
        updates: made so far.
    """

    log_length: float = math.log(1.5)
    steady: float = math.log(1.5)
    first: float = 0.0
    second: float = 0.0
    updates: int = 0


def reached(reach: Reach, path: Path, metric: Tensor, centre: Tensor | None, scale: float) -> Reach:
    """The length after a path of trajectories; distances are from the centre, or the chains' own mean without one."""
    slopes = [_slope(info.detail, info.log_ratio, metric, centre) for info in path.info]
    slope = sum(slopes) / len(slopes)
    slope *= math.exp(reach.log_length)
    if not math.isfinite(slope):
        return reach
    updates = reach.updates + 1
    first = DECAY[0] * reach.first + (1.0 - DECAY[0]) * slope
    second = DECAY[1] * reach.second + (1.0 - DECAY[1]) * slope * slope
    ascent = (first / (1.0 - DECAY[0] ** updates)) / ((second / (1.0 - DECAY[1] ** updates)) ** 0.5 + 1e-12)
    moved = reach.log_length + RATE * ascent
    log_length = min(max(moved, math.log(scale)), math.log(MOST_STEPS * scale))
    steady = reach.steady + (log_length - reach.steady) * max(0.1, 1.0 / updates)
    return Reach(log_length, steady, first, second, updates)


def _slope(landing: Landing, log_ratio: Tensor | None, metric: Tensor, centre: Tensor | None) -> float:
    assert log_ratio is not None
    known = torch.isfinite(landing.end).all(1) & torch.isfinite(log_ratio)
    chance = torch.where(known, log_ratio.clamp(max=0.0).exp(), 0.0)
    middle = landing.start.mean(0) if centre is None else centre
    end = whitened(landing.end - middle, metric)
    start = whitened(landing.start - middle, metric)
    gain = end.square().sum(1) - start.square().sum(1)
    worth = chance * gain * (end * landing.momentum).sum(1)
    return landing.share * float(torch.where(known, worth, 0.0).sum() / chance.sum())


def whitened(rows: Tensor, metric: Tensor) -> Tensor:
    """Rows in the coordinates of the metric."""
    if metric.dim() == 1:
        return rows / metric
    return torch.linalg.solve_triangular(metric, rows.mT, upper=False).mT
