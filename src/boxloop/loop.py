"""The only loop: iterations, stopping, trace, observers, interruption.

An engine gives ``step(state) -> Iteration``; the loop decides when to stop, checks that an objective which must not
fall does not, calls observers (progress bars, checkpoint writers) and keeps the last complete iteration on Ctrl-C.

An iteration is complete once its outcome is bound to ``last``: one assignment, so an interruption never leaves the
state of one iteration beside the trace of another.
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
class Iteration(Generic[S]):
    """What one step returns: the new state, the objective of the *old* one, and what happened."""

    state: S
    objective: float
    events: tuple[str, ...] = ()
    final: bool = False
    rejected: bool = False


@dataclass(frozen=True)
class Progress(Generic[S]):
    """What observers see after each iteration."""

    state: S
    iteration: int
    max_iter: int
    trace: list[float]
    events: list[str]
    stopped: bool = False
    converged: bool = False
    excused: bool = False


Observer = Callable[[Progress[S]], None]


@dataclass(frozen=True)
class Outcome(Generic[S]):
    """How a loop ended, and all that is needed to continue it.

    ``trace`` holds one objective per iteration. ``excused`` says that the last iteration reported events, so that the
    next objective is not compared with its own.
    """

    state: S
    trace: list[float] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    n_iter: int = 0
    converged: bool = False
    interrupted: bool = False
    excused: bool = False


@single_threaded
def run(
    step: Callable[[S], Iteration[S]],
    state: S,
    *,
    max_iter: int,
    tol: float = 0.0,
    monotone: bool = False,
    rounding: Callable[[S], float] | None = None,
    observers: Sequence[Observer[S]] = (),
    resume: Outcome[S] | None = None,
) -> Outcome[S]:
    """Iterate ``step`` until the objective changes by less than ``tol``, or ``max_iter``, or Ctrl-C.

    Args:
        step: one iteration; returns the new state with the objective of the state it was given.
        state: where to start.
        max_iter: most iterations in all, those of ``resume`` included.
        tol: stop when two consecutive objectives differ by less; 0 never stops early.
        monotone: raise :class:`MonotonicityError` if the objective falls by more than ``1e-9 |objective|``, without
            an event that accounts for it and by more than ``rounding`` allows.
        rounding: how far rounding may move the objective of a state; called only where the objective fell, and a fall
            that it explains becomes an event. Without it every fall is an error.
        observers: called after every iteration, and once more with ``stopped=True`` at the end.
        resume: an earlier outcome to continue; ``state`` is then ignored. One that converged is not continued.

    Returns:
        The last complete iteration, marked ``interrupted`` on Ctrl-C. Any other exception (``SystemExit`` from a
        signal handler among them) is passed on, after the observers have been called with ``stopped=True``.

    Example:
        >>> run(lambda x: Iteration(x / 2.0, objective=-x), 1.0, max_iter=3).trace
        [-1.0, -0.5, -0.25]
    """
    last = Outcome(state) if resume is None else replace(resume, trace=list(resume.trace), interrupted=False)
    try:
        while last.n_iter < max_iter and not last.converged:
            done = step(last.state)
            before = last.trace[-1] if last.trace and not last.excused else None  # to compare with
            if monotone:
                done = _check_rise(last, done, before, rounding)
            has_converged = (
                before is not None
                and not (done.events or done.rejected)
                and abs(done.objective - before) < tol
            )
            events = [f"iteration {last.n_iter + 1}: {event}" for event in done.events]
            last.trace.append(done.objective)  # in place: copying it costs iterations squared
            last = Outcome(
                state=done.state,
                trace=last.trace,
                events=last.events + events if events else last.events,
                n_iter=last.n_iter + 1,
                converged=bool(done.final or has_converged),  # a tol of NumPy's makes NumPy's truth
                excused=bool(events),
            )
            for observe in observers:
                observe(_progress(last, max_iter))
    except KeyboardInterrupt:
        last = _interrupted(last)
    except BaseException:
        _finish(last, max_iter, observers)
        raise
    return last if _finish(last, max_iter, observers) else _interrupted(last)


def _check_rise(
    last: Outcome[S], done: Iteration[S], before: float | None, rounding: Callable[[S], float] | None
) -> Iteration[S]:
    """The iteration, unless its objective fell; with an event where rounding may have lowered it."""
    number, after = last.n_iter + 1, done.objective
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


def _progress(last: Outcome[S], max_iter: int, stopped: bool = False) -> Progress[S]:
    return Progress(
        last.state, last.n_iter, max_iter, last.trace, last.events, stopped, last.converged, last.excused
    )


def _interrupted(last: Outcome[S]) -> Outcome[S]:
    if last.interrupted:
        return last
    event = f"interrupted after iteration {last.n_iter}"
    return replace(last, events=[*last.events, event], interrupted=True)


def _finish(last: Outcome[S], max_iter: int, observers: Sequence[Observer[S]]) -> bool:
    """Call the observers a last time; false if Ctrl-C cut one of them short."""
    del last.trace[last.n_iter :]  # the objective of an iteration that was interrupted before it was complete
    try:
        if observers:
            _call_each(observers, _progress(last, max_iter, stopped=True))
    except KeyboardInterrupt:
        return False
    return True


def _call_each(observers: Sequence[Observer[S]], progress: Progress[S]) -> None:
    """Call every observer, even when one before it raises."""
    try:
        observers[0](progress)
    finally:
        if len(observers) > 1:
            _call_each(observers[1:], progress)
