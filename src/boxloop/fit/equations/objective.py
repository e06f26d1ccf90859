"""M-estimation: the maximum of a mean objective by a safeguarded Newton method, with sandwich errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import check_callable, open_source
from boxloop.fit.equations.averages import (
    EquationMoments,
    EquationSums,
    RowFunction,
    describe_bad_row,
    divide_by_weight,
    drop_weightless,
    read_groups,
    sum_over_tile,
)
from boxloop.fit.equations.estimate import (
    EquationError,
    Estimate,
    EstimateWarning,
    NoRootError,
    Parameters,
    read_start,
)
from boxloop.fit.equations.roots import (
    NEAR_ZERO,
    Equations,
    SearchResult,
    build_estimate,
    is_root,
    select_distinct_points,
)
from boxloop.loop import Iteration, run
from boxloop.models import derivatives_by_unit
from boxloop.numeric import single_threaded
from boxloop.types import Source

ARMIJO = 1e-4
MIN_CURVATURE = 1e-6
"""Smallest curvature of a direction, relative to the largest, that a step uses as it is."""
ROUNDING = 1e-13


@dataclass(frozen=True)
class AscentPoint:
    """A point, the objective with its rounding error, the moments of the gradient, and whether no step helps."""

    point: Tensor
    value: float
    noise: float
    moments: EquationMoments
    is_stuck: bool = False

    def is_finite(self) -> bool:
        """Whether value and gradient are finite."""
        return math.isfinite(self.value) and self.moments.is_finite()


def measure_objective(objective: RowFunction, source: Source, point: Tensor) -> AscentPoint:
    """Mean objective, moments of its row gradients, and its second derivative, in one pass over the rows."""

    def sum_rows(rows: Tensor, weight: Tensor) -> EquationSums:
        rows, weight, at = drop_weightless(rows, weight, point)
        value, gradient, curvature = derivatives_by_unit(lambda theta: objective(theta, rows), at, weight)
        first = (weight @ gradient)[None]
        both = torch.cat([value[:, None], gradient], dim=1)
        return sum_over_tile(both, torch.cat([first, curvature]), weight)

    both = divide_by_weight(source.reduce(sum_rows))
    moments = EquationMoments(both.mean[1:], both.slope[1:], both.second[1:, 1:], both.weight)
    return AscentPoint(point, float(both.mean[0]), ROUNDING * float(both.second[0, 0].sqrt()), moments)


def make_ascent_step(
    measure: Callable[[Tensor], AscentPoint], tol: float
) -> Callable[[AscentPoint], Iteration[AscentPoint]]:
    """A Newton step, shortened until the mean objective rises, for :func:`boxloop.loop.run`."""

    def step(state: AscentPoint) -> Iteration[AscentPoint]:
        if is_stationary(state, tol):
            return Iteration(state, state.value, final=True)
        move = compute_ascent_step(state.moments)
        gain = float(state.moments.mean @ move)
        for halving in range(40):
            length = 0.5**halving
            trial = measure(state.point + length * move)
            if not trial.is_finite():
                continue
            rises = trial.value >= state.value + ARMIJO * length * gain
            # Near the maximum the rise is below rounding error; there the gradient decides.
            steady = trial.value >= state.value - state.noise
            if rises or (steady and float(trial.moments.z.norm()) < float(state.moments.z.norm())):
                return Iteration(trial, state.value)
        return Iteration(replace(state, is_stuck=True), state.value, final=True)

    return step


def is_stationary(state: AscentPoint, tol: float) -> bool:
    """Whether the mean gradient is zero."""
    return is_root(state.point, state.moments, tol)


def compute_ascent_step(moments: EquationMoments) -> Tensor:
    """Newton's step with the absolute values of the curvature, so that it is always uphill."""
    curvature, unit = compute_scaled_curvature(moments)
    values, vectors = torch.linalg.eigh(curvature)
    size = values.abs().clamp(min=MIN_CURVATURE * max(float(values.abs().max()), 1e-300))
    return unit * (vectors @ ((vectors.mT @ (unit * moments.mean)) / size))


