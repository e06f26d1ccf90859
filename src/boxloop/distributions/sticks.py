"""The stick-breaking law of weights: a Dirichlet process cut off at k components."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.dirichlet import Dirichlet, log_beta
from boxloop.distributions.gamma import draw_log_gamma
from boxloop.tree import Tree


@dataclass(frozen=True)
class StickBreaking(Tree):
    r"""Laws of weights that are pieces broken off a stick.

    .. math:: \pi_j = v_j \prod_{l < j} (1 - v_l), \qquad v_j \sim \mathrm{Beta}(a_j, b_j), \qquad v_k = 1

    With :math:`a_j = 1` and :math:`b_j = \alpha` it is the Dirichlet process of concentration :math:`\alpha`, truncated
    (Blei and Jordan 2006, *Bayesian Analysis* 1). The order of components matters: the largest should come first.

    Args:
        first: a, (..., k - 1), positive.
        second: b, (..., k - 1), positive.

    Example:
        >>> import torch
        >>> prior = StickBreaking.process(3, torch.tensor(1.0))
        >>> prior.mean()
        tensor([0.5000, 0.2500, 0.2500])
        >>> prior.posterior(torch.tensor([6.0, 2.0, 0.0])).second
        tensor([3., 1.])
    """

    first: Tensor
    second: Tensor

    @classmethod
    def process(cls, n_components: int, concentration: Tensor) -> Self:
        """The Dirichlet process of a concentration (), cut off."""
        second = concentration.expand(n_components - 1).clone()
        return cls(torch.ones_like(second), second)

    @property
    def n_components(self) -> int:
        """k."""
        return self.first.shape[-1] + 1

    @cached_property
    def _breaks(self) -> Dirichlet:
        """(v, 1 - v) as Dirichlet laws, (..., k - 1, 2)."""
        return Dirichlet(torch.stack([self.first, self.second], dim=-1))

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times, (..., k)."""
        beyond = count.flip(-1).cumsum(-1).flip(-1)[..., 1:]
        return type(self)(self.first + count[..., :-1], self.second + beyond)

    def counts(self, prior: StickBreaking) -> Tensor:
        """How often each of two or more components was seen since ``prior``, (..., k)."""
        last = (self.second - prior.second)[..., -1:]
        return torch.cat([self.first - prior.first, last], dim=-1)

    def log_evidence(self, count: Tensor) -> Tensor:
        """Log-probability that rows fall on components in this way, (...): what the order of components changes."""
        return (
            log_beta(self.posterior(count)._breaks.concentration) - log_beta(self._breaks.concentration)
        ).sum(-1)

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights, (..., k)."""
        pair = draw_log_gamma(self._breaks.concentration, stream).log_softmax(-1)
        return _pieces(pair[..., 0], pair[..., 1])

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights, (...)."""
        rest = log_weight.flip(-1).logcumsumexp(-1).flip(-1)
        logs = torch.stack([log_weight[..., :-1], rest[..., 1:]], dim=-1) - rest[..., :-1, None]
        return (self._breaks.log_prob(logs) - rest[..., :-1]).sum(-1)

    def expected_log(self) -> Tensor:
        r""":math:`E[\log \pi_j] = E[\log v_j] + \sum_{l < j} E[\log(1 - v_l)]`, (..., k)."""
        logs = self._breaks.expected_log()
        return _pieces(logs[..., 0], logs[..., 1])

    def mean(self) -> Tensor:
        """E[pi], (..., k)."""
        share = self._breaks.mean().log()
        return _pieces(share[..., 0], share[..., 1]).exp()

    def variance(self) -> Tensor:
        """Var[pi], (..., k)."""
        breaks = self._breaks
        square = (breaks.variance() + breaks.mean().square()).log()
        return (_pieces(square[..., 0], square[..., 1]).exp() - self.mean().square()).clamp(min=0.0)

    def divergence(self, prior: StickBreaking) -> Tensor:
        """Kullback-Leibler divergence from a prior, (...): the sum of those of the sticks."""
        return self._breaks.divergence(prior._breaks).sum(-1)

    def is_proper(self) -> bool:
        """Whether every stick has a law."""
        return self._breaks.is_proper()


def _pieces(broken: Tensor, left: Tensor) -> Tensor:
    """Logs of pieces from logs of v and of 1 - v, (..., k - 1) -> (..., k)."""
    zero = torch.zeros_like(broken.sum(-1, keepdim=True))
    before = torch.cat([zero, left.cumsum(-1)], dim=-1)
    return torch.cat([broken, zero], dim=-1) + before
