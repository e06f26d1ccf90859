"""The only loop: rounds, stopping, trace, observers, interruption.

An engine gives ``step(state) -> Round``; the loop decides when to stop, checks that an objective which must not
fall does not, tells observers (progress bars, checkpoint writers) and keeps the last complete round on Ctrl-C.

A round is complete once its outcome is bound to ``last``: one assignment, so an interruption never leaves a state
of one round beside the trace of another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from boxloop.numeric import single_threaded

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
    rejected: bool = False


@dataclass(frozen=True)
class Progress(Generic[S]):
    """What observers see after each round."""

    state: S
    round: int
    max_rounds: int
    trace: list[float]
    events: list[str]
    stopped: bool = False
    converged: bool = False
    excused: bool = False


Observer = Callable[[Progress[S]], None]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """How a loop ended, and all that is needed to continue it.

    ``trace`` holds one objective per round. ``excused`` says that the last round reported events, so that the
    next objective is not compared with its own.
    """

    state: S
    trace: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    rounds: int = 0
    converged: bool = False
    interrupted: bool = False
    excused: bool = False


@single_threaded
def run(
    step: Callable[[S], Round[S]],
    state: S,
    *,
    max_rounds: int,
    tol: float = 0.0,
    monotone: bool = False,
    rounding: Callable[[S], float] | None = None,
    observers: Sequence[Observer[S]] = (),
    resume: Outcome[S] | None = None,
) -> Outcome[S]:
    """Iterate ``step`` until the objective moves by less than ``tol``, or ``max_rounds``, or Ctrl-C.

    Args:
        step: one round; returns the new state with the objective of the state it was given.
        state: where to start.
        max_rounds: most rounds in all, those of ``resume`` included.
        tol: stop when two consecutive objectives differ by less; 0 never stops early.
        monotone: raise :class:`MonotonicityError` if the objective falls by more than ``1e-9 |objective|``, without
            an event that accounts for it and by more than ``rounding`` allows.
        rounding: how far rounding may move the objective of a state; called only where the objective fell, and a fall
            that it explains becomes an event. Without it every fall is an error.
        observers: called after every round, and once more with ``stopped=True`` at the end.
        resume: an earlier outcome to continue; ``state`` is then ignored. One that converged is not continued.

    Returns:
        The last complete round, marked ``interrupted`` on Ctrl-C. Any other exception (``SystemExit`` from a
        signal handler among them) is passed on, after the observers have been told of the end.

    Example:
        >>> run(lambda x: Round(x / 2.0, objective=-x), 1.0, max_rounds=3).trace
        [-1.0, -0.5, -0.25]
    """
    last = Outcome(state) if resume is None else replace(resume, trace=list(resume.trace), interrupted=False)
    try:
        while last.rounds < max_rounds and not last.converged:
            done = step(last.state)
            if monotone:
                done = _check_rise(last, done, rounding)
            last = _advance(last, done, tol)
            for observe in observers:
                observe(_progress(last, max_rounds))
    except KeyboardInterrupt:
        last = _interrupted(last)
    except BaseException:
        _end(last, max_rounds, observers)
        raise
    return last if _end(last, max_rounds, observers) else _interrupted(last)


def _before(last: Outcome[S]) -> float | None:
    """The objective that the next one is compared with."""
    return last.trace[-1] if last.trace and not last.excused else None


def _advance(last: Outcome[S], done: Round[S], tol: float) -> Outcome[S]:
    """The outcome after one more round; the trace is extended in place, as copying it costs rounds squared."""
    number, before = last.rounds + 1, _before(last)
    settled = (
        before is not None and not done.events and not done.rejected and abs(done.objective - before) < tol
    )
    noted = [f"round {number}: {event}" for event in done.events]
    last.trace.append(done.objective)
    return Outcome(
        state=done.state,
        trace=last.trace,
        events=last.events + noted if noted else last.events,
        rounds=number,
        converged=bool(done.final or settled),  # a tol of NumPy's makes NumPy's truth
        excused=bool(noted),
    )


def _progress(last: Outcome[S], max_rounds: int, stopped: bool = False) -> Progress[S]:
    return Progress(
        last.state, last.rounds, max_rounds, last.trace, last.events, stopped, last.converged, last.excused
    )


def _interrupted(last: Outcome[S]) -> Outcome[S]:
    if last.interrupted:
        return last
    return replace(last, events=[*last.events, f"interrupted after round {last.rounds}"], interrupted=True)


def _end(last: Outcome[S], max_rounds: int, observers: Sequence[Observer[S]]) -> bool:
    """Tell the observers of the end; false if Ctrl-C cut one of them short."""
    del last.trace[last.rounds :]  # the objective of a round that was interrupted before it was complete
    try:
        _tell(observers, _progress(last, max_rounds, stopped=True))
    except KeyboardInterrupt:
        return False
    return True


def _tell(observers: Sequence[Observer[S]], progress: Progress[S]) -> None:
    """Tell every observer, even when one before it raises."""
    if observers:
        try:
            observers[0](progress)
        finally:
            _tell(observers[1:], progress)


def _check_rise(last: Outcome[S], done: Round[S], rounding: Callable[[S], float] | None) -> Round[S]:
    """The round, unless its objective fell; with an event where rounding may have lowered it."""
    number, before, after = last.rounds + 1, _before(last), done.objective
    if math.isnan(after):
        raise MonotonicityError(f"the objective became NaN at iteration {number}")
    if before is None or after >= before - FALL * max(abs(before), 1.0):
        return done
    error = 0.0 if rounding is None else rounding(last.state)
    if before - after > error:
        raise MonotonicityError(
            f"the objective fell at iteration {number}, from {before!r} to {after!r} "
            f"(by {before - after:.3g}); in exact arithmetic this ascent cannot fall"
        )
    event = (
        f"the objective fell by {before - after:.2g}, as rounding alone may move it by {error:.2g}: a matrix is "
        "nearly singular, or some rows are far larger than the others"
    )
    return replace(done, events=(*done.events, event))
