"""Targets with known moments, and every kernel on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.distributions import FullGaussian
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    MALA,
    Independent,
    MetropolisHastings,
    PseudoMarginal,
    RandomWalk,
    RuleName,
    Target,
)

RULES: tuple[RuleName, ...] = ("metropolis", "barker")
NOISE = 0.6
"""Standard deviation of the log of a pseudo-marginal estimate."""


@dataclass(frozen=True)
class Gaussian:
    """An exact target: N(mean, F F')."""

    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, d: int, scale: float | Tensor = 1.0, dtype: torch.dtype = torch.float64) -> Gaussian:
        """Correlated, with a mean that is not zero; columns of any scale."""
        stream = generator(d)
        root = 0.4 * normal((d, d), stream, dtype).tril(-1) + torch.diag(
            0.5 + torch.rand(d, generator=stream, dtype=dtype)
        )
        unit = torch.as_tensor(scale, dtype=dtype).expand(d)
        return cls(unit * normal((d,), stream, dtype), unit[:, None] * root)

    @property
    def covariance(self) -> Tensor:
        return self.factor @ self.factor.mT

    def log_density(self, x: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(self.factor, (x - self.mean).mT, upper=False)
        return -0.5 * z.square().sum(0)

    def rise(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Value and gradient by formula: it can be differentiated again."""
        apart = x - self.mean
        slope = -torch.cholesky_solve(apart.mT, self.factor).mT
        return 0.5 * (apart * slope).sum(1), slope

    @property
    def target(self) -> Target:
        return Target(self.log_density)

    def draw(self, n: int, stream: Generator) -> Tensor:
        return self.mean + normal((n, len(self.mean)), stream, self.mean.dtype) @ self.factor.mT

    def distribution(self, wider: float = 1.3) -> FullGaussian:
        """A proposal that covers it."""
        return FullGaussian.from_covariance(self.mean[None] + 0.2 * wider, wider**2 * self.covariance[None])


Make = Callable[[Gaussian, RuleName], Any]


def _contraction(gaussian: Gaussian, rule: RuleName) -> MetropolisHastings:
    """y = 0.6 x + 0.4 m + 0.9 F (z + 0.2): a proposal that is not symmetric, with its own ratio.

    Its own distribution is wider than the target; by a narrower one chains far out would hardly come in.
    """
    root = 0.9 * gaussian.factor
    shift = 0.4 * gaussian.mean + 0.2 * root.sum(1)

    def log_proposal(x: Tensor, y: Tensor) -> Tensor:
        z = torch.linalg.solve_triangular(root, (y - 0.6 * x - shift).mT, upper=False)
        return -0.5 * z.square().sum(0)

    def propose(x: Tensor, stream: Generator) -> Tensor:
        return 0.6 * x + shift + normal(tuple(x.shape), stream, x.dtype) @ root.mT

    def log_ratio(x: Tensor, y: Tensor) -> Tensor:
        rise = gaussian.log_density(y) - gaussian.log_density(x)
        return rise + log_proposal(y, x) - log_proposal(x, y)

    return MetropolisHastings(propose, log_ratio, rule)


def _noisy(gaussian: Gaussian) -> Callable[[Tensor, Tensor], Tensor]:
    """Log-normal noise of mean one."""
    return lambda x, v: gaussian.log_density(x) + NOISE * v[:, 0] - 0.5 * NOISE**2


def _diagonal(gaussian: Gaussian) -> Tensor:
    return gaussian.covariance.diagonal().sqrt()


KERNELS: dict[str, Make] = {
    "walk": lambda g, rule: RandomWalk(_step(g), metric=_diagonal(g), rule=rule),
    "walk of full covariance": lambda g, rule: RandomWalk(_step(g), metric=g.factor, rule=rule),
    "langevin": lambda g, rule: MALA(_step(g) / 2.0, metric=_diagonal(g), rule=rule),
    "langevin of full covariance": lambda g, rule: MALA(1.3, metric=g.factor, rule=rule),
    "hamiltonian": lambda g, rule: HMC(_step(g) / 5.0, 1.5, metric=_diagonal(g), rule=rule),
    "hamiltonian of full covariance": lambda g, rule: HMC(0.9, 2.5, metric=g.factor, rule=rule),
    "hamiltonian by leapfrog": lambda g, rule: HMC(
        _step(g) / 3.0, 1.5, metric=_diagonal(g), jitter=1.0, rule=rule, stages=1
    ),
    "independent": lambda g, rule: Independent(g.distribution(), rule),
    "generalised": _contraction,
    "pseudo-marginal": lambda g, rule: PseudoMarginal(
        _noisy(g), 1, scale=_step(g), metric=g.factor, rule=rule
    ),
    "correlated": lambda g, rule: PseudoMarginal(
        _noisy(g), 1, 0.9, scale=_step(g), metric=g.factor, rule=rule
    ),
}
"""Every algorithm with steps that suit a Gaussian."""


def _step(gaussian: Gaussian) -> float:
    return 2.0 / len(gaussian.mean) ** 0.5


SLOPES = [name for name in KERNELS if name.startswith(("langevin", "hamiltonian"))]
ESTIMATES = ("pseudo-marginal", "correlated")


def extended(kernel: Kernel, numbers: int, log_estimate: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    """A pseudo-marginal kernel on what it is exact for: positions with the numbers behind their estimate.

    The distribution of those is that of positions, times the numbers' own, times W.
    """

    def init(position: Tensor) -> Chains:
        x, v = position[:, :-numbers], position[:, -numbers:]
        return Chains(position, log_estimate(x, v))

    def inside(chains: Chains) -> Chains:
        x, v = chains.position[:, :-numbers], chains.position[:, -numbers:]
        return Chains(x, chains.log_density, (v,))

    def step(chains: Chains, item: Any) -> tuple[Chains, Info]:
        there, info = kernel.step(inside(chains), item)
        return Chains(torch.cat([there.position, there.auxiliary[0]], 1), there.log_density), info

    return Kernel(
        init, lambda chains, n, stream: kernel.noise(inside(chains), n, stream), step, kernel.chance
    )


def exact_draws(name: str, gaussian: Gaussian) -> Callable[[int, Generator], Tensor]:
    """Draws of the distribution that a kernel leaves as it is; of an estimate's numbers too."""

    def draw(n: int, stream: Generator) -> Tensor:
        x = gaussian.draw(n, stream)
        if name not in ESTIMATES:
            return x
        return torch.cat([x, NOISE + normal((n, 1), stream, x.dtype)], 1)

    return draw


def kernel_of(name: str, gaussian: Gaussian, rule: RuleName = "metropolis") -> Kernel:
    """The kernel on the distribution of ``exact_draws``."""
    kernel = KERNELS[name](gaussian, rule).kernel(gaussian.target)
    return extended(kernel, 1, _noisy(gaussian)) if name in ESTIMATES else kernel
