r"""Coordinate ascent for a Bayesian mixture: the bound, the evidence, and the standard deviations under q.

Le Corff, Introduction to computational statistics, section 3.3: unit variance, known weights, unknown means.

.. math:: \mu_k \sim N(0, \sigma^2), \qquad c_i \sim \mathrm{Cat}(\omega), \qquad x_i \mid c_i, \mu \sim N(\mu_{c_i}, 1)

Algorithm 4 (Blei, Kucukelbir and McAuliffe 2017) is coordinate ascent for
:math:`q(\mu, c) = \prod_k N(\mu_k; m_k, s_k) \prod_i \mathrm{Cat}(c_i; \phi_i)`:

.. math:: \phi_i(k) \propto \omega_k \exp\left(m_k x_i - \frac{m_k^2 + s_k}{2}\right), \qquad
          m_k = \frac{\sum_i \phi_i(k) x_i}{1/\sigma^2 + \sum_i \phi_i(k)}, \qquad
          s_k = \frac{1}{1/\sigma^2 + \sum_i \phi_i(k)} .

The first is ``expect``, the others are ``solve`` from :math:`(\sum_i \phi_i(k), \sum_i \phi_i(k) x_i)`: the algorithm
is ``em(source, elbo)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.chain import Kernel
from boxloop.data import ArraySource
from boxloop.distributions import (
    Categorical,
    DiagonalGaussian,
    Dirichlet,
    MixturePrior,
    Node,
    NormalInverseGamma,
    SphericalGaussian,
    Sums,
)
from boxloop.estimators import BayesianGaussianMixture
from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure
from boxloop.fit import Cavi, EMState, Order, Step, cavi, elbo, em
from boxloop.loop import FALL, run
from boxloop.models import Mixture, VariationalMixture
from boxloop.numeric import covariance as forms, generator, normal
from boxloop.sample import Annealing, LogDensity, RandomWalk, Target, annealed_importance, choose_temperatures
from boxloop.tree import Tree
from boxloop.types import Expected
from papers.experiment import Finding, Options, Report
from papers.verdicts import judge_target, percent, standard_error

Rows = NDArray[np.float64]
Cells = Mapping[int, Mapping[float, "list[Cell]"]]
"""Data sets by number of components and by distance between their means."""


# --- Settings ---

PRIOR = 9.0
"""Variance of the prior of the means."""
LOG_2PI = math.log(2 * math.pi)
TOL = 1e-11
CONCENTRATION, STRENGTH, DOF, SCALE = 1.0, 0.1, 4.0, 4.0
"""Weights are Dirichlet; variances v are inverse gamma (DOF / 2, SCALE / 2), means N(0, v / STRENGTH)."""
STEPS = (1.5, 1.5, 1.0, 1.0, 1.5)
"""Steps of chains along means, log-variances and log-odds, in units of the tuned scale."""
FEW, SEVERAL = 10, 40
"""Rows whose labellings are all visited, and rows whose evidence is annealed."""
WIDEST = 6.0


@dataclass(frozen=True)
class Size:
    """How much to run.

    Args:
        rows: of each data set.
        seeds: data sets of each problem.
        starts: of each data set.
        apart: distances between the true means.
        orders: data sets on which orders of the updates are compared.
        chains: of annealing.
    """

    rows: int
    seeds: int
    starts: int
    apart: tuple[float, ...]
    orders: int
    chains: int


FULL = Size(90, 8, 6, (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, WIDEST), 8, 4096)
QUICK = Size(30, 2, 3, (2.0, WIDEST), 2, 1024)


# --- The mixture of section 3.3 and Algorithm 4 by its formulas ---


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
        """Draw rows; components have as many as one another, or one more."""
        means = apart * (torch.arange(k, dtype=torch.float64) - 0.5 * (k - 1))
        return cls(means[torch.arange(n) % k] + normal((n,), generator(seed)), k, apart)


@dataclass(frozen=True)
class CountSum(Tree):
    """Expected number of rows of each component, (k,), and their sum, (k, d)."""

    count: Tensor
    sum: Tensor


@dataclass(frozen=True)
class KnownVarianceMixture(Tree):
    """The posterior q of the means of a mixture whose weights and unit variances are known.

    Args:
        mean: m, (k, d).
        variance: s, of each column of each mean, (k,).
        log_weight: log of the known weights, (k,).
        prior_variance: sigma squared.
        total: weight of all rows, by which averaged statistics are multiplied.
    """

    mean: Tensor
    variance: Tensor
    log_weight: Tensor
    prior_variance: float
    total: float

    @classmethod
    def at(cls, mean: Tensor, weight: Tensor, prior_variance: float, total: float) -> Self:
        """q around given means, as wide as the prior of unit variance allows: s = 1 / (1 + 1 / sigma^2)."""
        if not prior_variance > 0:
            raise ValueError(f"the prior variance must be positive, got {prior_variance}")
        if not bool((weight > 0).all()) or abs(float(weight.sum()) - 1.0) > 1e-6:
            raise ValueError(f"weights must be positive and add up to one, got {weight.tolist()}")
        spread = torch.full((len(mean),), 1.0 / (1.0 + 1.0 / prior_variance), dtype=torch.float64)
        return cls(mean.double(), spread, weight.double().log(), prior_variance, total)

    def prior(self) -> Categorical:
        """Probabilities of the component index."""
        return Categorical(self.log_weight[None])

    def emission(self, z: Tensor) -> SphericalGaussian:
        """Distributions of rows of the components at indices z, the means integrated out: variance 1 + s."""
        return self.predictive().emission(z)  # type: ignore[return-value]

    def predictive(self) -> Mixture[Sums]:
        """The distribution of a new row under q."""
        return Mixture(self.log_weight, SphericalGaussian(self.mean, 1.0 + self.variance[:, None]))

    def log_shares(self, rows: Tensor) -> Tensor:
        r""":math:`\log \omega_k + E_q[\log N(x_i; \mu_k, I)]`, (n, k)."""
        d = rows.shape[1]
        level = self.log_weight - 0.5 * (self.mean.square().sum(1) + d * (self.variance + LOG_2PI))
        return rows @ self.mean.mT + level - 0.5 * rows.square().sum(1, keepdim=True)

    def posterior(self, rows: Tensor) -> Tensor:
        r""":math:`\phi_i(k)`, (n, k)."""
        return self.log_shares(rows).softmax(1)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[CountSum]:
        """The best labels: their statistics, and what the rows add to the bound."""
        joint = self.log_shares(rows)
        share = joint.softmax(1) * weight[:, None]
        return Expected(CountSum(share.sum(0), share.mT @ rows), joint.logsumexp(1) @ weight, weight.sum())

    def repair_statistics(self, statistics: CountSum) -> tuple[CountSum, tuple[str, ...]]:
        """Nothing can go wrong under a proper prior: q of an empty component is the prior."""
        return statistics, ()

    def solve(self, statistics: CountSum) -> Self:
        """Prior and statistics: q of the means."""
        known = statistics * (self.total / statistics.count.sum())
        precision = 1.0 / self.prior_variance + known.count
        return replace(self, mean=known.sum / precision[:, None], variance=1.0 / precision)

    def divergence(self) -> Tensor:
        r""":math:`\sum_k \frac12 \left( \frac{|m_k|^2 + d s_k}{\sigma^2} - d - d \log \frac{s_k}{\sigma^2} \right)`."""
        d = self.mean.shape[1]
        ratio = self.variance / self.prior_variance
        return 0.5 * (self.mean.square().sum() / self.prior_variance + d * (ratio - 1.0 - ratio.log()).sum())

    def expected_log_likelihood(self, statistics: CountSum) -> Tensor:
        """Expected log-likelihood of rows and labels under q, less what no parameter enters."""
        d = self.mean.shape[1]
        level = self.log_weight - 0.5 * (self.mean.square().sum(1) + d * self.variance)
        return statistics.count @ level + (statistics.sum * self.mean).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row under the predictive distribution, (n,)."""
        return self.predictive().log_prob(rows)

    def moments(self) -> tuple[Tensor, forms.Dense]:
        """Mean and covariance of a row under the predictive distribution."""
        return self.predictive().moments()

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows from the predictive distribution with their components."""
        return self.predictive().sample(n, generator)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Refused, unless nothing changes: the prior has mean zero and the rows unit variance."""
        if bool((origin != 0).any()) or bool((scale != 1).any()):
            raise ValueError("rows of known variance about a prior at zero have their units already")
        return self

    def free_parameters(self) -> dict[str, Tensor]:
        """Means and log-variances: any values of them are a q."""
        return {"mean": self.mean, "log_variance": self.variance.log()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """q at other values of them."""
        return replace(self, mean=free["mean"], variance=free["log_variance"].exp())

    def named_parameters(self) -> dict[str, Any]:
        """Parameters under their public names."""
        return {
            "weights": self.log_weight.exp(),
            "means": self.mean,
            "mean_errors": self.variance.sqrt()[:, None].expand_as(self.mean),
        }


@dataclass(frozen=True)
class Ascent:
    """One run: the bound after every sweep, and q of the means at the end."""

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


# --- The same by the generic engine ---


def log_joint(problem: Problem) -> Any:
    """The log-joint of section 3.3, as a function of statistics."""
    x, log_weight = problem.x[:, None], problem.weight.log()

    def joint(t: dict[str, Any]) -> Tensor:
        mu, c = t["mu"], t["c"].value
        prior = -0.5 * (mu.square / PRIOR + math.log(PRIOR) + LOG_2PI).sum()
        return prior + (c * (log_weight - 0.5 * (x**2 - 2 * x * mu.value + mu.square + LOG_2PI))).sum()

    return joint


def run_generic_engine(
    problem: Problem, seed: int, order: Order, sweeps: int = 2000, tol: float = 1e-9
) -> Cavi:
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
        found = run_generic_engine(problem, seed, "sweep", sweep, tol=0.0)
        pairs = [
            (found["mu"].mean, state.model.mean[:, 0]),
            (found["mu"].sd ** 2, state.model.variance),
            (found["c"].mean, share),
        ]
        worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
    return worst


def iterations_to_settle(found: Cavi, within: float = 1e-4) -> int:
    """Iterations until the bound is this close to where it ends."""
    return int(np.flatnonzero(np.asarray(found.trace) >= found.elbo - within)[0])


@dataclass(frozen=True)
class Orders:
    """Sweeping beside drawing, from the same starts.

    Args:
        iterations: until within 1e-4 of the end, in units of as many updates as variables; (runs, 2).
        ends: bounds at the end, (runs, 2).
        falls: largest relative fall of the bound in any iteration.
        apart: largest difference between the generic engine's sweep and the formulas.
        evidence: largest difference between the generic engine's quadrature and ours.
    """

    iterations: Rows
    ends: Rows
    falls: float
    apart: float
    evidence: float


def compare_orders(size: Size, seed: int) -> Orders:
    """The generic engine, both ways, on small problems; and the engine beside the formulas."""
    iterations, ends, falls, evidence = [], [], -np.inf, 0.0
    for i in range(size.orders):
        problem = Problem.drawn(24, 2, 2.0, seed + i)
        both = [
            run_generic_engine(problem, seed + i, "sweep"),
            run_generic_engine(problem, seed + i, "random"),
        ]
        iterations.append([iterations_to_settle(found) for found in both])
        ends.append([found.elbo for found in both])
        for found in both:
            falls = max(falls, float(np.max(-np.diff(found.trace) / np.abs(found.trace[:-1]))))
        check = both[0].evidence()
        evidence = max(evidence, abs(check.log_evidence - exact_posterior(problem).log_evidence))
    problems = [Problem.drawn(20, k, 2.0, seed + k) for k in (2, 3)]
    apart = max(sweep_difference(problem, seed, 8) for problem in problems)
    return Orders(np.asarray(iterations, dtype=float), np.asarray(ends), falls, apart, evidence)


# --- The exact posterior of the means ---


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
        """Posterior of each of two means given that the first is the smaller: densities (2, g), sds (2,)."""
        a = self.axis
        inside = (a[:, None] < a).double() + 0.5 * (a[:, None] == a).double()
        mass = self.log_density.reshape(-1).softmax(0).reshape(len(a), len(a)) * inside
        mass = mass / mass.sum()
        shares = torch.stack([mass.sum(1), mass.sum(0)])
        mean = shares @ a
        deviation = (shares @ a.square() - mean.square()).sqrt()
        return (shares / (a[1] - a[0])).numpy(), deviation.numpy()


def _log_joint_on_grid(problem: Problem, axis: Tensor) -> Tensor:
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
        heights = _log_joint_on_grid(problem, axis)
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
    r"""Limit of the standard deviation under q over the exact one: two components of equal weight, many rows.

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


@dataclass(frozen=True)
class Cell:
    """All starts on one data set, beside the exact posterior."""

    problem: Problem
    exact: Exact
    runs: list[Ascent]

    @property
    def best(self) -> Ascent:
        """The start that came highest."""
        return max(self.runs, key=lambda run: float(run.trace[-1]))

    @property
    def gap(self) -> float:
        """Log evidence less the best bound."""
        return self.exact.log_evidence - float(self.best.trace[-1])

    @property
    def reached(self) -> float:
        """Share of the starts that came within 1e-3 of the best bound."""
        ends = np.asarray([run.trace[-1] for run in self.runs])
        return float(np.mean(ends > ends.max() - 1e-3))

    @property
    def ratio(self) -> float:
        """Standard deviation of the means under q over the exact one given their order, averaged over two means."""
        order = self.best.model.mean[:, 0].argsort()
        under_q = self.best.model.variance[order].sqrt().numpy()
        return float(np.mean(under_q / self.exact.ordered()[1]))


def measure_cells(size: Size, k: int, apart: float, seed: int) -> list[Cell]:
    """One cell for each data set."""
    cells = []
    for i in range(size.seeds):
        problem = Problem.drawn(size.rows, k, apart, seed + i)
        runs = [ascend(problem, 1000 * (seed + i) + start) for start in range(size.starts)]
        cells.append(Cell(problem, exact_posterior(problem), runs))
    return cells


def ascend_many_components(seeds: int, starts: int, seed: int) -> Rows:
    """Bounds that starts end at, 5 components 8 apart, one line for each data set, (seeds, starts)."""
    found = []
    for i in range(seeds):
        problem = Problem.drawn(90, 5, 8.0, seed + i)
        found.append([ascend(problem, 1000 * (seed + i) + start).trace[-1] for start in range(starts)])
    return np.asarray(found)


# --- The general conjugate mixture of one column: unknown weights, means and variances ---


def conjugate_prior(k: int) -> MixturePrior:
    """The prior, of k components."""
    one = torch.ones(1, dtype=torch.float64)
    components = NormalInverseGamma(0.0 * one[:, None], STRENGTH * one, DOF * one, SCALE * one[:, None])
    return MixturePrior(Dirichlet(torch.full((k,), CONCENTRATION, dtype=torch.float64)), components)


def ascend_conjugate(x: Tensor, k: int, seed: int, starts: int) -> list[Rows]:
    """Bounds after every sweep, of each start from random labels, by the same loop as Algorithm 4."""
    step: Step[VariationalMixture[Sums]] = em(ArraySource(x[:, None]), elbo)
    found = []
    for stream in (generator(1000 * seed + start) for start in range(starts)):
        share = (2.0 * normal((k, len(x)), stream)).softmax(0)
        start = VariationalMixture[Sums].from_responsibilities(conjugate_prior(k), x[:, None], share)
        outcome = run(step, EMState(start), max_iter=5000, tol=1e-11 / len(x), monotone=True)
        found.append(len(x) * np.asarray(outcome.trace))
    return found


def labelled_evidence(x: Tensor, k: int) -> float:
    r"""log p(x) of a few rows: every labelling in turn, given which all integrals have closed forms.

    .. math:: p(x) = \sum_c \frac{B(a + n(c))}{B(a)} \prod_k
              \frac{\Gamma(\nu_k / 2)}{\Gamma(\nu / 2)} \frac{(\psi / 2)^{\nu / 2}}{(\psi_k / 2)^{\nu_k / 2}}
              \sqrt{\frac{\kappa}{\kappa_k}} (2 \pi)^{-n_k / 2}

    with :math:`\kappa_k = \kappa + n_k`, :math:`\nu_k = \nu + n_k` and
    :math:`\psi_k = \psi + \sum_{c_i = k} x_i^2 - (\sum_{c_i = k} x_i)^2 / \kappa_k`.
    """
    n = len(x)
    label = torch.cartesian_prod(*[torch.arange(k)] * n).reshape(-1, n)
    level = math.lgamma(k * CONCENTRATION) - math.lgamma(k * CONCENTRATION + n)
    total = torch.full((len(label),), level, dtype=torch.float64)
    for j in range(k):
        mine = (label == j).double()
        count = mine.sum(1)
        dof, strength = DOF + count, STRENGTH + count
        scale = SCALE + mine @ x.square() - (mine @ x).square() / strength
        total += torch.lgamma(CONCENTRATION + count) - math.lgamma(CONCENTRATION)
        total += torch.lgamma(0.5 * dof) - math.lgamma(0.5 * DOF) + 0.5 * DOF * math.log(0.5 * SCALE)
        total += 0.5 * (STRENGTH / strength).log() - 0.5 * dof * (0.5 * scale).log()
    return float(total.logsumexp(0)) - 0.5 * n * math.log(2 * math.pi)


@dataclass(frozen=True)
class TwoComponents:
    """The prior of two components over (means, log-variances, log-odds of the first weight), 5 columns."""

    prior: MixturePrior

    @property
    def mean(self) -> Tensor:
        """(1, 5)."""
        level = math.log(0.5 * SCALE) - float(torch.digamma(torch.tensor(0.5 * DOF, dtype=torch.float64)))
        return torch.tensor([[0.0, 0.0, level, level, 0.0]], dtype=torch.float64)

    def covariance(self) -> forms.Diagonal:
        """Means are Student's t; logs of gamma variables have the trigamma function as variance."""
        logs = torch.polygamma(1, torch.tensor([0.5 * DOF, CONCENTRATION], dtype=torch.float64))
        mean = SCALE / (STRENGTH * (DOF - 2.0))
        spread = torch.tensor([mean, mean, 0.0, 0.0, 0.0], dtype=torch.float64)
        return forms.Diagonal((spread + torch.stack([0 * logs[0]] * 2 + [logs[0]] * 2 + [2 * logs[1]]))[None])

    def parts(self, rows: Tensor) -> tuple[Tensor, DiagonalGaussian]:
        """Log-weights (n, 2) and components, 2 n of them."""
        odds = torch.stack([rows[:, 4], torch.zeros_like(rows[:, 4])], dim=1)
        components = DiagonalGaussian(rows[:, :2].reshape(-1, 1), rows[:, 2:4].exp().reshape(-1, 1))
        return odds.log_softmax(1), components

    def log_prob(self, rows: Tensor) -> Tensor:
        """(1, n)."""
        log_weight, components = self.parts(rows)
        volume = rows[:, 2:4].sum(1) + log_weight.sum(1)
        return (self.prior.log_prob(log_weight, components) + volume)[None]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(1, n, 5)."""
        log_weight, components = self.prior.draw(n, generator)
        odds = log_weight[:, :1] - log_weight[:, 1:]
        log_variance = components.covariance().diagonal().log().reshape(n, 2)
        return torch.cat([components.mean.reshape(n, 2), log_variance, odds], 1)[None]


def annealed_evidence(x: Tensor, seed: int, chains: int) -> Annealing:
    """log p(x) of two components by annealed importance sampling from the prior, with its error."""
    base = TwoComponents(conjugate_prior(2))

    def log_density(rows: Tensor) -> Tensor:
        log_weight, _ = base.parts(rows)
        mean, log_variance = rows[:, None, :2], rows[:, None, 2:4]
        each = -0.5 * (
            (x[:, None] - mean).square() / log_variance.exp() + log_variance + math.log(2 * math.pi)
        )
        return base.log_prob(rows)[0] + (each + log_weight[:, None, :]).logsumexp(2).sum(1)

    def kernels(density: LogDensity, scale: float) -> Kernel:
        return RandomWalk(scale, metric=torch.tensor(STEPS, dtype=torch.float64)).kernel(Target(density))

    ladder = choose_temperatures(
        log_density, base, kernels, random_state=seed, target_acceptance=0.3, ess_share=0.99, steps=3
    )
    return annealed_importance(log_density, base, kernels, ladder, chains, seed + 1, steps=10)


def estimator_bound(problem: Problem, seed: int) -> float:
    """The bound that ``BayesianGaussianMixture`` reports, under the same prior."""
    found = BayesianGaussianMixture(
        problem.k,
        covariance_type="diag",
        weight_concentration_prior_type="dirichlet_distribution",
        weight_concentration_prior=CONCENTRATION,
        mean_precision_prior=STRENGTH,
        mean_prior=[0.0],
        degrees_of_freedom_prior=DOF,
        covariance_prior=[SCALE],
        tol=1e-12,
        max_iter=5000,
        n_init=3,
        random_state=seed,
    ).fit(problem.x[:, None].numpy())
    return float(found.lower_bound_) * len(problem.x)


@dataclass(frozen=True)
class ConjugateResults:
    """Measures of the general mixture.

    Args:
        fall: largest relative fall of the bound in any sweep of any start.
        sweeps: how many.
        few: log evidence by labellings, less the best bound and less the estimator's, (problems, 2).
        annealed: log evidence of as few rows by annealing, its error, and by labellings, (problems, 3).
        several: log evidence by annealing, its error, the best bound, and the estimator's, (problems, 4).
    """

    fall: float
    sweeps: int
    few: Rows
    annealed: Rows
    several: Rows


def measure_conjugate(apart: tuple[float, ...], chains: int, starts: int, seed: int) -> ConjugateResults:
    """Two and three components of few rows, two of several, at each distance."""
    traces: list[Rows] = []
    few, annealed, several = [], [], []

    def best(problem: Problem) -> float:
        runs = ascend_conjugate(problem.x, problem.k, seed, starts)
        traces.extend(runs)
        return max(float(run[-1]) for run in runs)

    for value in apart:
        for k in (2, 3):
            problem = Problem.drawn(FEW, k, value, seed)
            exact = labelled_evidence(problem.x, k)
            few.append([exact - best(problem), exact - estimator_bound(problem, seed)])
            if k == 2:
                found = annealed_evidence(problem.x, seed, chains)
                annealed.append([found.log_partition, found.error, exact])
        problem = Problem.drawn(SEVERAL, 2, value, seed)
        found = annealed_evidence(problem.x, seed, chains)
        several.append([found.log_partition, found.error, best(problem), estimator_bound(problem, seed)])
    fall = max(float(np.max(-np.diff(trace) / np.abs(trace[:-1]))) for trace in traces)
    sweeps = sum(len(trace) - 1 for trace in traces)
    return ConjugateResults(fall, sweeps, np.asarray(few), np.asarray(annealed), np.asarray(several))


# --- Findings ---


def judge(cells: Cells, orders: Orders, ends: Rows, limits: Mapping[float, float]) -> list[Finding]:
    """Findings on Algorithm 4, in the order of the paper."""
    return [
        _judge_updates(orders),
        _judge_monotone(cells, orders),
        _judge_bound(cells),
        *(_judge_permutations(k, cells[k]) for k in cells),
        _judge_quadrature(orders),
        _judge_random_order(orders),
        _judge_starts(ends, cells),
        _judge_overconfidence(cells[2], limits),
        _judge_far_apart(cells[2]),
    ]


def _judge_updates(orders: Orders) -> Finding:
    return Finding(
        "the updates of section 3.3, every sweep",
        "Algorithm 4 as displayed",
        f"largest difference {orders.apart:.1e}",
        None,
        "reproduced" if orders.apart < 1e-12 else "not reproduced",
        "Formulas beside the generic engine, which has only the log-joint and its gradient.",
        exact=True,
    )


def _judge_monotone(cells: Cells, orders: Orders) -> Finding:
    runs = [run for many in cells.values() for cell in many.values() for one in cell for run in one.runs]
    worst = max(orders.falls, max(run.fall for run in runs))
    sweeps = sum(len(run.trace) - 1 for run in runs)
    return Finding(
        "the bound rises in every sweep (section 3.2)",
        "each update is the best of its coordinate",
        f"largest relative fall {max(worst, 0.0):.1e}",
        None,
        "reproduced" if worst < FALL else "not reproduced",
        f"{len(runs)} runs, {sweeps} sweeps; the loop refuses falls above 1e-9.",
        exact=True,
    )


def _judge_bound(cells: Cells) -> Finding:
    every = [cell for many in cells.values() for group in many.values() for cell in group]
    least = min(every, key=lambda cell: cell.gap)
    error = max(cell.exact.error for cell in every)
    return Finding(
        "the bound is below the log evidence (section 3.1)",
        "L(q) <= log p(x)",
        f"smallest gap {least.gap:.4f}",
        None,
        "reproduced" if all(cell.gap > cell.exact.error for cell in every) else "not reproduced",
        f"{len(every)} data sets; evidence by quadrature over the means, error at most {error:.0e}.",
        exact=True,
    )


def _judge_permutations(k: int, by_apart: Mapping[float, list[Cell]]) -> Finding:
    widest = max(by_apart)
    gaps = np.asarray([cell.gap for cell in by_apart[widest]])
    known = math.log(math.factorial(k))
    closest = min(cell.gap for many in by_apart.values() for cell in many)
    return Finding(
        f"{k} components far apart: the bound is short by log {k}!",
        "the text does not say it; q keeps one of the K! orders",
        f"{gaps.mean():.4f}, log {k}! = {known:.4f}",
        standard_error(gaps),
        judge_target(abs(gaps.mean() - known) < 0.05 and closest > known - 0.01),
        f"Distance {widest:g}; at no distance is the gap below {closest:.3f}: overlap only adds to it.",
    )


def _judge_quadrature(orders: Orders) -> Finding:
    return Finding(
        "evidence by the generic engine, labels summed out in closed form",
        "not in the document",
        f"differs from ours by at most {orders.evidence:.1e}",
        None,
        judge_target(orders.evidence < 1e-6),
        "Two programs, two grids, one number.",
    )


def _judge_random_order(orders: Orders) -> Finding:
    ratio = orders.iterations[:, 1] / orders.iterations[:, 0]
    same = float(np.mean(np.abs(orders.ends[:, 1] - orders.ends[:, 0]) < 1e-4))
    return Finding(
        "one variable drawn at random, or all in turn",
        "both are named, neither is preferred",
        f"drawing takes {ratio.mean():.2f} times the updates",
        standard_error(ratio),
        judge_target(float(ratio.mean()) > 1.0),
        f"Until within 1e-4 of the end; the same end in {percent(same)} of {len(ratio)} runs from equal starts. "
        "A draw of n leaves more than a third of the variables as they were.",
    )


def _judge_starts(ends: Rows, cells: Cells) -> Finding:
    best = ends.max(1, keepdims=True)
    reached = np.mean(ends > best - 1e-3, axis=1)
    fewer = [cell.reached for many in cells.values() for group in many.values() for cell in group]
    return Finding(
        "starts from the prior that reach the best bound, 5 components 8 apart",
        "the optimum is that of each coordinate, the others held",
        percent(float(reached.mean())),
        standard_error(reached),
        judge_target(float(reached.mean()) < 1.0),
        f"{len(ends)} data sets, {ends.shape[1]} starts each; the lowest maximum is {(best - ends).max():.0f} below: "
        f"coordinate ascent needs more than one start. With 2 or 3 components {percent(float(np.mean(fewer)))} did.",
    )


def _judge_overconfidence(by_apart: Mapping[float, list[Cell]], limits: Mapping[float, float]) -> Finding:
    """Two modes that share rows."""
    apart = min(by_apart, key=lambda value: abs(value - 2.0))
    ratio = np.asarray([cell.ratio for cell in by_apart[apart]])
    return Finding(
        f"deviation of a mean under q over the exact one, components {apart:g} apart",
        "not in the document",
        f"{ratio.mean():.3f}",
        standard_error(ratio),
        judge_target(ratio.mean() < 0.95),
        f"Too sure: q takes uncertain labels for known ones. With many rows the ratio is {limits[apart]:.3f}, "
        "the root of the share of information that is left without labels.",
    )


def _judge_far_apart(by_apart: Mapping[float, list[Cell]]) -> Finding:
    widest = max(by_apart)
    ratio = np.asarray([cell.ratio for cell in by_apart[widest]])
    return Finding(
        f"the same, {widest:g} apart",
        "not in the document",
        f"{ratio.mean():.3f}",
        standard_error(ratio),
        judge_target(abs(ratio.mean() - 1.0) < 0.05),
        "Labels that are certain cost nothing: q is the posterior of one order.",
    )


def judge_conjugate(measured: ConjugateResults) -> list[Finding]:
    """Findings on the general mixture: unknown weights, means and variances."""
    scores = (measured.annealed[:, 0] - measured.annealed[:, 2]) / measured.annealed[:, 1]
    gaps = measured.several[:, :1] - measured.several[:, 2:]
    errors = measured.several[:, 1]
    closest = int(np.argmin(gaps.min(1) / errors))
    apart = np.max(np.abs(measured.few[:, 0] - measured.few[:, 1]))
    return [
        Finding(
            "the general conjugate mixture: the bound rises in every sweep",
            "the same argument",
            f"largest relative fall {max(measured.fall, 0.0):.1e}",
            None,
            "reproduced" if measured.fall < FALL else "not reproduced",
            f"{measured.sweeps} sweeps; weights, means and variances are unknown, the loop is that of Algorithm 4.",
            exact=True,
        ),
        Finding(
            f"its bound is below the log evidence, {FEW} rows",
            "L(q) <= log p(x)",
            f"smallest gap {measured.few.min():.4f}",
            None,
            "reproduced" if measured.few.min() > 0.0 else "not reproduced",
            f"Every labelling of {len(measured.few)} data sets, 2 and 3 components. BayesianGaussianMixture, which "
            f"races starts of its own under the same prior, ends within {apart:.1e} of our best start.",
            exact=True,
        ),
        Finding(
            f"the same, {SEVERAL} rows, 2 components",
            "L(q) <= log p(x)",
            f"smallest gap {gaps[closest].min():.3f}",
            float(errors[closest]),
            "reproduced" if bool((gaps.min(1) > 3.0 * errors).all()) else "not reproduced",
            "Evidence by annealed importance sampling from the prior, with its error.",
        ),
        Finding(
            f"annealing beside every labelling, {FEW} rows",
            "not in the document",
            f"z-scores {', '.join(f'{z:.1f}' for z in scores)}",
            None,
            judge_target(bool((np.abs(scores) < 4.0).all())),
            "The estimate is where its error says.",
        ),
    ]


# --- Figure ---


def draw_figure(cells: Cells, limits: Mapping[float, float]) -> Figure:
    """Four panels.

    Args:
        cells: data sets by number of components and by distance between their means.
        limits: ratio of deviations with many rows, by distance.
    """
    figure = new_figure(12.0, 8.6)
    axes: Any = figure.subplots(2, 2)
    middle = min(cells[3], key=lambda apart: abs(apart - 3.0))
    _draw_bounds(axes[0, 0], cells[3][middle][0], middle)
    _draw_posteriors(axes[0, 1], cells[2])
    _draw_gaps(axes[1, 0], cells)
    _draw_ratios(axes[1, 1], cells[2], limits)
    return figure


def _draw_bounds(axes: Any, cell: Cell, apart: float) -> None:
    k = cell.problem.k
    dress(axes, f"The bound, {k} components {apart:g} apart", "sweep", "bound, less the log evidence")
    evidence = cell.exact.log_evidence
    best = float(cell.best.trace[-1])
    longest = 0
    for ascent in cell.runs:
        high = ascent.trace[-1] > best - 1e-3
        line = ascent.trace - evidence
        settled = int(np.flatnonzero(line >= line[-1] - 1e-3)[0]) + 3
        longest = max(longest, min(settled, len(line)))
        axes.plot(np.arange(len(line)), line, color=COLOURS[0] if high else COLOURS[4], lw=1.2, alpha=0.8)
    axes.axhline(0.0, color=INK, lw=1.4, label="log evidence")
    axes.axhline(-math.log(math.factorial(k)), color=INK, lw=1.2, ls="--", label=f"log evidence − log {k}!")
    axes.plot([], [], color=COLOURS[0], label="starts that reach the best")
    if any(run.trace[-1] <= best - 1e-3 for run in cell.runs):
        axes.plot([], [], color=COLOURS[4], label="other maxima")
    ends = [float(run.trace[-1]) - evidence for run in cell.runs]
    low = min(min(ends), -4.0)
    axes.set(xlim=(0, longest), ylim=(1.35 * low, -0.1 * low))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _draw_posteriors(axes: Any, by_apart: Mapping[float, list[Cell]]) -> None:
    """Exact densities of the means in order, and those of q, where components overlap."""
    apart = min(by_apart, key=lambda value: abs(value - 2.0))
    cell = by_apart[apart][0]
    dress(axes, f"The means, 2 components {apart:g} apart", "mean", "posterior density")
    exact = exact_posterior(cell.problem, tol=0.0, most=400_000)  # fine enough to look smooth
    density, _ = exact.ordered()
    place = exact.axis.numpy()
    model = cell.best.model
    centre, variance = model.mean[:, 0].numpy(), model.variance.numpy()
    shown = density.sum(0) > 1e-3 * density.max()
    fine = np.linspace(place[shown][0] - 0.2, place[shown][-1] + 0.2, 400)
    for j, one in enumerate(np.argsort(centre)):
        axes.plot(place, density[j], color=COLOURS[j], lw=1.8, label=f"mean {j + 1}, exact")
        under_q = np.exp(-0.5 * (fine - centre[one]) ** 2 / variance[one])
        axes.plot(
            fine,
            under_q / math.sqrt(2 * math.pi * variance[one]),
            color=COLOURS[j],
            lw=1.5,
            ls="--",
            label=f"mean {j + 1}, q",
        )
    axes.set(xlim=(fine[0], fine[-1]), ylim=(0.0, None))
    axes.legend(frameon=False, fontsize=9, loc="upper center")


def _draw_gaps(axes: Any, cells: Cells) -> None:
    dress(axes, "What the bound misses", "distance between means", "log evidence, less the bound")
    for j, (k, by_apart) in enumerate(cells.items()):
        apart = np.asarray(sorted(by_apart))
        gaps = [np.asarray([cell.gap for cell in by_apart[value]]) for value in apart]
        middle = np.asarray([gap.mean() for gap in gaps])
        error = np.asarray([gap.std() / max(len(gap) - 1, 1) ** 0.5 for gap in gaps])
        axes.errorbar(
            apart,
            middle,
            yerr=error,
            color=COLOURS[j],
            marker="o",
            markersize=4,
            lw=1.5,
            label=f"{k} components",
        )
        axes.axhline(math.log(math.factorial(k)), color=COLOURS[j], lw=1.0, ls="--")
        axes.text(
            apart[-1], math.log(math.factorial(k)) - 0.05, f"log {k}!", color=COLOURS[j], va="top", ha="right"
        )
    axes.set_ylim(0.0, None)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _draw_ratios(axes: Any, by_apart: Mapping[float, list[Cell]], limits: Mapping[float, float]) -> None:
    dress(axes, "How sure q is of a mean", "distance between means", "deviation under q over the exact one")
    apart = np.asarray(sorted(by_apart))
    ratios = [np.asarray([cell.ratio for cell in by_apart[value]]) for value in apart]
    for value, ratio in zip(apart, ratios):
        axes.plot(np.full(len(ratio), value), ratio, ".", color=FAINT, markersize=4)
    axes.plot(
        apart,
        [r.mean() for r in ratios],
        "o-",
        color=COLOURS[0],
        lw=1.5,
        markersize=4,
        label="mean over data sets",
    )
    axes.plot(apart, [limits[value] for value in apart], "--", color=INK, lw=1.2, label="limit of many rows")
    axes.axhline(1.0, color=FAINT, lw=1.0)
    axes.set_ylim(0.0, 1.3)
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def experiment(options: Options) -> Report:
    """Bounds beside evidences by distance between components; orders of the updates; the general mixture."""
    size = QUICK if options.quick else FULL
    cells: dict[int, dict[float, list[Cell]]] = {2: {}, 3: {}}
    total, done = 2 * len(size.apart) + 2, 0
    for k in cells:
        for apart in size.apart:
            options.progress(done, total, f"{k} components, {apart:g} apart")
            cells[k][apart] = measure_cells(size, k, apart, options.seed)
            done += 1
    ends = ascend_many_components(4 if options.quick else 12, 15, options.seed)
    options.progress(done, total, "sweeping and drawing")
    orders = compare_orders(size, options.seed)
    options.progress(done + 1, total, "the general conjugate mixture")
    conjugate = measure_conjugate(
        (3.0,) if options.quick else (2.0, 4.0, WIDEST), size.chains, size.starts, options.seed
    )
    limits = {apart: information_ratio(apart) for apart in size.apart}
    settings = {
        "rows": size.rows,
        "prior variance": PRIOR,
        "data sets": size.seeds,
        "starts": size.starts,
        "seed": options.seed,
    }
    return Report(
        "cavi-mixture",
        "Coordinate ascent for a Bayesian mixture",
        settings,
        [*judge(cells, orders, ends, limits), *judge_conjugate(conjugate)],
        curves={
            f"{k} components": {
                str(apart): {
                    "gap": [cell.gap for cell in many],
                    "quadrature error": [cell.exact.error for cell in many],
                    **({"deviation ratio": [cell.ratio for cell in many]} if k == 2 else {}),
                }
                for apart, many in by_apart.items()
            }
            for k, by_apart in cells.items()
        }
        | {
            "general mixture": {
                "few": conjugate.few.tolist(),
                "annealed": conjugate.annealed.tolist(),
                "several": conjugate.several.tolist(),
            }
        },
        figures={"bound": draw_figure(cells, limits)},
    )
