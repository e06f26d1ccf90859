"""Conjugate laws of Gaussians with independent columns: a variance per column, or one per member."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from torch import Generator, Tensor

from boxloop.distributions.gamma import InverseGamma
from boxloop.distributions.gaussian import DiagonalGaussian, SphericalGaussian
from boxloop.distributions.pooled import mean_divergence, pooled_mean
from boxloop.distributions.student_axes import ProductStudentT, SphericalStudentT
from boxloop.distributions.sums import Sums
from boxloop.numeric import normal
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


def _expected_log_precision(spread: InverseGamma, dof: Tensor, columns: int) -> Tensor:
    r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of the plug-in, for ``columns`` variances of each law.

    .. math:: \tfrac{d}{2} \left( \psi(\nu / 2) + \log(2 / \nu) \right)
    """
    return 0.5 * columns * (spread.digamma[..., 0] + (2.0 / dof).log())


@dataclass(frozen=True)
class NormalInverseGamma(Tree):
    r"""Laws of the mean and variance of every column of Gaussians with independent columns.

    .. math:: \sigma^2_j \sim \mathrm{IG}(\nu / 2, \psi_j / 2), \qquad
              \mu_j \mid \sigma^2_j \sim N(m_j, \sigma^2_j / \kappa)

    Column by column it is the :class:`NormalInverseWishart` of one column.

    Args:
        mean: m, (..., d).
        strength: kappa, how many rows the prior mean is worth, (...).
        dof: nu, (...).
        scale: psi, (..., d).

    Example:
        >>> import torch
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> prior = NormalInverseGamma(one[:, None], one, 3 * one, one[:, None])
        >>> law = prior.posterior(torch.tensor([[2.0, 5.0, 13.0]]))  # the rows 2 and 3
        >>> law.mean, law.scale
        (tensor([[2.]], dtype=torch.float64), tensor([[3.]], dtype=torch.float64))
    """

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    def posterior(self, sums: Tensor) -> Self:
        """After rows whose features (1, x, x^2) sum to ``sums``, (..., 1 + 2 d)."""
        count = sums[..., 0]
        first, second = sums[..., 1:].chunk(2, dim=-1)
        strength, mean = pooled_mean(self.mean, self.strength, count, first)
        scale = self.scale + second + self.strength[..., None] * self.mean.square()
        return type(self)(mean, strength, self.dof + count, scale - strength[..., None] * mean.square())

    def after(self, statistics: Sums) -> Self:
        """After rows with these summed statistics."""
        return self.posterior(statistics.features)

    def draw(self, stream: Generator) -> DiagonalGaussian:
        """A Gaussian of each, leading axes made one."""
        half = (0.5 * self.dof)[..., None].expand_as(self.mean)
        variance = InverseGamma(half, 0.5 * self.scale.expand_as(self.mean)).draw(stream)
        noise = normal(tuple(self.mean.shape), stream, self.mean.dtype)
        mean = self.mean + (variance / self.strength[..., None]).sqrt() * noise
        d = mean.shape[-1]
        return DiagonalGaussian(mean.reshape(-1, d), variance.reshape(-1, d))

    def families(self, c: int, stream: Generator) -> list[DiagonalGaussian]:
        """c draws of all k members."""
        drawn = self.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        parts = zip(*(leaf.chunk(c) for leaf in (drawn.mean, drawn.variance)), strict=True)
        return [DiagonalGaussian(mean, variance) for mean, variance in parts]

    def log_prob(self, law: DiagonalGaussian) -> Tensor:
        """Log-density over means and variances of each member, (m,), of members that repeat those of the prior."""
        shape = (-1, *self.mean.shape)
        mean, variance = law.mean.reshape(shape), law.variance.reshape(shape)
        strength = self.strength[..., None]
        spread = self._spread.log_prob(variance)
        apart = strength * (mean - self.mean).square() / variance
        centre = 0.5 * (strength.log() - variance.log() - LOG_2PI - apart)
        return (spread + centre).sum(-1).reshape(-1)

    def plug_in(self) -> tuple[DiagonalGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \sigma^2)] = \log g(x) + o`."""
        d = self.mean.shape[-1]
        offset = _expected_log_precision(self._spread, self.dof, d) - 0.5 * d / self.strength
        return DiagonalGaussian(self.mean, self.scale / self.dof[:, None]), offset

    def divergence(self, prior: NormalInverseGamma) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = (self.dof[:, None] / self.scale * (self.mean - prior.mean).square()).sum(-1)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], apart)
        return self._spread.divergence(prior._spread).sum(-1) + centre

    def predictive(self) -> ProductStudentT:
        """The law of the next row of each member."""
        inflated = ((1.0 + 1.0 / self.strength) / self.dof)[:, None] * self.scale
        return ProductStudentT(self.mean, inflated, self.dof)

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \sigma^2_j \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof, self.scale

    def expanded(self, k: int) -> Self:
        """One law for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the laws of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale.square() * self.scale)

    def is_proper(self) -> bool:
        """Whether strengths, degrees of freedom and scales are positive."""
        return all(bool((leaf > 0.0).all()) for leaf in (self.strength, self.dof, self.scale))

    @cached_property
    def _spread(self) -> InverseGamma:
        return InverseGamma(0.5 * self.dof[..., None], 0.5 * self.scale)


@dataclass(frozen=True)
class SphericalNormalInverseGamma(Tree):
    r"""Laws of the mean and the one variance of round Gaussians.

    .. math:: \sigma^2 \sim \mathrm{IG}(\nu / 2, \psi / 2), \qquad \mu \mid \sigma^2 \sim N(m, \sigma^2 I / \kappa)

    Every value of a row tells of the variance, so that n rows of d columns add n d to :math:`\nu`.

    Args:
        mean: m, (k, d).
        strength: kappa, how many rows the prior mean is worth, (k,).
        dof: nu, (k,).
        scale: psi, (k, 1).

    Example:
        >>> import torch
        >>> from boxloop.distributions.sums import Sums
        >>> one = torch.ones(1)
        >>> prior = SphericalNormalInverseGamma(torch.zeros(1, 2), one, 3 * one, one[:, None])
        >>> law = prior.after(Sums(torch.tensor([[1.0, 2.0, 0.0, 4.0, 0.0]])))  # the row (2, 0)
        >>> law.mean, law.dof, law.scale
        (tensor([[1., 0.]]), tensor([5.]), tensor([[3.]]))
    """

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    def after(self, statistics: Sums) -> Self:
        """After rows whose features (1, x, x^2) have these sums."""
        count, d = statistics.count, self.mean.shape[-1]
        first, second = statistics.features[:, 1:].chunk(2, dim=1)
        strength, mean = pooled_mean(self.mean, self.strength, count, first)
        scale = second + self.strength[:, None] * self.mean.square() - strength[:, None] * mean.square()
        return type(self)(mean, strength, self.dof + d * count, self.scale + scale.sum(1, keepdim=True))

    def families(self, c: int, stream: Generator) -> list[SphericalGaussian]:
        """c draws of all k members."""
        variance = self._spread.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        noise = normal((c, *self.mean.shape), stream, self.mean.dtype)
        mean = self.mean + (variance / self.strength[:, None]).sqrt() * noise
        return [SphericalGaussian(m, v) for m, v in zip(mean, variance, strict=True)]

    def plug_in(self) -> tuple[SphericalGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \sigma^2)] = \log g(x) + o`."""
        d = self.mean.shape[-1]
        offset = _expected_log_precision(self._spread, self.dof, d) - 0.5 * d / self.strength
        return SphericalGaussian(self.mean, self.scale / self.dof[:, None]), offset

    def divergence(self, prior: SphericalNormalInverseGamma) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = (self.dof[:, None] / self.scale * (self.mean - prior.mean).square()).sum(-1)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], apart)
        return self._spread.divergence(prior._spread)[:, 0] + centre

    def predictive(self) -> SphericalStudentT:
        """The law of the next row of each member: its columns share one unknown variance."""
        inflated = ((1.0 + 1.0 / self.strength) / self.dof)[:, None] * self.scale
        return SphericalStudentT(self.mean, inflated, self.dof)

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \sigma^2 \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof, self.scale.expand_as(self.mean)

    def expanded(self, k: int) -> Self:
        """One law for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the laws of ``origin + scale * x``, where all columns share one scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical Gaussian stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale[0].square() * self.scale)

    def is_proper(self) -> bool:
        """Whether strengths, degrees of freedom and scales are positive."""
        return all(bool((leaf > 0.0).all()) for leaf in (self.strength, self.dof, self.scale))

    @cached_property
    def _spread(self) -> InverseGamma:
        return InverseGamma(0.5 * self.dof[:, None], 0.5 * self.scale)
