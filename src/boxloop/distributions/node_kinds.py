r"""Kinds of latent variables for coordinate ascent: what their statistics are called, and how they are integrated.

A kind is an exponential family seen from both sides of an expected log-joint: its statistics under plain names, and
the coordinates in which a quadrature rule walks over its values. In all of them the base measure is itself
:math:`h(z) = e^{\langle b, T(z) \rangle}`, so that a density in the usual sense has the coefficients
:math:`\eta + b` of T.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from boxloop.distributions.exponential import ExponentialFamily
from boxloop.distributions.exponential_scalar import GammaFamily, NormalFamily
from boxloop.distributions.exponential_vector import MultivariateNormalFamily
from boxloop.numeric import normal, unpack


class Value(NamedTuple):
    """z itself: zeros and ones, (...) or one of k, (..., k)."""

    value: Tensor


class ValueSquare(NamedTuple):
    """z and its square, (...)."""

    value: Tensor
    square: Tensor


class LogValue(NamedTuple):
    """log z and z, (...)."""

    log: Tensor
    value: Tensor


class Log(NamedTuple):
    """Logs of shares, (..., k)."""

    log: Tensor


class ValueOuter(NamedTuple):
    """z, (..., d), and z z', (..., d, d)."""

    value: Tensor
    outer: Tensor


Statistic = Value | ValueSquare | LogValue | Log | ValueOuter
"""Named statistics of the members of a node; their coefficients have the same names."""


@dataclass(frozen=True)
class Kind(ABC):
    """A family of m members at once: natural parameters (m, p), statistics (m, p)."""

    @property
    @abstractmethod
    def family(self) -> ExponentialFamily:
        """The exponential family of one member."""

    @abstractmethod
    def base(self) -> Tensor:
        """b with log h(z) = b . T(z), (p,)."""

    @abstractmethod
    def named(self, statistic: Tensor) -> Statistic:
        """Statistics (..., p) under their names."""

    @abstractmethod
    def inside(self, natural: Tensor) -> Tensor:
        """Which members are laws at all, (m,)."""

    @abstractmethod
    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z, (m, ...)."""

    @abstractmethod
    def start(self, m: int, stream: Generator) -> Tensor:
        """Natural parameters of m members that differ, (m, p)."""

    def support(self) -> Tensor | None:
        """Statistics of every value, (s, p), where there are finitely many."""
        return None

    def window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and deviation of the free coordinates, (m, f); where there are finitely many values, f = 0."""
        return natural[:, :0], natural[:, :0]

    def unfold(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Free coordinates (n, f) to statistics (n, p) and the log of the volume they stand for, (n,)."""
        raise NotImplementedError(f"{type(self).__name__} has finitely many values, given by support()")


@dataclass(frozen=True)
class NormalKind(Kind):
    """Real numbers."""

    @property
    def family(self) -> NormalFamily:
        """Normal."""
        return NormalFamily()

    def base(self) -> Tensor:
        """Zero."""
        return torch.zeros(2, dtype=torch.float64)

    def named(self, statistic: Tensor) -> ValueSquare:
        """(value, square)."""
        return ValueSquare(*statistic.unbind(-1))

    def inside(self, natural: Tensor) -> Tensor:
        """A negative coefficient of the square."""
        return torch.isfinite(natural).all(1) & (natural[:, 1] < 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        variance = -0.5 / natural[:, 1]
        return natural[:, 0] * variance, variance

    def start(self, m: int, stream: Generator) -> Tensor:
        """Variance 1, means drawn with variance 1."""
        mean = normal((m,), stream)
        return torch.stack([mean, torch.full_like(mean, -0.5)], dim=1)

    def window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation."""
        mean, variance = self.moments(natural)
        return mean[:, None], variance.sqrt()[:, None]

    def unfold(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """z is its own coordinate."""
        return torch.cat([free, free.square()], dim=1), torch.zeros_like(free[:, 0])


@dataclass(frozen=True)
class GammaKind(Kind):
    """Positive numbers."""

    @property
    def family(self) -> GammaFamily:
        """Gamma."""
        return GammaFamily()

    def base(self) -> Tensor:
        """1 / z."""
        return torch.tensor([-1.0, 0.0], dtype=torch.float64)

    def named(self, statistic: Tensor) -> LogValue:
        """(log, value)."""
        return LogValue(*statistic.unbind(-1))

    def inside(self, natural: Tensor) -> Tensor:
        """A positive shape and a positive rate."""
        return torch.isfinite(natural).all(1) & (natural[:, 0] > 0) & (natural[:, 1] < 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        shape, rate = natural[:, 0], -natural[:, 1]
        return shape / rate, shape / rate.square()

    def start(self, m: int, stream: Generator) -> Tensor:
        """Shape 1, rates near 1."""
        rate = (0.5 * normal((m,), stream)).exp()
        return torch.stack([torch.ones_like(rate), -rate], dim=1)

    def window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log."""
        shape, rate = natural[:, 0], -natural[:, 1]
        return (torch.digamma(shape) - rate.log())[:, None], torch.polygamma(1, shape).sqrt()[:, None]

    def unfold(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinate is log z."""
        return torch.cat([free, free.exp()], dim=1), free[:, 0]


@dataclass(frozen=True)
class GaussianKind(Kind):
    """Vectors of d numbers."""

    n_columns: int

    @property
    def family(self) -> MultivariateNormalFamily:
        """Multivariate normal."""
        return MultivariateNormalFamily(self.n_columns)

    def base(self) -> Tensor:
        """Zero."""
        return torch.zeros(self.n_columns * (self.n_columns + 3) // 2, dtype=torch.float64)

    def named(self, statistic: Tensor) -> ValueOuter:
        """(value, outer)."""
        d = self.n_columns
        return ValueOuter(statistic[..., :d], unpack(statistic[..., d:], d))

    def inside(self, natural: Tensor) -> Tensor:
        """A positive definite precision."""
        d = self.n_columns
        curve = -unpack(natural[:, d:], d) * (1.0 + torch.eye(d, dtype=natural.dtype))
        return torch.isfinite(natural).all(1) & (torch.linalg.cholesky_ex(curve).info == 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of each entry."""
        found = torch.vmap(self.family.parameters)(natural)
        return found["mean"], found["covariance"].diagonal(dim1=-2, dim2=-1)

    def start(self, m: int, stream: Generator) -> Tensor:
        """Identity covariance, means drawn with variance 1."""
        one = self.family.natural(
            {"mean": torch.zeros(self.n_columns), "covariance": torch.eye(self.n_columns)}
        )
        mean = normal((m, self.n_columns), stream)
        return torch.cat([mean, one[self.n_columns :].expand(m, -1)], dim=1)

    def window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each entry."""
        mean, variance = self.moments(natural)
        return mean, variance.sqrt()

    def unfold(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """z is its own coordinate."""
        return self.family.statistic(free), torch.zeros_like(free[:, 0])
