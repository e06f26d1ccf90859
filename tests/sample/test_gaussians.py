"""Exact Gaussians: means, variances and covariances of every kernel, by both rules, in 1, 2 and 10 columns.

Errors are those of independent chains: each chain gives one average of a function, and the spread of these averages
over the chains is the Monte Carlo error of their mean. No effective size has to be estimated for it.

False alarms: ``ALARM`` over all scores of this file, a fixed seed each. A score passes below |z| = 5.2; with a limit of
4 for each of some 2,000 scores one run in eight would fail.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from boxloop.chain import advance
from boxloop.numeric import generator, normal
from boxloop.sample import HMC, MALA, Gibbs, RandomWalk, check_reversible, diagnose, sample_density
from sample.cases import ESTIMATES, KERNELS, RULES, Gaussian, exact_draws, kernel_of

ALARM = 5e-4
SCORES = 2200
LIMIT = float(norm.isf(0.5 * ALARM / SCORES))


def moments(x: Tensor, gaussian: Gaussian) -> Tensor:
    """Columns, and products of pairs of them, less what they should be on average; (..., functions)."""
    d = len(gaussian.mean)
    i, j = torch.triu_indices(d, d)
    apart = x - gaussian.mean
    scale = gaussian.covariance.diagonal().sqrt()
    second = apart[..., i] * apart[..., j] - gaussian.covariance[i, j]
    return torch.cat([apart / scale, second / (scale[i] * scale[j])], -1)


def chain_scores(positions: Tensor, gaussian: Gaussian) -> Tensor:
    """z of each function, from the averages of independent chains; positions are (n, c, d)."""
    averages = moments(positions.double(), gaussian).mean(0)
    return averages.mean(0) / (averages.std(0) / len(averages) ** 0.5)


@pytest.mark.parametrize("d", [1, 2, 10])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", KERNELS)
def test_moments_are_found(name: str, rule: Any, d: int) -> None:
    """From a start that is nowhere near the distribution: 2.5 deviations off in every column."""
    gaussian = Gaussian.of(d)
    kernel = KERNELS[name](gaussian, rule).kernel(gaussian.target)
    start = gaussian.mean + 2.5 * gaussian.covariance.diagonal().sqrt() * torch.ones(200, d).double()
    # Without the covariance, whose condition number is 89 in ten columns, a walk or a gradient is slow to come in.
    burn = {"walk": 1500, "langevin": 600}.get(name, 300) if d == 10 else 100
    chains = advance(kernel, kernel.init(start), burn, generator(7)).chains
    path = advance(kernel, chains, 120, generator(8))
    z = chain_scores(path.position, gaussian)
    assert float(z.abs().max()) < LIMIT, z


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", KERNELS)
def test_a_step_from_exact_draws_changes_nothing(name: str, rule: Any) -> None:
    """Invariance and detailed balance by chance, each kernel on the distribution it is exact for; level 1e-5 each."""
    gaussian = Gaussian.of(2)
    check = check_reversible(
        kernel_of(name, gaussian, rule),
        exact_draws(name, gaussian),
        chains=20_000,
        level=1e-5,
        random_state=3,
    )
    assert not check.exact
    assert check.tests >= 15
    assert check.invariant, check
    assert check.reversible, check


@pytest.mark.parametrize(
    ("kernel", "d"),
    [(kernel, d) for kernel in ("hmc", "mala", "random_walk") for d in (1, 2, 10)] + [(None, 2)],
)
def test_sampling_from_one_point(kernel: Any, d: int) -> None:
    """As a user does it: tuned, a few chains, errors by effective draws."""
    gaussian = Gaussian.of(d)
    draws = sample_density(
        gaussian.log_density, torch.zeros(d).double(), kernel, chains=8, draws=250, warmup=300, random_state=1
    )
    table = moments(draws["x"], gaussian).numpy()
    z = table.mean((0, 1)) / diagnose(table).mcse
    assert np.abs(z).max() < LIMIT


def test_blocks_of_a_gaussian() -> None:
    """Exact conditional draws, Metropolis within Gibbs, and both at once."""
    gaussian = Gaussian.of(3)
    precision = torch.cholesky_inverse(gaussian.factor)

    def conditional(place: slice) -> Any:
        rest = torch.tensor([i for i in range(3) if i not in range(3)[place]])
        inner = torch.linalg.inv(precision[place, place])
        slope = -inner @ precision[place][:, rest]
        factor = torch.linalg.cholesky(inner)

        def draw(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
            x = torch.cat([values["a"], values["b"]], 1)
            mean = gaussian.mean[place] + (x - gaussian.mean)[:, rest] @ slope.mT
            return mean + normal(tuple(mean.shape), stream) @ factor.mT

        return draw

    drawn = {"a": conditional(slice(0, 1)), "b": conditional(slice(1, 3))}
    start = {"a": torch.zeros(300, 1).double(), "b": torch.zeros(300, 2).double()}
    for blocks in (
        drawn,
        {"a": drawn["a"], "b": RandomWalk(1.0)},
        {"b": MALA(0.8), "a": RandomWalk(1.0)},
        {"a": HMC(0.5, 1.5), "b": drawn["b"]},
    ):
        draws = sample_density(
            lambda v: gaussian.log_density(torch.cat([v["a"], v["b"]], 1)),
            start,
            Gibbs(blocks),
            draws=100,
            warmup=150,
            random_state=4,
        )
        z = chain_scores(draws.positions, gaussian)
        assert float(z.abs().max()) < LIMIT, z


@pytest.mark.parametrize("name", [name for name in KERNELS if name not in ESTIMATES])
def test_single_precision(name: str) -> None:
    gaussian = Gaussian.of(2, dtype=torch.float32)
    kernel = KERNELS[name](gaussian, "metropolis").kernel(gaussian.target)
    chains = kernel.init(gaussian.draw(400, generator(0)))
    z = chain_scores(advance(kernel, chains, 100, generator(1)).position, gaussian)
    assert float(z.abs().max()) < LIMIT, z


def test_the_number_of_scores_is_what_the_rate_was_reckoned_with() -> None:
    functions = {d: d + d * (d + 1) // 2 for d in (1, 2, 3, 10)}
    three = functions[1] + functions[2] + functions[10]
    scores = three * (2 * len(KERNELS) + 4) + 4 * functions[3] + (len(KERNELS) - 2) * functions[2]
    assert scores <= SCORES