def compute_scaled_curvature(moments: EquationMoments) -> tuple[Tensor, Tensor]:
    """The second derivative scaled to a diagonal of absolute value one, and the scales."""
    curvature = 0.5 * (moments.slope + moments.slope.mT)
    diagonal = curvature.diagonal().abs()
    unit = torch.where(diagonal > 0, diagonal.clamp(min=1e-300).rsqrt(), 1.0 / moments.size)
    return curvature * unit * unit[:, None], unit


DIVERGED = 1e50
"""Parameters of this size are taken to diverge."""


@single_threaded
def m_estimate(
    objective: Callable[[Any, Tensor], Tensor],
    X: object,
    start: object,
    *,
    minimise: bool = False,
    likelihood: bool = False,
    sample_weight: object = None,
    groups: object = None,
    starts: Sequence[object] = (),
    correction: bool = False,
    max_iter: int = 200,
    tol: float = 1e-8,
    names: Sequence[str] | None = None,
) -> Estimate:
    r"""Maximum of a mean objective, with sandwich standard errors.

    .. math:: \hat\theta = \arg\max_\theta M_n(\theta), \qquad M_n(\theta) = \frac1n \sum_{i=1}^n m_\theta(x_i), \qquad
              \widehat{\mathrm{Cov}}(\hat\theta) = \frac1n H^{-1} B H^{-1}

    with H the mean second derivative and B the mean outer product of gradients (Le Corff, section A.4). Newton's
    method uses second derivatives by autograd, safeguarded so that :math:`M_n` rises in every iteration.

    Args:
        objective: ``objective(theta, rows)``, a smooth torch function of the parameters and of rows (n, d) that
            returns (n,). For one with kinks (absolute values) use :func:`boxloop.z_estimate` with ``smooth``.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: p numbers, or a dictionary of tensors, which the objective then gets.
        minimise: find the minimum instead, of a loss.
        likelihood: the objective is a log-density: also give the covariance :math:`(-n H)^{-1}` of the information,
            which is valid only if the model is.
        sample_weight: one weight per row, or the name of a column; a row of weight 2 is two rows.
        groups: a label per row, or the name of a column: rows of a group may depend on one another.
        starts: further starting points; the highest maximum is the estimate, all are kept in ``roots``.
        correction: multiply the sandwich by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most iterations.
        tol: largest mean gradient at the maximum, in units of its standard error.
        names: of the parameters.

    Returns:
        The estimate with its errors.

    Raises:
        EquationError: a wrong shape, or a value that is not finite at a row, which is named.
        NoRootError: the search ended at a point that is no maximum.
        NotIdentifiedError: the objective is flat along a direction, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.5], [1.0], [4.5]])
        >>> def log_density(theta, rows):  # an exponential distribution with this rate
        ...     return theta[0].log() - theta[0] * rows[:, 0]
        >>> m_estimate(log_density, rows, [1.0], likelihood=True, names=["rate"])
        M-estimate from 3 rows, 1 iteration
          rate 0.5 ± 0.257 (from the information 0.289)
    """
    source = open_source(X, sample_weight)
    check_callable(objective, "objective", "parameters and rows")
    begin = [read_start(one, names) for one in (start, *starts)]
    first = begin[0]
    values = _check_objective(objective, first, minimise)
    maxima, n_iter = _search_maxima(values, source, begin, max_iter, tol)
    best = max(range(len(maxima)), key=lambda j: maxima[j].value)
    top = maxima[best]
    read = None if groups is None else read_groups(groups, source, len(first.vector))
    equations = Equations(_row_gradients(values), source, None, read)
    meat = equations.estimate_meat(top.point, top.moments, centre=False)
    found = SearchResult(top.point, top.moments, n_iter[best], is_stationary(top, NEAR_ZERO))
    estimate = build_estimate("M-estimate", first, found, meat, equations.n_groups, correction)
    _check_curvature(top)
    if likelihood:
        estimate = replace(estimate, information=_invert_information(top))
    if len(maxima) == 1:
        return estimate
    error = estimate.covariance.diagonal().sqrt()
    order = [top, *maxima[:best], *maxima[best + 1 :]]
    points = select_distinct_points([one.point for one in order], error)
    if len(points) > 1:
        warn_caller(
            f"{len(points)} different maxima were found from {len(begin)} starts; the highest is taken, see .roots",
            EstimateWarning,
        )
    return replace(estimate, roots=tuple(first.restore_shape(point) for point in points))


