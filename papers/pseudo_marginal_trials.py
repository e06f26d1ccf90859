r"""A random-effects model whose marginal is known, and chains that pretend it is not.

.. math:: y_{ij} = \theta + u_i + e_{ij}, \quad u_i \sim N(0, 1), \quad e_{ij} \sim N(0, \sigma^2), \quad
          \theta \sim N(0, \kappa^2)

Given :math:`\theta`, means of groups are :math:`N(\theta, 1 + \sigma^2 / m)`, so that the posterior of
:math:`\theta` is normal with known moments. The likelihood of each group is estimated with N draws of :math:`u_i` from
its law; W, the product of estimates over groups, is unbiased.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.chain import Kernel, advance
from boxloop.numeric import generator, normal
from boxloop.sample import PseudoMarginal

Array = NDArray[np.float64]

GROUPS, EACH, NOISE, PRIOR = 16, 2, 2.0, 3.0
BEST = 0.8
"""The correlation that is tried for every N."""

TEAMS = 8
"""Groups of chains; what they differ by gives errors."""

BLOCK = 200
"""Steps whose path is held at once."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Means of groups, and all that follows from them.

    Args:
        means: of the rows of each group, (groups,).
    """

    means: Tensor

    @classmethod
    def drawn(cls, seed: int) -> Problem:
        """A data set."""
        stream = generator(seed)
        level = 0.5 + normal((GROUPS, 1), stream)
        return cls((level + NOISE * normal((GROUPS, EACH), stream)).mean(1))

    @property
    def within(self) -> float:
        """Variance of the mean of a group around its level."""
        return NOISE**2 / EACH

    @property
    def variance(self) -> float:
        """Of the posterior."""
        return 1.0 / (1.0 / PRIOR**2 + len(self.means) / (1.0 + self.within))

    @property
    def mean(self) -> float:
        """Of the posterior."""
        return self.variance * float(self.means.sum()) / (1.0 + self.within)

    @property
    def scale(self) -> float:
        """Of every walk."""
        return 2.38 * self.variance**0.5

    def log_density(self, position: Tensor) -> Tensor:
        """Log of the joint density of theta and the means of groups, (c,)."""
        spread = 1.0 + self.within
        gap = (self.means - position).square().sum(1) / spread
        return (
            -0.5 * (gap + len(self.means) * math.log(2.0 * math.pi * spread))
            - 0.5 * (position[:, 0] / PRIOR) ** 2
        )

    def log_estimate(self, draws: int) -> Any:
        """log W from positions (c, 1) and normal numbers (c, groups * draws)."""
        constant = len(self.means) * (0.5 * math.log(2.0 * math.pi * self.within) + math.log(draws))

        def estimate(position: Tensor, numbers: Tensor) -> Tensor:
            gap = (self.means - position)[:, :, None] - numbers.view(len(position), -1, draws)
            inside = gap.square_().mul_(-0.5 / self.within).logsumexp(2).sum(1)
            return inside - constant - 0.5 * (position[:, 0] / PRIOR) ** 2

        return estimate

    def log_normal(self, sd: float) -> Any:
        """The density times a log-normal number with mean one: what theory assumes of W."""

        def estimate(position: Tensor, numbers: Tensor) -> Tensor:
            return self.log_density(position) + sd * numbers[:, 0] - 0.5 * sd * sd

        return estimate

    def noise(self, draws: int, repeats: int, seed: int) -> Array:
        """log W less the log-density, at the posterior mean."""
        numbers = normal((repeats, GROUPS * draws), generator(seed))
        position = torch.full((repeats, 1), self.mean, dtype=torch.float64)
        return np.asarray((self.log_estimate(draws)(position, numbers) - self.log_density(position)).numpy())


@dataclass(frozen=True, eq=False)
class Walked:
    """Draws of theta.

    Args:
        problem: whose.
        label: what was run.
        theta: (c, n).
        accepted: mean chance of acceptance.
    """

    problem: Problem
    label: str
    theta: Array
    accepted: float

    @cached_property
    def table(self) -> Array:
        """theta less its mean and its square, in units of the posterior, (2, c, n)."""
        x = (self.theta - self.problem.mean) / self.problem.variance**0.5
        return np.stack([x, x * x])

    @cached_property
    def errors(self) -> Array:
        """Monte Carlo errors of both means, from effective draws."""
        known: Any = import_module("arviz_stats.base").array_stats
        return np.asarray([float(known.mcse(column, method="mean")) for column in self.table])

    @property
    def z(self) -> Array:
        """Of the mean and of the variance."""
        return np.asarray((self.table.mean((1, 2)) - np.asarray([0.0, 1.0])) / self.errors)

    @property
    def sd(self) -> tuple[float, float]:
        """Standard deviation over that of the posterior, around the exact mean, with its error."""
        found = float(self.table[1].mean()) ** 0.5
        return found, 0.5 * float(self.errors[1]) / found

    @cached_property
    def teams(self) -> Array:
        """Effective draws a draw of theta, by each of several groups of chains."""
        known: Any = import_module("arviz_stats.base").array_stats
        parts = np.array_split(self.table[0], TEAMS)
        return np.asarray([float(known.ess(part, method="mean")) / part.size for part in parts])

    @property
    def worth(self) -> float:
        """Effective draws a draw."""
        return float(self.teams.mean())

    @property
    def error(self) -> float:
        """Its standard error."""
        return float(self.teams.std() / (TEAMS - 1) ** 0.5)


def walk(problem: Problem, kernel: Kernel, label: str, steps: int, chains: int, seed: int) -> Walked:
    """Run chains from exact draws of theta; a quarter as many steps come first, since W begins untilted."""
    stream = generator(seed)
    start = problem.mean + problem.variance**0.5 * normal((chains, 1), stream)
    first = max(1, steps // 4)
    chained = kernel.init(start)
    draws, chance = [], 0.0
    for begin in range(0, first + steps, BLOCK):
        path = advance(kernel, chained, min(BLOCK, first + steps - begin), stream)
        chained = path.chains
        draws.append(path.position[:, :, 0])
        assert path.log_ratio is not None
        assert kernel.chance is not None
        chance += float(kernel.chance(path.log_ratio).mean()) * len(path.position)
    theta = torch.cat(draws)[first:].T.contiguous().numpy()
    return Walked(problem, label, theta, chance / (first + steps))


def importance(problem: Problem, draws: int, seed: int, correlation: float = 0.0) -> Kernel:
    """Pseudo-marginal Metropolis with so many draws a group."""
    return PseudoMarginal(
        problem.log_estimate(draws), GROUPS * draws, correlation, scale=problem.scale, random_state=seed
    ).kernel()


def idealised(problem: Problem, sd: float, seed: int) -> Kernel:
    """The same walk with log-normal noise of a given sd."""
    return PseudoMarginal(problem.log_normal(sd), 1, scale=problem.scale, random_state=seed).kernel()


def refreshing(problem: Problem, draws: int, seed: int) -> Kernel:
    """A planted bug: W of the current state is drawn anew before every step."""
    stream = generator(seed)
    kernel = PseudoMarginal(
        problem.log_estimate(draws), GROUPS * draws, scale=problem.scale, random_state=stream
    ).kernel()
    return kernel._replace(step=lambda chains, item: kernel.step(kernel.init(chains.position), item))


@dataclass
class Runs:
    """All that was run.

    Args:
        exact: with the marginal itself.
        spread: standard deviation of log W at the posterior mean, by N.
        bias: z-score of the mean of W there, by N.
        plain: by N.
        refreshed: with W of the current state drawn anew, by N.
        correlated: by N and correlation.
        ideal: with log-normal noise, by its standard deviation.
    """

    exact: Walked
    spread: dict[int, float] = field(default_factory=dict)
    bias: dict[int, float] = field(default_factory=dict)
    plain: dict[int, Walked] = field(default_factory=dict)
    refreshed: dict[int, Walked] = field(default_factory=dict)
    correlated: dict[tuple[int, float], Walked] = field(default_factory=dict)
    ideal: dict[float, Walked] = field(default_factory=dict)

    def told(self) -> dict[str, Any]:
        """Numbers behind the picture."""

        def line(run: Walked) -> dict[str, float]:
            z = run.z
            return {
                "effective draws a draw": run.worth,
                "error": run.error,
                "acceptance": run.accepted,
                "sd over the exact one": run.sd[0],
                "z of the mean": float(z[0]),
                "z of the variance": float(z[1]),
            }

        return {
            "exact": line(self.exact),
            "sd of log W": {str(n): sd for n, sd in self.spread.items()},
            "independent": {str(n): line(run) for n, run in self.plain.items()},
            "refreshed": {str(n): line(run) for n, run in self.refreshed.items()},
            "correlated": {f"{n}, {rho:g}": line(run) for (n, rho), run in self.correlated.items()},
            "log-normal": {f"{sd:g}": line(run) for sd, run in self.ideal.items()},
        }
