"""The Dirichlet law of weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.gamma import draw_log_gamma
from boxloop.tree import Tree

LARGE = 1e3
"""Concentrations beyond which the terms of Stirling's series that are left out are below rounding."""


@dataclass(frozen=True)
class Dirichlet(Tree):
    r"""Laws of weights, :math:`p(\pi) \propto \prod_k \pi_k^{a_k - 1}`.

    Args:
        concentration: a, (..., k), positive.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> law = Dirichlet(torch.ones(3)).posterior(torch.tensor([5.0, 0.0, 1.0]))
        >>> law.concentration
        tensor([6., 1., 2.])
        >>> float(law.draw(generator(0)).exp().sum())
        1.0
    """

    concentration: Tensor

    @property
    def n_components(self) -> int:
        """k."""
        return self.concentration.shape[-1]

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times, (..., k)."""
        return type(self)(self.concentration + count)

    def counts(self, prior: Dirichlet) -> Tensor:
        """How often each component was seen since ``prior``, (..., k)."""
        return self.concentration - prior.concentration

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights, (..., k)."""
        return draw_log_gamma(self.concentration, stream).log_softmax(-1)

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights, (...)."""
        a = self.concentration
        constant = torch.lgamma(a.sum(-1)) - torch.lgamma(a).sum(-1)
        # A concentration of 1 says nothing, even of a weight that has underflowed.
        return constant + torch.where(a == 1.0, 0.0, (a - 1.0) * log_weight).sum(-1)

    def expected_log(self) -> Tensor:
        r""":math:`E[\log \pi_k] = \psi(a_k) - \psi(\sum_l a_l)`, (..., k)."""
        return self._logs

    def mean(self) -> Tensor:
        """E[pi], (..., k)."""
        return self.concentration / self.concentration.sum(-1, keepdim=True)

    def variance(self) -> Tensor:
        """Var[pi], (..., k)."""
        mean = self.mean()
        return mean * (1.0 - mean) / (self.concentration.sum(-1, keepdim=True) + 1.0)

    def divergence(self, prior: Dirichlet) -> Tensor:
        r"""Kullback-Leibler divergence from a prior, (...).

        .. math:: \log \frac{B(a_0)}{B(a)} + \sum_k (a_k - a_{0k}) E[\log \pi_k]
                  = \log B(a_0) + \sum_k h(a_k) - h(\textstyle\sum_k a_k) - \sum_k a_{0k} E[\log \pi_k],
                  \qquad h(a) = a \psi(a) - \log \Gamma(a) - a

        Counts of 1e9 have terms of 1e10 whose sum is of the size of 10; those of h are as small as the sum.
        """
        a = self.concentration
        gain = _entropy_excess(a).sum(-1) - _entropy_excess(a.sum(-1))
        return prior._log_beta + gain - (prior.concentration * self._logs).sum(-1)

    def is_proper(self) -> bool:
        """Whether every concentration is positive."""
        return bool((self.concentration > 0.0).all())

    @cached_property
    def _logs(self) -> Tensor:
        a = self.concentration
        total = a.sum(-1, keepdim=True)
        plain = torch.digamma(a) - torch.digamma(total)
        # log(a / total), to the last digit of what is short of zero, and what digamma has beside its logarithm
        rest = torch.where(a > 0.5 * total, 0.0, a).sum(-1, keepdim=True)
        ratio = torch.where(a > 0.5 * total, torch.log1p(-rest / total), (a / total).log())
        return torch.where(a > LARGE, ratio + _beside_log(a) - _beside_log(total), plain)

    @cached_property
    def _log_beta(self) -> Tensor:
        return log_beta(self.concentration)


def _beside_log(a: Tensor) -> Tensor:
    """Digamma less the logarithm, for large a."""
    return -0.5 / a - (1.0 / 12.0 - 1.0 / (120.0 * a.square())) / a.square()


def _entropy_excess(a: Tensor) -> Tensor:
    """a digamma(a) - log Gamma(a) - a, without its cancellation for large a."""
    large = 0.5 * (a / (2.0 * math.pi)).log() - 0.5 - (1.0 / 6.0 - 1.0 / (90.0 * a.square())) / a
    return torch.where(a > LARGE, large, a * torch.digamma(a) - torch.lgamma(a) - a)


def log_beta(concentration: Tensor) -> Tensor:
    r""":math:`\log \prod_k \Gamma(a_k) / \Gamma(\sum_k a_k)` over the last axis."""
    return torch.lgamma(concentration).sum(-1) - torch.lgamma(concentration.sum(-1))
