"""Newton's method on a mean objective, held in check so that it rises."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.fit.equations.newton import RootState, at_root
from boxloop.fit.equations.sums import EquationSums, Measure, RowFunction, averaged, summed, weighted
from boxloop.loop import Iteration
from boxloop.types import Source

ARMIJO = 1e-4
FLAT = 1e-6
"""Smallest curvature of a direction, beside the largest, that a step takes at its word."""
ROUNDING = 1e-13


@dataclass(frozen=True)
class AscentPoint:
    """A point, the objective with its rounding error, the gradient's measure, and whether no step helps."""

    point: Tensor
    value: float
    noise: float
    here: Measure
    stuck: bool = False

    def is_finite(self) -> bool:
        """Whether all of it is."""
        return math.isfinite(self.value) and self.here.is_finite()


def measure_objective(objective: RowFunction, source: Source, point: Tensor) -> AscentPoint:
    r"""One pass over the rows: the mean objective, its gradient row by row, and its second derivative.

    The gradient of the weighted sum, :math:`g = \sum_i w_i \nabla m(x_i)`, is linear in the weights: its derivative in
    w is the gradient of every row, and its derivative in theta the second derivative. Both come from the same p passes.

    Args:
        objective: of the parameters (p,) and rows (n, d), (n,).
        source: the rows.
        point: (p,).
    """

    def tile(rows: Tensor, weight: Tensor) -> EquationSums:
        rows, weight, here = weighted(rows, weight, point)
        value, gradient, curvature = derivatives(objective, rows, weight, here)
        first = (weight @ gradient)[None]
        both = torch.cat([value[:, None], gradient], dim=1)
        return summed(both, torch.cat([first, curvature]), weight)

    both = averaged(source.reduce(tile))
    here = Measure(both.mean[1:], both.slope[1:], both.second[1:, 1:], both.weight)
    return AscentPoint(point, float(both.mean[0]), ROUNDING * float(both.second[0, 0].sqrt()), here)


def derivatives(
    objective: RowFunction, rows: Tensor, weight: Tensor, point: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Objective (n,) and gradient (n, p) of each row, and the second derivative (p, p) of their weighted sum."""
    share = weight.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = objective(point, rows)
        total = share @ value
        if not total.requires_grad or not value.requires_grad:
            zero = value.new_zeros(len(value), len(point))
            return value.detach(), zero, value.new_zeros(len(point), len(point))
        (gradient,) = torch.autograd.grad(total, point, create_graph=True)
        by_row, curvature = [], []
        for one in gradient:
            row, bend = torch.autograd.grad(one, (share, point), retain_graph=True, allow_unused=True)
            by_row.append(torch.zeros_like(share) if row is None else row)
            curvature.append(torch.zeros_like(point) if bend is None else bend)
    return value.detach(), torch.stack(by_row, dim=1).detach(), torch.stack(curvature).detach()


def ascent(
    measure: Callable[[Tensor], AscentPoint], tol: float
) -> Callable[[AscentPoint], Iteration[AscentPoint]]:
    """One round: a step uphill by the curvature, shortened until the mean objective rises.

    Args:
        measure: objective and derivatives at a point.
        tol: largest mean gradient at a maximum, in units of its standard error.
    """

    def step(state: AscentPoint) -> Iteration[AscentPoint]:
        if level(state, tol):
            return Iteration(state, state.value, final=True)
        move = uphill(state.here)
        gain = float(state.here.mean @ move)
        for halving in range(40):
            length = 0.5**halving
            there = measure(state.point + length * move)
            if not there.is_finite():
                continue
            risen = there.value >= state.value + ARMIJO * length * gain
            # Near the top the rise drowns in rounding; there the gradient decides.
            steady = there.value >= state.value - state.noise
            if risen or (steady and float(there.here.z.norm()) < float(state.here.z.norm())):
                return Iteration(there, state.value)
        return Iteration(replace(state, stuck=True), state.value, final=True)

    return step


def level(state: AscentPoint, tol: float) -> bool:
    """Whether the mean gradient is zero."""
    return at_root(tol)(RootState(state.point, state.here))


def uphill(here: Measure) -> Tensor:
    """Newton's step where the curvature is downward; elsewhere by its absolute value, so that it climbs as well."""
    curvature, unit = scaled_curvature(here)
    values, vectors = torch.linalg.eigh(curvature)
    size = values.abs().clamp(min=FLAT * max(float(values.abs().max()), 1e-300))
    return unit * (vectors @ ((vectors.mT @ (unit * here.mean)) / size))


def scaled_curvature(here: Measure) -> tuple[Tensor, Tensor]:
    """The symmetric second derivative with a diagonal of ones at most, and the units that make it so."""
    curvature = 0.5 * (here.slope + here.slope.mT)
    diagonal = curvature.diagonal().abs()
    unit = torch.where(diagonal > 0, diagonal.clamp(min=1e-300).rsqrt(), 1.0 / here.size)
    return curvature * unit * unit[:, None], unit
