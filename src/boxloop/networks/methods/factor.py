r"""Factor analysis of the trajectory by online EM (Brownlie, 2021, Algorithm 2).

.. math:: \theta_t = \bar\theta + F z_t + \psi^{1/2} \odot \epsilon_t

The computation is :class:`~boxloop.fit.FactorStream`, which reads and writes D x K numbers once for several vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.fit import FactorStream, StreamSettings, StreamState, Variant
from boxloop.networks.distribution import WeightDistribution

UNIFORM = Power(1.0)
"""Step sizes 1/t: all vectors have the same weight."""
VECTORS_PER_PASS, QUEUE_BYTES = 16, 1 << 31
"""Vectors that share a pass by default, and the memory that vectors waiting for it may take."""


@dataclass(frozen=True)
class FactorEM:
    r"""Online EM for factor analysis: a mean, K loadings and a noise variance per weight, from all vectors equally.

    Deviation: the paper's warm-up of 100 vectors is 3 here, as trajectories of networks have few vectors and the first
    ones already determine the scale. With ``Power(1.0)`` the mean is that of SWA; schedules that forget follow a
    trajectory that drifts, and their mean and covariance are not those of all vectors. Before K + 1 vectors the rank is
    lower than K, and the remaining variance counts as noise; during the warm-up the rank is 0. While all vectors are
    identical the warm-up continues, and the variance is zero.

    Args:
        rank: K.
        warmup: vectors that determine the scale before the loadings first change, at least 2.
        schedule: step sizes; only a ``Power`` can be saved.
        variant: "exact", or "paper" for Algorithm 2 unchanged.
        refresh: most vectors that share a pass over D x K numbers, and the psi before it; never more than a quarter of
            those observed. 1 recomputes psi for every vector, at four times the cost. None is 16, or fewer where 16
            vectors exceed 2 GiB.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> estimate = FactorEM(1).start(4, draws, torch.float64, torch.device("cpu"))
        >>> factor = torch.tensor([3.0, -2.0, 1.0, 0.0]).double()
        >>> for _ in range(4000):
        ...     z, noise = torch.randn(1, generator=draws), torch.randn(4, generator=draws)
        ...     estimate.observe(5.0 + factor * z + noise)
        >>> error = estimate.distribution().covariance().dense()[0] - factor.outer(factor) - torch.eye(4)
        >>> bool(error.abs().max() < 0.5)
        True
    """

    rank: int = 10
    warmup: int = 3
    schedule: Schedule = UNIFORM
    variant: Variant = "exact"
    refresh: int | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        refresh = 1 if self.refresh is None else self.refresh
        StreamSettings(
            self.schedule, self.warmup, self.variant, refresh, True, 0.0
        )  # validates its arguments

    @property
    def min_vectors(self) -> int:
        """Two, the fewest that have a variance."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningFactors:
        """A factor stream without observations.

        Raises:
            ValueError: the rank exceeds the size, or the dtype is neither float32 nor float64.
        """
        refresh = self.refresh
        if refresh is None:
            fitting = QUEUE_BYTES // (size * dtype.itemsize)
            refresh = 1 if self.variant == "paper" else max(1, min(VECTORS_PER_PASS, fitting))
        stream = FactorStream.start(
            *(size, self.rank, generator),
            dtype=dtype,
            device=device,
            schedule=self.schedule,
            warmup=self.warmup,
            variant=self.variant,
            refresh=refresh,
        )
        return RunningFactors(self, stream, self.warmup)

    def restore(self, state: StreamState, device: torch.device) -> RunningFactors:
        """Continue from a state."""
        return RunningFactors(self, FactorStream.restore(state, device=device), state.settings.warmup)


class RunningFactors:
    """A factor stream whose warm-up lasts until the vectors differ."""

    def __init__(self, method: FactorEM, stream: FactorStream, warmup: int) -> None:
        self.rank = method.rank
        self._method, self._stream, self._warmup = method, stream, warmup

    @property
    def count(self) -> int:
        """Number of vectors observed."""
        return self._stream.count

    def observe(self, vector: Tensor) -> None:
        """Update the stream with one vector."""
        if self._stream.count + 1 == self._warmup and self._method.variant == "exact":
            self._extend_warmup(vector)
        self._stream.observe_checked(vector[None])

    def distribution(self) -> WeightDistribution:
        """The stream's model, of rank below the number of vectors."""
        count = self._stream.count
        if count <= self._warmup:
            state = self._stream.state()
            return WeightDistribution(state.mean, state.mean.new_zeros(len(state.mean), 0), state.square)
        model = self._stream.model()
        full = WeightDistribution(model.mean, model.loadings, model.noise.clamp(min=0.0))
        return full.reduce_rank(min(self.rank, count - 1))

    def state(self) -> StreamState:
        """A copy of the state."""
        return self._stream.state()

    def _extend_warmup(self, vector: Tensor) -> None:
        """Extend the warm-up by one vector if all so far, and this one, are identical: they have no scale."""
        state = self._stream.state()
        smallest = torch.finfo(state.mean.dtype).tiny * 1e8
        if bool(state.square.any()) or float((vector - state.mean).square().amax()) > smallest:
            return
        self._warmup += 1
        self._stream = FactorStream(replace(state, settings=replace(state.settings, warmup=self._warmup)))
