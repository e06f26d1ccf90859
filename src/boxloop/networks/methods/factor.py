r"""Factor analysis of the trajectory, by online EM or by online gradient ascent (Brownlie, 2021, Algorithms 2 and 1).

.. math:: \theta_t = \bar\theta + F z_t + \psi^{1/2} \odot \epsilon_t

The computation of EM is :class:`~boxloop.fit.FactorStream`, which reads and writes D x K numbers once for several
vectors. The learning rate of gradient ascent, :class:`~boxloop.fit.GradientStream`, is in units of the data, and its
loadings start at unit scale, while weights vary by about a thousandth. That stream therefore observes standardised
vectors,

.. math:: z_t = (\theta_t - a) / \sigma, \qquad
          \theta \sim N\bigl(\bar\theta, \ \sigma \odot (F F^\top + \Psi) \odot \sigma^\top\bigr)

with the standard deviations :math:`\sigma` of the vectors observed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Schedule
from boxloop.fit import FactorStream, GradientState, GradientStream, StreamSettings, StreamState, Variant
from boxloop.networks.distribution import WeightDistribution
from boxloop.tree import Tree

UNIFORM = Power(1.0)  # step sizes 1/t: all vectors have the same weight
VECTORS_PER_PASS, QUEUE_BYTES = 16, 1 << 31
"""Vectors that share a pass by default, and the memory that vectors waiting for it may take."""
MAX_STANDARDISED = 10.0  # standardised weight beyond which the units are recomputed


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
        StreamSettings(self.schedule, self.warmup, self.variant, refresh, True, 0.0)  # checks its arguments

    min_vectors = 2
    """Two, the fewest that have a variance."""

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningFactors:
        """A factor stream without observations."""
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
        stream = FactorStream.restore(state, device=device)
        return RunningFactors(self, stream, state.settings.warmup, stream.count)


class RunningFactors:
    """A factor stream whose warm-up lasts until the vectors differ."""

    def __init__(self, method: FactorEM, stream: FactorStream, warmup: int, count: int = 0) -> None:
        self.rank: int = method.rank
        self.count: int = count
        self._method, self._stream, self._warmup = method, stream, warmup

    def observe(self, vector: Tensor) -> None:
        ends_warmup = self.count + 1 == self._warmup and self._method.variant == "exact"
        if ends_warmup and self._stream.is_constant(vector):
            self._extend_warmup()
        self._stream.observe_checked(vector[None])
        self.count += 1

    def distribution(self) -> WeightDistribution:
        """The stream's model, of rank below the number of vectors."""
        if self.count <= self._warmup:
            state = self._stream.state()
            return WeightDistribution(state.mean, state.mean.new_zeros(len(state.mean), 0), state.square)
        model = self._stream.model()
        full = WeightDistribution(model.mean, model.loadings, model.noise.clamp(min=0.0))
        return full.reduce_rank(min(self.rank, self.count - 1))

    def state(self) -> StreamState:
        return self._stream.state()

    def _extend_warmup(self) -> None:
        """Extend the warm-up by one vector, as identical vectors have no scale."""
        self._warmup += 1
        state = self._stream.state()
        self._stream = FactorStream(replace(state, settings=replace(state.settings, warmup=self._warmup)))


@dataclass(frozen=True)
class WeightStandardisation(Tree):
    """The units of the standardised vectors; the tensors are updated in place."""

    mean: Tensor  # of all vectors, (D,)
    square: Tensor  # their mean squared deviation, (D,)
    origin: Tensor  # a, (D,)
    scale: Tensor  # sigma, (D,); 0 for a weight that has not varied
    due: int  # count at which the units are next recomputed


@dataclass(frozen=True)
class StandardisedGradientState(Tree):
    """A gradient stream of standardised vectors, and their units."""

    stream: GradientState
    units: WeightStandardisation


