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
    r"""Lower triangular T with :math:`T T^\top \sim W(\nu, I)`: Bartlett's decomposition.

    .. math:: T_{ii}^2 \sim \chi^2_{\nu - i}, \quad i = 0, \dots, d - 1, \qquad T_{ij} \sim N(0, 1), \quad j < i

    Args:
        dof: nu, more than d - 1, (m,).
        d: columns.
        stream: randomness; it is advanced.
        flipped: return T such that :math:`U = T^\top` has :math:`U U^\top \sim W(\nu, I)` instead.

    Returns:
        (m, d, d).

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> wishart_root(torch.tensor([5.0]), 2, generator(0)).shape
        torch.Size([1, 2, 2])
    """
    steps = torch.arange(d, dtype=dof.dtype, device=dof.device)
    degrees = dof[:, None] - (steps.flip(0) if flipped else steps)
    lower = torch.tril(normal((len(dof), d, d), stream, dof.dtype), -1)
    lower.diagonal(dim1=-2, dim2=-1).copy_(
        (2.0 * torch._standard_gamma(0.5 * degrees, generator=stream)).sqrt()
    )
    return lower


@dataclass(frozen=True)
class InverseWishart(Tree):
    r"""Distributions of covariances.

    .. math:: p(\Sigma) \propto |\Sigma|^{-(\nu + d + 1)/2} \exp(-\tfrac12 \mathrm{tr}\, \Psi \Sigma^{-1})

    What a bound needs in every iteration, of this distribution and of its prior, is computed once.

    Args:
        dof: nu, more than d - 1, (...).
        scale: Psi, (..., d, d).
        name: of the scale, for the error where it is not positive definite.

    Example:
        >>> import torch
        >>> distribution = InverseWishart(torch.tensor([4.0]), torch.eye(2)[None])
        >>> distribution.divergence(distribution)
        tensor([0.])
    """

    dof: Tensor
    scale: Tensor
    name: str = "the scale of component"

    @cached_property
    def root(self) -> Tensor:
        """Cholesky factor C of the scale, (..., d, d)."""
        return safe_cholesky(self.scale, self.name)

    @cached_property
    def log_det(self) -> Tensor:
        """Log-determinant of the scale, (...)."""
        return 2.0 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @cached_property
    def _halves(self) -> Tensor:
        """(nu - j) / 2 for j = 0, ..., d - 1, (..., d)."""
        steps = torch.arange(self.scale.shape[-1], dtype=self.dof.dtype, device=self.dof.device)
        return 0.5 * (self.dof[..., None] - steps)

    @cached_property
    def _log_gamma(self) -> Tensor:
        return torch.lgamma(self._halves).sum(-1)

    @cached_property
    def _digamma(self) -> Tensor:
        return torch.digamma(self._halves).sum(-1)

    def log_constant(self) -> Tensor:
        r"""Log-normaliser Z, (...).

        .. math:: \log Z = \tfrac{\nu}{2} (d \log 2 - \log |\Psi|) + \log \Gamma_d(\nu / 2)
        """
        d = self.scale.shape[-1]
        gamma = self._log_gamma + 0.25 * d * (d - 1) * LOG_PI
        return 0.5 * self.dof * (d * math.log(2.0) - self.log_det) + gamma

    def expected_log_precision(self) -> Tensor:
        r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of :math:`\Psi / \nu`, (...).

        .. math:: \tfrac12 \left( \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right) + d \log \frac2\nu \right)
        """
        return 0.5 * (self._digamma + self.scale.shape[-1] * (2.0 / self.dof).log())

    def divergence(self, prior: InverseWishart) -> Tensor:
        r"""Kullback-Leibler divergence from :math:`IW(\nu_0, C_0 C_0^\top)`, one for all or one for each, (...).

        .. math:: \tfrac{\nu_0}{2} \log \frac{|\Psi|}{|\Psi_0|} + \log \frac{\Gamma_d(\nu_0 / 2)}{\Gamma_d(\nu / 2)}
                  + \frac{\nu - \nu_0}{2} \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right)
                  - \frac{\nu}{2} (d - |C^{-1} C_0|^2)
        """
        trace = torch.linalg.solve_triangular(self.root, prior.root, upper=False).square().sum((-2, -1))
        size = prior.dof * (self.log_det - prior.log_det) + (self.dof - prior.dof) * self._digamma
        fit = self.dof * (self.scale.shape[-1] - trace)
        return prior._log_gamma - self._log_gamma + 0.5 * (size - fit)


def pooled_mean(mean: Tensor, strength: Tensor, count: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Strength and mean of the posterior of means, from the weight and the sum of rows."""
    pooled = strength + count
    return pooled, (strength[..., None] * mean + first) / pooled[..., None]


