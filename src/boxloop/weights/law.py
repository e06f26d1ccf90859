r"""The one law that every method ends in: a Gaussian over weights, low rank plus diagonal.

.. math:: \theta = \mu + F z + \psi^{1/2} \odot \epsilon, \qquad z \sim N(0, I_K), \quad \epsilon \sim N(0, I_D)

A mean alone has no columns in F and no noise; a full covariance has one column of F a weight and no noise; SWAG as
published is :math:`\psi = \tfrac12 \sigma^2`, :math:`F = D / \sqrt{2 (K - 1)}`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.models import FactorModel
from boxloop.numeric import LowRank, normal, single_threaded
from boxloop.tree import Tree


@dataclass(frozen=True)
class WeightLaw(Tree):
    """A Gaussian law of D weights.

    Args:
        mean: (D,).
        loadings: F, (D, K); K may be 0.
        noise: psi, (D,); may be zero.

    Example:
        >>> import torch
        >>> law = WeightLaw(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> law.draw(2, torch.Generator()).shape
        torch.Size([2, 3])
        >>> law.scaled(4.0).variance()
        tensor([8., 8., 8.])
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    @classmethod
    def point(cls, mean: Tensor) -> WeightLaw:
        """All mass at one vector."""
        return cls(mean, mean.new_zeros(len(mean), 0), torch.zeros_like(mean))

    @property
    def size(self) -> int:
        """D."""
        return len(self.mean)

    @property
    def rank(self) -> int:
        """K."""
        return self.loadings.shape[1]

    def variance(self) -> Tensor:
        """Of every weight, (D,)."""
        return self.loadings.square().sum(1) + self.noise

    def covariance(self) -> LowRank:
        """As one member; ``dense()`` of it is D x D."""
        return LowRank(self.loadings[None], self.noise[None])

    @single_threaded
    def draw(self, n: int, generator: Generator) -> Tensor:
        """n vectors of weights, (n, D); the generator lives on the law's device."""
        found = normal((n, self.size), generator, self.mean.dtype).mul_(self.noise.sqrt())
        if self.rank:
            found.addmm_(normal((n, self.rank), generator, self.mean.dtype), self.loadings.mT)
        return found.add_(self.mean)

    def scaled(self, factor: float) -> WeightLaw:
        """The same mean with the covariance times a factor."""
        if not factor >= 0.0:
            raise ValueError(f"a covariance is scaled by a number that is not negative, got {factor}")
        return replace(self, loadings=self.loadings * factor**0.5, noise=self.noise * factor)

    def part(self, place: slice | Tensor) -> WeightLaw:
        """The marginal law of some weights."""
        return WeightLaw(self.mean[place], self.loadings[place], self.noise[place])

    def reduced(self, rank: int) -> WeightLaw:
        """At most ``rank`` columns in F, the longest directions; what the others explain becomes noise."""
        if rank >= self.rank:
            return self
        values, vectors = torch.linalg.eigh((self.loadings.mT @ self.loadings).double().cpu())
        kept = self.loadings @ vectors[:, len(values) - rank :].flip(1).to(self.loadings)
        lost = (self.loadings.square().sum(1) - kept.square().sum(1)).clamp(min=0.0)
        return WeightLaw(self.mean, kept, self.noise + lost)

    def model(self) -> FactorModel:
        """As a factor model, whose densities need noise above zero."""
        return FactorModel(self.mean, self.loadings, self.noise)
