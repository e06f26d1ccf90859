r"""Stochastic weight averaging (Izmailov et al., 2018): the mean of the trajectory, with zero covariance.

.. math:: \bar\theta_t = \bar\theta_{t-1} + \tfrac1t (\theta_t - \bar\theta_{t-1})
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.networks.distribution import WeightDistribution
from boxloop.tree import Tree


@dataclass(frozen=True)
class MeanState(Tree):
    """The mean (D,) of ``count`` vectors."""

    mean: Tensor
    count: int


@dataclass(frozen=True)
class SWA:
    """Stochastic weight averaging: a point mass at the mean of the trajectory.

    Example:
        >>> import torch
        >>> estimate = SWA().start(2, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in (1.0, 2.0, 6.0):
        ...     estimate.observe(torch.full((2,), value).double())
        >>> estimate.distribution().mean
        tensor([3., 3.], dtype=torch.float64)
    """

    @property
    def min_vectors(self) -> int:
        """One."""
        return 1

    def start(self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device) -> RunningMean:
        """A running mean without observations."""
        return RunningMean(MeanState(torch.zeros(size, dtype=dtype, device=device), 0))

    def restore(self, state: MeanState, device: torch.device) -> RunningMean:
        """Continue from a state."""
        return RunningMean(state.map(torch.clone).to(device))


class RunningMean:
    """A mean, updated in place."""

    def __init__(self, state: MeanState) -> None:
        self._mean, self.count, self.rank = state.mean, state.count, 0

    def observe(self, vector: Tensor) -> None:
        """Update the mean."""
        self.count += 1
        self._mean.lerp_(vector, 1.0 / self.count)

    def distribution(self) -> WeightDistribution:
        """A point mass at the mean."""
        return WeightDistribution.point(self._mean.clone())

    def state(self) -> MeanState:
        """A copy of the state."""
        return MeanState(self._mean.clone(), self.count)
