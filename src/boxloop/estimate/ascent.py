"""Newton's method on a mean objective, held in check so that it rises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.estimate.equation_sums import Measure, RowFunction
from boxloop.estimate.newton import Measuring, RootState, at_root
from boxloop.run import Round

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


def with_gradient(objective: RowFunction) -> RowFunction:
    """(n,) values to (n, 1 + p): the objective of each row, then its gradient.

    The gradient of every row is the derivative, in u, of the gradient of a sum with weights u: two reverse passes, and
    no call of the objective row by row.
    """

    def values(vector: Tensor, rows: Tensor) -> Tensor:
        def pulled(share: Tensor) -> tuple[Tensor, Tensor]:
            def summed(moving: Tensor) -> tuple[Tensor, Tensor]:
                found = objective(moving, rows)
                return share @ found, found

            return torch.func.grad(summed, has_aux=True)(vector)

        share = torch.ones(rows.shape[0], dtype=torch.float64, device=rows.device)
        gradient, value = torch.func.jacrev(pulled, has_aux=True)(share)
        return torch.cat([value[:, None], gradient.mT], dim=1)

    return values


def apart(point: Tensor, both: Measure) -> AscentPoint:
    """The objective, entry 0 of a measure, told apart from its gradient."""
    here = Measure(both.mean[1:], both.slope[1:], both.second[1:, 1:], both.weight)
    return AscentPoint(point, float(both.mean[0]), ROUNDING * float(both.second[0, 0].sqrt()), here)


def ascent(measure: Measuring, tol: float) -> Callable[[AscentPoint], Round[AscentPoint]]:
    """One round: a step uphill by the curvature, shortened until the mean objective rises.

    Args:
        measure: objective (entry 0) and gradient at a point.
        tol: largest mean gradient at a maximum, in units of its standard error.
    """

    def step(state: AscentPoint) -> Round[AscentPoint]:
        if level(state, tol):
            return Round(state, state.value, final=True)
        move = uphill(state.here)
        gain = float(state.here.mean @ move)
        for halving in range(40):
            length = 0.5**halving
            both = measure(state.point + length * move)
            if not both.is_finite():
                continue
            there = apart(state.point + length * move, both)
            risen = there.value >= state.value + ARMIJO * length * gain
            # Near the top the rise drowns in rounding; there the gradient decides.
            steady = there.value >= state.value - state.noise
            if risen or (steady and float(there.here.z.norm()) < float(state.here.z.norm())):
                return Round(there, state.value)
        return Round(replace(state, stuck=True), state.value, final=True)

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
