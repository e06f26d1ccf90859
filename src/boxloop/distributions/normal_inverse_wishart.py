"""Conjugate laws of Gaussians with a full covariance each."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.full import FullGaussian
from boxloop.distributions.pooled import mean_divergence, outer, pooled_mean
from boxloop.distributions.student import StudentT
from boxloop.distributions.sums import Sums
from boxloop.distributions.wishart import InverseWishart, wishart_root
from boxloop.numeric import normal, safe_cholesky, unpack
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


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

    def log_prob(self, law: FullGaussian) -> Tensor:
        """Log-density over means and covariances of each member, (m,), of members that repeat those of the prior."""
        d = self.mean.shape[-1]
        shape = (-1, *self.mean.shape)
        whitener = law.whitener.reshape(*shape, d)
        log_det = 2.0 * law.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).reshape(shape[:-1])
        trace = (whitener @ self._spread.root).square().sum((-2, -1))
        spread = -self._spread.log_constant() - 0.5 * ((self.dof + d + 1.0) * log_det + trace)
        apart = (whitener @ (law.mean.reshape(shape) - self.mean)[..., None]).square().sum((-2, -1))
        centre = 0.5 * (d * (self.strength.log() - LOG_2PI) - log_det - self.strength * apart)
        return (spread + centre).reshape(-1)

    def plug_in(self) -> tuple[FullGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu, \Sigma)] = \log g(x) + o`.

        .. math:: g = N(m, \Psi / \nu), \qquad o = \tfrac12 \left( \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right)
                  + d \log \frac2\nu \right) - \frac{d}{2 \kappa}
        """
        d = self.mean.shape[-1]
        offset = self._spread.expected_log_precision() - 0.5 * d / self.strength
        return FullGaussian(self.mean, self._spread.root / self.dof.sqrt()[:, None, None]), offset

    def divergence(self, prior: NormalInverseWishart) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""
        apart = torch.linalg.solve_triangular(
            self._spread.root, (self.mean - prior.mean)[..., None], upper=False
        )
        length = self.dof * apart.square().sum((-2, -1))
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], length)
        return self._spread.divergence(prior._spread) + centre

    def predictive(self) -> StudentT:
        """The law of the next row of each member."""
        dof = self.dof - (self.mean.shape[-1] - 1)
        inflated = ((1.0 + 1.0 / self.strength) / dof).sqrt()[:, None, None]
        return StudentT(self.mean, inflated * self._spread.root, dof)

    def marginal(self) -> tuple[Tensor, Tensor]:
        r"""v, (k,), and s, (k, d), of single columns.

        .. math:: \Sigma_{jj} \sim IG(v/2, s_j/2), \qquad \mu_j \sim t_v(m_j, s_j / (\kappa v))
        """
        return self.dof - (self.mean.shape[-1] - 1), self.scale.diagonal(dim1=-2, dim2=-1)

    def expanded(self, k: int) -> Self:
        """One law for each of k members."""
        return self.map(lambda leaf: leaf.expand(k, *leaf.shape[1:]))

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the laws of ``origin + scale * x``."""
        stretched = scale[:, None] * self.scale * scale
        return type(self)(origin + scale * self.mean, self.strength, self.dof, stretched)

    def is_proper(self) -> bool:
        """Whether strengths are positive, degrees of freedom enough and scales positive definite."""
        enough = (self.strength > 0.0).all() & (self.dof > self.mean.shape[-1] - 1).all()
        return bool(enough & ~torch.linalg.cholesky_ex(self.scale).info.any())

    @cached_property
    def _spread(self) -> InverseWishart:
        return InverseWishart(self.dof, self.scale)