def _check_objective(
    objective: Callable[[Any, Tensor], Tensor], first: Parameters, minimise: bool
) -> RowFunction:
    """The user's function of a vector with its result checked, to be maximised."""

    def check_values(vector: Tensor, rows: Tensor) -> Tensor:
        result = objective(first.restore_shape(vector), rows)
        if not isinstance(result, Tensor) or result.shape != (rows.shape[0],):
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise EquationError(
                f"objective must return a tensor ({rows.shape[0]},) here; it returned {shape}"
            )
        return -result.to(torch.float64) if minimise else result.to(torch.float64)

    return check_values


def _row_gradients(values: RowFunction) -> RowFunction:
    """The gradient of each row, (n, p)."""

    def evaluate(vector: Tensor, rows: Tensor) -> Tensor:
        return derivatives_by_unit(lambda theta: values(theta, rows), vector)[1]

    return evaluate


def _search_maxima(
    values: RowFunction, source: Source, begin: Sequence[Parameters], max_iter: int, tol: float
) -> tuple[list[AscentPoint], list[int]]:
    """The maximum from each start, and its number of iterations."""
    maxima, n_iter = [], []
    for one in begin:
        first = measure_objective(values, source, one.vector)
        if not first.is_finite():
            raise EquationError(f"at the start {_describe_bad_row(values, source, one.vector)}")
        step = make_ascent_step(lambda point: measure_objective(values, source, point), tol)
        outcome = run(step, first, max_iter=max_iter)
        top = outcome.state
        if not is_stationary(top, tol):
            _check_maximum(top, one, outcome.n_iter)
        maxima.append(top)
        n_iter.append(max(outcome.n_iter - int(outcome.converged), 0))
    return maxima, n_iter


def _describe_bad_row(values: RowFunction, source: Source, point: Tensor) -> str:
    gradient = _row_gradients(values)

    def evaluate_both(vector: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([values(vector, rows)[:, None], gradient(vector, rows)], dim=1)

    return describe_bad_row(evaluate_both, source, point, "the objective or its gradient")


def _check_maximum(top: AscentPoint, one: Parameters, n_iter: int) -> None:
    """Raise or warn about a search that did not converge."""
    worst = float(top.moments.z.abs().max())
    if worst <= NEAR_ZERO:
        return
    if float(top.point.abs().max()) > DIVERGED:
        raise NoRootError(
            "The objective rises without bound, so it has no maximum: use minimise=True for a loss."
        )
    if top.is_stuck:
        place = ", ".join(f"{name} = {float(value):.6g}" for name, value in zip(one.names[:6], top.point))
        raise NoRootError(
            f"The objective stopped rising at ({place}), where its mean gradient is "
            f"{float(top.moments.mean.norm()):.3g}, "
            f"{worst:.3g} standard errors from zero: is it smooth? (for kinks give its gradient to z_estimate, "
            "with smooth=)"
        )
    warn_caller(
        f"The maximum was not reached in {n_iter} iterations: the mean gradient is still {worst:.3g} standard "
        f"errors from "
        "zero, and the maximum may be at infinity",
        EstimateWarning,
    )


def _check_curvature(top: AscentPoint) -> None:
    """Raise at a stationary point that is no maximum."""
    curvature, _ = compute_scaled_curvature(top.moments)
    if is_stationary(top, NEAR_ZERO) and float(torch.linalg.eigvalsh(curvature)[-1]) > 0.0:
        raise NoRootError(
            "The gradient is zero at a saddle point or a minimum, not at a maximum: use another start."
        )


def _invert_information(top: AscentPoint) -> Tensor:
    """Inverse of the observed information, (p, p)."""
    curvature, unit = compute_scaled_curvature(top.moments)
    inverse = torch.linalg.inv(-curvature) * unit * unit[:, None] / top.moments.weight
    return 0.5 * (inverse + inverse.mT)
