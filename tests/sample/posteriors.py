"""Two models with data of each chain's own, one conjugate and one not, and every kernel on their posteriors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.chain import Kernel
from boxloop.distributions import DiagonalGaussian
from boxloop.numeric import generator, normal
from boxloop.sample import (
    HMC,
    MALA,
    Gibbs,
    Independent,
    MetropolisHastings,
    ParameterSpace,
    PseudoMarginal,
    RandomWalk,
    RuleName,
    Target,
)
from sample.cases import NOISE, extended


@dataclass(frozen=True)
class Model:
    """A prior, a simulator, and the log-density of parameters given each chain's data."""

    prior: Callable[[int, Generator], Tensor]
    simulate: Callable[[Tensor, Generator], Tensor]
    log_density: Callable[[Tensor, Tensor], Tensor]


NORMAL = Model(
    prior=lambda n, stream: normal((n, 2), stream),
    simulate=lambda theta, stream: theta[:, None] + normal((len(theta), 3, 2), stream),
    log_density=lambda theta, data: (
        -0.5 * theta.square().sum(1) - 0.5 * (data - theta[:, None]).square().sum((1, 2))
    ),
)
"""Two means, each of three rows of variance one: the posterior is normal."""

DESIGN = torch.cat([torch.ones(8, 1).double(), normal((8, 1), generator(11))], 1)


def _coins(theta: Tensor, stream: Generator) -> Tensor:
    chance = torch.sigmoid(theta @ DESIGN.mT)
    return (torch.rand(chance.shape, generator=stream, dtype=torch.float64) < chance).double()


LOGISTIC = Model(
    prior=lambda n, stream: 1.5 * normal((n, 2), stream),
    simulate=_coins,
    log_density=lambda theta, data: (
        -0.5 * (theta / 1.5).square().sum(1)
        - torch.nn.functional.softplus((1.0 - 2.0 * data) * (theta @ DESIGN.mT)).sum(1)
    ),
)
"""Logistic regression on eight rows."""

MODELS = {"normal": NORMAL, "logistic": LOGISTIC}


def _tilted(density: Callable[[Tensor], Tensor], rule: RuleName) -> MetropolisHastings:
    """y = 0.8 x + 0.1 + 0.7 z, with its ratio."""

    def log_q(x: Tensor, y: Tensor) -> Tensor:
        return -0.5 * ((y - 0.8 * x - 0.1) / 0.7).square().sum(1)

    return MetropolisHastings(
        lambda x, stream: 0.8 * x + 0.1 + 0.7 * normal(tuple(x.shape), stream),
        lambda x, y: density(y) - density(x) + log_q(y, x) - log_q(x, y),
        rule,
    )


def _wide() -> DiagonalGaussian:
    return DiagonalGaussian(torch.full((1, 2), 0.2).double(), torch.full((1, 2), 1.5).double())


ALGORITHMS: dict[str, Callable[[Callable[[Tensor], Tensor], RuleName], Any]] = {
    "walk": lambda density, rule: RandomWalk(1.2, rule=rule),
    "langevin": lambda density, rule: MALA(0.8, rule=rule),
    "hamiltonian": lambda density, rule: HMC(0.4, 1.2, rule=rule),
    "hamiltonian by leapfrog": lambda density, rule: HMC(0.4, 1.2, jitter=1.0, rule=rule, stages=1),
    "independent": lambda density, rule: Independent(_wide(), rule),
    "generalised": _tilted,
}


def posterior(model: Model, name: str, rule: RuleName = "metropolis") -> Callable[[Tensor], Kernel]:
    """Data of each chain -> the kernel of their posteriors."""

    def kernel(data: Tensor) -> Kernel:
        def density(theta: Tensor) -> Tensor:
            return model.log_density(theta, data)

        if name == "gibbs":
            return _sweep(density, data)
        if name in ("pseudo-marginal", "correlated"):
            return _estimated(density, name, rule)
        return ALGORITHMS[name](density, rule).kernel(Target(density))

    return kernel


def _estimated(density: Callable[[Tensor], Tensor], name: str, rule: RuleName) -> Kernel:
    """On parameters with the number behind their estimate: the distribution it is exact for, see ``with_numbers``."""

    def log_estimate(theta: Tensor, v: Tensor) -> Tensor:
        return density(theta) + NOISE * v[:, 0] - 0.5 * NOISE**2

    algorithm = PseudoMarginal(log_estimate, 1, 0.8 if name == "correlated" else 0.0, scale=1.2, rule=rule)
    return extended(algorithm.kernel(), 1, log_estimate)


def with_numbers(model: Model) -> Model:
    """The model with one more parameter that data do not depend on: the number behind an estimate, N(NOISE, 1)."""
    return Model(
        prior=lambda n, stream: torch.cat([model.prior(n, stream), NOISE + normal((n, 1), stream)], 1),
        simulate=lambda theta, stream: model.simulate(theta[:, :2], stream),
        log_density=model.log_density,
    )


def _sweep(density: Callable[[Tensor], Tensor], data: Tensor) -> Kernel:
    """For the normal model: the first mean by its conditional distribution, the second by a walk."""

    def draw(values: dict[str, Tensor], stream: Generator) -> Tensor:
        return data[:, :, :1].sum(1) / 4.0 + 0.5 * normal((len(data), 1), stream)

    space = ParameterSpace.from_start(
        {"a": torch.zeros(len(data), 1).double(), "b": torch.zeros(len(data), 1).double()}
    )
    return Gibbs({"a": draw, "b": RandomWalk(1.0)}).kernel(Target(density, None, space))
