"""Conjugate distributions of the parameters of Gaussians: full, tied, diagonal and spherical covariances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import PooledSums, Sums
from boxloop.distributions.gamma import InverseGamma
from boxloop.distributions.gaussian_diagonal import DiagonalGaussian, SphericalGaussian
from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.distributions.gaussian_tied import TiedGaussian
from boxloop.distributions.student import ProductStudentT, SphericalStudentT, StudentT
from boxloop.numeric import normal, safe_cholesky, unpack
from boxloop.tree import Tree

LOG_PI = math.log(math.pi)


def wishart_root(dof: Tensor, d: int, stream: Generator, *, flipped: bool = False) -> Tensor:
    r"""Lower triangular T with :math:`T T^\top \sim W(\nu, I)`, (m, d, d), by Bartlett's decomposition.
    If ``flipped``, :math:`U = T^\top` has :math:`U U^\top \sim W(\nu, I)` instead."""
    steps = torch.arange(d, dtype=dof.dtype, device=dof.device)
    degrees = dof[:, None] - (steps.flip(0) if flipped else steps)
    lower = torch.tril(normal((len(dof), d, d), stream, dof.dtype), -1)
    lower.diagonal(dim1=-2, dim2=-1).copy_(
        (2.0 * torch._standard_gamma(0.5 * degrees, generator=stream)).sqrt()
    )
    return lower


@dataclass(frozen=True)
class InverseWishart(Tree):
    r"""Distributions of covariances, :math:`p(\Sigma) \propto |\Sigma|^{-(\nu + d + 1)/2} \exp(-\tfrac12
    \mathrm{tr}\, \Psi \Sigma^{-1})`. What a bound needs in every iteration is computed once."""

    dof: Tensor  # nu, more than d - 1, (...)
    scale: Tensor  # Psi, (..., d, d)
    name: str = "the scale of component"  # for the error where the scale is not positive definite

    @cached_property
    def root(self) -> Tensor:
        """Cholesky factor C of the scale, (..., d, d)."""
        return safe_cholesky(self.scale, self.name)

    @cached_property
    def log_det(self) -> Tensor:
        """Log-determinant of the scale, (...)."""
        return 2.0 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @cached_property
    def _half_degrees(self) -> Tensor:
        """(nu - j) / 2 for j = 0, ..., d - 1, (..., d)."""
        steps = torch.arange(self.scale.shape[-1], dtype=self.dof.dtype, device=self.dof.device)
        return 0.5 * (self.dof[..., None] - steps)

    @cached_property
    def _log_gamma(self) -> Tensor:
        return torch.lgamma(self._half_degrees).sum(-1)

    @cached_property
    def _digamma(self) -> Tensor:
        return torch.digamma(self._half_degrees).sum(-1)

    def log_constant(self) -> Tensor:
        r"""Log-normaliser :math:`\tfrac{\nu}{2} (d \log 2 - \log |\Psi|) + \log \Gamma_d(\nu / 2)`, (...)."""
        d = self.scale.shape[-1]
        gamma = self._log_gamma + 0.25 * d * (d - 1) * LOG_PI
        return 0.5 * self.dof * (d * math.log(2.0) - self.log_det) + gamma

    def expected_log_precision(self) -> Tensor:
        r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of :math:`\Psi / \nu`, (...):
        :math:`\tfrac12 (\sum_{j < d} \psi(\frac{\nu - j}{2}) + d \log \frac2\nu)`."""
        return 0.5 * (self._digamma + self.scale.shape[-1] * (2.0 / self.dof).log())

    def divergence(self, prior: InverseWishart) -> Tensor:
        """Kullback-Leibler divergence from another, one for all or one for each, (...)."""
        trace = torch.linalg.solve_triangular(self.root, prior.root, upper=False).square().sum((-2, -1))
        size = prior.dof * (self.log_det - prior.log_det) + (self.dof - prior.dof) * self._digamma
        fit = self.dof * (self.scale.shape[-1] - trace)
        return prior._log_gamma - self._log_gamma + 0.5 * (size - fit)