@dataclass(frozen=True)
class FactorGradient:
    """Online gradient ascent for factor analysis. ``FactorEM`` is better in every experiment of Brownlie, chapter 5.

    Deviation: the stream observes standardised vectors, and its model is mapped back. The unit of a weight is its
    standard deviation over the warm-up, recomputed over all vectors whenever their number has doubled or a weight is
    ten units from the mean: on a trajectory that drifts, the standard deviation of the first vectors is far too short a
    unit, and the stream would either never adapt at the paper's learning rate or overflow at a higher one. Loadings
    and noise keep their standardised values when units change. Before K + 1 vectors the rank is lower than K.

    Args:
        rank: K.
        learning_rate: alpha, for standardised vectors.
        warmup: vectors that determine the first units, at least 2.
        variant: which deviation from the mean the stream uses.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> estimate = FactorGradient(1).start(50, draws, torch.float64, torch.device("cpu"))
        >>> for _ in range(200):
        ...     estimate.observe(1e-3 * torch.randn(50, generator=draws).double())
        >>> found = estimate.distribution()
        >>> found.rank, bool((found.variance().sqrt() - 1e-3).abs().max() < 3e-4)
        (1, True)
    """

    rank: int = 10
    learning_rate: float = 1e-3
    warmup: int = 10
    variant: Variant = "exact"

    def __post_init__(self) -> None:
        if self.rank < 1 or self.warmup < 2:
            raise ValueError(
                f"rank must be at least 1 and warmup at least 2, got rank={self.rank} and warmup={self.warmup}"
            )
        GradientStream.start(1, 1, Generator(), learning_rate=self.learning_rate, variant=self.variant)

    min_vectors = 2
    """Two, the fewest that have a variance."""

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningGradient:
        """A gradient stream without observations."""
        stream = GradientStream.start(
            *(size, self.rank, generator),
            learning_rate=self.learning_rate,
            dtype=dtype,
            device=device,
            warmup=self.warmup,
            variant=self.variant,
        )
        mean, square, origin, scale = (torch.zeros(size, dtype=dtype, device=device) for _ in range(4))
        return RunningGradient(self, stream, WeightStandardisation(mean, square, origin, scale, self.warmup))

    def restore(self, state: StandardisedGradientState, device: torch.device) -> RunningGradient:
        """Continue from a state."""
        stream = GradientStream.restore(state.stream, device=device)
        return RunningGradient(self, stream, state.units.map(torch.clone).to(device))


class RunningGradient:
    """A gradient stream of standardised vectors, with the moments from which their units follow."""

    def __init__(self, method: FactorGradient, stream: GradientStream, units: WeightStandardisation) -> None:
        self.rank: int = method.rank
        self._method, self._stream, self._units = method, stream, units
        self._inverse = _invert_scale(units.scale)
        self._gap = torch.empty_like(units.mean)

    @property
    def count(self) -> int:
        """Number of vectors observed."""
        return self._stream.count

    def observe(self, vector: Tensor) -> None:
        """One gradient step, on the standardised vector."""
        units, gap, step = self._units, self._gap, 1.0 / (self.count + 1)
        torch.sub(vector, units.mean, out=gap)
        units.square.mul_(1.0 - step).addcmul_(gap, gap, value=step * (1.0 - step))
        if self.count >= units.due or (
            units.due > self._method.warmup and bool((gap.abs() > MAX_STANDARDISED * units.scale).any())
        ):
            self._update_units()
        units.mean.add_(gap, alpha=step)
        self._stream.observe((vector - units.origin) * self._inverse)

    def distribution(self) -> WeightDistribution:
        """The stream's model in the units of the weights; the variances alone during the warm-up."""
        mean, scale = self._units.mean.clone(), self._units.scale
        if self.count <= self._method.warmup:
            return WeightDistribution(mean, mean.new_zeros(len(mean), 0), self._units.square.clone())
        model = self._stream.model()
        full = WeightDistribution(mean, model.loadings * scale[:, None], model.noise * scale.square())
        return full.reduce_rank(min(self.rank, self.count - 1))

    def state(self) -> StandardisedGradientState:
        return StandardisedGradientState(self._stream.state(), self._units.map(torch.clone))

    def _update_units(self) -> None:
        """Adopt the current standard deviations; the origin moves so that the stream's mean stays the same."""
        units = self._units
        standardised = (units.mean - units.origin).mul_(self._inverse)
        torch.sqrt(units.square, out=units.scale)
        torch.addcmul(units.mean, units.scale, standardised, value=-1.0, out=units.origin)
        self._inverse = _invert_scale(units.scale)
        self._units = replace(units, due=2 * self.count)


def _invert_scale(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for a weight that has not varied."""
    return torch.where(scale > 0.0, scale.reciprocal(), 0.0)
