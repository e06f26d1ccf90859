"""Gamma draws of any shape, and the inverse gamma distribution of variances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.tree import Tree


def draw_log_gamma(shape: Tensor, stream: Generator) -> Tensor:
    r"""Logs of gamma draws of rate 1, by :math:`\log G_a = \log G_{a+1} + \log(U) / a`: a draw of small shape
    underflows."""
    raised = torch._standard_gamma(shape + 1.0, generator=stream).log()
    return raised - torch.empty_like(raised).exponential_(generator=stream) / shape


@dataclass(frozen=True)
class InverseGamma(Tree):
    r"""Distributions of variances, :math:`p(v) \propto v^{-a-1} e^{-b/v}`.

    Args:
        shape: a, (...), positive.
        rate: b, (...), positive.
    """

    shape: Tensor
    rate: Tensor

    @cached_property
    def digamma(self) -> Tensor:
        r""":math:`\psi(a)`, (...)."""
        return torch.digamma(self.shape)

    @cached_property
    def _log_gamma(self) -> Tensor:
        return torch.lgamma(self.shape)

    def posterior(self, count: Tensor | float, square: Tensor) -> Self:
        """After ``count`` normal values of mean zero whose squares sum to ``square``, (...)."""
        rate = self.rate + 0.5 * square
        return type(self)((self.shape + 0.5 * count).expand_as(rate), rate)

    def draw(self, stream: Generator) -> Tensor:
        """Variances, (...)."""
        return self.rate * (-draw_log_gamma(self.shape, stream)).exp()

    def log_prob(self, variance: Tensor) -> Tensor:
        """Log-density, (...)."""
        a, b = self.shape, self.rate
        return a * b.log() - self._log_gamma - (a + 1.0) * variance.log() - b / variance

    def divergence(self, prior: InverseGamma) -> Tensor:
        """Kullback-Leibler divergence from a prior, (...)."""
        a, b = self.shape, self.rate
        a0, b0 = prior.shape, prior.rate
        gamma = (a - a0) * self.digamma - self._log_gamma + prior._log_gamma
        return gamma + a0 * (b / b0).log() + a * (b0 - b) / b
