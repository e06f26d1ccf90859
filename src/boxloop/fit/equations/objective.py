"""M-estimation: the maximum of a mean objective, with sandwich and information errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import check_callable, open_source
from boxloop.fit.equations.ascent import (
    AscentPoint,
    ascent,
    derivatives,
    level,
    measure_objective,
    scaled_curvature,
)
from boxloop.fit.equations.faults import EquationError, EstimateWarning, NoRootError
from boxloop.fit.equations.identified import check_identified, scales
from boxloop.fit.equations.newton import left_over
from boxloop.fit.equations.parameters import Parameters, read_start
from boxloop.fit.equations.result import Estimate
from boxloop.fit.equations.roots import Equations
from boxloop.fit.equations.sandwich import sandwich, small_sample
from boxloop.fit.equations.search import NEARLY, distinct
from boxloop.fit.equations.sums import RowFunction, first_bad_row
from boxloop.loop import run
from boxloop.numeric import single_threaded
from boxloop.types import Source

BEYOND = 1e50
"""Parameters that large are on their way to infinity."""


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
    r"""The maximum of a mean objective, with sandwich standard errors.

    .. math:: \hat\theta = \arg\max_\theta M_n(\theta), \qquad M_n(\theta) = \frac1n \sum_{i=1}^n m_\theta(x_i), \qquad
              \widehat{\mathrm{Cov}}(\hat\theta) = \frac1n H^{-1} B H^{-1}

    with H the mean second derivative and B the mean outer product of gradients (document 002, section A.4). Newton's
    method with autograd's second derivative, held in check so that :math:`M_n` rises in every round.

    Args:
        objective: ``objective(theta, rows)``, a smooth torch function of the parameters and of rows (n, d) that
            returns (n,). For one with kinks (absolute values) use :func:`boxloop.z_estimate` with ``smooth``.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: where to begin: p numbers, or a dictionary of tensors, which the objective then gets.
        minimise: look for the minimum, of a loss.
        likelihood: the objective is a log-density: also give the covariance :math:`(-n H)^{-1}` of the information,
            which is right only if the model is.
        sample_weight: one weight a row, or the name of a column; a row of weight 2 is two rows.
        groups: a label a row, or the name of a column: rows of a group may depend on one another.
        starts: other places to begin at; the highest maximum is taken, all are kept in ``roots``.
        correction: multiply the sandwich by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most rounds.
        tol: largest mean gradient at the maximum, in units of its standard error.
        names: of the parameters.

    Returns:
        The estimate with its errors.

    Raises:
        EquationError: a wrong shape, or a value that is not finite at a row that is named.
        NoRootError: the search ended at a point that is no maximum.
        NotIdentifiedError: the objective is flat along a direction, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.5], [1.0], [4.5]])
        >>> def log_density(theta, rows):  # an exponential law with this rate
        ...     return theta[0].log() - theta[0] * rows[:, 0]
        >>> m_estimate(log_density, rows, [1.0], likelihood=True, names=["rate"])
        M-estimate from 3 rows, 1 round
          rate 0.5 ± 0.257 (from the information 0.289)
    """
    source = open_source(X, sample_weight)
    check_callable(objective, "objective", "parameters and rows")
    begin = [read_start(one, names) for one in (start, *starts)]
    first = begin[0]
    values = _signed(objective, first, minimise)
    tops, rounds = _tops(values, source, begin, max_iter, tol)
    best = max(range(len(tops)), key=lambda j: tops[j].value)
    estimate = _estimate(Equations(_gradient(values), source, None, groups), first, tops[best], correction)
    estimate = replace(estimate, n_iter=rounds[best], converged=level(tops[best], NEARLY))
    if likelihood:
        estimate = replace(estimate, information=_information(tops[best]))
    if len(tops) == 1:
        return estimate
    error = estimate.covariance.diagonal().sqrt()
    order = [tops[best], *tops[:best], *tops[best + 1 :]]
    found = distinct([top.point for top in order], error)
    if len(found) > 1:
        warn_caller(
            f"{len(found)} different maxima were found from {len(begin)} starts; the highest is taken, see .roots",
            EstimateWarning,
        )
    return replace(estimate, roots=tuple(first.shaped(point) for point in found))


def _signed(objective: Callable[[Any, Tensor], Tensor], first: Parameters, minimise: bool) -> RowFunction:
    """The user's function of a vector, its answer checked, to be maximised."""

    def values(vector: Tensor, rows: Tensor) -> Tensor:
        found = objective(first.shaped(vector), rows)
        if not isinstance(found, Tensor) or found.shape != (rows.shape[0],):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EquationError(
                f"the objective must return a tensor ({rows.shape[0]},) here; it returned {shape}"
            )
        return -found.to(torch.float64) if minimise else found.to(torch.float64)

    return values


