"""Learning rates and weights that change from one update to the next."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Constant:
    """The same learning rate at every update.

    Example:
        >>> Constant(0.1)(7)
        0.1
    """

    rate: float

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return self.rate


@dataclass(frozen=True)
class Cooling:
    r"""Cosine schedule of learning rates, :math:`\alpha_t = \tfrac{\alpha}{2} (1 + \cos \pi t / T)`.

    Args:
        rate: initial rate.
        steps: T.

    Example:
        >>> [round(Cooling(0.1, 10)(t), 3) for t in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """

    rate: float
    steps: int

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return 0.5 * self.rate * (1.0 + math.cos(math.pi * min(t / max(self.steps, 1), 1.0)))


@dataclass(frozen=True)
class Warming:
    r"""Linear warm-up of a weight, :math:`\alpha_t = \alpha \min(1, (t - a)_+ / T)`.

    Args:
        weight: final weight.
        steps: T.
        after: a, updates with weight 0.

    Example:
        >>> [Warming(0.5, 10, after=10)(t) for t in (0, 10, 15, 20, 30)]
        [0.0, 0.0, 0.25, 0.5, 0.5]
    """

    weight: float
    steps: int
    after: int = 0

    def __call__(self, t: int) -> float:
        """Weight at update t."""
        return self.weight * min(max(t - self.after, 0) / max(self.steps, 1), 1.0)