def pooled_mean(mean: Tensor, strength: Tensor, count: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Strength and mean of the posterior of means, from the weight and the sum of rows."""
    pooled = strength + count
    return pooled, (strength[..., None] * mean + first) / pooled[..., None]


def mean_divergence(strength: Tensor, prior: Tensor, d: int, apart: Tensor) -> Tensor:
    r"""Expected divergence of :math:`N(m, \Sigma / \kappa)` from :math:`N(m_0, \Sigma / \kappa_0)`, (k,), where
    ``apart`` is :math:`E[(m - m_0)^\top \Sigma^{-1} (m - m_0)]` and ``prior`` is :math:`\kappa_0`."""
    ratio = prior / strength
    return 0.5 * (d * (ratio - 1.0 - ratio.log()) + prior * apart)


def outer_product(rows: Tensor) -> Tensor:
    """(..., d) -> (..., d, d)."""
    return rows[..., :, None] * rows[..., None, :]


LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class NormalInverseWishart(Tree):
    r"""Distributions of the mean and covariance of Gaussians; :math:`E[\Sigma] = \Psi / (\nu - d - 1)`.

    .. math:: \Sigma \sim \mathrm{IW}(\nu, \Psi), \qquad \mu \mid \Sigma \sim N(m, \Sigma / \kappa)

    Args:
        mean: m, (..., d).
        strength: kappa, how many rows the prior mean is worth, (...).
        dof: nu, more than d - 1, (...).
        scale: Psi, (..., d, d).
    """

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    def posterior(self, sums: Tensor) -> Self:
        """After rows whose features (1, x, x_i x_j for i <= j) sum to ``sums``, (..., 1 + d + d (d + 1) / 2)."""
        d = self.mean.shape[-1]
        count, first, second = sums[..., 0], sums[..., 1 : 1 + d], unpack(sums[..., 1 + d :], d)
        strength, mean = pooled_mean(self.mean, self.strength, count, first)
        scale = self.scale + second + self.strength[..., None, None] * outer_product(self.mean)
        return type(self)(
            mean, strength, self.dof + count, scale - strength[..., None, None] * outer_product(mean)
        )

    def update(self, statistics: Sums) -> Self:
        """After rows with these summed statistics."""
        return self.posterior(statistics.features)

    def draw(self, stream: Generator) -> FullGaussian:
        r"""A Gaussian of each, leading axes made one: :math:`\Sigma = L L^\top` with :math:`L = C U^{-\top}`, lower
        triangular, where :math:`\Psi = C C^\top` and U is upper triangular with :math:`U U^\top \sim W(\nu, I)`."""
        d = self.mean.shape[-1]
        mean, dof = self.mean.reshape(-1, d), self.dof.reshape(-1)
        root = safe_cholesky(self.scale.reshape(-1, d, d), "the scale of prior")
        lower = wishart_root(dof, d, stream, flipped=True)
        factor = torch.linalg.solve_triangular(lower, root, upper=False, left=False)
        noise = normal(tuple(mean.shape), stream, mean.dtype) / self.strength.reshape(-1, 1).sqrt()
        return FullGaussian(mean + (factor @ noise[..., None])[..., 0], factor)

    def draw_families(self, c: int, stream: Generator) -> list[FullGaussian]:
        """c draws of all k members."""
        drawn = self.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        parts = zip(drawn.mean.chunk(c), drawn.factor.chunk(c), strict=True)
        return [FullGaussian(mean, factor) for mean, factor in parts]

    def log_prob(self, gaussian: FullGaussian) -> Tensor:
        """Log-density over means and covariances of each member, (m,), of members that repeat those of the prior."""
        d = self.mean.shape[-1]
        shape = (-1, *self.mean.shape)
        whitener = gaussian.whitener.reshape(*shape, d)
        log_det = 2.0 * gaussian.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).reshape(shape[:-1])
        trace = (whitener @ self._covariance.root).square().sum((-2, -1))
        covariance_term = -self._covariance.log_constant() - 0.5 * ((self.dof + d + 1.0) * log_det + trace)
        apart = (whitener @ (gaussian.mean.reshape(shape) - self.mean)[..., None]).square().sum((-2, -1))
        mean_term = 0.5 * (d * (self.strength.log() - LOG_2PI) - log_det - self.strength * apart)
        return (covariance_term + mean_term).reshape(-1)

    def plug_in(self) -> tuple[FullGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \Sigma)] = \log g(x) + o`."""
        d = self.mean.shape[-1]
        offset = self._covariance.expected_log_precision() - 0.5 * d / self.strength
        return FullGaussian(self.mean, self._covariance.root / self.dof.sqrt()[:, None, None]), offset

    def divergence(self, prior: NormalInverseWishart) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = torch.linalg.solve_triangular(
            self._covariance.root, (self.mean - prior.mean)[..., None], upper=False
        )
        length = self.dof * apart.square().sum((-2, -1))
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], length)
        return self._covariance.divergence(prior._covariance) + centre

    def predictive(self) -> StudentT:
        """The distribution of the next row of each member."""
        dof = self.dof - (self.mean.shape[-1] - 1)
        inflated = ((1.0 + 1.0 / self.strength) / dof).sqrt()[:, None, None]
        return StudentT(self.mean, inflated * self._covariance.root, dof)

    def column_marginals(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d): :math:`\Sigma_{jj} \sim IG(v/2, s_j/2)`, :math:`\mu_j \sim t_v(m_j, s_j / (\kappa
        v))`."""
        return self.dof - (self.mean.shape[-1] - 1), self.scale.diagonal(dim1=-2, dim2=-1)

    def expand_members(self, k: int) -> Self:
        """One distribution for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``."""
        stretched = scale[:, None] * self.scale * scale
        return type(self)(origin + scale * self.mean, self.strength, self.dof, stretched)

    def is_proper(self) -> bool:
        """Whether strengths are positive, degrees of freedom enough and scales positive definite."""
        enough = (self.strength > 0.0).all() & (self.dof > self.mean.shape[-1] - 1).all()
        return bool(enough & ~torch.linalg.cholesky_ex(self.scale).info.any())

    @cached_property
    def _covariance(self) -> InverseWishart:
        return InverseWishart(self.dof, self.scale)


@dataclass(frozen=True)
class TiedInverseWishart(Tree):
    r"""Distribution of k means and their common covariance; n rows add n to :math:`\nu`, whatever their component.

    .. math:: \Sigma \sim \mathrm{IW}(\nu, \Psi), \qquad \mu_k \mid \Sigma \sim N(m_k, \Sigma / \kappa_k)

    Args:
        mean: m, (k, d); (1, d) for a prior that is the same for all.
        strength: kappa, how many rows the prior mean is worth, (k,) or (1,).
        dof: nu, more than d - 1, ().
        scale: Psi, (d, d).
    """

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    def update(self, statistics: PooledSums) -> Self:
        """After rows with these summed statistics."""
        count, k = statistics.count, statistics.features.shape[0]
        before = self.expand_members(k)
        strength, mean = pooled_mean(before.mean, before.strength, count, statistics.features[:, 1:])
        scale = (
            self.scale
            + statistics.second
            + (before.strength[:, None, None] * outer_product(before.mean)).sum(0)
        )
        return type(self)(
            mean,
            strength,
            self.dof + count.sum(),
            scale - (strength[:, None, None] * outer_product(mean)).sum(0),
        )

    def draw_families(self, c: int, stream: Generator) -> list[TiedGaussian]:
        """c draws of the covariance and all k means."""
        d = self.mean.shape[-1]
        root = self._covariance.root
        lower = wishart_root(self.dof.expand(c), d, stream, flipped=True)
        factor = torch.linalg.solve_triangular(lower, root.expand(c, d, d), upper=False, left=False)
        noise = normal((c, *self.mean.shape), stream, self.mean.dtype) / self.strength[:, None].sqrt()
        mean = self.mean + noise @ factor.mT
        return [TiedGaussian(m, f) for m, f in zip(mean, factor, strict=True)]

    def plug_in(self) -> tuple[TiedGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu_k, \Sigma)] = \log g_k(x) + o_k`."""
        d = self.mean.shape[-1]
        offset = self._covariance.expected_log_precision() - 0.5 * d / self.strength
        return TiedGaussian(self.mean, self._covariance.root / self.dof.sqrt()), offset

    def divergence(self, prior: TiedInverseWishart) -> Tensor:
        """Kullback-Leibler divergence from a prior, (k,); that of the common covariance is shared out evenly."""
        apart = torch.linalg.solve_triangular(self._covariance.root, (self.mean - prior.mean).mT, upper=False)
        length = self.dof * apart.square().sum(0)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], length)
        return centre + self._covariance.divergence(prior._covariance) / len(self.mean)

    def predictive(self) -> StudentT:
        """The distribution of the next row of each member."""
        dof = self.dof - (self.mean.shape[-1] - 1)
        inflated = ((1.0 + 1.0 / self.strength) / dof).sqrt()[:, None, None]
        return StudentT(self.mean, inflated * self._covariance.root, dof.expand(len(self.mean)))

    def column_marginals(self) -> tuple[Tensor, Tensor]:
        """v, (k,), and s, (k, d), as of :class:`NormalInverseWishart`."""
        k, d = self.mean.shape
        return (self.dof - (d - 1)).expand(k), self.scale.diagonal().expand(k, d)

    def expand_members(self, k: int) -> Self:
        """A mean for each of k members."""
        d = self.mean.shape[-1]
        return type(self)(self.mean.expand(k, d), self.strength.expand(k), self.dof, self.scale)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return type(self)(self.mean[index], self.strength[index], self.dof, self.scale)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``."""
        stretched = scale[:, None] * self.scale * scale
        return type(self)(origin + scale * self.mean, self.strength, self.dof, stretched)

    def is_proper(self) -> bool:
        """Whether strengths are positive, degrees of freedom enough and the scale positive definite."""
        enough = (self.strength > 0.0).all() & (self.dof > self.mean.shape[-1] - 1)
        return bool(enough & ~torch.linalg.cholesky_ex(self.scale).info.any())

    @cached_property
    def _covariance(self) -> InverseWishart:
        return InverseWishart(self.dof, self.scale, "the tied scale")


@dataclass(frozen=True)
class _InverseGammaPrior(Tree):
    """What distributions of diagonal and of spherical Gaussians share: inverse gammas of variances."""

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    @cached_property
    def _variance(self) -> InverseGamma:
        return InverseGamma(0.5 * self.dof[..., None], 0.5 * self.scale)

    def _plug_in_offset(self) -> Tensor:
        """o, (k,), such that E[log p(x)] = log g(x) + o for the plug-in g."""
        # d / 2 (psi(nu / 2) + log(2 / nu) - 1 / kappa)
        log_precision = self._variance.digamma[..., 0] + (2.0 / self.dof).log()
        return 0.5 * self.mean.shape[-1] * (log_precision - 1.0 / self.strength)

    def _predictive_scale(self) -> Tensor:
        """Squared scale of the next row of each member, like ``scale``."""
        return ((1.0 + 1.0 / self.strength) / self.dof)[:, None] * self.scale

    def divergence(self, prior: Self) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = (self.dof[:, None] / self.scale * (self.mean - prior.mean).square()).sum(-1)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], apart)
        return self._variance.divergence(prior._variance).sum(-1) + centre

    def column_marginals(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d): :math:`\sigma^2_j \sim IG(v/2, s_j/2)`, :math:`\mu_j \sim t_v(m_j, s_j / (\kappa
        v))`."""
        return self.dof, self.scale.expand_as(self.mean)

    def expand_members(self, k: int) -> Self:
        """One distribution for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def is_proper(self) -> bool:
        """Whether strengths, degrees of freedom and scales are positive."""
        return all(bool((leaf > 0.0).all()) for leaf in (self.strength, self.dof, self.scale))


@dataclass(frozen=True)
class NormalInverseGamma(_InverseGammaPrior):
    r"""Distributions of the mean and variance of every column of Gaussians with independent columns.

    .. math:: \sigma^2_j \sim \mathrm{IG}(\nu / 2, \psi_j / 2), \qquad
              \mu_j \mid \sigma^2_j \sim N(m_j, \sigma^2_j / \kappa)

    Args:
        mean: m, (..., d).
        strength: kappa, how many rows the prior mean is worth, (...).
        dof: nu, (...).
        scale: psi, (..., d).
    """

    def posterior(self, sums: Tensor) -> Self:
        """After rows whose features (1, x, x^2) sum to ``sums``, (..., 1 + 2 d)."""
        count = sums[..., 0]
        first, second = sums[..., 1:].chunk(2, dim=-1)
        strength, mean = pooled_mean(self.mean, self.strength, count, first)
        scale = self.scale + second + self.strength[..., None] * self.mean.square()
        return type(self)(mean, strength, self.dof + count, scale - strength[..., None] * mean.square())

    def update(self, statistics: Sums) -> Self:
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

    def draw_families(self, c: int, stream: Generator) -> list[DiagonalGaussian]:
        """c draws of all k members."""
        drawn = self.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        parts = zip(*(leaf.chunk(c) for leaf in (drawn.mean, drawn.variance)), strict=True)
        return [DiagonalGaussian(mean, variance) for mean, variance in parts]

    def log_prob(self, gaussian: DiagonalGaussian) -> Tensor:
        """Log-density over means and variances of each member, (m,), of members that repeat those of the prior."""
        shape = (-1, *self.mean.shape)
        mean, variance = gaussian.mean.reshape(shape), gaussian.variance.reshape(shape)
        strength = self.strength[..., None]
        variance_term = self._variance.log_prob(variance)
        apart = strength * (mean - self.mean).square() / variance
        mean_term = 0.5 * (strength.log() - variance.log() - LOG_2PI - apart)
        return (variance_term + mean_term).sum(-1).reshape(-1)

    def plug_in(self) -> tuple[DiagonalGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \sigma^2)] = \log g(x) + o`."""
        return DiagonalGaussian(self.mean, self.scale / self.dof[:, None]), self._plug_in_offset()

    def predictive(self) -> ProductStudentT:
        """The distribution of the next row of each member."""
        return ProductStudentT(self.mean, self._predictive_scale(), self.dof)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale.square() * self.scale)


