r"""Hamiltonian Monte Carlo with trajectories of random length, the same for all chains.

.. math:: p \leftarrow p + 2bh \, g(x), \quad x \leftarrow x + h F p, \quad p \leftarrow p + 2(1 - 2b) h \, g(x),
          \quad x \leftarrow x + h F p, \quad p \leftarrow p + 2bh \, g(x), \qquad g = F^\top \nabla \log \pi

repeated :math:`\lceil u T / 2h \rceil` times with u uniform on (1 - j, 1), from :math:`p \sim N(0, I)`; the ratio is
:math:`\log r = \log \pi(x') - \log \pi(x) + \tfrac12 (|p|^2 - |p'|^2)`. With b = 1/4 this is two leapfrog steps; with
b = 0.212 the energy is kept many times better for the same two gradients (Blanes, Casas and Sanz-Serna 2014), so that
steps are longer. Any b gives a map that turns back and keeps volume, and draws are exact.

Random lengths keep trajectories from closing on themselves; where each is a single step, it is whole or shorter by
j/2, at even odds. A length that all chains share keeps every one of them busy. How T is tuned is in
:mod:`boxloop.sample.chees`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.metric import Metric, check_metric, pull, shifted
from boxloop.sample.metropolis import RuleName, metropolis, normals
from boxloop.sample.target import Target
from boxloop.sample.trajectories import DIVERGED, mark_divergences

MOST_GRADIENTS = 256
"""Of one trajectory."""

END, MIDDLE = 2 * 0.21178, 2 * (1.0 - 2 * 0.21178)
"""Changes of momentum in a step of two gradients, in units of h: first and last, and between."""


class Launch(NamedTuple):
    """The randomness of one trajectory.

    Args:
        momentum: (c, d).
        energy: half its squared length, (c,).
        steps: how many.
        share: of h that a step goes.
    """

    momentum: Tensor
    energy: Tensor
    steps: int
    share: float


class Landing(NamedTuple):
    """What tuning the length of trajectories needs to know of one: where it went, and how fast it was there.

    Args:
        start: positions (c, d).
        end: proposed positions, (c, d).
        momentum: there, (c, d).
        length: of the trajectory.
        gradients: that it took.
    """

    start: Tensor
    end: Tensor
    momentum: Tensor
    length: float
    gradients: int


@dataclass(frozen=True, eq=False)
class HMC:
    r"""Hamiltonian trajectories.

    Args:
        scale: h, what is gone for one gradient. Tuned in warm-up when omitted.
        trajectory: T, the longest path in units of the metric. Where omitted it is tuned with the scale, and 5 h beside
            a scale that is given.
        metric: F; scales (d,), or a Cholesky factor (d, d). Where omitted it is tuned with the scale, and the identity
            beside a scale that is given.
        dense: whether warm-up tunes a full metric, or scales of columns; full up to 64 columns when omitted.
        jitter: j, the share of the length that is left to chance; 1 goes a uniform share of T, 0 the whole each time.
            Lengths are rounded up to whole steps; where one is all, it is whole or shorter by half of j, at even odds.
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

    keeps_slopes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_metric(self.metric)
        if self.stages not in (1, 2):
            raise ValueError(f"stages must be 1 or 2, got {self.stages!r}")
        if not 0.0 <= self.jitter <= 1.0:
            raise ValueError(f"jitter must lie between 0 and 1, got {self.jitter}")

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target's law as it is; chains keep the gradient F' grad log pi."""
        metric, rise, stages = self.metric, target.value_and_gradient, self.stages
        last, inner = (END, (2 * END, MIDDLE)) if stages == 2 else (0.5, (1.0, 1.0))

        def init(position: Tensor) -> Chains:
            value, slope = rise(position)
            return Chains(position, value, (pull(metric, slope),))

        def noise(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
            h, length = self.lengths(chains.position.shape[1])
            momenta = normals(chains, n, stream)
            energy = momenta.square().sum(2).mul_(0.5)
            chance = torch.rand(n, generator=stream, device=stream.device).tolist()
            whole = length / (stages * h)
            most = MOST_GRADIENTS // stages
            steps = [max(1, min(most, ceil((1.0 - self.jitter * u) * whole - 1e-9))) for u in chance]
            single = self.jitter / 2 if whole <= 1.0 + 1e-9 else 0.0  # no other length is left to chance
            shares = [1.0 if u < 0.5 else 1.0 - single for u in chance]
            return [Launch(*item) for item in zip(momenta.unbind(), energy.unbind(), steps, shares)]

        def propose(chains: Chains, launch: Launch) -> tuple[Chains, Info]:
            h = self.lengths(chains.position.shape[1])[0] * launch.share
            position, (slope,) = chains.position, chains.auxiliary
            momentum = torch.add(launch.momentum, slope, alpha=last * h)
            gradients, values = stages * launch.steps, []
            for left in range(gradients, 0, -1):
                position = shifted(metric, position, momentum, h)
                value, raw = rise(position)
                values.append(value)
                slope = pull(metric, raw)
                momentum.add_(slope, alpha=h * (last if left == 1 else inner[left % 2 == 0]))
            log_ratio = (value - chains.log_density).add_(launch.energy)
            log_ratio.sub_((momentum * momentum).sum(1), alpha=0.5)
            if log_ratio.is_cuda or not bool(
                log_ratio.amin() > -DIVERGED
            ):  # a graph cannot branch; NaN is not above
                log_ratio = mark_divergences(log_ratio, values, chains.log_density - launch.energy)
            landing = Landing(chains.position, position, momentum, gradients * h, gradients)
            return Chains(position, value, (slope,)), Info(log_ratio, landing)

        return metropolis(init, noise, propose, self.rule)

    def lengths(self, columns: int) -> tuple[float, float]:
        """h and T, or where tuning them starts."""
        h = self.first_scale(columns) if self.scale is None else self.scale
        return h, self.trajectory if self.trajectory is not None else 5.0 * h

    @property
    def goes_far(self) -> bool:
        """Whether trajectories are as long as the target is wide, if the metric is that of the target."""
        return self.metric is not None and self.trajectory is not None and self.trajectory >= 1.0

    def first_scale(self, columns: int) -> float:
        """Where tuning starts."""
        return 1.0 / columns**0.25

    def goal(self, columns: int) -> float:
        """The best acceptance in the limit of many columns, here of the harmonic mean; the plain one is near 0.78."""
        return 0.651 if self.rule == "metropolis" else 0.381

    def tuned(self, scale: float, metric: Metric) -> Self:
        """The same trajectories in other steps."""
        return replace(self, scale=scale, metric=metric)
