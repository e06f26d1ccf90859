r"""Exponential families as objects: natural parameter, statistic, log-partition, and all that follows from them.

.. math:: p_\eta(x) = h(x) \exp(\langle \eta, T(x) \rangle - A(\eta))

(Le Corff, *Introduction to computational statistics*, appendix A, "Exponential models"). The gradient of A is the mean
of T and its second derivative the covariance, both by autograd; maximum likelihood matches the mean of T, and the
Kullback-Leibler divergence is the Bregman divergence of A. Here a family says what is true of each of its members,
given by natural parameters; the families of :mod:`boxloop.distributions.family` hold k members, for mixtures.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from boxloop.data import open_source
from boxloop.distributions.counts import Bernoulli, Poisson
from boxloop.distributions.dirichlet import Dirichlet, log_beta
from boxloop.distributions.gaussian_diagonal import DiagonalGaussian
from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.distributions.multinomial import Multinomial
from boxloop.loop import Iteration, run
from boxloop.numeric import normal, pack, pack_index, unpack
from boxloop.tree import Tree
from boxloop.types import Distribution

SUM_TOLERANCE = 1e-10
"""How far the sum of a row of shares may be from one."""


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
class MeanSums(Tree):
    """Summed statistics (p,), weight, and rows outside the support."""

    statistic: Tensor
    weight: Tensor
    outside: Tensor


@dataclass(frozen=True)
class ExponentialFamily(ABC):
    r"""One family, :math:`\{p_\eta\}`; the natural parameter, a vector (p,), is an argument of every method.
    ``log_partition``, ``mean`` and ``parameters`` also take many members at once, (..., p)."""

    @abstractmethod
    def statistic(self, rows: Tensor) -> Tensor:
        """T, (n, d) to (n, p)."""

    @abstractmethod
    def log_base(self, rows: Tensor) -> Tensor:
        """log h, (n,); minus infinity outside the support."""

    @abstractmethod
    def log_partition(self, natural: Tensor) -> Tensor:
        """A of each member, (...); differentiable twice."""

    @abstractmethod
    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """Usual parameters to natural ones, (p,)."""

    @abstractmethod
    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """Natural parameters to the usual ones, by name."""

    @abstractmethod
    def from_mean(self, mean: Tensor) -> Tensor:
        """Mean of T to the natural parameter: the inverse of the gradient of A."""

    def distribution(self, natural: Tensor) -> Distribution | None:
        """One member as a distribution of :mod:`boxloop.distributions`; None where there is none."""
        return None

    def mean(self, natural: Tensor) -> Tensor:
        r""":math:`E_\eta[T(X)] = \nabla A(\eta)` of each member, (..., p)."""
        return self._mean(natural)[1]

    def covariance(self, natural: Tensor) -> Tensor:
        r""":math:`\mathrm{Cov}_\eta[T(X)] = \nabla^2 A(\eta)`, (p, p): also the information of one row on eta."""
        here, mean = self._mean(natural, keep=True)
        rows = [torch.autograd.grad(one, here, retain_graph=True, allow_unused=True)[0] for one in mean]
        return torch.stack([torch.zeros_like(here) if row is None else row for row in rows]).detach()

    def _mean(self, natural: Tensor, keep: bool = False) -> tuple[Tensor, Tensor]:
        """Where the gradient was taken, and the gradient; differentiable on demand, or where the parameter is."""
        here = natural if natural.requires_grad else natural.detach().clone().requires_grad_()
        keep = keep or natural.requires_grad
        with torch.enable_grad():
            (mean,) = torch.autograd.grad(self.log_partition(here).sum(), here, create_graph=keep)
        return here, mean

    def log_prob(self, natural: Tensor, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""
        base = self.log_base(rows)
        inside = torch.isfinite(base)
        # Outside the support T may not be finite; there the density is zero whatever it is.
        value = torch.where(inside[:, None], self.statistic(rows), 0.0) @ natural
        return value - self.log_partition(natural) + base

    def divergence(self, natural: Tensor, other: Tensor) -> Tensor:
        r"""Kullback-Leibler divergence from one member to another,
        :math:`A(\eta') - A(\eta) - \langle \eta' - \eta, \nabla A(\eta) \rangle`."""
        gap = self.log_partition(other) - self.log_partition(natural)
        return gap - (other - natural) @ self.mean(natural)

    def fit(self, X: object, sample_weight: object = None) -> Tensor:
        r"""Maximum likelihood: the natural parameter with :math:`\nabla A(\hat\eta) = \frac1n \sum_i T(x_i)`.

        Args:
            X: any table that :func:`boxloop.data.open_source` opens.
            sample_weight: one weight per row, or the name of a column.

        Returns:
            The natural parameter, (p,).

        Raises:
            ValueError: a row outside the support, or a mean of T that no member of the family has.
        """

        def tile(rows: Tensor, weight: Tensor) -> MeanSums:
            outside = (~torch.isfinite(self.log_base(rows)) & (weight > 0)).sum()
            statistic = torch.where((weight > 0)[:, None], self.statistic(rows), 0.0)
            return MeanSums(weight @ statistic, weight.sum(), outside)

        sums = open_source(X, sample_weight).reduce(tile)
        if int(sums.outside):
            raise ValueError(f"{int(sums.outside)} row(s) lie outside the support of {type(self).__name__}")
        mean = sums.statistic / sums.weight
        natural = self.from_mean(mean)
        if not bool(torch.isfinite(natural).all()):
            raise ValueError(
                f"the mean statistic {mean.tolist()} is at the edge of {type(self).__name__}: "
                "the likelihood has no maximum"
            )
        return natural


@dataclass(frozen=True)
class LatentFamily(ExponentialFamily):
    r"""A family whose members can be latent variables of coordinate ascent, m members at once.

    Its base measure is itself :math:`h(z) = e^{\langle b, T(z) \rangle}`, so that a density in the usual sense has the
    coefficients :math:`\eta + b` of T. Free coordinates are those in which a quadrature rule walks over the values.
    """

    @abstractmethod
    def base_coefficients(self) -> Tensor:
        """b with log h(z) = b . T(z), (p,)."""

    @abstractmethod
    def name_statistics(self, statistic: Tensor) -> Statistic:
        """Statistics (..., p) under their names."""

    @abstractmethod
    def is_valid(self, natural: Tensor) -> Tensor:
        """Which members are distributions at all, (m,)."""

    @abstractmethod
    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of z, (m, ...)."""

    @abstractmethod
    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Natural parameters of m members that differ, (m, p)."""

    def support(self) -> Tensor | None:
        """Statistics of every value, (s, p), where there are finitely many."""
        return None

    def quadrature_window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and deviation of the free coordinates, (m, f); where there are finitely many values, f = 0."""
        return natural[:, :0], natural[:, :0]

    def from_free_coordinates(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """Free coordinates (n, f) to statistics (n, p) and the log of the volume they stand for, (n,)."""
        raise NotImplementedError(f"{type(self).__name__} has finitely many values, given by support()")


@dataclass(frozen=True)
class BernoulliFamily(LatentFamily):
    r"""Zeros and ones: :math:`\eta = \log(p / (1 - p))`, T(x) = x, :math:`A = \log(1 + e^\eta)`.

    Example:
        >>> import torch
        >>> family = BernoulliFamily()
        >>> family.parameters(family.fit([[1], [0], [0], [0]]))
        {'probability': tensor(0.2500, dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        x = rows[:, 0]
        return torch.where((x == 0) | (x == 1), 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        return torch.nn.functional.softplus(natural[..., 0])

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return _to_vector(parameters["probability"]).logit()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"probability": natural[..., 0].sigmoid()}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Log-odds."""
        return mean.logit()

    def distribution(self, natural: Tensor) -> Bernoulli:
        return Bernoulli(natural.sigmoid()[None])

    def from_distribution(self, distribution: Bernoulli) -> Tensor:
        """The natural parameter of a distribution of one member and one column."""
        return self.from_mean(_single_member(distribution.mean))

    def base_coefficients(self) -> Tensor:
        return torch.zeros(1, dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> Value:
        return Value(statistic[..., 0])

    def is_valid(self, natural: Tensor) -> Tensor:
        return torch.isfinite(natural).all(1)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        share = natural[:, 0].sigmoid()
        return share, share * (-natural[:, 0]).sigmoid()

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Log-odds drawn with variance 1."""
        return normal((m, 1), stream)

    def support(self) -> Tensor:
        return torch.tensor([[0.0], [1.0]], dtype=torch.float64)


@dataclass(frozen=True)
class PoissonFamily(ExponentialFamily):
    r"""Counts: :math:`\eta = \log \theta`, T(x) = x, h(x) = 1/x!, :math:`A = e^\eta = \theta`.

    Deviation: Le Corff, example A.8 has :math:`B(\theta) = -\theta`; the density then has a
    factor :math:`e^{+\theta}` and does not sum to one. It is :math:`B(\theta) = \theta`.

    Example:
        >>> import torch
        >>> family = PoissonFamily()
        >>> family.parameters(family.fit([[1], [3]]))
        {'rate': tensor(2., dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        x = rows[:, 0]
        return torch.where((x >= 0) & (x == x.round()), -torch.lgamma(x.clamp(min=0.0) + 1.0), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        return natural[..., 0].exp()

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return _to_vector(parameters["rate"]).log()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"rate": natural[..., 0].exp()}

    def from_mean(self, mean: Tensor) -> Tensor:
        """log mean."""
        return mean.log()

    def distribution(self, natural: Tensor) -> Poisson:
        return Poisson(natural.exp()[None])

    def from_distribution(self, distribution: Poisson) -> Tensor:
        """The natural parameter of a distribution of one member and one column."""
        return self.from_mean(_single_member(distribution.mean))


@dataclass(frozen=True)
class WaitingTimeFamily(ExponentialFamily):
    r"""Waiting times, :math:`\theta e^{-\theta x}`: :math:`\eta = -\theta`, T(x) = x, :math:`A = -\log(-\eta)`.

    Example:
        >>> import torch
        >>> family = WaitingTimeFamily()
        >>> family.parameters(family.fit([[1.0], [3.0]]))  # example A.1: n / sum of x
        {'rate': tensor(0.5000, dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return rows[:, :1]

    def log_base(self, rows: Tensor) -> Tensor:
        return torch.where(rows[:, 0] >= 0, 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        return -(-natural[..., 0]).log()

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return -_to_vector(parameters["rate"])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"rate": -natural[..., 0]}

    def from_mean(self, mean: Tensor) -> Tensor:
        """- 1 / mean."""
        return -1.0 / mean


@dataclass(frozen=True)
class NormalFamily(LatentFamily):
    r"""One Gaussian column: :math:`\eta = (\mu/\sigma^2, -1/(2\sigma^2))`, T(x) = (x, x²), h = 1.

    .. math:: A = \frac{\mu^2}{2 \sigma^2} + \frac12 \log(2 \pi \sigma^2)
                = -\frac{\eta_1^2}{4 \eta_2} + \frac12 \log \frac{\pi}{-\eta_2}

    Deviation: Le Corff, example A.8 has :math:`\mu/(2\sigma^2)`; the square is missing.

    Example:
        >>> import torch
        >>> family = NormalFamily()
        >>> family.parameters(family.fit([[1.0], [3.0]]))
        {'mean': tensor(2., dtype=torch.float64), 'variance': tensor(1., dtype=torch.float64)}
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return torch.stack([rows[:, 0], rows[:, 0].square()], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows[:, 0])

    def log_partition(self, natural: Tensor) -> Tensor:
        linear, square = natural.unbind(-1)
        return -linear.square() / (4.0 * square) + 0.5 * (math.log(math.pi) - (-square).log())

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        mean, variance = _to_vector(parameters["mean"])[0], _to_vector(parameters["variance"])[0]
        return torch.stack([mean / variance, -0.5 / variance])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        variance = -0.5 / natural[..., 1]
        return {"mean": natural[..., 0] * variance, "variance": variance}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Through the mean and the variance."""
        variance = mean[1] - mean[0].square()
        return torch.stack([mean[0] / variance, -0.5 / variance])

    def distribution(self, natural: Tensor) -> DiagonalGaussian:
        """A :class:`boxloop.distributions.DiagonalGaussian`."""
        parameters = self.parameters(natural)
        return DiagonalGaussian(parameters["mean"].reshape(1, 1), parameters["variance"].reshape(1, 1))

    def from_distribution(self, distribution: DiagonalGaussian) -> Tensor:
        """The natural parameter of a distribution of one member and one column."""
        return self.to_natural(
            {"mean": _single_member(distribution.mean), "variance": _single_member(distribution.variance)}
        )

    def base_coefficients(self) -> Tensor:
        return torch.zeros(2, dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> ValueSquare:
        return ValueSquare(*statistic.unbind(-1))

    def is_valid(self, natural: Tensor) -> Tensor:
        return torch.isfinite(natural).all(1) & (natural[:, 1] < 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        parameters = self.parameters(natural)
        return parameters["mean"], parameters["variance"]

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Variance 1, means drawn with variance 1."""
        mean = normal((m,), stream)
        return torch.stack([mean, torch.full_like(mean, -0.5)], dim=1)

    def quadrature_window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation."""
        mean, variance = self.moments(natural)
        return mean[:, None], variance.sqrt()[:, None]

    def from_free_coordinates(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """z is its own coordinate."""
        return torch.cat([free, free.square()], dim=1), torch.zeros_like(free[:, 0])


@dataclass(frozen=True)
class GammaFamily(LatentFamily):
    r"""Positive numbers: :math:`\eta = (a, -b)` for shape a and rate b, T(x) = (log x, x), h(x) = 1/x.

    .. math:: A = \log \Gamma(a) - a \log b

    The mean of T has no closed inverse: Newton's method finds the shape from
    :math:`\log a - \mathrm{digamma}(a) = \log E[x] - E[\log x]`.

    Example:
        >>> import torch
        >>> family = GammaFamily()
        >>> natural = family.to_natural({"shape": 3.0, "rate": 2.0})
        >>> family.from_mean(family.mean(natural)).round(decimals=12)
        tensor([ 3., -2.], dtype=torch.float64)
    """

    def statistic(self, rows: Tensor) -> Tensor:
        return torch.stack([rows[:, 0].log(), rows[:, 0]], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        x = rows[:, 0]
        return torch.where(x > 0, -torch.where(x > 0, x, 1.0).log(), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        shape, rate = natural[..., 0], -natural[..., 1]
        return torch.lgamma(shape) - shape * rate.log()

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return torch.tensor([float(parameters["shape"]), -float(parameters["rate"])], dtype=torch.float64)

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"shape": natural[..., 0], "rate": -natural[..., 1]}

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

    def base_coefficients(self) -> Tensor:
        return torch.tensor([-1.0, 0.0], dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> LogValue:
        return LogValue(*statistic.unbind(-1))

    def is_valid(self, natural: Tensor) -> Tensor:
        return torch.isfinite(natural).all(1) & (natural[:, 0] > 0) & (natural[:, 1] < 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        shape, rate = natural[:, 0], -natural[:, 1]
        return shape / rate, shape / rate.square()

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Shape 1, rates near 1."""
        rate = (0.5 * normal((m,), stream)).exp()
        return torch.stack([torch.ones_like(rate), -rate], dim=1)

    def quadrature_window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log."""
        shape, rate = natural[:, 0], -natural[:, 1]
        return (torch.digamma(shape) - rate.log())[:, None], torch.polygamma(1, shape).sqrt()[:, None]

    def from_free_coordinates(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinate is log z."""
        return torch.cat([free, free.exp()], dim=1), free[:, 0]


@dataclass(frozen=True)
class CategoricalFamily(LatentFamily):
    r"""One of k kinds, as a row of zeros and a one: T(x) = x, h = 1.

    .. math:: A = \log \sum_j e^{\eta_j}

    All kinds are treated alike, so the natural parameter is known only up to a constant that is added to all of it;
    :class:`MultinomialFamily` leaves out the last kind instead.

    Args:
        n_kinds: k.

    Example:
        >>> import torch
        >>> family = CategoricalFamily(3)
        >>> family.parameters(family.fit([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]))
        {'probability': tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)}
    """

    n_kinds: int

    def statistic(self, rows: Tensor) -> Tensor:
        return rows

    def log_base(self, rows: Tensor) -> Tensor:
        inside = ((rows == 0) | (rows == 1)).all(1) & (rows.sum(1) == 1)
        return torch.where(inside, 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        return torch.logsumexp(natural, dim=-1)

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return torch.as_tensor(parameters["probability"], dtype=torch.float64).log()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"probability": natural.softmax(-1)}

    def from_mean(self, mean: Tensor) -> Tensor:
        """log mean."""
        return mean.log()

    def distribution(self, natural: Tensor) -> Multinomial:
        """A :class:`boxloop.distributions.Multinomial` of one thing per row."""
        return Multinomial(natural.softmax(0)[None], 1)

    def from_distribution(self, distribution: Multinomial) -> Tensor:
        """The natural parameter of a distribution of one member, of one thing per row."""
        if distribution.total != 1:
            raise ValueError(f"the distribution has total {distribution.total}, the family 1")
        return _single_member(distribution.probability, self.n_kinds).log()

    def base_coefficients(self) -> Tensor:
        return torch.zeros(self.n_kinds, dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> Value:
        return Value(statistic)

    def is_valid(self, natural: Tensor) -> Tensor:
        return torch.isfinite(natural.logsumexp(1))

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        share = natural.softmax(1)
        return share, share * (1.0 - share)

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Log-shares drawn with variance 1."""
        return normal((m, self.n_kinds), stream)

    def support(self) -> Tensor:
        return torch.eye(self.n_kinds, dtype=torch.float64)


@dataclass(frozen=True)
class MultinomialFamily(ExponentialFamily):
    r"""Counts of d kinds among N: :math:`\eta_j = \log(p_j / p_d)`, T = the first d - 1 counts.

    .. math:: A = N \log\Big(1 + \sum_{j < d} e^{\eta_j}\Big)

    With N = 1 and rows of zeros and a one it is the categorical distribution.

    Args:
        n_kinds: d.
        total: N.

    Example:
        >>> import torch
        >>> family = MultinomialFamily(3)
        >>> family.parameters(family.fit([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]))
        {'probability': tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)}
    """

    n_kinds: int
    total: int = 1

    def statistic(self, rows: Tensor) -> Tensor:
        """All counts but the last: it is what is left of the total."""
        return rows[:, :-1]

    def log_base(self, rows: Tensor) -> Tensor:
        """log N! - sum log x_j!, on counts that add up to N."""
        inside = ((rows >= 0) & (rows == rows.round())).all(1) & (rows.sum(1) == self.total)
        value = math.lgamma(self.total + 1.0) - torch.lgamma(rows.clamp(min=0.0) + 1.0).sum(1)
        return torch.where(inside, value, -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        return self.total * torch.logsumexp(self._with_last(natural), dim=-1)

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        logs = torch.as_tensor(parameters["probability"], dtype=torch.float64).log()
        return logs[:-1] - logs[-1]

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"probability": self._with_last(natural).softmax(-1)}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Log-ratios to the last kind."""
        return (mean / (self.total - mean.sum())).log()

    def distribution(self, natural: Tensor) -> Multinomial:
        return Multinomial(self.parameters(natural)["probability"][None], self.total)

    def from_distribution(self, distribution: Multinomial) -> Tensor:
        """The natural parameter of a distribution of one member; its total must be that of the family."""
        if distribution.total != self.total:
            raise ValueError(f"the distribution has total {distribution.total}, the family {self.total}")
        return self.to_natural({"probability": _single_member(distribution.probability, self.n_kinds)})

    def _with_last(self, natural: Tensor) -> Tensor:
        """Log-ratios of all kinds to the last, whose own is zero."""
        return torch.cat([natural, natural.new_zeros(*natural.shape[:-1], 1)], dim=-1)


@dataclass(frozen=True)
class DirichletFamily(LatentFamily):
    r"""Shares of k kinds: :math:`\eta = a`, T(x) = log x, :math:`h(x) = \prod_j 1/x_j` over the first k - 1 shares.

    .. math:: A = \sum_j \log \Gamma(a_j) - \log \Gamma\Big(\sum_j a_j\Big)

    The mean of T has no closed inverse: Newton's method solves
    :math:`\mathrm{digamma}(a_j) - \mathrm{digamma}(\sum_i a_i) = E[\log x_j]`.

    Args:
        n_kinds: k.

    Example:
        >>> import torch
        >>> family = DirichletFamily(3)
        >>> natural = family.to_natural({"concentration": [0.5, 1.0, 4.0]})
        >>> family.from_mean(family.mean(natural)).round(decimals=10)
        tensor([0.5000, 1.0000, 4.0000], dtype=torch.float64)
    """

    n_kinds: int

    def statistic(self, rows: Tensor) -> Tensor:
        return rows.log()

    def log_base(self, rows: Tensor) -> Tensor:
        """- sum log x on positive shares that add up to one."""
        inside = (rows > 0).all(1) & ((rows.sum(1) - 1.0).abs() < SUM_TOLERANCE)
        return torch.where(inside, -torch.where(rows > 0, rows, 1.0).log().sum(1), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        return log_beta(natural)

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        return torch.as_tensor(parameters["concentration"], dtype=torch.float64)

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        return {"concentration": natural}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Newton's method on the concave likelihood, halved where it would fall (Minka 2000).
        The curvature is a diagonal and a constant, so a step costs k operations."""
        if not bool(torch.logsumexp(mean, 0) < -1e-14):  # the mean of logs is below the log of means
            return torch.full_like(mean, math.nan)

        def height(a: Tensor) -> Tensor:
            return a @ mean - self.log_partition(a)

        def step(a: Tensor) -> Iteration[Tensor]:
            slope = mean - torch.digamma(a) + torch.digamma(a.sum())
            diagonal, common = torch.polygamma(1, a), torch.polygamma(1, a.sum())
            shared = (slope / diagonal).sum() / (1.0 / common - (1.0 / diagonal).sum())
            move = (slope + shared) / diagonal
            near = bool(slope @ move < 1e-6)  # where Newton converges, and heights differ by rounding alone
            for _ in range(60):
                if bool((a + move > 0).all()) and (near or bool(height(a + move) >= height(a))):
                    break
                move = 0.5 * move
            return Iteration(a + move, 0.0, final=bool((move.abs() <= 1e-14 * a).all()))

        return run(step, torch.ones_like(mean), max_iter=200).state

    def base_coefficients(self) -> Tensor:
        return torch.full((self.n_kinds,), -1.0, dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> Log:
        return Log(statistic)

    def is_valid(self, natural: Tensor) -> Tensor:
        return (torch.isfinite(natural) & (natural > 0)).all(1)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        dirichlet = Dirichlet(natural)
        return dirichlet.mean(), dirichlet.variance()

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Concentrations near 1."""
        return (0.5 * normal((m, self.n_kinds), stream)).exp()

    def quadrature_window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Of the log-ratios to the last share."""
        logs, variance = torch.digamma(natural), torch.polygamma(1, natural)
        return logs[:, :-1] - logs[:, -1:], (variance[:, :-1] + variance[:, -1:]).sqrt()

    def from_free_coordinates(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """The coordinates are log-ratios to the last share; the volume is over the first k - 1 shares."""
        logs = torch.cat([free, torch.zeros_like(free[:, :1])], dim=1).log_softmax(1)
        return logs, logs.sum(1)


@dataclass(frozen=True)
class MultivariateNormalFamily(LatentFamily):
    r"""Gaussian rows of d columns: T(x) = (x, x_i x_j for i <= j).

    .. math:: A = \frac12 \mu^\top \Lambda \mu - \frac12 \log|\Lambda| + \frac{d}{2} \log(2\pi), \qquad
              \eta = (\Lambda \mu, -\tfrac12 \Lambda_{ii}, -\Lambda_{ij})

    Args:
        n_columns: d.

    Example:
        >>> import torch
        >>> family = MultivariateNormalFamily(2)
        >>> family.parameters(family.fit([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [2.0, 2.0]]))["mean"]
        tensor([1., 1.], dtype=torch.float64)
    """

    n_columns: int

    def statistic(self, rows: Tensor) -> Tensor:
        i, j = pack_index(self.n_columns)
        return torch.cat([rows, rows[:, i] * rows[:, j]], dim=1)

    def log_base(self, rows: Tensor) -> Tensor:
        return torch.zeros_like(rows[:, 0])

    def log_partition(self, natural: Tensor) -> Tensor:
        linear, precision = self._linear_and_precision(natural)
        factor = torch.linalg.cholesky(precision)
        half = torch.linalg.solve_triangular(factor, linear[..., None], upper=False)
        return (
            0.5 * half.square().sum((-2, -1))
            - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            + 0.5 * self.n_columns * math.log(2 * math.pi)
        )

    def to_natural(self, parameters: Mapping[str, Any]) -> Tensor:
        mean = torch.as_tensor(parameters["mean"], dtype=torch.float64)
        covariance = torch.as_tensor(parameters["covariance"], dtype=torch.float64)
        precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        double = precision * (1.0 - 0.5 * torch.eye(self.n_columns, dtype=torch.float64))
        return torch.cat([precision @ mean, -pack(double)])

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        linear, precision = self._linear_and_precision(natural)
        covariance = torch.cholesky_inverse(torch.linalg.cholesky(precision))
        return {"mean": (covariance @ linear[..., None])[..., 0], "covariance": covariance}

    def from_mean(self, mean: Tensor) -> Tensor:
        """Through the mean and the covariance; NaN where the latter is singular."""
        first = mean[: self.n_columns]
        covariance = unpack(mean[self.n_columns :], self.n_columns) - torch.outer(first, first)
        if int(torch.linalg.cholesky_ex(covariance).info):
            return torch.full_like(mean, math.nan)
        return self.to_natural({"mean": first, "covariance": covariance})

    def distribution(self, natural: Tensor) -> FullGaussian:
        parameters = self.parameters(natural)
        return FullGaussian.from_covariance(parameters["mean"][None], parameters["covariance"][None])

    def from_distribution(self, distribution: FullGaussian) -> Tensor:
        """The natural parameter of a distribution of one member."""
        covariance = distribution.factor[0] @ distribution.factor[0].mT
        return self.to_natural(
            {"mean": _single_member(distribution.mean, self.n_columns), "covariance": covariance}
        )

    def _linear_and_precision(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Precision times mean, and the precision."""
        eye = torch.eye(self.n_columns, dtype=natural.dtype, device=natural.device)
        return natural[..., : self.n_columns], -unpack(natural[..., self.n_columns :], self.n_columns) * (
            1.0 + eye
        )

    def base_coefficients(self) -> Tensor:
        return torch.zeros(self.n_columns * (self.n_columns + 3) // 2, dtype=torch.float64)

    def name_statistics(self, statistic: Tensor) -> ValueOuter:
        d = self.n_columns
        return ValueOuter(statistic[..., :d], unpack(statistic[..., d:], d))

    def is_valid(self, natural: Tensor) -> Tensor:
        _, precision = self._linear_and_precision(natural)
        return torch.isfinite(natural).all(1) & (torch.linalg.cholesky_ex(precision).info == 0)

    def moments(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        parameters = self.parameters(natural)
        return parameters["mean"], parameters["covariance"].diagonal(dim1=-2, dim2=-1)

    def draw_start(self, m: int, stream: Generator) -> Tensor:
        """Identity covariance, means drawn with variance 1."""
        one = self.to_natural({"mean": torch.zeros(self.n_columns), "covariance": torch.eye(self.n_columns)})
        mean = normal((m, self.n_columns), stream)
        return torch.cat([mean, one[self.n_columns :].expand(m, -1)], dim=1)

    def quadrature_window(self, natural: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of each entry."""
        mean, variance = self.moments(natural)
        return mean, variance.sqrt()

    def from_free_coordinates(self, free: Tensor) -> tuple[Tensor, Tensor]:
        """z is its own coordinate."""
        return self.statistic(free), torch.zeros_like(free[:, 0])


def _single_member(value: Tensor, columns: int = 1) -> Tensor:
    """The one line of (1, columns)."""
    if value.shape != (1, columns):
        raise ValueError(
            f"the distribution must have one member and {columns} column(s), not {tuple(value.shape)}"
        )
    return value[0]


def _to_vector(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64).reshape(1)
