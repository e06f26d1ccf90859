"""The general conjugate mixture of one column: its bound, and its evidence by labellings and by annealing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.chain import Kernel
from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, Dirichlet, MixturePrior, NormalInverseGamma, Sums
from boxloop.fit import EMState, Step, elbo, em
from boxloop.loop import run
from boxloop.models import VariationalMixture
from boxloop.numeric import covariance as forms, generator, normal
from boxloop.sample import Annealing, LogDensity, RandomWalk, Target, annealed_importance, pilot
from papers.cavi_mixture_trials import Rows

CONCENTRATION, STRENGTH, DOF, SCALE = 1.0, 0.1, 4.0, 4.0
"""Weights are Dirichlet; variances v are inverse gamma (DOF / 2, SCALE / 2), means N(0, v / STRENGTH)."""

STEPS = (1.5, 1.5, 1.0, 1.0, 1.5)
"""Steps of chains along means, log-variances and log-odds, in units of the tuned scale."""


def given(k: int) -> MixturePrior:
    """The prior, of k components."""
    one = torch.ones(1, dtype=torch.float64)
    components = NormalInverseGamma(0.0 * one[:, None], STRENGTH * one, DOF * one, SCALE * one[:, None])
    return MixturePrior(Dirichlet(torch.full((k,), CONCENTRATION, dtype=torch.float64)), components)


def climb(x: Tensor, k: int, seed: int, starts: int) -> list[Rows]:
    """Bounds after every sweep, of each start from random labels, by the same loop as Algorithm 4."""
    step: Step[VariationalMixture[Sums]] = em(ArraySource(x[:, None]), elbo)
    found = []
    for stream in (generator(1000 * seed + start) for start in range(starts)):
        share = (2.0 * normal((k, len(x)), stream)).softmax(0)
        start = VariationalMixture[Sums].started(given(k), x[:, None], share)
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
    """The prior of two components as a law of (means, log-variances, log-odds of the first weight), 5 columns."""

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
        law = DiagonalGaussian(rows[:, :2].reshape(-1, 1), rows[:, 2:4].exp().reshape(-1, 1))
        return odds.log_softmax(1), law

    def log_prob(self, rows: Tensor) -> Tensor:
        """(1, n)."""
        log_weight, law = self.parts(rows)
        volume = rows[:, 2:4].sum(1) + log_weight.sum(1)
        return (self.prior.log_prob(log_weight, law) + volume)[None]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(1, n, 5)."""
        log_weight, law = self.prior.draw(n, generator)
        odds = log_weight[:, :1] - log_weight[:, 1:]
        return torch.cat([law.mean.reshape(n, 2), law.covariance().diagonal().log().reshape(n, 2), odds], 1)[
            None
        ]


def annealed_evidence(x: Tensor, seed: int, chains: int) -> Annealing:
    """log p(x) of two components by annealed importance sampling from the prior, with its error."""
    base = TwoComponents(given(2))

    def log_density(rows: Tensor) -> Tensor:
        log_weight, _ = base.parts(rows)
        mean, log_variance = rows[:, None, :2], rows[:, None, 2:4]
        each = -0.5 * (
            (x[:, None] - mean).square() / log_variance.exp() + log_variance + math.log(2 * math.pi)
        )
        return base.log_prob(rows)[0] + (each + log_weight[:, None, :]).logsumexp(2).sum(1)

    def kernels(density: LogDensity, scale: float) -> Kernel:
        return RandomWalk(scale, metric=torch.tensor(STEPS, dtype=torch.float64)).kernel(Target(density))

    ladder = pilot(log_density, base, kernels, random_state=seed, goal=0.3, kept=0.99, steps=3)
    return annealed_importance(log_density, base, kernels, ladder, chains, seed + 1, steps=10)