def mean_divergence(strength: Tensor, prior: Tensor, d: int, apart: Tensor) -> Tensor:
    r"""Expected divergence of :math:`N(m, \Sigma / \kappa)` from :math:`N(m_0, \Sigma / \kappa_0)`, (k,).

    .. math:: \tfrac12 \left( d \left( \frac{\kappa_0}{\kappa} - 1 - \log \frac{\kappa_0}{\kappa} \right)
              + \kappa_0 E[(m - m_0)^\top \Sigma^{-1} (m - m_0)] \right)

    Args:
        strength: kappa, (k,).
        prior: kappa_0, (k,) or (1,).
        d: columns.
        apart: the expected square, (k,).
    """
    ratio = prior / strength
    return 0.5 * (d * (ratio - 1.0 - ratio.log()) + prior * apart)


def outer(rows: Tensor) -> Tensor:
    """(..., d) -> (..., d, d)."""
    return rows[..., :, None] * rows[..., None, :]


LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class NormalInverseWishart(Tree):
    r"""Distributions of the mean and covariance of Gaussians.

    .. math:: \Sigma \sim \mathrm{IW}(\nu, \Psi), \qquad \mu \mid \Sigma \sim N(m, \Sigma / \kappa)

    with :math:`p(\Sigma) \propto |\Sigma|^{-(\nu + d + 1)/2} \exp(-\tfrac12 \mathrm{tr}\, \Psi \Sigma^{-1})`, so that
    :math:`E[\Sigma] = \Psi / (\nu - d - 1)`.

    Args:
        mean: m, (..., d).
        strength: kappa, how many rows the prior mean is worth, (...).
        dof: nu, more than d - 1, (...).
        scale: Psi, (..., d, d).

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> one = torch.ones(1)
        >>> prior = NormalInverseWishart(torch.zeros(1, 2), one, 4 * one, torch.eye(2)[None])
        >>> gaussian = prior.draw(generator(0))
        >>> gaussian.mean.shape, gaussian.factor.shape, prior.log_prob(gaussian).shape
        (torch.Size([1, 2]), torch.Size([1, 2, 2]), torch.Size([1]))
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
        scale = self.scale + second + self.strength[..., None, None] * outer(self.mean)
        return type(self)(mean, strength, self.dof + count, scale - strength[..., None, None] * outer(mean))

    def after(self, statistics: Sums) -> Self:
        """After rows with these summed statistics."""
        return self.posterior(statistics.features)

    def draw(self, stream: Generator) -> FullGaussian:
        r"""A Gaussian of each, leading axes made one.

        With :math:`\Psi = C C^\top` and U upper triangular such that :math:`U U^\top \sim W(\nu, I)` (Bartlett's
        decomposition, from the last row up), :math:`\Sigma = L L^\top` with :math:`L = C U^{-\top}`, lower triangular.
        """
        d = self.mean.shape[-1]
        mean, dof = self.mean.reshape(-1, d), self.dof.reshape(-1)
        root = safe_cholesky(self.scale.reshape(-1, d, d), "the scale of prior")
        lower = wishart_root(dof, d, stream, flipped=True)
        factor = torch.linalg.solve_triangular(lower, root, upper=False, left=False)
        noise = normal(tuple(mean.shape), stream, mean.dtype) / self.strength.reshape(-1, 1).sqrt()
        return FullGaussian(mean + (factor @ noise[..., None])[..., 0], factor)

    def families(self, c: int, stream: Generator) -> list[FullGaussian]:
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
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \Sigma)] = \log g(x) + o`.

        .. math:: g = N(m, \Psi / \nu), \qquad o = \tfrac12 \left( \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right)
                  + d \log \frac2\nu \right) - \frac{d}{2 \kappa}
        """
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

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \Sigma_{jj} \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof - (self.mean.shape[-1] - 1), self.scale.diagonal(dim1=-2, dim2=-1)

    def expanded(self, k: int) -> Self:
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
    r"""Distribution of k means and their common covariance.

    .. math:: \Sigma \sim \mathrm{IW}(\nu, \Psi), \qquad \mu_k \mid \Sigma \sim N(m_k, \Sigma / \kappa_k)

    Every row informs the covariance, whatever its component: n rows add n to :math:`\nu`.

    Args:
        mean: m, (k, d); (1, d) for a prior that is the same for all.
        strength: kappa, how many rows the prior mean is worth, (k,) or (1,).
        dof: nu, more than d - 1, ().
        scale: Psi, (d, d).

    Example:
        >>> import torch
        >>> from boxloop.distributions.family import PooledSums
        >>> prior = TiedInverseWishart(torch.zeros(1, 1), torch.ones(1), torch.tensor(3.0), torch.ones(1, 1))
        >>> posterior = prior.after(PooledSums(torch.tensor([[1.0, 2.0], [1.0, -2.0]]), torch.tensor([[8.0]])))
        >>> posterior.mean[:, 0], posterior.dof, posterior.scale  # the rows 2 and -2, each in a component of its own
        (tensor([ 1., -1.]), tensor(5.), tensor([[5.]]))
    """

    mean: Tensor
    strength: Tensor
    dof: Tensor
    scale: Tensor

    def after(self, statistics: PooledSums) -> Self:
        """After rows with these summed statistics."""
        count, k = statistics.count, statistics.features.shape[0]
        before = self.expanded(k)
        strength, mean = pooled_mean(before.mean, before.strength, count, statistics.features[:, 1:])
        scale = self.scale + statistics.second + (before.strength[:, None, None] * outer(before.mean)).sum(0)
        return type(self)(
            mean, strength, self.dof + count.sum(), scale - (strength[:, None, None] * outer(mean)).sum(0)
        )

    def families(self, c: int, stream: Generator) -> list[TiedGaussian]:
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

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \Sigma_{jj} \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        k, d = self.mean.shape
        return (self.dof - (d - 1)).expand(k), self.scale.diagonal().expand(k, d)

    def expanded(self, k: int) -> Self:
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


