"""Restarts with early abandonment: many starts run a little, the better half runs on."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from boxloop.loop import Iteration, Observer, Outcome, run
from boxloop.numeric import single_threaded

S = TypeVar("S")

TIE = 8
"""Decimals beyond which two objectives are equal: then the start that was named first wins, whatever the rounding."""


@single_threaded
def race(
    step: Callable[[S], Iteration[S]],
    starts: Sequence[S],
    *,
    iterations: int = 5,
    tol: float = 0.0,
    doubtful: Callable[[S], bool] | None = None,
    rounding: Callable[[S], float] | None = None,
    observers: Sequence[Observer[S]] = (),
) -> list[Outcome[S]]:
    """Successive halving (Jamieson and Talwalkar 2016) over the starts of one fit.

    Every start gets ``iterations`` of them; the better half by objective gets twice as many more; and so on until one
    is left. Nothing is lost: losers stay in the result with the trace they had when they were abandoned.

    Args:
        step: one iteration, for example :func:`boxloop.fit.em.em`.
        starts: states to start from.
        iterations: iterations in the first heat.
        tol: as in :func:`boxloop.loop.run`; a start that has converged rests on its objective.
        doubtful: states that come after all others, whatever their objective: a component that has collapsed on a
            few rows has a likelihood without bound, and means nothing.
        rounding: as in :func:`boxloop.loop.run`.
        observers: told of every iteration of every start.

    Returns:
        All outcomes, the winner first.
    """

    def continue_to(budget: int, outcome: Outcome[S]) -> Outcome[S]:
        if outcome.converged or outcome.n_iter >= budget:
            return outcome
        return run(
            step,
            outcome.state,
            max_iter=budget,
            tol=tol,
            monotone=True,
            rounding=rounding,
            observers=observers,
            resume=replace(outcome, interrupted=False),
        )

    field = [Outcome(start) for start in starts]
    beaten: list[Outcome[S]] = []
    budget = iterations
    while len(field) > 1:
        field = [continue_to(budget, outcome) for outcome in field]
        field.sort(key=lambda outcome: _rank(outcome, doubtful))
        if any(outcome.interrupted for outcome in field):
            break
        keep = (len(field) + 1) // 2
        beaten, field = [*field[keep:], *beaten], field[:keep]
        budget += 2 * budget
    return [*field, *beaten]


def _rank(outcome: Outcome[S], doubtful: Callable[[S], bool] | None) -> tuple[bool, float]:
    objective = round(outcome.trace[-1], TIE) if outcome.trace else -math.inf
    return doubtful is not None and doubtful(outcome.state), -objective
