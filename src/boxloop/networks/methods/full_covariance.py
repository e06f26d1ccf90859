r"""The sample covariance of the trajectory, for small networks.

.. math:: \bar\theta = \tfrac1T \sum_t \theta_t, \qquad
          C = \tfrac{1}{T - 1} \sum_t (\theta_t - \bar\theta)(\theta_t - \bar\theta)^\top
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.networks.distribution import WeightDistribution
from boxloop.numeric import column_signs
from boxloop.tree import Tree

MAX_WEIGHTS = 4096
"""Largest D, since the covariance is D x D."""


@dataclass(frozen=True)
class FullState(Tree):
    """The mean (D,), the sum of outer products of deviations from it (D, D), and the number of vectors."""

    mean: Tensor
    scatter: Tensor
    count: int


@dataclass(frozen=True)
class FullCovariance:
    """The unbiased sample covariance, of rank T - 1 at most.

    An observation takes time and memory proportional to D squared, the distribution time proportional to D cubed; D is
    at most 4096.

    Example:
        >>> import torch
        >>> estimate = FullCovariance().start(2, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for row in ([0.0, 0.0], [2.0, 2.0], [1.0, 4.0]):
        ...     estimate.observe(torch.tensor(row, dtype=torch.float64))
        >>> estimate.distribution().covariance().dense()[0]
        tensor([[1., 1.],
                [1., 4.]], dtype=torch.float64)
    """

    @property
    def min_vectors(self) -> int:
        """Two, the fewest that have a covariance."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningCovariance:
        """A running covariance without observations.

        Raises:
            ValueError: more than 4096 weights.
        """
        if size > MAX_WEIGHTS:
            raise ValueError(
                f"A full covariance supports at most {MAX_WEIGHTS} weights; there are {size}. Use method='factor' or "
                "'swag', or select fewer parameters, such as parameters='last'."
            )
        mean = torch.zeros(size, dtype=dtype, device=device)
        return RunningCovariance(FullState(mean, mean.new_zeros(size, size), 0))

    def restore(self, state: FullState, device: torch.device) -> RunningCovariance:
        """Continue from a state."""
        return RunningCovariance(state.map(torch.clone).to(device))


class RunningCovariance:
    """Mean and scatter matrix, updated in place."""

    def __init__(self, state: FullState) -> None:
        self._mean, self._scatter = state.mean, state.scatter
        self.count, self.rank = state.count, len(state.mean)
        self._root: Tensor | None = None

    def observe(self, vector: Tensor) -> None:
        """Add the outer product of one deviation."""
        self.count += 1
        gap = vector - self._mean
        self._mean.add_(gap, alpha=1.0 / self.count)
        self._scatter.addr_(gap, gap, alpha=1.0 - 1.0 / self.count)
        self._root = None

    def distribution(self) -> WeightDistribution:
        """Mean and a square root of the covariance, computed once per observation."""
        if self._root is None:
            values, vectors = torch.linalg.eigh(self._scatter.double() / max(self.count - 1, 1))
            rounding = values.amax().clamp(min=0.0) * len(values) * torch.finfo(self._scatter.dtype).eps
            first = len(values) - min(self.count - 1, int((values > rounding).sum()))
            root = vectors[:, first:] * values[first:].clamp(min=0.0).sqrt()
            self._root = (root * column_signs(root)).flip(1).to(self._mean.dtype)
        return WeightDistribution(self._mean.clone(), self._root.clone(), torch.zeros_like(self._mean))

    def state(self) -> FullState:
        """A copy of the state."""
        return FullState(self._mean.clone(), self._scatter.clone(), self.count)
