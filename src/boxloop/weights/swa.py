r"""Stochastic weight averaging: the mean of the trajectory and nothing else (Izmailov et al., 2018).

.. math:: \bar\theta_t = \bar\theta_{t-1} + \tfrac1t (\theta_t - \bar\theta_{t-1})
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw


@dataclass(frozen=True)
class MeanState(Tree):
    """What a mean knows: the mean (D,), and of how many vectors."""

    mean: Tensor
    count: int


@dataclass(frozen=True)
class SWA:
    """The mean of the trajectory, as a law without spread.

    Example:
        >>> import torch
        >>> follower = SWA().start(2, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in (1.0, 2.0, 6.0):
        ...     follower.observe(torch.full((2,), value).double())
        >>> follower.law().mean
        tensor([3., 3.], dtype=torch.float64)
    """

    @property
    def least(self) -> int:
        """One vector has a mean."""
        return 1

    def start(self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device) -> RunningMean:
        """A mean of nothing."""
        return RunningMean(MeanState(torch.zeros(size, dtype=dtype, device=device), 0))

    def restore(self, state: MeanState, device: torch.device) -> RunningMean:
        """Go on from a state."""
        return RunningMean(state.map(torch.clone).to(device))


class RunningMean:
    """A mean, changed in place."""

    def __init__(self, state: MeanState) -> None:
        self._mean, self._count = state.mean, state.count

    @property
    def count(self) -> int:
        """Vectors seen."""
        return self._count

    @property
    def rank(self) -> int:
        """No directions."""
        return 0

    def observe(self, vector: Tensor) -> None:
        """Move the mean."""
        self._count += 1
        self._mean.lerp_(vector, 1.0 / self._count)

    def law(self) -> WeightLaw:
        """All mass at the mean."""
        return WeightLaw.point(self._mean.clone())

    def state(self) -> MeanState:
        """A copy."""
        return MeanState(self._mean.clone(), self._count)
