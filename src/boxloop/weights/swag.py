r"""SWAG: half a diagonal, half the last deviations of the trajectory (Maddox et al., 2019).

.. math:: \theta \sim N\Bigl(\bar\theta, \ \tfrac12 \operatorname{diag}(\sigma^2)
          + \tfrac{1}{2 (K - 1)} \sum_{t > T - K} d_t d_t^\top\Bigr), \qquad d_t = \theta_t - \bar\theta_t

with the running mean :math:`\bar\theta_t`, the variance :math:`\sigma^2` of all vectors about their mean, and the
deviations of the last K vectors from the running mean as it stood after each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw


@dataclass(frozen=True)
class SwagState(Tree):
    """What SWAG knows.

    Args:
        mean: (D,).
        square: mean squared deviation from the mean, (D,).
        rows: the last deviations, (K, D); that of vector t, counted from 0, stands in row t mod K.
        count: vectors seen.
        floor: smallest variance.
    """

    mean: Tensor
    square: Tensor
    rows: Tensor
    count: int
    floor: float


@dataclass(frozen=True)
class SWAG:
    r"""The published definition.

    What it says of the spread of the trajectory is biased, and stays so here: a deviation from the mean *after* its
    update is :math:`1 - 1/t` of the one before; the low-rank half is that of the last K vectors alone, which on a
    trajectory that drifts are all on one side of the mean; and half the variance is called uncorrelated whatever
    the correlations are. :class:`~boxloop.weights.factor.FactorEM` has none of these.

    Deviation: the variance is kept as such, not as a second moment from which the squared mean is taken, which in
    float32 loses spreads below a thousandth of a weight; in exact arithmetic they are the same. With k < K
    deviations at hand the divisor is 2 (k - 1), and the first, which is 0 by definition, is no direction.

    Args:
        rank: K, deviations kept; 2 at least.
        floor: smallest variance, as published.

    Example:
        >>> import torch
        >>> follower = SWAG(2).start(1, torch.Generator(), torch.float64, torch.device("cpu"))
        >>> for value in (1.0, 3.0, 5.0):
        ...     follower.observe(torch.tensor([value], dtype=torch.float64))
        >>> law = follower.law()
        >>> law.mean.item(), round(law.noise.item(), 3), round(law.loadings.square().sum().item(), 3)
        (3.0, 1.333, 2.5)
    """

    rank: int = 10
    floor: float = 1e-30

    def __post_init__(self) -> None:
        if self.rank < 2 or not self.floor >= 0.0:
            raise ValueError(f"need rank >= 2 and floor >= 0, got {self.rank} and {self.floor}")

    @property
    def least(self) -> int:
        """One vector has no spread."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> SwagFollower:
        """A follower that has seen nothing."""
        zeros = torch.zeros(size, dtype=dtype, device=device)
        rows = zeros.new_zeros(self.rank, size)
        return SwagFollower(SwagState(zeros, zeros.clone(), rows, 0, self.floor))

    def restore(self, state: SwagState, device: torch.device) -> SwagFollower:
        """Go on from a state."""
        return SwagFollower(state.map(torch.clone).to(device))


class SwagFollower:
    """Mean, variance and a ring of deviations, changed in place."""

    def __init__(self, state: SwagState) -> None:
        self._mean, self._square, self._rows = state.mean, state.square, state.rows
        self._count, self._floor = state.count, state.floor

    @property
    def count(self) -> int:
        """Vectors seen."""
        return self._count

    @property
    def rank(self) -> int:
        """K."""
        return len(self._rows)

    def observe(self, vector: Tensor) -> None:
        """Overwrite the oldest deviation; nothing D long is made."""
        row = self._rows[self._count % len(self._rows)]
        self._count += 1
        step = 1.0 / self._count
        torch.sub(vector, self._mean, out=row)
        self._square.mul_(1.0 - step).addcmul_(row, row, value=step * (1.0 - step))
        self._mean.add_(row, alpha=step)
        row.mul_(1.0 - step)

    def law(self) -> WeightLaw:
        """Half and half."""
        kept = self._rows if self._count > self.rank else self._rows[1 : self._count]
        most = min(self._count, self.rank)
        loadings = (kept / (2.0 * max(most - 1, 1)) ** 0.5).mT
        return WeightLaw(self._mean.clone(), loadings, 0.5 * self._square.clamp(min=self._floor))

    def state(self) -> SwagState:
        """A copy."""
        parts = (self._mean.clone(), self._square.clone(), self._rows.clone())
        return SwagState(*parts, self._count, self._floor)
