"""Problems on which Monte Carlo EM can be judged: a reference by quadrature, and two small ones that collapse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Generator, Tensor

from boxloop.chain import Chains, Info, Kernel
from boxloop.fit import Kernels, LogDensity, MonteCarloPlan, MonteCarloState, monte_carlo_em, warm_up
from boxloop.models import (
    BernoulliResponse,
    GroupedRows,
    RandomEffects,
    group_log_likelihood,
    jacobian,
    modes,
)
from boxloop.numeric import from_log_factor, generator, log_factor, normal
from boxloop.run import run
from boxloop.sample import RandomWalk, Target
from boxloop.tree import Tree, flatten, unflatten

Rows = NDArray[np.float64]


def random_walks(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """Random walk Metropolis, the kernel of these experiments."""
    return RandomWalk(scale=scale, metric=shape).kernel(Target(density))


def logistic_groups(seed: int, groups: int, each: int, deviation: float = 1.0) -> GroupedRows:
    """Zeros and ones of groups whose intercepts have a standard deviation; one column with coefficient -0.8."""
    stream = generator(seed)
    n = groups * each
    group = torch.arange(n) // each
    one = torch.ones(n, 1, dtype=torch.float64)
    fixed = torch.cat([one, normal((n, 1), stream)], 1)
    level = fixed @ torch.tensor([0.3, -0.8]).double() + deviation * normal((groups,), stream)[group]
    return GroupedRows.of(torch.bernoulli(torch.sigmoid(level), generator=stream), fixed, one, group)


def start() -> RandomEffects:
    """Far from the truth in every parameter."""
    two = torch.tensor([[2.0]], dtype=torch.float64)
    return RandomEffects(torch.zeros(2, dtype=torch.float64), two, BernoulliResponse(), shared=(0,))


@dataclass(frozen=True)
class Reference:
    """The maximum of the likelihood by quadrature, with the standard errors of the free parameters."""

    model: RandomEffects
    point: Tensor
    errors: Tensor
    log_likelihood: float

    def distance(self, model: RandomEffects) -> float:
        """Root mean square distance of a model's parameters, in standard errors."""
        return float(((flatten(model.free()) - self.point) / self.errors).square().mean().sqrt())


def reference(model: RandomEffects, rows: GroupedRows, nodes: int = 20) -> Reference:
    """Maximise the likelihood by quadrature and quasi-Newton steps, from ``model``."""
    p, q = len(model.coefficients), len(model.factor)

    def at(vector: Tensor) -> RandomEffects:
        return replace(model, coefficients=vector[:p], factor=from_log_factor(vector[p:], q))

    def loss(values: Rows) -> tuple[float, Rows]:
        vector = torch.tensor(values, requires_grad=True)
        level = -group_log_likelihood(at(vector), rows, nodes).sum()
        (slope,) = torch.autograd.grad(level, vector)
        return float(level.detach()), slope.numpy()

    begin = torch.cat([model.coefficients, log_factor(model.factor)]).numpy()
    found: Any = minimize(loss, begin, jac=True, method="BFGS", options={"gtol": 1e-6})
    best = at(torch.from_numpy(found.x))
    free, centre = best.free(), modes(best, rows)

    def slope(vector: Tensor) -> Tensor:
        level = group_log_likelihood(best.with_free(unflatten(vector, free)), rows, nodes, centre).sum()
        return torch.autograd.grad(level, vector, create_graph=True)[0]

    information = -jacobian(slope, flatten(free))
    errors = torch.linalg.inv(information).diagonal().sqrt()
    return Reference(best, flatten(free), errors, -float(found.fun))


@dataclass(frozen=True)
class Trail:
    """One run: after each round the draws spent for each group, the distance from the maximum, and the deviation."""

    spent: Rows
    distance: Rows
    deviation: Rows


def follow_trail(rows: GroupedRows, truth: Reference, plan: MonteCarloPlan, rounds: int, seed: int) -> Trail:
    """Run a plan and watch it."""
    state = warm_up(MonteCarloState.start(start(), rows, plan.n_chains, generator(seed)), rows, random_walks)
    seen: list[tuple[float, float, float]] = []

    def watch(progress: Any) -> None:
        if not progress.stopped:
            model = progress.state.best
            spread = float(model.covariance[0, 0]) ** 0.5
            seen.append((progress.state.spent - state.spent, truth.distance(model), spread))

    run(monte_carlo_em(rows, random_walks, plan), state, max_rounds=rounds, observers=[watch])
    return Trail(*np.asarray(seen).T)


