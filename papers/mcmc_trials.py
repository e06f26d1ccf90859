r"""Chains on standard Gaussians: scales tuned in warm-up, and what a draw is worth.

Chains begin in stationarity, and mean and variance are known. So the integrated autocorrelation time is n times the
mean square of chain averages over all chains and columns, with nothing to truncate; for an autocorrelation that falls
by a constant factor that is

.. math:: n \, E[\bar x^2] = \tau - \tau^2 / 2n

up to terms of higher order, which is solved for :math:`\tau`. Effective draws a draw are :math:`1 / \tau`.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.numeric import generator, normal
from boxloop.sample import HMC, MALA, Metric, RandomWalk, SampleWarning, Target, diagnose, sample
from papers.mcmc_theory import LENGTH, mean_cost

Array = NDArray[np.float64]

BLOCK = 1 << 18
"""Numbers of a path that are held at once."""

KEPT, SEEN = 1000, 64
"""Draws of each chain, and chains, that Monte Carlo errors are computed from."""


def gaussian() -> Target:
    """The standard Gaussian, with its gradient."""

    def density(position: Tensor) -> Tensor:
        return position.square().sum(1).mul_(-0.5)

    return Target(density, lambda position: (density(position), -position))


def make(name: str, scale: float | None = None, rule: Any = "metropolis", metric: Metric = None) -> Any:
    """An algorithm by its name."""
    if name == "HMC":
        return HMC(scale=scale, trajectory=LENGTH, metric=metric, rule=rule, jitter=1.0, stages=1)
    kind = RandomWalk if name == "random walk" else MALA
    return kind(scale=scale, metric=metric, rule=rule)


@dataclass(frozen=True, eq=False)
class Aimed:
    """An algorithm whose warm-up aims at one acceptance, and starts from one scale, whatever the columns."""

    name: str
    accept: float
    scale: float | None = None
    metric: Metric = None
    dense: bool | None = None

    keeps_slopes: ClassVar[bool] = True

    def kernel(self, target: Target) -> Kernel:
        """That of the algorithm."""
        kernel: Kernel = make(self.name, self.scale, metric=self.metric).kernel(target)
        return kernel

    def first_scale(self, columns: int) -> float:
        """1, for every d."""
        return 1.0

    def goal(self, columns: int) -> float:
        """The same for every d."""
        return self.accept

    def tuned(self, scale: float, metric: Metric) -> Self:
        """With another scale."""
        return replace(self, scale=scale, metric=metric)


def tuned_scale(name: str, goal: float, d: int, chains: int, warmup: int, seed: int) -> float:
    """The scale that warm-up finds."""
    algorithm = Aimed(name, goal, metric=torch.ones(d, dtype=torch.float64))
    start = normal((chains, d), generator(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SampleWarning)  # few draws on purpose
        draws = sample(gaussian(), start, algorithm, warmup=warmup, draws=8, random_state=seed)
    return float(draws.algorithm.scale)


@dataclass(frozen=True)
class Measured:
    """What a run showed.

    Args:
        name: of the algorithm.
        rule: of acceptance.
        d: columns.
        scale: h.
        steps: n, of each chain.
        accepted: mean chance of acceptance.
        cost: densities or gradients a draw, in the mean.
        means: of each chain and column, (c, d).
        table: a column, the mean square of all and a product of two, of some draws and chains, (c, n, 3).
    """

    name: str
    rule: str
    d: int
    scale: float
    steps: int
    accepted: float
    cost: float
    means: Array
    table: Array

    @property
    def squares(self) -> Array:
        """n times the mean square of the averages of each chain, (c,)."""
        return self.steps * np.asarray((self.means**2).mean(1))

    @property
    def worth(self) -> float:
        """Effective draws a draw."""
        return worth_of(float(self.squares.mean()), self.steps)

    @property
    def error(self) -> float:
        """Its standard error."""
        squares = self.squares
        return self.worth * float(squares.std() / squares.mean() / max(len(squares) - 1, 1) ** 0.5)

    @property
    def z(self) -> Array:
        """Means of the functions less their exact values, in Monte Carlo errors from effective draws."""
        return np.asarray((self.table.mean((0, 1)) - np.asarray([0.0, 1.0, 0.0])) / diagnose(self.table).mcse)


def worth_of(square: float, steps: int) -> float:
    """1 / tau from n times the mean square of averages."""
    return 1.0 / (steps * (1.0 - max(1.0 - 2.0 * square / steps, 0.0) ** 0.5))


def measure(
    name: str, scale: float, d: int, steps: int, chains: int, seed: int, rule: str = "metropolis"
) -> Measured:
    """Run chains from exact draws."""
    kernel = make(name, scale, rule).kernel(gaussian())
    stream = generator(seed)
    chained = kernel.init(normal((chains, d), stream))
    total, chance = torch.zeros(chains, d, dtype=torch.float64), 0.0
    seen = []
    every = max(1, steps // KEPT)
    block = every * max(1, BLOCK // (chains * d * every))
    for first in range(0, steps, block):
        path = advance(kernel, chained, min(block, steps - first), stream)
        chained = path.chains
        total += path.position.sum(0)
        assert path.log_ratio is not None
        assert kernel.chance is not None
        chance += float(kernel.chance(path.log_ratio).sum())
        seen.append(_functions(path.position[every - 1 :: every, :SEEN]))
    return Measured(
        name,
        rule,
        d,
        scale,
        steps,
        chance / (steps * chains),
        mean_cost(name, scale),
        (total / steps).numpy(),
        torch.cat(seen, 1).numpy(),
    )


def _functions(position: Tensor) -> Tensor:
    """The first column, the mean square of all, and a product of two, (c, n, 3)."""
    found = [position[..., 0], position.square().mean(-1), position[..., 0] * position[..., 1]]
    return torch.stack(found, -1).transpose(0, 1)
