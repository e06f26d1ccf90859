r"""The covariance of the trajectory as it is, for networks that are small.

.. math:: \bar\theta = \tfrac1T \sum_t \theta_t, \qquad
          C = \tfrac{1}{T - 1} \sum_t (\theta_t - \bar\theta)(\theta_t - \bar\theta)^\top
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.numeric import column_signs
from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw

MOST = 4096
"""Weights at most: the covariance is D x D."""


@dataclass(frozen=True)
class FullState(Tree):
    """The mean (D,), the sum of squared deviations from it (D, D), and the number of vectors."""

    mean: Tensor
    scatter: Tensor
    count: int


@dataclass(frozen=True)
class Full:
    """The sample covariance, with n - 1 below; of rank n - 1 at most.

    Memory and time an observation grow as D squared, the law as D cubed: for 4096 weights at most.

    Example:
        >>> import torch
        >>> follower = Full().start(2, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for row in ([0.0, 0.0], [2.0, 2.0], [1.0, 4.0]):
        ...     follower.observe(torch.tensor(row, dtype=torch.float64))
        >>> follower.law().covariance().dense()[0]
        tensor([[1., 1.],
                [1., 4.]], dtype=torch.float64)
    """

    @property
    def least(self) -> int:
        """One vector has no spread."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> FullFollower:
        """A follower that has seen nothing.

        Raises:
            ValueError: more weights than a dense covariance is for.
        """
        if size > MOST:
            raise ValueError(
                f"a full covariance of {size} weights has {size}^2 entries, and {MOST} weights are the most: "
                'use "factor" (FactorEM) or "swag", or follow a part of the network, as parameters="last"'
            )
        mean = torch.zeros(size, dtype=dtype, device=device)
        return FullFollower(FullState(mean, mean.new_zeros(size, size), 0))

    def restore(self, state: FullState, device: torch.device) -> FullFollower:
        """Go on from a state."""
        return FullFollower(state.map(torch.clone).to(device))


class FullFollower:
    """Mean and scatter, changed in place."""

    def __init__(self, state: FullState) -> None:
        self._mean, self._scatter, self._count = state.mean, state.scatter, state.count
        self._root: Tensor | None = None

    @property
    def count(self) -> int:
        """Vectors seen."""
        return self._count

    @property
    def rank(self) -> int:
        """D."""
        return len(self._mean)

    def observe(self, vector: Tensor) -> None:
        """Add one deviation's outer product."""
        self._count += 1
        gap = vector - self._mean
        self._mean.add_(gap, alpha=1.0 / self._count)
        self._scatter.addr_(gap, gap, alpha=1.0 - 1.0 / self._count)
        self._root = None

    def law(self) -> WeightLaw:
        """Mean and a square root of the covariance; the root is found once for as many vectors."""
        if self._root is None:
            self._root = self._found()
        return WeightLaw(self._mean.clone(), self._root.clone(), torch.zeros_like(self._mean))

    def state(self) -> FullState:
        """A copy."""
        return FullState(self._mean.clone(), self._scatter.clone(), self._count)

    def _found(self) -> Tensor:
        """Eigenvectors times roots of eigenvalues, the longest first; those that are rounding are left out."""
        values, vectors = torch.linalg.eigh(self._scatter.double() / max(self._count - 1, 1))
        least = values.amax().clamp(min=0.0) * len(values) * torch.finfo(self._scatter.dtype).eps
        rank = min(self._count - 1, int((values > least).sum()))
        first = len(values) - rank
        root = vectors[:, first:] * values[first:].clamp(min=0.0).sqrt()
        return (root * column_signs(root)).flip(1).to(self._mean.dtype)
