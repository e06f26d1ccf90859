"""Kinds of latent variables for coordinate ascent: zeros and ones, one of k, and shares of k."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.distributions.exponential_scalar import BernoulliFamily
from boxloop.distributions.exponential_simplex import CategoricalFamily, DirichletFamily
from boxloop.distributions.node_kinds import Kind, Log, Value
from boxloop.numeric import normal


@dataclass(frozen=True)
class BernoulliKind(Kind):
    """Zeros and ones."""

    @property
    def family(self) -> BernoulliFamily:
        """Bernoulli."""
        return BernoulliFamily()

    def base(self) -> Tensor:
        """Zero."""
        return torch.zeros(1, dtype=torch.float64)

    def named(self, statistic: Tensor) -> Value:
        """(value,)."""
        return Value(statistic[..., 0])

    def inside(self, natural: Tensor) -> Tensor:
        """Any finite log-odds."""
        return torch.isfinite(natural).all(1)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Probability of one, and its variance."""
        share = natural[:, 0].sigmoid()
        return share, share * (-natural[:, 0]).sigmoid()

    def start(self, m: int, stream: Generator) -> Tensor:
        """Log-odds drawn with variance 1."""
        return normal((m, 1), stream)

    def support(self) -> Tensor:
        """0 and 1."""
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64)


@dataclass(frozen=True)
class CategoricalKind(Kind):
    """One of k, as zeros and a one."""

    n_kinds: int

    @property
    def family(self) -> CategoricalFamily:
        """Categorical."""
        return CategoricalFamily(self.n_kinds)

    def base(self) -> Tensor:
        """Zero."""
        return torch.zeros(self.n_kinds, dtype=torch.float64)

    def named(self, statistic: Tensor) -> Value:
        """(value,)."""
        return Value(statistic)

    def inside(self, natural: Tensor) -> Tensor:
        """At least one kind is possible."""
        return torch.isfinite(natural.logsumexp(1))

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Probability of each kind, and its variance."""
        share = natural.softmax(1)
        return share, share * (1.0 - share)

    def start(self, m: int, stream: Generator) -> Tensor:
        """Log-shares drawn with variance 1."""
        return normal((m, self.n_kinds), stream)

    def support(self) -> Tensor:
        """Each kind."""
        return torch.eye(self.n_kinds, dtype=torch.float64)


@dataclass(frozen=True)
class DirichletKind(Kind):
    """Shares of k kinds."""

    n_kinds: int

    @property
    def family(self) -> DirichletFamily:
        """Dirichlet."""
        return DirichletFamily(self.n_kinds)

    def base(self) -> Tensor:
        """The product of 1 / z."""
        return torch.full((self.n_kinds,), -1.0, dtype=torch.float64)

    def named(self, statistic: Tensor) -> Log:
        """(log,)."""
        return Log(statistic)

    def inside(self, natural: Tensor) -> Tensor:
        """Positive concentrations."""
        return (torch.isfinite(natural) & (natural > 0)).all(1)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each share."""
        total = natural.sum(1, keepdim=True)
        mean = natural / total
        return mean, mean * (1.0 - mean) / (total + 1.0)

    def start(self, m: int, stream: Generator) -> Tensor:
        """Concentrations near 1."""
        return (0.5 * normal((m, self.n_kinds), stream)).exp()

    def window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log-ratios to the last share."""
        logs, spread = torch.digamma(natural), torch.polygamma(1, natural)
        return logs[:, :-1] - logs[:, -1:], (spread[:, :-1] + spread[:, -1:]).sqrt()

    def unfold(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates are log-ratios to the last share; the volume is over the first k - 1 shares."""
        logs = torch.cat([free, torch.zeros_like(free[:, :1])], dim=1).log_softmax(1)
        return logs, logs.sum(1)
