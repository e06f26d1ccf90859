"""What to worry about, in plain words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["good", "doubtful", "bad", "not run"]

ORDER: tuple[Level, ...] = ("bad", "doubtful", "not run", "good")
"""What a reader should see first."""


@dataclass(frozen=True)
class Worry:
    """One line of a verdict.

    Args:
        level: ``good``, ``doubtful`` or ``bad``; ``not run`` where nothing was looked at.
        what: it is about.
        why: what was found.
        next: what to do, where there is something.

    Example:
        >>> print(Worry("bad", "Drift", "the mean still moves", "train longer"))
        bad: Drift. the mean still moves. Next: train longer.
    """

    level: Level
    what: str
    why: str
    next: str = ""

    def __str__(self) -> str:
        found = f"{self.level}: {self.what}. {self.why}."
        return f"{found} Next: {self.next}." if self.next else found


def worst_first(worries: tuple[Worry, ...]) -> tuple[Worry, ...]:
    """By level; within one, as they came."""
    return tuple(sorted(worries, key=lambda worry: ORDER.index(worry.level)))
