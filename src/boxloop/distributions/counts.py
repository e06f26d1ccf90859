"""Counts, zeros and ones, in independent columns: by their means for mixtures, by their logits for networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import Sums, log_factorials, log_prob_by_tiles
from boxloop.distributions.product import ProductFamily, alternating_signs
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class _CountFamily(ProductFamily):
    """What counts and zeros and ones share: the value is its own statistic, the mean its own parameter."""

    mean: Tensor
    floor: float = 1e-10
    linear: ClassVar[bool] = True

    def elementwise_statistics(self, columns: Tensor) -> Tensor:
        """x, (d, n)."""
        return columns

    def expected_statistics(self) -> Tensor:
        """The mean."""
        return self.mean

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"means": self.mean}

    def is_floored(self) -> Tensor:
        """No member, (k,): a column that is constant within a component is ordinary."""
        return torch.zeros(self.mean.shape[0], dtype=torch.bool, device=self.mean.device)


@dataclass(frozen=True)
class Poisson(_CountFamily):
    r"""Independent Poisson columns, :math:`p(x) = \prod_j e^{-\lambda_j} \lambda_j^{x_j} / x_j!`.

    Deviation: Le Corff A.8 writes the natural statistic's multiplier as B = -theta; it is B = theta.

    Args:
        mean: rates, (k, d), positive.
        floor: smallest rate that ``fit_statistics`` may return.

    Example:
        >>> import torch
        >>> distribution = Poisson(torch.ones(1, 1))
        >>> distribution.log_prob(torch.zeros(1, 1))
        tensor([[-1.]])
    """

    def natural_parameters(self) -> Tensor:
        """log rate."""
        return self.mean.log()

    def log_partition(self) -> Tensor:
        """The rate."""
        return self.mean

    def log_base(self, rows: Tensor) -> Tensor | None:
        """- sum of log x!."""
        return -log_factorials(rows)[1]

    def perturb(self, member: int, pieces: int) -> Tensor:
        """Copies within half a standard deviation, along alternating signs."""
        rate = self.mean[member]
        return (rate + 0.5 * rate.sqrt() * alternating_signs(rate, pieces)).clamp(min=0.1 * rate)

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted mean counts, at least ``floor``."""
        rate = statistics.features[:, 1:] / statistics.count[:, None]
        return type(self)(rate.clamp(min=self.floor), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a Poisson distribution has no affine image among Poisson distributions")

    def covariance(self) -> forms.Diagonal:
        """The rate again."""
        return forms.Diagonal(self.mean)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return torch.poisson(self.mean[:, None].expand(k, n, d), generator=generator)

    def free_parameters(self) -> dict[str, Tensor]:
        """Log-rates: any values of them are valid."""
        return {"log_rate": self.mean.log()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other rates."""
        return type(self)(free["log_rate"].exp(), self.floor)


@dataclass(frozen=True)
class Bernoulli(_CountFamily):
    r"""Independent zeros and ones, :math:`p(x) = \prod_j p_j^{x_j} (1 - p_j)^{1 - x_j}`.

    Args:
        mean: probabilities, (k, d), inside (0, 1).
        floor: distance that ``fit_statistics`` keeps from 0 and from 1.

    Example:
        >>> import torch
        >>> distribution = Bernoulli(torch.full((1, 1), 0.5))
        >>> distribution.log_prob(torch.ones(1, 1))
        tensor([[-0.6931]])
    """

    def natural_parameters(self) -> Tensor:
        """log odds."""
        return torch.logit(self.mean)

    def log_partition(self) -> Tensor:
        """- log(1 - p)."""
        return -torch.log1p(-self.mean)

    def log_base(self, rows: Tensor) -> Tensor | None:
        """None: zero."""
        return None

    def perturb(self, member: int, pieces: int) -> Tensor:
        """Copies within one unit of log-odds, along alternating signs: distinct however rare a one is."""
        p = self.mean[member]
        return torch.sigmoid(torch.logit(p) + alternating_signs(p, pieces))

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted frequencies, kept ``floor`` away from 0 and 1."""
        p = statistics.features[:, 1:] / statistics.count[:, None]
        return type(self)(p.clamp(self.floor, 1.0 - self.floor), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Zeros and ones have no other coordinates."""
        raise ValueError("a Bernoulli distribution has no affine image among Bernoulli distributions")

    def covariance(self) -> forms.Diagonal:
        """p (1 - p)."""
        return forms.Diagonal(self.mean * (1 - self.mean))

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return torch.bernoulli(self.mean[:, None].expand(k, n, d), generator=generator)

    def free_parameters(self) -> dict[str, Tensor]:
        """Log-odds: any values of them are valid."""
        return {"log_odds": torch.logit(self.mean)}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other log-odds."""
        return type(self)(free["log_odds"].sigmoid(), self.floor)


@dataclass(frozen=True)
class LogitBernoulli(Tree):
    r"""Independent zeros and ones of log-odds :math:`\eta`.

    :class:`Bernoulli` holds probabilities: within 1e-8 of 1 they are 1 in float32. Log-odds lose no digit.

    .. math:: \log p(x) = \sum_j x_j \eta_j - \log(1 + e^{\eta_j})

    A grey value x between 0 and 1 is taken as the share of ones among many draws; its term is their mean.

    Args:
        logits: (m, d).

    Example:
        >>> import torch
        >>> distribution = LogitBernoulli(torch.tensor([[-30.0, 30.0]]))
        >>> distribution.paired_log_prob(torch.tensor([[1.0, 1.0]]))
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
        return log_prob_by_tiles(_bernoulli_log_prob, self.logits, rows)

    def paired_log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of row i under member i, (m,)."""
        return _bernoulli_log_prob(self.logits, rows).sum(1)

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
        >>> LogPoisson(torch.zeros(1, 2)).paired_log_prob(torch.tensor([[0.0, 1.0]]))
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
        return log_prob_by_tiles(_poisson_log_prob, self.log_rate, rows)

    def paired_log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of row i under member i, (m,)."""
        return _poisson_log_prob(self.log_rate, rows).sum(1)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d)."""
        m, d = self.log_rate.shape
        return torch.poisson(self.mean[:, None].expand(m, n, d), generator=generator)


class _BernoulliLogProb(torch.autograd.Function):
    r"""Each log-probability, :math:`(x \eta - \eta_+) - \log(1 + e^{-|\eta|})`, whose first difference is exactly 0
    for a value that is certain and right. Half the time of the same terms under autograd."""

    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, rows: Tensor) -> Tensor:
        tail = logits.abs().neg_().exp_().log1p_()
        return torch.mul(rows, logits).sub_(logits.clamp(min=0.0)).sub_(tail)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        logits, rows = ctx.saved_tensors
        return gradient * (rows - logits.sigmoid()), gradient * logits if ctx.needs_input_grad[1] else None


def _bernoulli_log_prob(logits: Tensor, rows: Tensor) -> Tensor:
    found: Tensor = _BernoulliLogProb.apply(*torch.broadcast_tensors(logits, rows))  # type: ignore[no-untyped-call]
    return found


def _poisson_log_prob(log_rate: Tensor, rows: Tensor) -> Tensor:
    counts = rows.double()
    base = torch.xlogy(counts, counts) - counts - torch.lgamma(counts + 1.0)
    some = counts > 0.0
    logs = torch.where(some, counts, 1.0).log().to(log_rate.dtype)
    apart = torch.where(some, log_rate - logs, 0.0)
    deviance = torch.where(some, rows.to(log_rate.dtype) * (torch.expm1(apart) - apart), log_rate.exp())
    return base.to(log_rate.dtype) - deviance
