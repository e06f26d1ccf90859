"""The only loop: rounds, stopping, trace, observers, interruption.

An engine gives ``step(state) -> Round``; the loop decides when to stop, checks that an objective which must not
fall does not, tells observers (progress bars, checkpoint writers) and keeps the last complete round on Ctrl-C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

S = TypeVar("S")

FALL = 1e-9
"""Largest relative fall of a monotone objective that rounding may cause."""


class MonotonicityError(RuntimeError):
    """An objective that cannot fall in exact arithmetic has fallen: a bug, not bad data."""


@dataclass(frozen=True)
class Round(Generic[S]):
    """One step's outcome: the new state, the objective of the *old* one, and what happened."""

    state: S
    objective: float
    events: tuple[str, ...] = ()
    final: bool = False


@dataclass(frozen=True)
class Progress(Generic[S]):
    """What observers see after each round."""

    state: S
    round: int
    max_rounds: int
    trace: list[float]
    events: list[str]
    stopped: bool = False


Observer = Callable[[Progress[S]], None]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """How a loop ended."""

    state: S
    trace: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    rounds: int = 0
    converged: bool = False
    interrupted: bool = False


def run(
    step: Callable[[S], Round[S]],
    state: S,
    *,
    max_rounds: int,
    tol: float = 0.0,
    monotone: bool = False,
    observers: Sequence[Observer[S]] = (),
    resume: Outcome[S] | None = None,
) -> Outcome[S]:
    """Iterate ``step`` until the objective moves by less than ``tol``, or ``max_rounds``, or Ctrl-C.

    Args:
        step: one round; returns the new state with the objective of the state it was given.
        state: where to start.
        max_rounds: most rounds in all, those of ``resume`` included.
        tol: stop when two consecutive objectives differ by less; 0 never stops early.
        monotone: raise :class:`MonotonicityError` if the objective falls by more than ``1e-9 |objective|``
            without an event that accounts for it.
        observers: called after every round, and once more with ``stopped=True`` at the end.
        resume: an earlier outcome to continue; ``state`` is then ignored.
    """
    trace, events, rounds = ([], [], 0) if resume is None else (list(resume.trace), list(resume.events), resume.rounds)
    state = state if resume is None else resume.state
    converged = interrupted = excused = False
    try:
        while rounds < max_rounds and not converged:
            done = step(state)
            if monotone and not excused and trace:
                _check(trace[-1], done.objective, rounds + 1)
            converged = done.final or (
                bool(trace) and not excused and not done.events and abs(done.objective - trace[-1]) < tol
            )
            state, rounds, excused = done.state, rounds + 1, bool(done.events)
            trace.append(done.objective)
            events.extend(f"round {rounds}: {event}" for event in done.events)
            for observe in observers:
                observe(Progress(state, rounds, max_rounds, trace, events))
    except KeyboardInterrupt:
        interrupted = True
        events.append(f"interrupted after round {rounds}")
    finally:
        for observe in observers:
            observe(Progress(state, rounds, max_rounds, trace, events, stopped=True))
    return Outcome(state, trace, events, rounds, converged, interrupted)


def _check(before: float, after: float, number: int) -> None:
    if math.isnan(after):
        raise MonotonicityError(f"the objective became NaN at iteration {number}")
    if after < before - FALL * max(abs(before), 1.0):
        raise MonotonicityError(
            f"the log-likelihood fell at iteration {number}, from {before!r} to {after!r} "
            f"(by {before - after:.3g}); exact EM cannot do this"
        )
