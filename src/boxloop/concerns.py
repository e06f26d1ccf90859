"""Concerns: what a fit, chains or a posterior give reason to look at, and how a user hears of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from boxloop.caller import warn_caller

Level = Literal["good", "doubtful", "bad", "not run"]

ORDER: tuple[Level, ...] = ("bad", "doubtful", "not run", "good")
"""What a reader should see first."""


@dataclass(frozen=True)
class Concern:
    """One finding of a check.

    Example:
        >>> print(Concern("bad", "Drift", "the mean still moves", "train longer"))
        bad: Drift. the mean still moves. Next: train longer.
    """

    level: Level  # ``not run`` where nothing was checked
    what: str  # it is about
    why: str  # what the check found
    next: str = ""  # what to do, where there is something

    def __str__(self) -> str:
        finding = f"{self.level}: {self.what}. {self.why}."
        return f"{finding} Next: {self.next}." if self.next else finding


def sort_by_level(concerns: Iterable[Concern]) -> tuple[Concern, ...]:
    """By level; within one, in their order."""
    return tuple(sorted(concerns, key=lambda concern: ORDER.index(concern.level)))


def warn_each(concerns: Iterable[object], category: type[Warning]) -> None:
    """One warning at the user's line for each concern."""
    for concern in concerns:
        warn_caller(str(concern), category)
