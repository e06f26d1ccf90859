"""Families for counts and for zeros and ones, columns independent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import Sums, log_factorials
from boxloop.distributions.product import ProductFamily, alternating
from boxloop.numeric import covariance as forms


@dataclass(frozen=True)
class Poisson(ProductFamily):
    r"""Independent Poisson columns, :math:`p(x) = \prod_j e^{-\lambda_j} \lambda_j^{x_j} / x_j!`.

    Deviation: document 002 A.8 writes the natural statistic's multiplier as B = -theta; it is B = theta.

    Args:
        mean: rates, (k, d), positive.
        floor: smallest rate that ``fitted`` may return.

    Example:
        >>> import torch
        >>> law = Poisson(torch.ones(1, 1))
        >>> law.log_prob(torch.zeros(1, 1))
        tensor([[-1.]])
    """

    mean: Tensor
    floor: float = 1e-10
    linear: ClassVar[bool] = True

    def statistics_of(self, columns: Tensor) -> Tensor:
        """x, (d, n)."""
        return columns

    def natural(self) -> Tensor:
        """log rate."""
        return self.mean.log()

    def log_partition(self) -> Tensor:
        """The rate."""
        return self.mean

    def expected(self) -> Tensor:
        """The rate."""
        return self.mean

    def log_base(self, rows: Tensor) -> Tensor | None:
        """- sum of log x!."""
        return -log_factorials(rows)[1]

    def nudged(self, member: int, pieces: int) -> Tensor:
        """Copies within half a standard deviation, along alternating signs."""
        rate = self.mean[member]
        return (rate + 0.5 * rate.sqrt() * alternating(rate, pieces)).clamp(min=0.1 * rate)

    def fitted(self, statistics: Sums) -> Self:
        """Weighted mean counts, at least ``floor``."""
        rate = statistics.features[:, 1:] / statistics.count[:, None]
        return type(self)(rate.clamp(min=self.floor), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Counts have no other coordinates."""
        raise ValueError("a Poisson law has no affine image among Poisson laws")

    def covariance(self) -> forms.Diagonal:
        """The rate again."""
        return forms.Diagonal(self.mean)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return torch.poisson(self.mean[:, None].expand(k, n, d), generator=generator)

    def free(self) -> dict[str, Tensor]:
        """Log-rates: any values of them are a law."""
        return {"log_rate": self.mean.log()}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other rates."""
        return type(self)(free["log_rate"].exp(), self.floor)

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"means": self.mean}

    def floored(self) -> Tensor:
        """Which members have a rate held up by the floor, (k,): an ordinary thing for counts, never a warning."""
        return torch.zeros(self.mean.shape[0], dtype=torch.bool, device=self.mean.device)


@dataclass(frozen=True)
class Bernoulli(ProductFamily):
    r"""Independent zeros and ones, :math:`p(x) = \prod_j p_j^{x_j} (1 - p_j)^{1 - x_j}`.

    Args:
        mean: probabilities, (k, d), inside (0, 1).
        floor: distance that ``fitted`` keeps from 0 and from 1.

    Example:
        >>> import torch
        >>> law = Bernoulli(torch.full((1, 1), 0.5))
        >>> law.log_prob(torch.ones(1, 1))
        tensor([[-0.6931]])
    """

    mean: Tensor
    floor: float = 1e-10
    linear: ClassVar[bool] = True

    def statistics_of(self, columns: Tensor) -> Tensor:
        """x, (d, n)."""
        return columns

    def natural(self) -> Tensor:
        """log odds."""
        return torch.logit(self.mean)

    def log_partition(self) -> Tensor:
        """- log(1 - p)."""
        return -torch.log1p(-self.mean)

    def expected(self) -> Tensor:
        """The probability."""
        return self.mean

    def log_base(self, rows: Tensor) -> Tensor | None:
        """None: zero."""
        return None

    def nudged(self, member: int, pieces: int) -> Tensor:
        """Copies within one unit of log-odds, along alternating signs: distinct however rare a one is."""
        p = self.mean[member]
        return torch.sigmoid(torch.logit(p) + alternating(p, pieces))

    def fitted(self, statistics: Sums) -> Self:
        """Weighted frequencies, kept ``floor`` away from 0 and 1."""
        p = statistics.features[:, 1:] / statistics.count[:, None]
        return type(self)(p.clamp(self.floor, 1.0 - self.floor), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Zeros and ones have no other coordinates."""
        raise ValueError("a Bernoulli law has no affine image among Bernoulli laws")

    def covariance(self) -> forms.Diagonal:
        """p (1 - p)."""
        return forms.Diagonal(self.mean * (1 - self.mean))

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return torch.bernoulli(self.mean[:, None].expand(k, n, d), generator=generator)

    def free(self) -> dict[str, Tensor]:
        """Log-odds: any values of them are a law."""
        return {"log_odds": torch.logit(self.mean)}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other log-odds."""
        return type(self)(free["log_odds"].sigmoid(), self.floor)

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"means": self.mean}

    def floored(self) -> Tensor:
        """Never a warning: a column that is constant within a component is ordinary."""
        return torch.zeros(self.mean.shape[0], dtype=torch.bool, device=self.mean.device)
