r"""Roots and least squares of mean equations by Newton's method, held in check.

A round solves :math:`C A \delta = -C \bar\psi` through the singular values of the scaled slope: the full step first,
then shorter ones, then Levenberg's and Marquardt's damped ones, until :math:`|C \bar\psi|` falls.
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
            if there.is_finite() and float((whiten @ there.mean).norm()) < length:
                return Round(RootState(point, there), -length)
        return Round(replace(state, stuck=True), -length, final=True)

    return step


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


def at_root(tol: float) -> Callable[[RootState], bool]:
    """Whether every mean equation is zero: within ``tol`` of its standard errors, or to rounding."""

    def settled(state: RootState) -> bool:
        here = state.here
        noise = ROUNDING * (here.slope.abs() @ state.point.abs())
        return bool(((here.z.abs() <= tol) | (here.mean.abs() <= noise)).all())

    return settled


def at_least(whiten: Tensor, tol: float) -> Callable[[RootState], bool]:
    """Whether the squared length of the whitened equations is least: no parameter could lower it."""

    def settled(state: RootState) -> bool:
        here = state.here
        slope, residual = whiten @ here.slope, whiten @ here.mean
        length = slope.norm(dim=0)
        pull = (slope.mT @ residual) / torch.where(length > 0, length, 1.0)
        noise = ROUNDING * (slope.abs() @ state.point.abs()).norm()
        return bool((here.weight**0.5 * pull.abs() <= tol).all()) or float(pull.abs().max()) <= float(noise)

    return settled
