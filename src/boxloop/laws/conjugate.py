r"""Conjugate priors: prior and summed features in, posterior out; draws from explicit streams.

Every prior is a batch. Its posterior under sums with more leading axes has these axes too: with one prior over k
components and the sums of c chains, (c, k, p), the posterior is (c, k) laws at once. Gelman et al., *Bayesian Data
Analysis*, 3rd edition, chapter 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.laws.full import FullGaussian
from boxloop.laws.gaussian import DiagonalGaussian
from boxloop.numeric import normal, safe_cholesky, unpack
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)
LOG_PI = math.log(math.pi)


def draw_log_gamma(shape: Tensor, stream: Generator) -> Tensor:
    r"""Logs of gamma draws of rate 1, by :math:`\log G_a = \log G_{a+1} + \log(U) / a`.

    A gamma draw of small shape underflows; its log does not.

    Args:
        shape: a, any shape, positive.
        stream: randomness, on the device of ``shape``; it is advanced.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> bool(torch.isfinite(draw_log_gamma(torch.full((100,), 1e-3), generator(0))).all())
        True
    """
    raised = torch._standard_gamma(shape + 1.0, generator=stream).log()
    return raised - torch.empty_like(raised).exponential_(generator=stream) / shape


@dataclass(frozen=True)
class Dirichlet(Tree):
    r"""Laws of weights, :math:`p(\pi) \propto \prod_k \pi_k^{a_k - 1}`.

    Args:
        concentration: a, (..., k), positive.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> law = Dirichlet(torch.ones(3)).posterior(torch.tensor([5.0, 0.0, 1.0]))
        >>> law.concentration
        tensor([6., 1., 2.])
        >>> float(law.draw(generator(0)).exp().sum())
        1.0
    """

    concentration: Tensor

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times, (..., k)."""
        return type(self)(self.concentration + count)

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights, (..., k)."""
        return draw_log_gamma(self.concentration, stream).log_softmax(-1)

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights, (...)."""
        a = self.concentration
        constant = torch.lgamma(a.sum(-1)) - torch.lgamma(a).sum(-1)
        # A concentration of 1 says nothing, even of a weight that has underflowed.
        return constant + torch.where(a == 1.0, 0.0, (a - 1.0) * log_weight).sum(-1)


@dataclass(frozen=True)
class InverseGamma(Tree):
    r"""Laws of variances, :math:`p(v) \propto v^{-a-1} e^{-b/v}`.

    Args:
        shape: a, (...), positive.
        rate: b, (...), positive.

    Example:
        >>> import torch
        >>> law = InverseGamma(torch.tensor(2.0), torch.tensor(1.0))
        >>> law.posterior(torch.tensor(4.0), torch.tensor(6.0))
        InverseGamma(shape=tensor(4.), rate=tensor(4.))
    """

    shape: Tensor
    rate: Tensor

    def posterior(self, count: Tensor | float, square: Tensor) -> Self:
        """After ``count`` normal values of mean zero whose squares sum to ``square``, (...)."""
        rate = self.rate + 0.5 * square
        return type(self)((self.shape + 0.5 * count).expand_as(rate), rate)

    def draw(self, stream: Generator) -> Tensor:
        """Variances, (...)."""
        return self.rate * (-draw_log_gamma(self.shape, stream)).exp()

    def log_prob(self, variance: Tensor) -> Tensor:
        """Log-density, (...)."""
        a, b = self.shape, self.rate
        return a * b.log() - torch.lgamma(a) - (a + 1.0) * variance.log() - b / variance


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
        strength, mean = _pooled(self.mean, self.strength, count, first)
        scale = self.scale + second + self.strength[..., None] * self.mean.square()
        return type(self)(mean, strength, self.dof + count, scale - strength[..., None] * mean.square())

    def draw(self, stream: Generator) -> DiagonalGaussian:
        """A Gaussian of each, leading axes made one."""
        half = (0.5 * self.dof)[..., None].expand_as(self.mean)
        variance = InverseGamma(half, 0.5 * self.scale.expand_as(self.mean)).draw(stream)
        noise = normal(tuple(self.mean.shape), stream, self.mean.dtype)
        mean = self.mean + (variance / self.strength[..., None]).sqrt() * noise
        d = mean.shape[-1]
        return DiagonalGaussian(mean.reshape(-1, d), variance.reshape(-1, d))

    def log_prob(self, law: DiagonalGaussian) -> Tensor:
        """Log-density over means and variances of each member, (m,), of members that repeat those of the prior."""
        shape = (-1, *self.mean.shape)
        mean, variance = law.mean.reshape(shape), law.variance.reshape(shape)
        strength = self.strength[..., None]
        spread = InverseGamma(0.5 * self.dof[..., None], 0.5 * self.scale).log_prob(variance)
        apart = strength * (mean - self.mean).square() / variance
        centre = 0.5 * (strength.log() - variance.log() - LOG_2PI - apart)
        return (spread + centre).sum(-1).reshape(-1)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the laws of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, self.strength, self.dof, scale.square() * self.scale)


@dataclass(frozen=True)
class NormalInverseWishart(Tree):
    r"""Laws of the mean and covariance of Gaussians.

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
        >>> law = prior.draw(generator(0))
        >>> law.mean.shape, law.factor.shape, prior.log_prob(law).shape
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
        strength, mean = _pooled(self.mean, self.strength, count, first)
        scale = self.scale + second + self.strength[..., None, None] * _outer(self.mean)
        return type(self)(mean, strength, self.dof + count, scale - strength[..., None, None] * _outer(mean))

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

    def log_prob(self, law: FullGaussian) -> Tensor:
        """Log-density over means and covariances of each member, (m,), of members that repeat those of the prior."""
        d = self.mean.shape[-1]
        shape = (-1, *self.mean.shape)
        whitener = law.whitener.reshape(*shape, d)
        log_det = 2.0 * law.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).reshape(shape[:-1])
        root = safe_cholesky(self.scale, "the scale of prior")
        log_scale = 2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        steps = torch.arange(d, dtype=self.dof.dtype, device=self.dof.device)
        gamma = torch.lgamma(0.5 * (self.dof[..., None] - steps)).sum(-1) + 0.25 * d * (d - 1) * LOG_PI
        constant = 0.5 * self.dof * (log_scale - d * math.log(2.0)) - gamma
        trace = (whitener @ root).square().sum((-2, -1))
        spread = constant - 0.5 * ((self.dof + d + 1.0) * log_det + trace)
        apart = (whitener @ (law.mean.reshape(shape) - self.mean)[..., None]).square().sum((-2, -1))
        centre = 0.5 * (d * (self.strength.log() - LOG_2PI) - log_det - self.strength * apart)
        return (spread + centre).reshape(-1)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the laws of ``origin + scale * x``."""
        stretched = scale[:, None] * self.scale * scale
        return type(self)(origin + scale * self.mean, self.strength, self.dof, stretched)


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


def _pooled(mean: Tensor, strength: Tensor, count: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Strength and mean of the posterior."""
    pooled = strength + count
    return pooled, (strength[..., None] * mean + first) / pooled[..., None]


def _outer(rows: Tensor) -> Tensor:
    return rows[..., :, None] * rows[..., None, :]
