r"""Hamiltonian Monte Carlo with trajectories of random length, the same for all chains.

.. math:: p \leftarrow p + 2bh \, g(x), \quad x \leftarrow x + h F p, \quad p \leftarrow p + 2(1 - 2b) h \, g(x),
          \quad x \leftarrow x + h F p, \quad p \leftarrow p + 2bh \, g(x), \qquad g = F^\top \nabla \log \pi

repeated :math:`\lceil u T / 2h \rceil` times with u uniform on (1 - j, 1), from :math:`p \sim N(0, I)`; the ratio is
:math:`\log r = \log \pi(x') - \log \pi(x) + \tfrac12 (|p|^2 - |p'|^2)`. With b = 1/4 this is two leapfrog steps; with
b = 0.212 the energy error is many times smaller for the same two gradients (Blanes, Casas and Sanz-Serna 2014), so
that steps are longer. Every b gives a reversible, volume-preserving map, and so an exact sampler.

Random lengths keep trajectories from closing on themselves; if each is a single step, it is full or shorter by j/2,
with equal probability. All chains share a length, so that none waits for another. :mod:`boxloop.sample.adapt` tunes T.

A trajectory conserves its energy :math:`H = -\log \pi(x) + \tfrac12 |p|^2` up to the error of its steps. Where the
density bends more sharply than the step can follow, the error grows without bound, until numbers overflow: a
divergence. Draws then miss such regions, while R-hat may show nothing. A density that ends at a wall is different:
there the log-density is minus infinity, or not a number, at once, and the energy was conserved up to it. As kinetic
energy is never negative, a finite log-density that is below the start's by more than the energy allows tells the two
apart (Betancourt 2017, A conceptual introduction to Hamiltonian Monte Carlo, section 6.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.kernels.metropolis import (
    Metric,
    RuleName,
    add_metric_step,
    apply_metric_transpose,
    check_metric,
    draw_normals,
    make_metropolis_kernel,
)
from boxloop.sample.target import Target

MAX_GRADIENTS = 256
"""Most gradients of one trajectory."""

DIVERGED = 1000.0
"""Energy error from which a trajectory has diverged."""

OUTER, INNER = 2 * 0.21178, 2 * (1.0 - 2 * 0.21178)
"""Changes of momentum in a step of two gradients, in units of h: first and last, and between."""


class TrajectoryNoise(NamedTuple):
    """The randomness of one trajectory."""

    momentum: Tensor  # (c, d)
    energy: Tensor  # half its squared length, (c,)
    steps: int  # number of steps
    share: float  # of h that is the length of a step


class TrajectoryEnds(NamedTuple):
    """Both ends of a trajectory of every chain, by which its length is tuned."""

    start: Tensor  # positions (c, d)
    position: Tensor  # proposed positions, (c, d)
    momentum: Tensor  # there, (c, d)
    length: float  # of the trajectory
    gradients: int  # evaluated on the way


@dataclass(frozen=True, eq=False)
class HMC:
    r"""Hamiltonian Monte Carlo.

    Args:
        scale: h, the length of path per gradient. Tuned in warm-up when omitted.
        trajectory: T, the longest path in units of the metric. When omitted, tuned together with the scale, or 5 h if
            the scale is given.
        metric: F; scales (d,), or a Cholesky factor (d, d). When omitted, tuned together with the scale, or the
            identity if the scale is given.
        dense: whether warm-up tunes a full metric, or scales of columns; full up to 64 columns when omitted.
        jitter: j, the random share of the length; with 1 the length is uniform on (0, T), with 0 it is T. Lengths are
            rounded up to whole steps; a single step is full or shorter by half of j, with equal probability.
        rule: of acceptance, ``metropolis`` or ``barker``.
        stages: gradients of one step: 2, or 1 for the leapfrog.

    Reference:
        Duane et al. (1987); Neal (2011); acceptance 0.651 (Beskos et al. 2013); steps of two gradients (Blanes, Casas
        and Sanz-Serna 2014).

    Example:
        >>> import torch
        >>> from boxloop.chain import advance
        >>> from boxloop.numeric import generator
        >>> kernel = HMC(scale=0.5, trajectory=3.0).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> path = advance(kernel, kernel.init(torch.zeros(500, 2)), 20, generator(0))
        >>> path.position.shape
        torch.Size([20, 500, 2])
    """

    scale: float | None = None
    trajectory: float | None = None
    metric: Metric = None
    dense: bool | None = None
    jitter: float = 0.5
    rule: RuleName = "metropolis"
    stages: Literal[1, 2] = 2

    stores_gradient: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.stages not in (1, 2):
            raise ValueError(f"stages must be 1 or 2, got {self.stages!r}")
        if not 0.0 <= self.jitter <= 1.0:
            raise ValueError(f"jitter must lie between 0 and 1, got {self.jitter}")

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant; chains store the gradient F' grad log pi."""
        metric, value_and_gradient, stages = self.metric, target.value_and_gradient, self.stages
        last, inner = (OUTER, (2 * OUTER, INNER)) if stages == 2 else (0.5, (1.0, 1.0))

        def init(position: Tensor) -> Chains:
            value, gradient = value_and_gradient(position)
            return Chains(position, value, (apply_metric_transpose(metric, gradient),))

        def noise(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
            h, length = self.step_and_length(chains.position.shape[1])
            momenta = draw_normals(chains, n, stream)
            energy = momenta.square().sum(2).mul_(0.5)
            chance = torch.rand(n, generator=stream, device=stream.device).tolist()
            in_steps = length / (stages * h)
            most = MAX_GRADIENTS // stages
            steps = [max(1, min(most, ceil((1.0 - self.jitter * u) * in_steps - 1e-9))) for u in chance]
            single = self.jitter / 2 if in_steps <= 1.0 + 1e-9 else 0.0  # no other length is random
            shares = [1.0 if u < 0.5 else 1.0 - single for u in chance]
            return [TrajectoryNoise(*item) for item in zip(momenta.unbind(), energy.unbind(), steps, shares)]

        def propose(chains: Chains, start: TrajectoryNoise) -> tuple[Chains, Info]:
            h = self.step_and_length(chains.position.shape[1])[0] * start.share
            position, (gradient,) = chains.position, chains.auxiliary
            momentum = torch.add(start.momentum, gradient, alpha=last * h)
            gradients, values = stages * start.steps, []
            for left in range(gradients, 0, -1):
                position = add_metric_step(metric, position, momentum, h)
                value, raw = value_and_gradient(position)
                values.append(value)
                gradient = apply_metric_transpose(metric, raw)
                momentum.add_(gradient, alpha=h * (last if left == 1 else inner[left % 2 == 0]))
            log_ratio = (value - chains.log_density).add_(start.energy)
            log_ratio.sub_((momentum * momentum).sum(1), alpha=0.5)
            # A CUDA graph cannot branch; NaN is not above the limit.
            if log_ratio.is_cuda or not bool(log_ratio.amin() > -DIVERGED):
                log_ratio = mark_divergences(log_ratio, values, chains.log_density - start.energy)
            end = TrajectoryEnds(chains.position, position, momentum, gradients * h, gradients)
            return Chains(position, value, (gradient,)), Info(log_ratio, end)

        return make_metropolis_kernel(init, noise, propose, self.rule)

    def step_and_length(self, columns: int) -> tuple[float, float]:
        """h and T, or the values at which tuning starts."""
        h = self.initial_scale(columns) if self.scale is None else self.scale
        return h, self.trajectory if self.trajectory is not None else 5.0 * h

    @property
    def is_long(self) -> bool:
        """Whether trajectories are as long as the target is wide, given a metric of the target."""
        return self.metric is not None and self.trajectory is not None and self.trajectory >= 1.0

    def initial_scale(self, columns: int) -> float:
        """The scale at which tuning starts."""
        return 1.0 / columns**0.25

    def target_acceptance(self, columns: int) -> float:
        """The best acceptance in the limit of many columns, of the harmonic mean; the arithmetic one is near 0.78."""
        return 0.651 if self.rule == "metropolis" else 0.381

    def with_steps(self, scale: float, metric: Metric) -> Self:
        """The same trajectories with another scale and metric."""
        return replace(self, scale=scale, metric=metric)


def is_divergent(log_ratio: Tensor) -> Tensor:
    """Which log-ratios of trajectories, any shape, are those of a divergence; walls have minus infinity or NaN."""
    return torch.isfinite(log_ratio) & (log_ratio < -DIVERGED)


def mark_divergences(log_ratio: Tensor, values: Sequence[Tensor], energy: Tensor) -> Tensor:
    """Log-ratios (c,), with the least finite number in place of those that overflowed after a divergence."""
    points = torch.stack(list(values))
    fell = (torch.isfinite(points) & (points < energy - DIVERGED)).any(0)
    return log_ratio.masked_fill_(fell & ~torch.isfinite(log_ratio), torch.finfo(log_ratio.dtype).min)
