"""The conjugate law of Gaussians that share one covariance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.pooled import mean_divergence, outer, pooled_mean
from boxloop.distributions.student import StudentT
from boxloop.distributions.sums import PooledSums
from boxloop.distributions.tied import TiedGaussian
from boxloop.distributions.wishart import InverseWishart, wishart_root
from boxloop.numeric import normal
from boxloop.tree import Tree


@dataclass(frozen=True)
class TiedInverseWishart(Tree):
    r"""Law of k means and their common covariance.

    .. math:: \Sigma \sim \mathrm{IW}(\nu, \Psi), \qquad \mu_k \mid \Sigma \sim N(m_k, \Sigma / \kappa_k)

    Every row tells of the covariance, whatever its component: n rows add n to :math:`\nu`.

    Args:
        mean: m, (k, d); (1, d) for a prior that is the same for all.
        strength: kappa, how many rows the prior mean is worth, (k,) or (1,).
        dof: nu, more than d - 1, ().
        scale: Psi, (d, d).

    Example:
        >>> import torch
        >>> from boxloop.distributions.sums import PooledSums
        >>> prior = TiedInverseWishart(torch.zeros(1, 1), torch.ones(1), torch.tensor(3.0), torch.ones(1, 1))
        >>> law = prior.after(PooledSums(torch.tensor([[1.0, 2.0], [1.0, -2.0]]), torch.tensor([[8.0]])))
        >>> law.mean[:, 0], law.dof, law.scale  # the rows 2 and -2, each in a component of its own
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
        root = self._spread.root
        lower = wishart_root(self.dof.expand(c), d, stream, flipped=True)
        factor = torch.linalg.solve_triangular(lower, root.expand(c, d, d), upper=False, left=False)
        noise = normal((c, *self.mean.shape), stream, self.mean.dtype) / self.strength[:, None].sqrt()
        mean = self.mean + noise @ factor.mT
        return [TiedGaussian(m, f) for m, f in zip(mean, factor, strict=True)]

    def plug_in(self) -> tuple[TiedGaussian, Tensor]:
        r"""Gaussians g and numbers o, (k,), such that :math:`E[\log p(x \mid \mu_k, \Sigma)] = \log g_k(x) + o_k`."""
        d = self.mean.shape[-1]
        offset = self._spread.expected_log_precision() - 0.5 * d / self.strength
        return TiedGaussian(self.mean, self._spread.root / self.dof.sqrt()), offset

    def divergence(self, prior: TiedInverseWishart) -> Tensor:
        """Kullback-Leibler divergence from a prior, (k,); that of the common covariance is shared out evenly."""
        apart = torch.linalg.solve_triangular(self._spread.root, (self.mean - prior.mean).mT, upper=False)
        length = self.dof * apart.square().sum(0)
        centre = mean_divergence(self.strength, prior.strength, self.mean.shape[-1], length)
        return centre + self._spread.divergence(prior._spread) / len(self.mean)

    def predictive(self) -> StudentT:
        """The law of the next row of each member."""
        dof = self.dof - (self.mean.shape[-1] - 1)
        inflated = ((1.0 + 1.0 / self.strength) / dof).sqrt()[:, None, None]
        return StudentT(self.mean, inflated * self._spread.root, dof.expand(len(self.mean)))

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
        """The prior of the laws of ``origin + scale * x``."""
        stretched = scale[:, None] * self.scale * scale
        return type(self)(origin + scale * self.mean, self.strength, self.dof, stretched)

    def is_proper(self) -> bool:
        """Whether strengths are positive, degrees of freedom enough and the scale positive definite."""
        enough = (self.strength > 0.0).all() & (self.dof > self.mean.shape[-1] - 1)
        return bool(enough & ~torch.linalg.cholesky_ex(self.scale).info.any())

    @cached_property
    def _spread(self) -> InverseWishart:
        return InverseWishart(self.dof, self.scale, "the tied scale")