@dataclass(frozen=True)
class SphericalNormalInverseGamma(_InverseGammaPrior):
    r"""Distributions of the mean and the one variance of spherical Gaussians; n rows of d columns add n d to
    :math:`\nu`.

    .. math:: \sigma^2 \sim \mathrm{IG}(\nu / 2, \psi / 2), \qquad \mu \mid \sigma^2 \sim N(m, \sigma^2 I / \kappa)

    Args:
        mean: m, (k, d).
        strength: kappa, how many rows the prior mean is worth, (k,).
        dof: nu, (k,).
        scale: psi, (k, 1).
    """

    def update(self, statistics: Sums) -> Self:
        """After rows whose features (1, x, x^2) have these sums."""
        count, d = statistics.count, self.mean.shape[-1]
        first, second = statistics.features[:, 1:].chunk(2, dim=1)
        strength, mean = pooled_mean(self.mean, self.strength, count, first)
        scale = second + self.strength[:, None] * self.mean.square() - strength[:, None] * mean.square()
        return type(self)(mean, strength, self.dof + d * count, self.scale + scale.sum(1, keepdim=True))

    def draw_families(self, c: int, stream: Generator) -> list[SphericalGaussian]:
        """c draws of all k members."""
        variance = self._variance.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        noise = normal((c, *self.mean.shape), stream, self.mean.dtype)
        mean = self.mean + (variance / self.strength[:, None]).sqrt() * noise
        return [SphericalGaussian(m, v) for m, v in zip(mean, variance, strict=True)]

    def plug_in(self) -> tuple[SphericalGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \sigma^2)] = \log g(x) + o`."""
        return SphericalGaussian(self.mean, self.scale / self.dof[:, None]), self._plug_in_offset()

    def predictive(self) -> SphericalStudentT:
        """The distribution of the next row of each member: its columns share one unknown variance."""
        return SphericalStudentT(self.mean, self._predictive_scale(), self.dof)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``, where all columns share one scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical Gaussian stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale[0].square() * self.scale)