def _gradient(values: RowFunction) -> RowFunction:
    """The gradient of each row, (n, p)."""

    def rows_of(vector: Tensor, rows: Tensor) -> Tensor:
        ones = torch.ones(rows.shape[0], dtype=torch.float64, device=rows.device)
        return derivatives(values, rows, ones, vector.detach().clone().requires_grad_())[1]

    return rows_of


def _tops(
    values: RowFunction, source: Source, begin: Sequence[Parameters], max_iter: int, tol: float
) -> tuple[list[AscentPoint], list[int]]:
    """Where each start leads, and in how many rounds."""
    tops, rounds = [], []
    for one in begin:
        first = measure_objective(values, source, one.vector)
        if not first.is_finite():
            raise EquationError(f"at the start {_bad_row(values, source, one.vector)}")
        step = ascent(lambda point: measure_objective(values, source, point), tol)
        outcome = run(step, first, max_iter=max_iter)
        top = outcome.state
        if not level(top, tol):
            _worry(top, one, outcome.n_iter)
        tops.append(top)
        rounds.append(max(outcome.n_iter - int(outcome.converged), 0))
    return tops, rounds


def _bad_row(values: RowFunction, source: Source, point: Tensor) -> str:
    gradient = _gradient(values)

    def both(vector: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([values(vector, rows)[:, None], gradient(vector, rows)], dim=1)

    return first_bad_row(both, source, point, "the objective or its gradient")


def _worry(top: AscentPoint, one: Parameters, rounds: int) -> None:
    """Say what a search that did not settle means."""
    worst = float(top.here.z.abs().max())
    if worst <= NEARLY:
        return
    if float(top.point.abs().max()) > BEYOND:
        raise NoRootError(
            "the objective rises without end: it has no maximum (minimise=True for one that falls)"
        )
    if top.stuck:
        place = ", ".join(f"{name} = {float(value):.6g}" for name, value in zip(one.names[:6], top.point))
        raise NoRootError(
            f"the objective stopped rising at ({place}), where its mean gradient is {float(top.here.mean.norm()):.3g}, "
            f"{worst:.3g} standard errors from zero: is it smooth? (for kinks give its gradient to z_estimate, "
            "with smooth=)"
        )
    warn_caller(
        f"the maximum was not reached in {rounds} rounds: the mean gradient is still {worst:.3g} standard errors from "
        "zero, and the maximum may lie at infinity",
        EstimateWarning,
    )


def _estimate(equations: Equations, first: Parameters, top: AscentPoint, correction: bool) -> Estimate:
    here = top.here
    check_identified(here.slope, first.names)
    curvature, _ = scaled_curvature(here)
    if level(top, NEARLY) and float(torch.linalg.eigvalsh(curvature)[-1]) > 0.0:
        raise NoRootError(
            "the gradient is zero at a saddle or a minimum, not at a maximum: begin somewhere else"
        )
    meat, n_groups = equations.meat(top.point, here, centre=False)
    factor = small_sample(here.weight, len(top.point), n_groups) if correction else 1.0
    return Estimate(
        theta=first.shaped(top.point),
        names=first.names,
        covariance=factor * sandwich(here.slope, meat, here.weight, torch.diag(scales(here.slope)[0])),
        method="M-estimate",
        weight=here.weight,
        n_iter=0,
        converged=True,
        residual=float(left_over(top.point, here).max()),
        n_groups=n_groups,
    )


def _information(top: AscentPoint) -> Tensor:
    """Inverse of the curvature of the whole log-likelihood, downward, (p, p)."""
    curvature, unit = scaled_curvature(top.here)
    inverse = torch.linalg.inv(-curvature) * unit * unit[:, None] / top.here.weight
    return 0.5 * (inverse + inverse.mT)
