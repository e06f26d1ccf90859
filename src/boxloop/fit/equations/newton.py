r"""Roots and least squares of mean equations by Newton's method, held in check.

A round solves :math:`C A \delta = -C \bar\psi` through the singular values of the scaled slope: the full step first,
then shorter ones, then Levenberg's and Marquardt's damped ones and longer ones, until :math:`|C \bar\psi|` falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.fit.equations.sums import Measure
from boxloop.loop import Iteration

Measuring = Callable[[Tensor], Measure]
ROUNDING = 64.0 * torch.finfo(torch.float64).eps
"""Error of a mean equation relative to the parameters' own share in it."""
SINGULAR = 1e-12
ENOUGH = 0.1
"""Share of the promised fall that a step must keep; where none does, the best of those that fall at all is taken."""
LONGER = 2.0
"""How much longer than this step the next one may be: near a root steps shrink; where psi saturates they explode."""


@dataclass(frozen=True)
class RootState:
    """A point, what the rows say there, and whether no step from it helps."""

    point: Tensor
    here: Measure
    stuck: bool = False


def newton(
    measure: Measuring, whiten: Tensor, settled: Callable[[RootState], bool]
) -> Callable[[RootState], Iteration[RootState]]:
    """One round of the safeguarded search; :func:`boxloop.loop.run` repeats it.

    Args:
        measure: mean equations and slope at a point.
        whiten: C, (q, q), in which the size of the equations is measured.
        settled: whether a state is the answer.
    """

    def step(state: RootState) -> Iteration[RootState]:
        residual = whiten @ state.here.mean
        length = float(residual.norm())
        if settled(state):
            return Iteration(state, -length, final=True)
        slope = whiten @ state.here.slope
        trusted = _trusted(whiten, state.here)
        best: tuple[bool, RootState] | None = None
        for move, gain in moves(slope, residual):
            there = measure(state.point + move)
            if not there.is_finite():
                continue
            fresh, calm = RootState(state.point + move, there), trusted(there)
            fall = length**2 - float((whiten @ there.mean).norm()) ** 2
            if calm and ((gain > 0.0 and fall >= ENOUGH * gain) or _flatter(whiten, state.here, there)):
                return Iteration(fresh, -length)
            rival = state.here if best is None or calm > best[0] else best[1].here
            shorter = (whiten @ there.mean).norm() < (whiten @ rival.mean).norm()
            if (best is None or calm >= best[0]) and bool(shorter):
                best = (calm, fresh)
        return Iteration(replace(state, stuck=True) if best is None else best[1], -length, final=best is None)

    return step


def _trusted(whiten: Tensor, here: Measure) -> Callable[[Measure], bool]:
    """Whether the step after a step would be about as short; only roots are told from flat places by it."""
    slope = whiten @ here.slope
    unit = slope.norm(dim=0)
    stride = float((unit * next(moves(slope, whiten @ here.mean))[0]).norm())

    def calm(there: Measure) -> bool:
        if slope.shape[0] > slope.shape[1]:
            return True
        ahead = next(moves(whiten @ there.slope, whiten @ there.mean))[0]
        return float((unit * ahead).norm()) <= LONGER * stride

    return calm


def _flatter(whiten: Tensor, here: Measure, there: Measure) -> bool:
    """Near the bottom of a least square, where a fall drowns in rounding: whether less could still be gained."""
    before, after = (float((whiten @ one.mean).norm()) for one in (here, there))
    if here.slope.shape[0] == here.slope.shape[1] or after > (1.0 + 1e-12) * before:
        return False
    return bool(pull(whiten, there).norm() < 0.5 * pull(whiten, here).norm())


def pull(whiten: Tensor, here: Measure) -> Tensor:
    """How much each parameter could still shorten the whitened equations, by unit of what it moves them, (p,)."""
    slope, residual = whiten @ here.slope, whiten @ here.mean
    length = slope.norm(dim=0)
    return (slope.mT @ residual) / torch.where(length > 0, length, 1.0)


def moves(slope: Tensor, residual: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Steps to try, boldest first, each with the fall of the squared length that a straight line promises."""
    length = slope.norm(dim=0)
    unit = torch.where(length > 0, 1.0 / length.clamp(min=1e-300), 0.0)
    left, size, right = torch.linalg.svd(slope * unit, full_matrices=False)
    good = size > SINGULAR * size[0]
    share = torch.where(good, left.mT @ residual, 0.0)
    full = -unit * (right.mT @ (share / torch.where(good, size, 1.0)))
    reach = float(share.square().sum())
    for halving in range(13):
        yield full * 0.5**halving, (1.0 - (1.0 - 0.5**halving) ** 2) * reach
    for power in range(-3, 10):
        kept = size[0].square() * 10.0**power / (size.square() + size[0].square() * 10.0**power)
        move = -unit * (right.mT @ (share * (1.0 - kept) / torch.where(good, size, 1.0)))
        yield move, float(((1.0 - kept.square()) * share.square()).sum())
    for longer in (1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0):  # over a plateau of equations that jump
        yield full * longer, 0.0


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
