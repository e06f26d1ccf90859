r"""Factor analysis of the trajectory by online EM (document 004, Algorithm 2).

.. math:: \theta_t = \bar\theta + F z_t + \psi^{1/2} \odot \epsilon_t

:class:`~boxloop.fit.FactorStream` learns it, in passes over D x K numbers that a few vectors share; nothing
here is a second implementation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.fit import FactorStream, StreamSettings, StreamState, Variant
from boxloop.weights.law import WeightLaw

PLAIN = Power(1.0)
"""All vectors alike: 1/t."""
TOGETHER, ROOM = 16, 1 << 31
"""Vectors that share a pass, and the bytes that those which wait for it may fill."""


@dataclass(frozen=True)
class FactorEM:
    r"""Online EM for factor analysis: mean, K directions and a noise variance a weight, from all vectors alike.

    Deviation: the paper's warm-up of 100 vectors is 3 here. On trajectories of networks the vectors are few and the
    first ones already tell the scale. The plain mean, ``Power(1.0)``, is that of SWA; schedules that forget follow
    a trajectory that drifts, and their mean and covariance are then not those of all vectors. Before K + 1 vectors
    the law has fewer directions than K, what the others would explain being noise, and none during the warm-up.
    Where all vectors so far are the same the warm-up goes on, and the law has no spread.

    Args:
        rank: K.
        warmup: vectors that set the scale before the loadings first change; 2 at least.
        schedule: step sizes; a ``Power`` can be saved.
        variant: "exact", or "paper" for Algorithm 2 to the letter.
        refresh: so many vectors at most share a pass over D x K numbers, and the psi before it, but no more than a
            quarter of those seen. 1 computes psi anew for every vector, at four times the cost; when None 16, or
            fewer where 16 vectors are more than 2 GiB.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> follower = FactorEM(1).start(4, draws, torch.float64, torch.device("cpu"))
        >>> factor = torch.tensor([3.0, -2.0, 1.0, 0.0]).double()
        >>> for _ in range(4000):
        ...     z, noise = torch.randn(1, generator=draws), torch.randn(4, generator=draws)
        ...     follower.observe(5.0 + factor * z + noise)
        >>> error = follower.law().covariance().dense()[0] - factor.outer(factor) - torch.eye(4)
        >>> bool(error.abs().max() < 0.5)
        True
    """

    rank: int = 10
    warmup: int = 3
    schedule: Schedule = PLAIN
    variant: Variant = "exact"
    refresh: int | None = None

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"rank must be at least 1, got {self.rank}")
        StreamSettings(
            self.schedule, self.warmup, self.variant, 1 if self.refresh is None else self.refresh, True, 0.0
        )

    @property
    def least(self) -> int:
        """One vector has no spread."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> FactorFollower:
        """A stream that has seen nothing.

        Raises:
            ValueError: rank above size, or a dtype that is neither float32 nor float64.
        """
        stream = FactorStream.start(
            *(size, self.rank, generator),
            dtype=dtype,
            device=device,
            schedule=self.schedule,
            warmup=self.warmup,
            variant=self.variant,
            refresh=self._together(size, dtype),
        )
        return FactorFollower(self, stream, self.warmup)

    def restore(self, state: StreamState, device: torch.device) -> FactorFollower:
        """Go on from a state."""
        stream = FactorStream.restore(state, device=device)
        return FactorFollower(self, stream, state.settings.warmup)

    def _together(self, size: int, dtype: torch.dtype) -> int:
        if self.refresh is not None:
            return self.refresh
        if self.variant == "paper":
            return 1
        return max(1, min(TOGETHER, ROOM // (size * dtype.itemsize)))


class FactorFollower:
    """A factor stream, and whether it has begun."""

    def __init__(self, method: FactorEM, stream: FactorStream, warmup: int) -> None:
        self._method, self._stream, self._warmup = method, stream, warmup

    @property
    def count(self) -> int:
        """Vectors seen."""
        return self._stream.count

    @property
    def rank(self) -> int:
        """K."""
        return self._method.rank

    def observe(self, vector: Tensor) -> None:
        """Learn from one vector."""
        if self.count + 1 == self._warmup and self._method.variant == "exact":
            self._wait_for_spread(vector)
        self._stream.observe_checked(vector[None])

    def law(self) -> WeightLaw:
        """The stream's model, with no more directions than vectors can tell."""
        if self.count <= self._warmup:
            state = self._stream.state()
            return WeightLaw(state.mean, state.mean.new_zeros(len(state.mean), 0), state.square)
        model = self._stream.model()
        law = WeightLaw(model.mean, model.loadings, model.noise.clamp(min=0.0))
        return law.reduced(min(self.rank, self.count - 1))

    def state(self) -> StreamState:
        """A copy."""
        return self._stream.state()

    def _wait_for_spread(self, vector: Tensor) -> None:
        """One more vector of warm-up where all so far, this one included, are the same: there is no scale yet."""
        state = self._stream.state()
        least = torch.finfo(state.mean.dtype).tiny * 1e8
        if bool(state.square.any()) or float((vector - state.mean).square().amax()) > least:
            return
        self._warmup += 1
        later = replace(state, settings=replace(state.settings, warmup=self._warmup))
        self._stream = FactorStream(later)
