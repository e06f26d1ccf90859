r"""A Gaussian distribution over network weights, and the contract of the methods that estimate one.

.. math:: \theta = \mu + F z + \psi^{1/2} \odot \epsilon, \qquad z \sim N(0, I_K), \quad \epsilon \sim N(0, I_D)

Every method returns this form. SWA has F and psi equal to zero; a full covariance has K = D columns and no psi; SWAG
has :math:`\psi = \tfrac12 \sigma^2` and :math:`F = D / \sqrt{2 (K - 1)}`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn

from boxloop.caller import warn_caller
from boxloop.models import FactorModel
from boxloop.numeric import LowRank, normal, single_threaded
from boxloop.tree import Tree

if TYPE_CHECKING:
    from boxloop.networks.posterior import Layout


class WeightWarning(UserWarning):
    """A property of a posterior over weights, or of its predictions, that needs the user's attention."""


def warn(message: str) -> None:
    """A :class:`WeightWarning` at the user's line."""
    warn_caller(message, WeightWarning)


@dataclass(frozen=True)
class WeightDistribution(Tree):
    r"""A Gaussian over D weights with covariance :math:`F F^\top + \operatorname{diag} \psi`.

    Args:
        mean: (D,).
        loadings: F, (D, K); K may be 0.
        noise: psi, (D,); may be zero.

    Example:
        >>> import torch
        >>> distribution = WeightDistribution(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> distribution.draw(2, torch.Generator()).shape
        torch.Size([2, 3])
        >>> distribution.scale_covariance(4.0).variance()
        tensor([8., 8., 8.])
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    @classmethod
    def point(cls, mean: Tensor) -> WeightDistribution:
        """A point mass: zero covariance."""
        return cls(mean, mean.new_zeros(len(mean), 0), torch.zeros_like(mean))

    @property
    def size(self) -> int:
        """Number of weights, D."""
        return len(self.mean)

    @property
    def rank(self) -> int:
        """Number of columns of F, K."""
        return self.loadings.shape[1]

    @property
    def is_point(self) -> bool:
        """Whether the covariance is zero."""
        return not (bool(self.noise.any()) or bool(self.loadings.any()))

    def variance(self) -> Tensor:
        """Variance of each weight, (D,)."""
        return self.loadings.square().sum(1) + self.noise

    def covariance(self) -> LowRank:
        """The covariance as a batch of one; its ``dense()`` is (1, D, D)."""
        return LowRank(self.loadings[None], self.noise[None])

    @single_threaded
    def draw(self, n: int, generator: Generator) -> Tensor:
        """Draw n weight vectors, (n, D); the generator must be on the device of the mean."""
        draws = normal((n, len(self.mean)), generator, self.mean.dtype).mul_(self.noise.sqrt())
        if self.rank:
            draws.addmm_(normal((n, self.rank), generator, self.mean.dtype), self.loadings.mT)
        return draws.add_(self.mean)

    def scale_covariance(self, factor: float) -> WeightDistribution:
        """The same mean, with the covariance multiplied by a factor."""
        if not factor >= 0.0:
            raise ValueError(f"factor must be at least 0, got {factor}")
        return replace(self, loadings=self.loadings * factor**0.5, noise=self.noise * factor)

    def marginal(self, index: slice | Tensor) -> WeightDistribution:
        """The marginal distribution of some of the weights."""
        return WeightDistribution(self.mean[index], self.loadings[index], self.noise[index])

    def reduce_rank(self, rank: int) -> WeightDistribution:
        """At most ``rank`` columns in F, those of largest variance; the variance of the others moves to psi."""
        if rank >= self.rank:
            return self
        values, vectors = torch.linalg.eigh((self.loadings.mT @ self.loadings).double().cpu())
        loadings = self.loadings @ vectors[:, len(values) - rank :].flip(1).to(self.loadings)
        lost = (self.loadings.square().sum(1) - loadings.square().sum(1)).clamp(min=0.0)
        return WeightDistribution(self.mean, loadings, self.noise + lost)

    def to_factor_model(self) -> FactorModel:
        """As a factor model; its densities need psi above zero."""
        return FactorModel(self.mean, self.loadings, self.noise)


@dataclass(frozen=True)
class Component:
    """One Gaussian component of a posterior over weights.

    Args:
        weight: of the component in the mixture; the weights of all components sum to 1.
        net: the network; parameters that do not vary, and buffers, are taken from it.
        layout: which of its parameters vary.
        distribution: of those parameters.
    """

    weight: float
    net: nn.Module
    layout: Layout
    distribution: WeightDistribution


@runtime_checkable
class Posterior(Protocol):
    """A posterior over network weights, as predictions and the audit use it."""

    def components(self) -> tuple[Component, ...]:
        """Its Gaussian components: one for a single run, several for a mixture; their networks may differ."""


class RunningEstimate(Protocol):
    """Running statistics of the weight vectors observed so far; the vectors are not stored."""

    @property
    def count(self) -> int:
        """Number of vectors observed."""

    @property
    def rank(self) -> int:
        """Rank of the distribution once enough vectors were observed."""

    def observe(self, vector: Tensor) -> None:
        """Observe one finite vector (D,); the caller may overwrite it afterwards."""

    def distribution(self) -> WeightDistribution:
        """The current estimate; its rank is lower while few vectors were observed."""

    def state(self) -> Tree:
        """A copy of the state, for a checkpoint."""


class Method(Protocol):
    """A way to estimate a distribution from a trajectory: a frozen dataclass of settings."""

    @property
    def min_vectors(self) -> int:
        """Fewest vectors from which a distribution can be estimated."""

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningEstimate:
        """A running estimate for vectors of ``size`` numbers, without observations."""

    def restore(self, state: Any, device: torch.device) -> RunningEstimate:
        """Continue from a state; on the same device the results are identical bit for bit."""
