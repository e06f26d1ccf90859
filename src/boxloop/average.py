"""Running means of trees and the step sizes that drive them.

Every online method of the library keeps ``s_t = s_{t-1} + gamma_t (fresh_t - s_{t-1})``. The schedule decides what
that is: ``gamma = 1/t`` the plain mean, ``t^-a`` with 1/2 < a <= 1 stochastic approximation (Robbins and Monro
1951; Cappé and Moulines 2009), a constant an exponential window, 1 the newest value alone (batch EM).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from boxloop.tree import Tree

T = TypeVar("T", bound=Tree)
Schedule = Callable[[int], float]


@dataclass(frozen=True)
class Power:
    """Step sizes ``gamma_t = min(1, (scale / (t + offset)) ** exponent)``, t = 1, 2, ...

    Example:
        >>> [round(Power(exponent=1.0)(t), 3) for t in (1, 2, 4)]
        [1.0, 0.5, 0.25]
    """

    exponent: float = 0.6
    offset: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.exponent <= 1.0:
            raise ValueError(f"exponent must lie in [0, 1], got {self.exponent}")
        if self.offset < 0.0 or self.scale <= 0.0:
            raise ValueError("offset must be at least 0 and scale positive")

    def __call__(self, t: int) -> float:
        """Step size of update t."""
        return float(min(1.0, (self.scale / (t + self.offset)) ** self.exponent))


@dataclass(frozen=True)
class Running(Tree, Generic[T]):
    """A running mean of trees: ``value`` after ``count`` updates."""

    value: T | None = None
    count: int = 0

    def update(self, fresh: T, schedule: Schedule) -> Running[T]:
        """Move towards ``fresh`` by the schedule's next step; the first value is taken whole."""
        if self.value is None:
            return Running(fresh, 1)
        gamma = schedule(self.count + 1)
        return Running(self.value * (1.0 - gamma) + fresh * gamma, self.count + 1)
