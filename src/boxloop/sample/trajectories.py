r"""What is wrong with Hamiltonian trajectories: those that diverge, and those of far too many steps.

A trajectory keeps its energy :math:`H = -\log \pi(x) + \tfrac12 |p|^2` up to the error of its steps. Where the density
bends more sharply than the step can follow, the error grows without end, until numbers overflow: a divergence. Draws
then leave such places out, while R-hat may see nothing.

A density that ends at a wall is something else. There the log-density is minus infinity, or not a number, at once, and
energy was kept up to it. Since kinetic energy is never negative, a finite log-density that lies below the start's by
more than the energy allows tells the two apart.

Reference: Betancourt (2017), A conceptual introduction to Hamiltonian Monte Carlo, section 6.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from boxloop.sample.metric import make_factor, narrowest_width

DIVERGED = 1000.0
"""Error of the energy from which a trajectory has diverged."""

NARROW = 1 / 8
"""Standard deviation of the draws in some direction, in units of the metric, below which steps are far too short."""

MANY_GRADIENTS = 16
"""Gradients of a trajectory from which it costs too much, if fewer would do."""

FEWEST_DRAWS, DRAWS_PER_COLUMN = 100, 10
"""Draws, and draws for each column, from which their covariance is compared with the metric."""


def is_divergent(log_ratio: Tensor) -> Tensor:
    """Which log-ratios of trajectories, any shape, are those of a divergence; walls have minus infinity or NaN."""
    return torch.isfinite(log_ratio) & (log_ratio < -DIVERGED)


def mark_divergences(log_ratio: Tensor, values: Sequence[Tensor], energy: Tensor) -> Tensor:
    """Log-ratios (c,), with the least finite number in place of what an overflow left of a divergence.

    Args:
        log_ratio: of the ends of trajectories.
        values: the log-density at each of their points, each (c,).
        energy: log-density less kinetic energy at their start, (c,).
    """
    points = torch.stack(list(values))
    fell = (torch.isfinite(points) & (points < energy - DIVERGED)).any(0)
    return log_ratio.masked_fill_(fell & ~torch.isfinite(log_ratio), torch.finfo(log_ratio.dtype).min)


def count_gradients(algorithm: Any) -> float:
    """The most gradients of one trajectory; 0 for an algorithm that has none, or none that is tuned."""
    scale, trajectory = getattr(algorithm, "scale", None), getattr(algorithm, "trajectory", None)
    if not isinstance(scale, float) or not isinstance(trajectory, float):
        return 0.0
    return trajectory / scale


def find_trajectory_concerns(diverging: Tensor | None, positions: Tensor, algorithm: Any) -> list[str]:
    """What to say of trajectories that diverge, or take many times the gradients they need.

    Args:
        diverging: whether a trajectory diverged on the way to each draw, (n, c).
        positions: (n, c, d).
        algorithm: that made them, as tuned.
    """
    found = (
        []
        if diverging is None or not bool(diverging.any())
        else [_describe_divergences(diverging, algorithm)]
    )
    width = _narrowest_width(positions, algorithm)
    if width < NARROW:
        found.append(
            f"trajectories take {count_gradients(algorithm):.0f} gradients, some {1 / width:.0f} times as many as they "
            f"need: in one direction draws vary {width:.2g} times as much as the positions from which warm-up made the "
            "metric, since chains were in different places then: a longer warm-up, or start from the last draws"
        )
    return found


def _describe_divergences(diverging: Tensor, algorithm: Any) -> str:
    counts = diverging.sum(0)
    worst, scale = int(counts.argmax()), getattr(algorithm, "scale", None)
    smaller = f"scale={scale / 4:.2g}" if isinstance(scale, float) else "a smaller scale"
    return (
        f"{int(counts.sum())} of {diverging.numel()} trajectories diverged (energy error above {DIVERGED:g}; most in "
        f"chain {worst}, {int(counts[worst])}): draws miss where the density bends sharply. Reparametrise (in a "
        "funnel, sample effects divided by their scale), name the bounds of values by support=, or pass "
        f"kernel=dataclasses.replace(draws.algorithm, {smaller})"
    )


def _narrowest_width(positions: Tensor, algorithm: Any) -> float:
    """Least standard deviation within chains, in units of the metric; 1 where trajectories are short or draws few."""
    d, metric = positions.shape[2], getattr(algorithm, "metric", None)
    if metric is None or len(metric) != d or count_gradients(algorithm) < MANY_GRADIENTS:
        return 1.0
    centred = (positions - positions.mean(0)).reshape(-1, d)
    if len(centred) < max(FEWEST_DRAWS, DRAWS_PER_COLUMN * d):
        return 1.0
    factor = make_factor(
        centred.mT @ centred / len(centred) if metric.dim() == 2 else centred.square().mean(0), len(centred)
    )
    return 1.0 if factor is None else narrowest_width(factor, metric)
