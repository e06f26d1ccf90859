"""Algorithm 4 of document 002 on simulated rows, and the exact posterior of its means by quadrature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import ArraySource
from boxloop.distributions import Node
from boxloop.fit import Cavi, EMState, Order, Step, cavi, elbo, em
from boxloop.loop import run
from boxloop.models import KnownVarianceMixture
from boxloop.numeric import generator, normal

Rows = NDArray[np.float64]

PRIOR = 9.0
"""Variance of the prior of the means."""
LOG_2PI = math.log(2 * math.pi)
TOL = 1e-11


@dataclass(frozen=True)
class Problem:
    """Rows of a mixture of k components of equal weight, whose true means lie ``apart`` from one another."""

    x: Tensor
    k: int
    apart: float

    @property
    def weight(self) -> Tensor:
        """Known weights, (k,)."""
        return torch.full((self.k,), 1.0 / self.k, dtype=torch.float64)

    @classmethod
    def drawn(cls, n: int, k: int, apart: float, seed: int) -> Problem:
        """Components have as many rows as one another, or one more."""
        means = apart * (torch.arange(k, dtype=torch.float64) - 0.5 * (k - 1))
        return cls(means[torch.arange(n) % k] + normal((n,), generator(seed)), k, apart)


@dataclass(frozen=True)
class Ascent:
    """One run: the bound after every sweep, and the law of the means at the end."""

    trace: Rows
    model: KnownVarianceMixture

    @property
    def fall(self) -> float:
        """Largest fall of the bound in a sweep, relative to the bound; negative where none fell."""
        return float(np.max(-np.diff(self.trace) / np.abs(self.trace[:-1])))


def ascend(problem: Problem, seed: int, sweeps: int = 5000) -> Ascent:
    """Algorithm 4 by its formulas, from means drawn from their prior."""
    n = len(problem.x)
    means = PRIOR**0.5 * normal((problem.k, 1), generator(seed))
    start = KnownVarianceMixture.at(means, problem.weight, PRIOR, n)
    step: Step[KnownVarianceMixture] = em(ArraySource(problem.x[:, None]), elbo)
    outcome = run(step, EMState(start), max_iter=sweeps, tol=TOL / n, monotone=True)
    return Ascent(n * np.asarray(outcome.trace), outcome.state.model)


def log_joint(problem: Problem) -> Any:
    """The log-joint of section 3.3, as a function of statistics."""
    x, log_weight = problem.x[:, None], problem.weight.log()

    def joint(t: dict[str, Any]) -> Tensor:
        mu, c = t["mu"], t["c"].value
        prior = -0.5 * (mu.square / PRIOR + math.log(PRIOR) + LOG_2PI).sum()
        return prior + (c * (log_weight - 0.5 * (x**2 - 2 * x * mu.value + mu.square + LOG_2PI))).sum()

    return joint


def generic(problem: Problem, seed: int, order: Order, sweeps: int = 2000, tol: float = 1e-9) -> Cavi:
    """The same algorithm from the log-joint alone, by autograd, from the same start as :func:`ascend`."""
    means = PRIOR**0.5 * normal((problem.k,), generator(seed))
    spread = 1.0 / (1.0 + 1.0 / PRIOR)
    nodes = {
        "c": Node.categorical(problem.k, len(problem.x), {"probability": 1.0 / problem.k}),
        "mu": Node.normal(problem.k, {"mean": means, "variance": spread}),
    }
    return cavi(nodes, log_joint(problem), order=order, max_iter=sweeps, tol=tol, random_state=seed)


def sweep_difference(problem: Problem, seed: int, sweeps: int) -> float:
    """Largest difference of means, variances and shares between formulas and generic engine, over every sweep."""
    worst = 0.0
    step: Step[KnownVarianceMixture] = em(ArraySource(problem.x[:, None]), elbo)
    means = PRIOR**0.5 * normal((problem.k, 1), generator(seed))
    state = EMState(KnownVarianceMixture.at(means, problem.weight, PRIOR, len(problem.x)))
    for sweep in range(1, sweeps + 1):
        share = state.model.posterior(problem.x[:, None])
        state = step(state).state
        found = generic(problem, seed, "sweep", sweep, tol=0.0)
        pairs = [
            (found["mu"].mean, state.model.mean[:, 0]),
            (found["mu"].sd ** 2, state.model.variance),
            (found["c"].mean, share),
        ]
        worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
    return worst


def rounds_to_settle(found: Cavi, within: float = 1e-4) -> int:
    """Rounds until the bound is this close to where it ends."""
    return int(np.flatnonzero(np.asarray(found.trace) >= found.elbo - within)[0])


@dataclass(frozen=True)
class Exact:
    """The posterior of the means on a grid.

    Args:
        axis: values of each mean, (g,).
        log_density: log p(x, mu), (g, ..., g).
        log_evidence: log p(x).
        error: its change when every other value is left out.
    """

    axis: Tensor
    log_density: Tensor
    log_evidence: float
    error: float

    def ordered(self) -> tuple[Rows, Rows]:
        """Posterior of each of two means given that the first is the smaller: densities (2, g), deviations (2,)."""
        a = self.axis
        inside = (a[:, None] < a).double() + 0.5 * (a[:, None] == a).double()
        mass = self.log_density.reshape(-1).softmax(0).reshape(len(a), len(a)) * inside
        mass = mass / mass.sum()
        shares = torch.stack([mass.sum(1), mass.sum(0)])
        mean = shares @ a
        deviation = (shares @ a.square() - mean.square()).sqrt()
        return (shares / (a[1] - a[0])).numpy(), deviation.numpy()


def _heights(problem: Problem, axis: Tensor) -> Tensor:
    """log p(x, mu) over the product of axes; a few rows are multiplied before a log is taken."""
    k, g = problem.k, len(axis)
    views = [(1,) * j + (g,) + (1,) * (k - 1 - j) for j in range(k)]
    prior = -0.5 * (axis.square() / PRIOR + math.log(PRIOR) + LOG_2PI)
    total = sum((prior.reshape(view) for view in views), torch.zeros((g,) * k, dtype=torch.float64))
    one, product = torch.empty_like(total), torch.empty_like(total)
    for part in problem.x.split(8):
        product.fill_(1.0)
        for x in part:
            level = (-0.5 * (x - axis).square()).exp() / k
            rest = sum((level.reshape(view) for view in views[1:-1]), level.reshape(views[0]))
            product.mul_(torch.add(rest, level, out=one))
        total.add_(product.log_())
    return total - 0.5 * len(problem.x) * LOG_2PI


def exact_posterior(problem: Problem, tol: float = 1e-7, most: int = 4_000_000) -> Exact:
    """Trapezoidal rule over the means, which all have one range: where the posterior is, whatever their order."""
    reach = 7.0 * PRIOR**0.5 + float(problem.x.abs().max())
    axis = torch.linspace(-reach, reach, 1 + 4 * math.ceil(reach / 2.0), dtype=torch.float64)
    while True:
        heights = _heights(problem, axis)
        spacing = float(axis[1] - axis[0])
        total, coarse = (
            float(heights[(slice(None, None, every),) * problem.k].reshape(-1).logsumexp(0))
            + problem.k * math.log(every * spacing)
            for every in (1, 2)
        )
        share = heights.reshape(len(axis), -1).logsumexp(1).softmax(0)
        kept = torch.nonzero(share > 1e-13)[:, 0]
        low, high = float(axis[kept[0]]) - 2 * spacing, float(axis[kept[-1]]) + 2 * spacing
        steps = 2 * math.ceil((high - low) / spacing)
        if abs(total - coarse) < tol or (steps + 1) ** problem.k > most:
            return Exact(axis, heights, total, max(abs(total - coarse), 1e-14 * abs(total)))
        axis = torch.linspace(low, high, steps + 1, dtype=torch.float64)


def information_ratio(apart: float) -> float:
    r"""Limit of the deviation under q over the exact one, for two components of equal weight and many rows.

    Under q the precision of a mean is that of its labelled rows, :math:`n/2`. The exact covariance is the inverse of
    the information in unlabelled rows, :math:`n E[s s^\top]` with
    :math:`s_k = \phi_k(x) (x - \mu_k)` (Louis 1982): the labels' share of the information is what q believes to have.
    """
    centre = torch.tensor([-0.5 * apart, 0.5 * apart], dtype=torch.float64)
    x = torch.linspace(-10.0 - apart, 10.0 + apart, 4001, dtype=torch.float64)
    log_joint = -0.5 * (x[:, None] - centre).square() - 0.5 * LOG_2PI - math.log(2.0)
    density = log_joint.logsumexp(1).exp() * (x[1] - x[0])
    score = log_joint.softmax(1) * (x[:, None] - centre)
    information = (score * density[:, None]).mT @ score
    exact = torch.linalg.inv(information)[0, 0]
    return float((2.0 / exact).sqrt())
