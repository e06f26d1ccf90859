"""Exponential families of one column: zeros and ones, counts, waiting times, the normal and the gamma law."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.distributions.counts import Bernoulli, Poisson
from boxloop.distributions.exponential import ExponentialFamily, only
from boxloop.distributions.gaussian import DiagonalGaussian
from boxloop.loop import Iteration, run


@dataclass(frozen=True)
class BernoulliFamily(ExponentialFamily):
    r"""Zeros and ones: :math:`\eta = \log(p / (1 - p))`, T(x) = x, :math:`A = \log(1 + e^\eta)`.

    Example:
        >>> import torch
        >>> family = BernoulliFamily()
        >>> family.parameters(family.fit([[1], [0], [0], [0]]))
        {'probability': tensor(0.2500, dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        """x."""
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        """Zero on 0 and 1."""
        x = rows[:, 0]
        return torch.where((x == 0) | (x == 1), 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        """log(1 + exp eta)."""
        return torch.nn.functional.softplus(natural[0])

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``probability``."""
        return _vector(parameters["probability"]).logit()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``probability``."""
        return {"probability": natural[0].sigmoid()}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Log-odds."""
        return mean.logit()

    def law(self, natural: Tensor) -> Bernoulli:
        """A :class:`boxloop.distributions.Bernoulli`."""
        return Bernoulli(natural.sigmoid()[None])

    def from_law(self, law: Bernoulli) -> Tensor:
        """The natural parameter of a law of one member and one column."""
        return self.from_mean(only(law.mean))


@dataclass(frozen=True)
class PoissonFamily(ExponentialFamily):
    r"""Counts: :math:`\eta = \log \theta`, T(x) = x, h(x) = 1/x!, :math:`A = e^\eta = \theta`.

    Deviation: document 002, example A.8 has :math:`B(\theta) = -\theta`; the density then has a
    factor :math:`e^{+\theta}` and does not sum to one. It is :math:`B(\theta) = \theta`.

    Example:
        >>> import torch
        >>> family = PoissonFamily()
        >>> family.parameters(family.fit([[1], [3]]))
        {'rate': tensor(2., dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        """x."""
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        """- log x! on the counts."""
        x = rows[:, 0]
        return torch.where((x >= 0) & (x == x.round()), -torch.lgamma(x.clamp(min=0.0) + 1.0), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        """exp eta."""
        return natural[0].exp()

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``rate``."""
        return _vector(parameters["rate"]).log()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``rate``."""
        return {"rate": natural[0].exp()}

    def from_mean(self, mean: Tensor) -> Tensor:
        """log mean."""
        return mean.log()

    def law(self, natural: Tensor) -> Poisson:
        """A :class:`boxloop.distributions.Poisson`."""
        return Poisson(natural.exp()[None])

    def from_law(self, law: Poisson) -> Tensor:
        """The natural parameter of a law of one member and one column."""
        return self.from_mean(only(law.mean))


@dataclass(frozen=True)
class WaitingTimeFamily(ExponentialFamily):
    r"""The exponential law :math:`\theta e^{-\theta x}`: :math:`\eta = -\theta`, T(x) = x, :math:`A = -\log(-\eta)`.

    Example:
        >>> import torch
        >>> family = WaitingTimeFamily()
        >>> family.parameters(family.fit([[1.0], [3.0]]))  # example A.1: n / sum of x
        {'rate': tensor(0.5000, dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        """x."""
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        """Zero on what is not negative."""
        return torch.where(rows[:, 0] >= 0, 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        """- log(-eta)."""
        return -(-natural[0]).log()

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``rate``."""
        return -_vector(parameters["rate"])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``rate``."""
        return {"rate": -natural[0]}

    def from_mean(self, mean: Tensor) -> Tensor:
        """- 1 / mean."""
        return -1.0 / mean

    def law(self, natural: Tensor) -> None:
        """None: mixtures have no use for it yet."""


@dataclass(frozen=True)
class NormalFamily(ExponentialFamily):
    r"""One Gaussian column: :math:`\eta = (\mu/\sigma^2, -1/(2\sigma^2))`, T(x) = (x, x²), h = 1.

    .. math:: A = \frac{\mu^2}{2 \sigma^2} + \frac12 \log(2 \pi \sigma^2)
                = -\frac{\eta_1^2}{4 \eta_2} + \frac12 \log \frac{\pi}{-\eta_2}

    Deviation: document 002, example A.8 has :math:`\mu/(2\sigma^2)`; the square is missing.

    Example:
        >>> import torch
        >>> family = NormalFamily()
        >>> family.parameters(family.fit([[1.0], [3.0]]))
        {'mean': tensor(2., dtype=torch.float64), 'variance': tensor(1., dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        """(x, x^2)."""
        return torch.stack([rows[:, 0], rows[:, 0].square()], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        """Zero."""
        return torch.zeros_like(rows[:, 0])

    def log_partition(self, natural: Tensor) -> Tensor:
        """- eta_1^2 / (4 eta_2) + log(pi / -eta_2) / 2."""
        return -natural[0].square() / (4.0 * natural[1]) + 0.5 * (math.log(math.pi) - (-natural[1]).log())

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``mean`` and ``variance``."""
        mean, variance = _vector(parameters["mean"])[0], _vector(parameters["variance"])[0]
        return torch.stack([mean / variance, -0.5 / variance])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``mean`` and ``variance``."""
        variance = -0.5 / natural[1]
        return {"mean": natural[0] * variance, "variance": variance}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Through the mean and the variance."""
        variance = mean[1] - mean[0].square()
        return torch.stack([mean[0] / variance, -0.5 / variance])

    def law(self, natural: Tensor) -> DiagonalGaussian:
        """A :class:`boxloop.distributions.DiagonalGaussian`."""
        found = self.parameters(natural)
        return DiagonalGaussian(found["mean"].reshape(1, 1), found["variance"].reshape(1, 1))

    def from_law(self, law: DiagonalGaussian) -> Tensor:
        """The natural parameter of a law of one member and one column."""
        return self.natural({"mean": only(law.mean), "variance": only(law.variance)})


@dataclass(frozen=True)
class GammaFamily(ExponentialFamily):
    r"""Positive numbers: :math:`\eta = (a, -b)` for shape a and rate b, T(x) = (log x, x), h(x) = 1/x.

    .. math:: A = \log \Gamma(a) - a \log b

    The mean of T has no closed inverse: Newton's method finds the shape from
    :math:`\log a - \mathrm{digamma}(a) = \log E[x] - E[\log x]`.

    Example:
        >>> import torch
        >>> family = GammaFamily()
        >>> natural = family.natural({"shape": 3.0, "rate": 2.0})
        >>> family.from_mean(family.mean(natural)).round(decimals=12)
        tensor([ 3., -2.], dtype=torch.float64)
    """

    def statistic(self, rows: Tensor) -> Tensor:
        """(log x, x)."""
        return torch.stack([rows[:, 0].log(), rows[:, 0]], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        """- log x on what is positive."""
        x = rows[:, 0]
        return torch.where(x > 0, -torch.where(x > 0, x, 1.0).log(), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        """log Gamma(a) - a log b."""
        return torch.lgamma(natural[0]) - natural[0] * (-natural[1]).log()

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``shape`` and ``rate``."""
        return torch.tensor([float(parameters["shape"]), -float(parameters["rate"])], dtype=torch.float64)

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``shape`` and ``rate``."""
        return {"shape": natural[0], "rate": -natural[1]}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Newton's method on 1 / shape, from a start within 2% of the root (Minka 2002)."""
        gap = mean[1].log() - mean[0]
        if not bool(gap > 1e-15):
            return torch.full_like(mean, math.nan)
        start = (3.0 - gap + ((gap - 3.0).square() + 24.0 * gap).sqrt()) / (12.0 * gap)

        def step(shape: Tensor) -> Iteration[Tensor]:
            miss = shape.log() - torch.digamma(shape) - gap
            slope = shape - shape.square() * torch.polygamma(1, shape)
            fresh = 1.0 / (1.0 / shape - miss / -slope)
            return Iteration(fresh, 0.0, final=bool((fresh - shape).abs() <= 1e-15 * shape))

        shape = run(step, start, max_iter=50).state
        return torch.stack([shape, -shape / mean[1]])

    def law(self, natural: Tensor) -> None:
        """None: mixtures have no use for it yet."""


def _vector(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).reshape(1)