def _expected_log_precision(variance: InverseGamma, dof: Tensor, columns: int) -> Tensor:
    r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of the plug-in, for ``columns`` variances of each."""
    # d / 2 (psi(nu / 2) + log(2 / nu))
    return 0.5 * columns * (variance.digamma[..., 0] + (2.0 / dof).log())


@dataclass(frozen=True)
class NormalInverseGamma(Tree):
    r"""Distributions of the mean and variance of every column of Gaussians with independent columns.

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
        >>> posterior = prior.posterior(torch.tensor([[2.0, 5.0, 13.0]]))  # the rows 2 and 3
        >>> posterior.mean, posterior.scale
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
        d = self.mean.shape[-1]
        offset = _expected_log_precision(self._variance, self.dof, d) - 0.5 * d / self.strength
        return DiagonalGaussian(self.mean, self.scale / self.dof[:, None]), offset

    def divergence(self, prior: NormalInverseGamma) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = (self.dof[:, None] / self.scale * (self.mean - prior.mean).square()).sum(-1)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], apart)
        return self._variance.divergence(prior._variance).sum(-1) + centre

    def predictive(self) -> ProductStudentT:
        """The distribution of the next row of each member."""
        inflated = ((1.0 + 1.0 / self.strength) / self.dof)[:, None] * self.scale
        return ProductStudentT(self.mean, inflated, self.dof)

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \sigma^2_j \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof, self.scale

    def expanded(self, k: int) -> Self:
        """One distribution for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale.square() * self.scale)

    def is_proper(self) -> bool:
        """Whether strengths, degrees of freedom and scales are positive."""
        return all(bool((leaf > 0.0).all()) for leaf in (self.strength, self.dof, self.scale))

    @cached_property
    def _variance(self) -> InverseGamma:
        return InverseGamma(0.5 * self.dof[..., None], 0.5 * self.scale)


@dataclass(frozen=True)
class SphericalNormalInverseGamma(Tree):
    r"""Distributions of the mean and the one variance of spherical Gaussians.

    .. math:: \sigma^2 \sim \mathrm{IG}(\nu / 2, \psi / 2), \qquad \mu \mid \sigma^2 \sim N(m, \sigma^2 I / \kappa)

    Every value of a row informs the variance, so that n rows of d columns add n d to :math:`\nu`.

    Args:
        mean: m, (k, d).
        strength: kappa, how many rows the prior mean is worth, (k,).
        dof: nu, (k,).
        scale: psi, (k, 1).

    Example:
        >>> import torch
        >>> from boxloop.distributions.family import Sums
        >>> one = torch.ones(1)
        >>> prior = SphericalNormalInverseGamma(torch.zeros(1, 2), one, 3 * one, one[:, None])
        >>> posterior = prior.after(Sums(torch.tensor([[1.0, 2.0, 0.0, 4.0, 0.0]])))  # the row (2, 0)
        >>> posterior.mean, posterior.dof, posterior.scale
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
        variance = self._variance.map(lambda leaf: leaf.expand(c, *leaf.shape)).draw(stream)
        noise = normal((c, *self.mean.shape), stream, self.mean.dtype)
        mean = self.mean + (variance / self.strength[:, None]).sqrt() * noise
        return [SphericalGaussian(m, v) for m, v in zip(mean, variance, strict=True)]

    def plug_in(self) -> tuple[SphericalGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \sigma^2)] = \log g(x) + o`."""
        d = self.mean.shape[-1]
        offset = _expected_log_precision(self._variance, self.dof, d) - 0.5 * d / self.strength
        return SphericalGaussian(self.mean, self.scale / self.dof[:, None]), offset

    def divergence(self, prior: SphericalNormalInverseGamma) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = (self.dof[:, None] / self.scale * (self.mean - prior.mean).square()).sum(-1)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], apart)
        return self._variance.divergence(prior._variance)[:, 0] + centre

    def predictive(self) -> SphericalStudentT:
        """The distribution of the next row of each member: its columns share one unknown variance."""
        inflated = ((1.0 + 1.0 / self.strength) / self.dof)[:, None] * self.scale
        return SphericalStudentT(self.mean, inflated, self.dof)

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \sigma^2 \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof, self.scale.expand_as(self.mean)

    def expanded(self, k: int) -> Self:
        """One distribution for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the distributions of ``origin + scale * x``, where all columns share one scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical Gaussian stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale[0].square() * self.scale)

    def is_proper(self) -> bool:
        """Whether strengths, degrees of freedom and scales are positive."""
        return all(bool((leaf > 0.0).all()) for leaf in (self.strength, self.dof, self.scale))

    @cached_property
    def _variance(self) -> InverseGamma:
        return InverseGamma(0.5 * self.dof[:, None], 0.5 * self.scale)
