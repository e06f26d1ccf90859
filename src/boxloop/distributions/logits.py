"""Zeros and ones by their log-odds, counts by their log-rates: what a network gives, without a digit lost.

:class:`boxloop.distributions.Bernoulli` and :class:`boxloop.distributions.Poisson` hold means, as the families
that mixtures are fitted
by. A probability within 1e-8 of 1 is 1 in float32, and its log-odds are gone; these laws never leave the log scale.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.distributions.family import under_every_member
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class LogitBernoulli(Tree):
    r"""Independent zeros and ones of log-odds :math:`\eta`.

    .. math:: \log p(x) = \sum_j x_j \eta_j - \log(1 + e^{\eta_j})

    A grey value x between 0 and 1 is taken as the share of ones among many draws; its term is their mean.

    Args:
        logits: (m, d).

    Example:
        >>> import torch
        >>> law = LogitBernoulli(torch.tensor([[-30.0, 30.0]]))
        >>> law.paired(torch.tensor([[1.0, 1.0]]))
        tensor([-30.])
    """

    logits: Tensor

    @property
    def mean(self) -> Tensor:
        """Probabilities of a one, (m, d)."""
        return self.logits.sigmoid()

    def covariance(self) -> forms.Diagonal:
        """p (1 - p)."""
        return forms.Diagonal(self.logits.sigmoid() * (-self.logits).sigmoid())

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row under every member, (m, n)."""
        return under_every_member(_bernoulli, self.logits, rows)

    def paired(self, rows: Tensor) -> Tensor:
        """Log-probability of row i under member i, (m,)."""
        return _bernoulli(self.logits, rows).sum(1)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d)."""
        m, d = self.logits.shape
        return torch.bernoulli(self.mean[:, None].expand(m, n, d), generator=generator)


@dataclass(frozen=True)
class LogPoisson(Tree):
    r"""Independent counts of log-rates :math:`\eta`.

    .. math:: \log p(x) = \sum_j -x_j \left( e^{t_j} - 1 - t_j \right) + x_j \log x_j - x_j - \log x_j!,
              \qquad t_j = \eta_j - \log x_j

    The terms :math:`x \eta - e^\eta - \log x!` of a large count nearly cancel; here the first part is the deviance and
    the second, which no parameter enters, is computed in float64.

    Args:
        log_rate: (m, d).

    Example:
        >>> import torch
        >>> LogPoisson(torch.zeros(1, 2)).paired(torch.tensor([[0.0, 1.0]]))
        tensor([-2.])
    """

    log_rate: Tensor

    @property
    def mean(self) -> Tensor:
        """Rates, (m, d)."""
        return self.log_rate.exp()

    def covariance(self) -> forms.Diagonal:
        """The rates again."""
        return forms.Diagonal(self.log_rate.exp())

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of every row under every member, (m, n)."""
        return under_every_member(_poisson, self.log_rate, rows)

    def paired(self, rows: Tensor) -> Tensor:
        """Log-probability of row i under member i, (m,)."""
        return _poisson(self.log_rate, rows).sum(1)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d)."""
        m, d = self.log_rate.shape
        return torch.poisson(self.mean[:, None].expand(m, n, d), generator=generator)


def _bernoulli(logits: Tensor, rows: Tensor) -> Tensor:
    r"""Each log-probability, :math:`\log \sigma(s) - r s`: s are the log-odds of the nearer of 0 and 1, r is how far.

    A sure and right value costs nothing, not the rounding of a large difference.
    """
    towards = logits * torch.where(rows >= 0.5, 1.0, -1.0).to(logits.dtype)
    return functional.logsigmoid(towards) - torch.minimum(rows, 1.0 - rows) * towards


def _poisson(log_rate: Tensor, rows: Tensor) -> Tensor:
    counts = rows.double()
    base = torch.xlogy(counts, counts) - counts - torch.lgamma(counts + 1.0)
    some = counts > 0.0
    logs = torch.where(some, counts, 1.0).log().to(log_rate.dtype)
    apart = torch.where(some, log_rate - logs, 0.0)
    deviance = torch.where(some, rows.to(log_rate.dtype) * (torch.expm1(apart) - apart), log_rate.exp())
    return base.to(log_rate.dtype) - deviance
