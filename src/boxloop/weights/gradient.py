r"""Factor analysis of the trajectory by online gradient ascent (document 004, Algorithm 1).

The stream, :class:`~boxloop.fit.GradientStream`, has a learning rate in units of the data and
starts at unit scale, while weights spread by a thousandth or so. So it follows standardised vectors,

.. math:: z_t = (\theta_t - a) / \sigma, \qquad
          \theta \sim N\bigl(\bar\theta, \ \sigma \odot (F F^\top + \Psi) \odot \sigma^\top\bigr)

with the deviations :math:`\sigma` of the vectors seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from boxloop.fit import GradientState, GradientStream, Variant
from boxloop.tree import Tree
from boxloop.weights.law import WeightLaw

FAR = 10.0
"""A standardised weight beyond this has outgrown its unit."""


@dataclass(frozen=True)
class WeightUnits(Tree):
    """What the vectors are measured in; the tensors are changed in place.

    Args:
        mean: of all vectors, (D,).
        square: their mean squared deviation, (D,).
        origin: a, (D,).
        scale: sigma, (D,); 0 for a weight that had not moved.
        due: count at which the units are next set.
    """

    mean: Tensor
    square: Tensor
    origin: Tensor
    scale: Tensor
    due: int


@dataclass(frozen=True)
class GradientUnits(Tree):
    """A gradient stream of standardised vectors, and their units."""

    stream: GradientState
    units: WeightUnits


@dataclass(frozen=True)
class FactorGradient:
    """Online stochastic gradient ascent for factor analysis; ``FactorEM`` is better in every experiment of chapter 5.

    Deviation: it follows standardised vectors, and the law is mapped back. The unit of a weight is its deviation over
    the warm-up, and again over all vectors whenever their number has doubled or a weight is ten units from the mean:
    on a trajectory that drifts the deviation of the first few vectors is far too short a unit for what comes, and at
    the paper's learning rate the stream would never catch up, at a higher one overflow. The loadings and the noise
    keep their standardised values when units change. Before K + 1 vectors the law has fewer directions than K.

    Args:
        rank: K.
        learning_rate: alpha, for standardised vectors.
        warmup: vectors that set the first units; 2 at least.
        variant: which deviation from the mean is taken, see the stream.

    Example:
        >>> import torch
        >>> draws = torch.Generator().manual_seed(0)
        >>> follower = FactorGradient(1).start(50, draws, torch.float64, torch.device("cpu"))
        >>> for _ in range(200):
        ...     follower.observe(1e-3 * torch.randn(50, generator=draws).double())
        >>> law = follower.law()
        >>> law.rank, bool((law.variance().sqrt() - 1e-3).abs().max() < 3e-4)
        (1, True)
    """

    rank: int = 10
    learning_rate: float = 1e-3
    warmup: int = 10
    variant: Variant = "exact"

    def __post_init__(self) -> None:
        if self.rank < 1 or self.warmup < 2:
            raise ValueError(f"need rank >= 1 and warmup >= 2, got {self.rank} and {self.warmup}")
        GradientStream.start(1, 1, Generator(), learning_rate=self.learning_rate, variant=self.variant)

    @property
    def least(self) -> int:
        """One vector has no spread."""
        return 2

    def start(
        self, size: int, generator: Generator, dtype: torch.dtype, device: torch.device
    ) -> GradientFollower:
        """A stream that has seen nothing.

        Raises:
            ValueError: rank above size.
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
        return GradientFollower(self, stream, WeightUnits(mean, square, origin, scale, self.warmup))

    def restore(self, state: GradientUnits, device: torch.device) -> GradientFollower:
        """Go on from a state."""
        stream = GradientStream.restore(state.stream, device=device)
        return GradientFollower(self, stream, state.units.map(torch.clone).to(device))


class GradientFollower:
    """A gradient stream of standardised vectors, with the moments that give the units."""

    def __init__(self, method: FactorGradient, stream: GradientStream, units: WeightUnits) -> None:
        self._method, self._stream, self._units = method, stream, units
        self._inverse = _inverse(units.scale)
        self._gap = torch.empty_like(units.mean)

    @property
    def count(self) -> int:
        """Vectors seen."""
        return self._stream.count

    @property
    def rank(self) -> int:
        """K."""
        return self._method.rank

    def observe(self, vector: Tensor) -> None:
        """Climb by one vector, in its units.

        Raises:
            ConditionError: the learning rate is too high for this trajectory.
        """
        units, gap, step = self._units, self._gap, 1.0 / (self.count + 1)
        torch.sub(vector, units.mean, out=gap)
        units.square.mul_(1.0 - step).addcmul_(gap, gap, value=step * (1.0 - step))
        if self.count >= units.due or (units.due > self._method.warmup and self._is_far()):
            self._change_units()
        units.mean.add_(gap, alpha=step)
        self._stream.observe((vector - units.origin) * self._inverse)

    def law(self) -> WeightLaw:
        """The stream's model in the units of the weights; the variances alone during the warm-up."""
        mean, scale = self._units.mean.clone(), self._units.scale
        if self.count <= self._method.warmup:
            return WeightLaw(mean, mean.new_zeros(len(mean), 0), self._units.square.clone())
        model = self._stream.model()
        law = WeightLaw(mean, model.loadings * scale[:, None], model.noise * scale.square())
        return law.reduced(min(self.rank, self.count - 1))

    def state(self) -> GradientUnits:
        """A copy."""
        return GradientUnits(self._stream.state(), self._units.map(torch.clone))

    def _is_far(self) -> bool:
        return bool((self._gap.abs() > FAR * self._units.scale).any())

    def _change_units(self) -> None:
        """The deviations so far; the origin moves so that the stream's mean stays what it is."""
        units = self._units
        within = (units.mean - units.origin).mul_(self._inverse)
        torch.sqrt(units.square, out=units.scale)
        torch.addcmul(units.mean, units.scale, within, value=-1.0, out=units.origin)
        self._inverse = _inverse(units.scale)
        self._units = replace(units, due=2 * self.count)


def _inverse(scale: Tensor) -> Tensor:
    """1 over it; a weight that has not moved is 0 in any unit."""
    return torch.where(scale > 0.0, scale.reciprocal(), 0.0)
