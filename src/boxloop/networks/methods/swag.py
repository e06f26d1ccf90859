r"""SWAG (Maddox et al., 2019): half the diagonal variance, half the covariance of the last deviations.

.. math:: \theta \sim N\Bigl(\bar\theta, \ \tfrac12 \operatorname{diag}(\sigma^2)
          + \tfrac{1}{2 (K - 1)} \sum_{t > T - K} d_t d_t^\top\Bigr), \qquad d_t = \theta_t - \bar\theta_t

with the running mean :math:`\bar\theta_t`, the variance :math:`\sigma^2` of all vectors about their mean, and the
deviations of the last K vectors from the running mean after each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.networks.distribution import WeightDistribution
from boxloop.tree import Tree


@dataclass(frozen=True)
class SwagState(Tree):
    """Running statistics of SWAG."""

    mean: Tensor  # (D,)
    square: Tensor  # mean squared deviation from the mean, (D,)
    rows: Tensor  # the last deviations, (K, D); that of vector t, counted from 0, is row t mod K
    count: int  # vectors observed
    floor: float  # smallest variance


@dataclass(frozen=True)
class SWAG:
    r"""SWAG as published.

    The published estimator is biased, and so is this one: a deviation from the mean *after* its update is
    :math:`1 - 1/t` times that from the mean before it; the low-rank half uses the last K vectors only, which lie on one
    side of the mean if the trajectory drifts; and half the variance is treated as uncorrelated whatever the
    correlations are. :class:`FactorEM` has none of these biases.

    Deviation: the variance itself is averaged, not the second moment from which the squared mean is subtracted: in
    float32 the latter loses standard deviations below a thousandth of the weight. In exact arithmetic both agree. With
    k < K deviations the divisor is 2 (k - 1), and the first deviation, 0 by definition, is left out.

    Args:
        rank: K, number of deviations, at least 2.
        floor: smallest variance.

    Example:
        >>> import torch
        >>> estimate = SWAG(2).start(1, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in (1.0, 3.0, 5.0):
        ...     estimate.observe(torch.tensor([value], dtype=torch.float64))
        >>> found = estimate.distribution()
        >>> found.mean.item(), round(found.noise.item(), 3), round(found.loadings.square().sum().item(), 3)
        (3.0, 1.333, 2.5)
    """

    rank: int = 10
    floor: float = 1e-30

    def __post_init__(self) -> None:
        if self.rank < 2 or not self.floor >= 0.0:
            raise ValueError(
                f"rank must be at least 2 and floor at least 0, got rank={self.rank} and floor={self.floor}"
            )

    @property
    def min_vectors(self) -> int:
        """Two, the fewest that have a variance."""
        return 2

    def start(self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device) -> RunningSwag:
        """A running estimate without observations."""
        zeros = torch.zeros(size, dtype=dtype, device=device)
        rows = zeros.new_zeros(self.rank, size)
        return RunningSwag(SwagState(zeros, zeros.clone(), rows, 0, self.floor))

    def restore(self, state: SwagState, device: torch.device) -> RunningSwag:
        """Continue from a state."""
        return RunningSwag(state.map(torch.clone).to(device))


class RunningSwag:
    """Mean, variance and a ring buffer of deviations, updated in place."""

    def __init__(self, state: SwagState) -> None:
        self._mean, self._square, self._rows = state.mean, state.square, state.rows
        self.count, self.rank, self._floor = state.count, len(state.rows), state.floor

    def observe(self, vector: Tensor) -> None:
        """Overwrite the oldest deviation; no vector of length D is allocated."""
        row = self._rows[self.count % self.rank]
        self.count += 1
        step = 1.0 / self.count
        torch.sub(vector, self._mean, out=row)
        self._square.mul_(1.0 - step).addcmul_(row, row, value=step * (1.0 - step))
        self._mean.add_(row, alpha=step)
        row.mul_(1.0 - step)

    def distribution(self) -> WeightDistribution:
        """Half the diagonal and half the low-rank covariance."""
        rows = self._rows if self.count > self.rank else self._rows[1 : self.count]
        loadings = (rows / (2.0 * max(min(self.count, self.rank) - 1, 1)) ** 0.5).mT
        return WeightDistribution(self._mean.clone(), loadings, 0.5 * self._square.clamp(min=self._floor))

    def state(self) -> SwagState:
        """A copy of the state."""
        parts = (self._mean.clone(), self._square.clone(), self._rows.clone())
        return SwagState(*parts, self.count, self._floor)
