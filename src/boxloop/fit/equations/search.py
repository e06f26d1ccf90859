"""One search for a root, and what its end means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.fit.equations.faults import EquationError, EstimateWarning, NoRootError
from boxloop.fit.equations.identified import free_direction
from boxloop.fit.equations.newton import Measuring, RootState, at_least, at_root, left_over, newton, pull
from boxloop.fit.equations.sums import Measure
from boxloop.loop import run

NEARLY = 1e-4
"""Standard errors from zero that rounding may leave where no step helps any more."""
STEPPED = 0.05
"""The same for equations that jump, or 6 p / sqrt(n) if more: no exact root exists, or is needed (002, theorem A.6)."""
APART = 1e-3
"""Standard errors beyond which two roots are two."""


@dataclass(frozen=True)
class Found:
    """Where a search ended."""

    point: Tensor
    here: Measure
    n_iter: int
    converged: bool


def find_root(
    measure: Measuring,
    start: Tensor,
    names: Sequence[str],
    *,
    max_iter: int,
    tol: float,
    stepped: bool = False,
    bad: Callable[[Tensor], str],
) -> Found:
    """Root of as many mean equations as parameters.

    Args:
        measure: mean equations and slope at a point.
        start: (p,).
        names: of the parameters.
        max_iter: most rounds.
        tol: largest mean equation, in units of its standard error.
        stepped: whether the equations jump, so that an exact root need not exist.
        bad: says which row makes the equations infinite or NaN at a point.

    Raises:
        EquationError: the equations are not finite at the start.
        NoRootError: the search ended at a point that is no root, and no step from it helps.
    """
    first = measured(measure, start, bad)
    whiten = torch.diag(1.0 / first.size)
    settled = at_root(tol)
    outcome = run(newton(measure, whiten, settled), RootState(start, first), max_iter=max_iter)
    state, rounds = outcome.state, outcome.n_iter - int(outcome.converged)
    if settled(state):
        return Found(state.point, state.here, rounds, True)
    left, p = left_over(state.point, state.here), len(start)
    worst = float(left.max())
    enough = max(STEPPED, 6.0 * p / state.here.weight**0.5) if stepped else NEARLY
    if worst <= enough and (state.stuck or stepped):
        return Found(state.point, state.here, rounds, True)
    if state.stuck or _at_bottom(state, whiten):
        raise NoRootError(_no_root(state, names))
    warn_caller(
        f"the search for a root did not converge in {rounds} rounds: the mean of equation "
        f"{int(left.argmax())} is still {worst:.3g} standard errors from zero",
        EstimateWarning,
    )
    return Found(state.point, state.here, rounds, False)


def measured(measure: Measuring, start: Tensor, bad: Callable[[Tensor], str]) -> Measure:
    """What the rows say at the start, which must be finite."""
    first = measure(start)
    if not first.is_finite():
        raise EquationError(f"at the start {bad(start)}")
    return first


def find_least(
    measure: Measuring, whiten: Tensor, start: Tensor, first: Measure, *, max_iter: int, tol: float
) -> Found:
    """Least squares of whitened mean equations, more of them than parameters.

    Args:
        measure: mean equations and slope at a point.
        whiten: (q, q).
        start: (p,).
        first: what the rows say there.
        max_iter: most rounds.
        tol: standard errors by which a parameter may miss the least value.
    """
    settled = at_least(whiten, tol)
    outcome = run(newton(measure, whiten, settled), RootState(start, first), max_iter=max_iter)
    state, rounds = outcome.state, outcome.n_iter - int(outcome.converged)
    done = settled(state) or (state.stuck and at_least(whiten, NEARLY)(state))
    if not done:
        warn_caller(
            f"the weighted equations did not reach their least value in {rounds} rounds", EstimateWarning
        )
    return Found(state.point, state.here, rounds, done)


def distinct(points: Sequence[Tensor], error: Tensor) -> list[Tensor]:
    """The points that lie apart, in units of the parameters' errors."""
    kept: list[Tensor] = []
    unit = torch.where(error > 0, error, 1.0)
    for point in points:
        if all(float(((point - other) / unit).abs().max()) > APART for other in kept):
            kept.append(point)
    return kept


def _at_bottom(state: RootState, whiten: Tensor) -> bool:
    """Whether the length of the equations is least here, so that more rounds would not help."""
    return float(pull(whiten, state.here).norm()) <= 1e-3 * float((whiten @ state.here.mean).norm())


def _no_root(state: RootState, names: Sequence[str]) -> str:
    here, z = state.here, left_over(state.point, state.here)
    worst = int(z.argmax())
    place = ", ".join(f"{name} = {float(value):.6g}" for name, value in zip(names[:6], state.point))
    text = (
        f"no root was found: at the best point ({place}{', ...' if len(names) > 6 else ''}) |mean psi| is "
        f"{float(here.mean.norm()):.3g}, with equation {worst} {float(z[worst]):.3g} standard errors from zero"
    )
    free = free_direction(here.slope, names)
    return text if free is None else f"{text}; there {free}"