@dataclass(frozen=True)
class LabelSums(Tree):
    """Counts, (2,), and sums, (2,), of the rows of each component."""

    count: Tensor
    total: Tensor


@dataclass(frozen=True)
class TwoMeans(Tree):
    """Two Gaussians of unit variance with unknown weights and means; the latent value is the label, 0 or 1.

    Args:
        weight: (2,).
        mean: (2,).
    """

    weight: Tensor
    mean: Tensor

    def log_joint(self, rows: Tensor, z: Tensor) -> Tensor:
        """Log-density of each row with each of its labels."""
        label = z[:, 0].long()
        x = rows.repeat_interleave(len(z) // len(rows))
        return self.weight.log()[label] - 0.5 * (x - self.mean[label]).square()

    def statistics(self, rows: Tensor, z: Tensor) -> LabelSums:
        """Mean counts and sums of the components over draws."""
        share = z.reshape(len(rows), -1).mean(1)
        both = torch.stack([1.0 - share, share])
        return LabelSums(both.sum(1), both @ rows)

    def solve(self, statistics: LabelSums) -> Self:
        """Shares and means; an empty component keeps its mean, and never comes back."""
        empty = statistics.count == 0.0
        mean = torch.where(empty, self.mean, statistics.total / statistics.count.clamp(min=1e-300))
        return type(self)(statistics.count / statistics.count.sum(), mean)

    def carry(self, statistics: LabelSums, z: Tensor) -> tuple[LabelSums, Tensor]:
        """Labels have no coordinates to change."""
        return statistics, z

    def follow(self, origin: Self, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Nor here."""
        return z, torch.zeros(len(z), dtype=z.dtype)

    def draw(self, rows: Tensor, copies: int, stream: Generator) -> Tensor:
        """Labels from their law."""
        chance = self.weight[1].expand(len(rows) * copies)
        return torch.bernoulli(chance, generator=stream)[:, None]

    def shape(self) -> Tensor:
        """Of no use to a kernel of labels."""
        return torch.ones(1, 1, dtype=torch.float64)

    def free(self) -> dict[str, Tensor]:
        """Weight of the second component, and the means."""
        return {"weight": self.weight[1:], "mean": self.mean}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The mixture at other values of them."""
        return type(self)(torch.cat([1.0 - free["weight"], free["weight"]]), free["mean"])

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"weights": self.weight, "means": self.mean}


def label_draws(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """Independent draws of a label that is 0 or 1 from its law: no chain mixes better."""

    def chains(position: Tensor) -> Chains:
        return Chains(position, density(position))

    def step(here: Chains, uniform: Tensor) -> tuple[Chains, Info]:
        zero, one = density(torch.zeros_like(here.position)), density(torch.ones_like(here.position))
        drawn = (uniform < torch.sigmoid(one - zero)).to(here.position.dtype)
        return Chains(drawn[:, None], torch.where(drawn == 1.0, one, zero)), Info()

    def noise(here: Chains, n: int, stream: Generator) -> list[Tensor]:
        drawn = torch.rand((n, len(here.position)), generator=stream, dtype=here.position.dtype)
        return list(drawn.unbind())

    return Kernel(chains, noise, step)


def rounds_to_collapse(
    model: Any, rows: Any, kernels: Kernels, plan: MonteCarloPlan, rounds: int, seed: int, gone: Any
) -> int:
    """The round after which ``gone(model)`` holds to the end; ``rounds + 1`` if it does not."""
    state = warm_up(
        MonteCarloState.start(model, rows, plan.n_chains, generator(seed)), rows, kernels, rounds=3
    )
    seen: list[bool] = []

    def watch(progress: Any) -> None:
        if not progress.stopped:
            seen.append(bool(gone(progress.state.model)))

    run(monte_carlo_em(rows, kernels, plan), state, max_rounds=rounds, observers=[watch])
    alive = [k for k, is_gone in enumerate(seen) if not is_gone]
    return (alive[-1] + 2) if alive else 1
