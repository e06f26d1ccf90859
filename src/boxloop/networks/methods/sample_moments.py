r"""Sample moments of the trajectory: its mean (SWA), SWAG, and its full covariance for small networks.

SWA (Izmailov et al., 2018), SWAG (Maddox et al., 2019) and the sample covariance are

.. math:: \bar\theta_t = \bar\theta_{t-1} + \tfrac1t (\theta_t - \bar\theta_{t-1}), \qquad
          N\Bigl(\bar\theta, \ \tfrac12 \operatorname{diag}(\sigma^2)
          + \tfrac{1}{2 (K - 1)} \sum_{t > T - K} d_t d_t^\top\Bigr), \qquad
          C = \tfrac{1}{T - 1} \sum_t (\theta_t - \bar\theta)(\theta_t - \bar\theta)^\top

with the variance :math:`\sigma^2` of all vectors about their mean, and the deviations :math:`d_t = \theta_t -
\bar\theta_t` of the last K vectors from the running mean after each of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.networks.distribution import WeightDistribution
from boxloop.numeric import column_signs
from boxloop.tree import Tree

MAX_WEIGHTS = 4096  # largest D of a full covariance, which is D x D


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

    min_vectors = 1
    """One."""

    def start(self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device) -> RunningMean:
        """A running mean without observations."""
        return RunningMean(MeanState(torch.zeros(size, dtype=dtype, device=device), 0))

    def restore(self, state: MeanState, device: torch.device) -> RunningMean:
        """Continue from a state."""
        return RunningMean(state.map(torch.clone).to(device))


class RunningMean:
    """A mean, updated in place."""

    def __init__(self, state: MeanState) -> None:
        self._mean = state.mean
        self.count: int = state.count
        self.rank: int = 0

    def observe(self, vector: Tensor) -> None:
        self.count += 1
        self._mean.lerp_(vector, 1.0 / self.count)

    def distribution(self) -> WeightDistribution:
        return WeightDistribution.point(self._mean.clone())

    def state(self) -> MeanState:
        return MeanState(self._mean.clone(), self.count)


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

    min_vectors = 2
    """Two, the fewest that have a variance."""

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
        self.count: int = state.count
        self.rank: int = len(state.rows)
        self._floor = state.floor

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
        parts = (self._mean.clone(), self._square.clone(), self._rows.clone())
        return SwagState(*parts, self.count, self._floor)


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

    min_vectors = 2
    """Two, the fewest that have a covariance."""

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningCovariance:
        """A running covariance without observations."""
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
        self.count: int = state.count
        self.rank: int = len(state.mean)
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
        return FullState(self._mean.clone(), self._scatter.clone(), self.count)
