"""A mixture of Gaussians as one distribution: with a density, and draws that a gradient can follow."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import log_prob_by_tiles
from boxloop.distributions.gaussian_diagonal import DiagonalGaussian
from boxloop.numeric import covariance as forms, normal
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class NormalMixture(Tree):
    r"""One member, :math:`p(z) = \sum_c \pi_c N(z; m_c, \mathrm{diag}(v_c))`.

    A draw takes a component and then a normal variable, so that its gradient would know nothing of the weights. Where a
    gradient is asked for, it follows the quantiles instead: z keeps the same conditional probabilities
    :math:`u_j = F(z_j \mid z_1, \dots, z_{j-1})` while parameters move, and

    .. math:: \frac{dz_j}{d\theta} = -\frac{1}{p(z_j \mid z_{<j})}
              \left( \frac{\partial u_j}{\partial \theta} + \sum_{l<j} \frac{\partial u_j}{\partial z_l}
              \frac{dz_l}{d\theta} \right).

    Graves (2016), "Stochastic backpropagation through mixture density distributions"; Figurnov, Mohamed and Mnih
    (2018), "Implicit reparameterization gradients".

    Args:
        log_weight: normalised, (p,).
        members: p Gaussians with independent columns.

    Example:
        >>> import torch
        >>> members = DiagonalGaussian(torch.tensor([[-1.0], [1.0]]), torch.ones(2, 1))
        >>> distribution = NormalMixture(torch.tensor([0.5, 0.5]).log(), members)
        >>> distribution.mean, distribution.covariance().dense()
        (tensor([[0.]]), tensor([[[2.]]]))
    """

    log_weight: Tensor
    members: DiagonalGaussian

    @property
    def mean(self) -> Tensor:
        """(1, k)."""
        return (self.log_weight.exp() @ self.members.mean)[None]

    def covariance(self) -> forms.Dense:
        """Of all members together, (1, k, k)."""
        weight = self.log_weight.exp()
        apart = self.members.mean - self.mean
        between = (apart * weight[:, None]).mT @ apart
        return forms.Dense((between + torch.diag(weight @ self.members.variance))[None])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row, (1, n); missing values are left out. Nothing here waits for the device."""
        parameter = torch.cat([self.members.mean, self.members.variance], dim=1)

        def entries(part: Tensor, values: Tensor) -> Tensor:
            return _log_normal(values, *part.chunk(2, dim=-1))

        joint = log_prob_by_tiles(entries, parameter, rows) + self.log_weight[:, None]
        return joint.logsumexp(0)[None]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(1, n, k); differentiable in weights, means and variances."""
        with torch.no_grad():
            place = torch.multinomial(self.log_weight.exp(), n, replacement=True, generator=generator)
            mean, deviation = self.members.mean[place], self.members.variance[place].sqrt()
            z = mean + deviation * normal(tuple(mean.shape), generator, mean.dtype)
        leaves = (self.log_weight, self.members.mean, self.members.variance)
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves):
            return self._reparameterise(z)[None]
        return z[None]

    def _reparameterise(self, z: Tensor) -> Tensor:
        """The same values (n, k), with the gradient of what keeps their conditional probabilities."""
        mean, variance = self.members.mean, self.members.variance
        level = self.log_weight[:, None].expand(-1, len(z))
        values = []
        for j in range(z.shape[1]):
            at, centre, column_variance = z[:, j], mean[:, j, None], variance[:, j, None]
            share = level.softmax(0)
            below = (share * torch.special.ndtr((at - centre) / column_variance.sqrt())).sum(0)
            density = (share * _log_normal(at, centre, column_variance).exp()).sum(0).detach()
            moved = at - (below - below.detach()) / density.clamp(min=torch.finfo(z.dtype).tiny)
            level = level + _log_normal(moved, centre, column_variance)
            values.append(moved)
        return torch.stack(values, dim=1)


def _log_normal(at: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    return -0.5 * ((at - mean).square() / variance + variance.log() + LOG_2PI)
