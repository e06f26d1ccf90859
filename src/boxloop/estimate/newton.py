r"""Roots and least squares of mean equations by Newton's method, held in check.

A round solves :math:`C A \delta = -C \bar\psi` through the singular values of the scaled slope: the full step first,
then shorter ones, then Levenberg's and Marquardt's damped ones and longer ones, until :math:`|C \bar\psi|` falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.estimate.equation_sums import Measure
from boxloop.run import Round

Measuring = Callable[[Tensor], Measure]
ROUNDING = 64.0 * torch.finfo(torch.float64).eps
"""Error of a mean equation relative to the parameters' own share in it."""
SINGULAR = 1e-12


@dataclass(frozen=True)
class RootState:
    """A point, what the rows say there, and whether no step from it helps."""

    point: Tensor
    here: Measure
    stuck: bool = False


def newton(
    measure: Measuring, whiten: Tensor, settled: Callable[[RootState], bool]
) -> Callable[[RootState], Round[RootState]]:
    """One round of the safeguarded search; :func:`boxloop.run.run` repeats it.

    Args:
        measure: mean equations and slope at a point.
        whiten: C, (q, q), in which the size of the equations is measured.
        settled: whether a state is the answer.
    """

    def step(state: RootState) -> Round[RootState]:
        length = float((whiten @ state.here.mean).norm())
        if settled(state):
            return Round(state, -length, final=True)
        for move in moves(whiten @ state.here.slope, whiten @ state.here.mean):
            point = state.point + move
            there = measure(point)
            if there.is_finite() and _better(whiten, state.here, there):
                return Round(RootState(point, there), -length)
        return Round(replace(state, stuck=True), -length, final=True)

    return step


def _better(whiten: Tensor, here: Measure, there: Measure) -> bool:
    """Whether the equations are shorter; at a bottom, where that drowns in rounding, whether it is flatter."""
    before, after = (float((whiten @ one.mean).norm()) for one in (here, there))
    if after < before:
        return True
    flatter = pull(whiten, there).norm() < 0.5 * pull(whiten, here).norm()
    return after <= (1.0 + 1e-12) * before and bool(flatter)


def pull(whiten: Tensor, here: Measure) -> Tensor:
    """How much each parameter could still shorten the whitened equations, by unit of what it moves them, (p,)."""
    slope, residual = whiten @ here.slope, whiten @ here.mean
    length = slope.norm(dim=0)
    return (slope.mT @ residual) / torch.where(length > 0, length, 1.0)


def moves(slope: Tensor, residual: Tensor) -> Iterator[Tensor]:
    """Steps to try, boldest first; empty where the slope has nothing to say."""
    length = slope.norm(dim=0)
    unit = torch.where(length > 0, 1.0 / length.clamp(min=1e-300), 0.0)
    left, size, right = torch.linalg.svd(slope * unit, full_matrices=False)
    good = size > SINGULAR * size[0]
    share = left.mT @ residual
    full = -unit * (right.mT @ torch.where(good, share / torch.where(good, size, 1.0), 0.0))
    for halving in range(7):
        yield full * 0.5**halving
    for power in range(-3, 10):
        damped = size / (size.square() + size[0].square() * 10.0**power)
        yield -unit * (right.mT @ (damped * share))
    for longer in (1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0):  # over a plateau of equations that jump
        yield full * longer


def at_root(tol: float) -> Callable[[RootState], bool]:
    """Whether every mean equation is zero: within ``tol`` of its standard errors, or to rounding."""

    return lambda state: bool((left_over(state.point, state.here) <= tol).all())


def left_over(point: Tensor, here: Measure) -> Tensor:
    """How far each mean equation is from zero, in units of its standard error, (q,); 0 where that is rounding."""
    noise = ROUNDING * (here.slope.abs() @ point.abs())
    return torch.where(here.mean.abs() <= noise, 0.0, here.z.abs())


def at_least(whiten: Tensor, tol: float) -> Callable[[RootState], bool]:
    """Whether the squared length of the whitened equations is least: no parameter could lower it."""

    def settled(state: RootState) -> bool:
        here = state.here
        left = float(pull(whiten, here).abs().max())
        noise = ROUNDING * float(((whiten @ here.slope).abs() @ state.point.abs()).norm())
        return here.weight**0.5 * left <= tol or left <= noise

    return settled
