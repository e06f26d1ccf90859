"""Gaussian families with independent columns: a variance per column, or one per member."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import QUADRATIC_CONDITION, Sums
from boxloop.distributions.product import ProductFamily, alternating_signs
from boxloop.numeric import ConditionError, covariance as forms, normal


@dataclass(frozen=True)
class _AxisGaussian(ProductFamily):
    """What the diagonal and spherical families share: statistics (x, x^2)."""

    mean: Tensor
    variance: Tensor
    floor: float = 0.0

    def _variances(self) -> Tensor:
        return self.variance.expand_as(self.mean)

    def centred_view(self, columns: Tensor) -> CentredView | None:
        """About the means in float32, and where a member is narrow or far from the origin."""
        if columns.dtype == torch.float64:
            variance, mean = self.variance.detach(), self.mean.detach()
            worst = torch.maximum(1.0 / variance.min(), (mean.square() / variance).max())
            if bool(worst < QUADRATIC_CONDITION):
                return None
        return CentredView(self.mean, self._variances(), columns)

    def elementwise_statistics(self, columns: Tensor) -> Tensor:
        """(x, x^2), (2d, n)."""
        d, n = columns.shape
        if torch.is_grad_enabled() and columns.requires_grad:
            return torch.cat([columns, columns.square()])
        stats = columns.new_empty(2 * d, n)
        stats[:d] = columns
        torch.mul(columns, columns, out=stats[d:])
        return stats

    def natural_parameters(self) -> Tensor:
        """(mean / variance, -1 / (2 variance))."""
        variance = self._variances()
        return torch.cat([self.mean / variance, -0.5 / variance], dim=1)

    def log_partition(self) -> Tensor:
        """mean^2 / (2 variance) + log(2 pi variance) / 2."""
        variance = self._variances()
        return 0.5 * (self.mean.square() / variance + variance.log() + math.log(2 * math.pi))

    def expected_statistics(self) -> Tensor:
        """(mean, mean^2 + variance)."""
        return torch.cat([self.mean, self.mean.square() + self._variances()], dim=1)

    def log_base(self, rows: Tensor) -> Tensor | None:
        """None: the constant is in the log-partition."""
        return None

    def perturb(self, member: int, pieces: int) -> Tensor:
        """Copies within half a standard deviation, along alternating signs."""
        variance = self._variances()[member]
        means = self.mean[member] + 0.5 * variance.sqrt() * alternating_signs(variance, pieces)
        return torch.cat([means, means.square() + variance], dim=1)

    def covariance(self) -> forms.Diagonal:
        """Variances, (k, d)."""
        return forms.Diagonal(self._variances())

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        noise = normal((k, n, d), generator, self.mean.dtype)
        return self.mean[:, None] + self._variances().sqrt()[:, None] * noise

    def paired_log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of row i under member i, (k,)."""
        square = (rows - self.mean).square() / self.variance
        level = self._variances().log() + math.log(2 * math.pi)
        return -0.5 * (square + level).sum(1)

    def free_parameters(self) -> dict[str, Tensor]:
        """Means and log-variances: any values of them are valid."""
        return {"mean": self.mean, "log_variance": self.variance.log()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other free parameters."""
        return type(self)(free["mean"], free["log_variance"].exp(), self.floor)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        variance = self.variance if self.variance.shape == self.mean.shape else self.variance[:, 0]
        return {"means": self.mean, "covariances": variance}

    def is_floored(self) -> Tensor:
        """Which members have a variance at the floor, (k,)."""
        return (self.variance <= self.floor * (1 + 1e-6)).reshape(self.variance.shape[0], -1).any(1)

    def _floor_variance(self, variance: Tensor) -> Tensor:
        """Variances at least ``floor``; an error where there is no floor and one is zero."""
        if self.floor > 0.0:
            return variance.clamp(min=self.floor)
        zero = (variance <= 0.0).any(1)
        if bool(zero.any()):
            raise ConditionError(f"a variance of component {int(zero.int().argmax())} is zero")
        return variance


def _mean_and_variance(statistics: Sums) -> tuple[Tensor, Tensor]:
    averaged = statistics.features[:, 1:] / statistics.count[:, None]
    mean, second = averaged.chunk(2, dim=1)
    return mean, (second - mean.square()).clamp(min=0.0)


@dataclass(frozen=True)
class DiagonalGaussian(_AxisGaussian):
    r"""Gaussians with independent columns, :math:`N(\mu_k, \mathrm{diag}(\sigma^2_{k1}, \dots, \sigma^2_{kd}))`.

    Args:
        mean: (k, d).
        variance: (k, d).
        floor: smallest variance that ``fit_statistics`` may return.

    Example:
        >>> import torch
        >>> distribution = DiagonalGaussian(torch.zeros(1, 2), torch.ones(1, 2))
        >>> distribution.log_prob(torch.zeros(1, 2))
        tensor([[-1.8379]])
    """

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted means and variances, the latter at least ``floor`` (the exact constrained maximum)."""
        mean, variance = _mean_and_variance(statistics)
        return type(self)(mean, self._floor_variance(variance), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale.square() * self.variance, self.floor)


@dataclass(frozen=True)
class SphericalGaussian(_AxisGaussian):
    r"""Gaussians with one variance a member, :math:`N(\mu_k, \sigma^2_k I)`.

    Args:
        mean: (k, d).
        variance: (k, 1).
        floor: smallest variance that ``fit_statistics`` may return.

    Example:
        >>> import torch
        >>> distribution = SphericalGaussian(torch.zeros(1, 2), torch.ones(1, 1))
        >>> distribution.covariance().dense()
        tensor([[[1., 0.],
                 [0., 1.]]])
    """

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted means, and variances averaged over columns, at least ``floor``."""
        mean, variance = _mean_and_variance(statistics)
        return type(self)(mean, self._floor_variance(variance.mean(1, keepdim=True)), self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``; a spherical distribution stays one only under one common scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical Gaussian stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, scale[0].square() * self.variance, self.floor)


class CentredView:
    r"""A tile under k Gaussians with variances (k, d), with or without missing values, about each member's mean.

    The features :math:`(x, x^2)` of :class:`ProductFamily` lose digits where a member is narrow beside its distance
    from the origin: :math:`x^2/\sigma^2 - 2x\mu/\sigma^2 + \mu^2/\sigma^2` cancels, in float32 soon. A missing
    value adds nothing to the first moment about the mean, and the variance to the second.
    """

    def __init__(self, mean: Tensor, variance: Tensor, columns: Tensor) -> None:
        self.mean = mean
        self.variance = variance
        self.columns = columns
        seen = ~torch.isnan(columns)
        self.seen: Tensor | None = None if bool(seen.all()) else seen

    def _deviation(self, member: int) -> Tensor:
        """x - mean of a member, (d, n), zero where missing."""
        z = self.columns - self.mean[member].to(self.columns.dtype)[:, None]
        return z if self.seen is None else torch.where(self.seen, z, 0.0)

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        low = self.columns.dtype
        scale = self.variance.rsqrt().to(low)
        members = range(len(self.mean))
        length = torch.stack([(self._deviation(k) * scale[k][:, None]).square().sum(0) for k in members])
        level = -0.5 * (self.variance.log() + math.log(2 * math.pi))
        if self.seen is None:
            return (offset + level.sum(1)).to(low)[:, None] - 0.5 * length
        return (offset[:, None] + level @ self.seen.to(level.dtype)).to(low) - 0.5 * length

    def summarise(self, share: Tensor) -> Sums:
        """Expected (1, x, x^2), accumulated about each member's mean as this tile's precision knows it."""
        moments = []
        for k, row in enumerate(share):
            z = self._deviation(k)
            moments.append(torch.cat([z @ row, z.square() @ row]))
        first, second = torch.stack(moments).double().chunk(2, dim=1)
        count = share.sum(1, keepdim=True, dtype=torch.float64)
        if self.seen is not None:
            absent = count - share.double() @ self.seen.mT.double()
            second = second + absent * self.variance
        centre = self.mean.to(self.columns.dtype).double()
        about_zero = second + 2.0 * centre * first + count * centre.square()
        return Sums(torch.cat([count, first + count * centre, about_zero], dim=1))
