r"""Factor analysis of the trajectory by online gradient ascent (Brownlie, 2021, Algorithm 1).

The learning rate of the stream, :class:`~boxloop.fit.GradientStream`, is in units of the data, and its loadings start
at unit scale, while weights vary by about a thousandth. The stream therefore observes standardised vectors,

.. math:: z_t = (\theta_t - a) / \sigma, \qquad
          \theta \sim N\bigl(\bar\theta, \ \sigma \odot (F F^\top + \Psi) \odot \sigma^\top\bigr)

with the standard deviations :math:`\sigma` of the vectors observed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.fit import GradientState, GradientStream, Variant
from boxloop.networks.distribution import WeightDistribution
from boxloop.tree import Tree

MAX_STANDARDISED = 10.0
"""Standardised weight beyond which the units are recomputed."""


@dataclass(frozen=True)
class WeightUnits(Tree):
    """The units of the standardised vectors; the tensors are updated in place."""

    mean: Tensor  # of all vectors, (D,)
    square: Tensor  # their mean squared deviation, (D,)
    origin: Tensor  # a, (D,)
    scale: Tensor  # sigma, (D,); 0 for a weight that has not varied
    due: int  # count at which the units are next recomputed


@dataclass(frozen=True)
class GradientUnits(Tree):
    """A gradient stream of standardised vectors, and their units."""

    stream: GradientState
    units: WeightUnits


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

    @property
    def min_vectors(self) -> int:
        """Two, the fewest that have a variance."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> RunningGradient:
        """A gradient stream without observations.

        Raises:
            ValueError: the rank exceeds the size.
        """
        stream = GradientStream.start(
            *(size, self.rank, generator),
            learning_rate=self.learning_rate,
            dtype=dtype,
            device=device,
            warmup=self.warmup,
            variant=self.variant,
        )
        mean, square, origin, scale = (torch.zeros(size, dtype=dtype, device=device) for _ in range(4))
        return RunningGradient(self, stream, WeightUnits(mean, square, origin, scale, self.warmup))

    def restore(self, state: GradientUnits, device: torch.device) -> RunningGradient:
        """Continue from a state."""
        stream = GradientStream.restore(state.stream, device=device)
        return RunningGradient(self, stream, state.units.map(torch.clone).to(device))


class RunningGradient:
    """A gradient stream of standardised vectors, with the moments from which their units follow."""

    def __init__(self, method: FactorGradient, stream: GradientStream, units: WeightUnits) -> None:
        self.rank = method.rank
        self._method, self._stream, self._units = method, stream, units
        self._inverse = _invert(units.scale)
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
            self._change_units()
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

    def state(self) -> GradientUnits:
        """A copy of the state."""
        return GradientUnits(self._stream.state(), self._units.map(torch.clone))

    def _change_units(self) -> None:
        """Adopt the current standard deviations; the origin moves so that the stream's mean stays the same."""
        units = self._units
        standardised = (units.mean - units.origin).mul_(self._inverse)
        torch.sqrt(units.square, out=units.scale)
        torch.addcmul(units.mean, units.scale, standardised, value=-1.0, out=units.origin)
        self._inverse = _invert(units.scale)
        self._units = replace(units, due=2 * self.count)


def _invert(scale: Tensor) -> Tensor:
    """1 / scale, and 0 for a weight that has not varied."""
    return torch.where(scale > 0.0, scale.reciprocal(), 0.0)
