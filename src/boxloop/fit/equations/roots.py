r"""Z-estimation: roots of mean estimating equations by a safeguarded Newton method, with sandwich errors.

With more equations than parameters, the generalised method of moments minimises their weighted square. An iteration
solves :math:`C A \delta = -C \bar\psi` through the singular values of the scaled slope: the full step first,
then shorter ones, then damped ones (Levenberg and Marquardt) and longer ones, until :math:`|C \bar\psi|` falls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from scipy import stats
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import check_callable, open_source
from boxloop.fit.equations.averages import (
    EquationMoments,
    RowFunction,
    check_function,
    check_identified,
    describe_bad_row,
    describe_free_direction,
    equilibrate,
    measure_equations,
    read_groups,
    sandwich,
    small_sample_factor,
    sum_group_products,
)
from boxloop.fit.equations.estimate import (
    EquationError,
    Estimate,
    EstimateWarning,
    JTest,
    NoRootError,
    Parameters,
    read_start,
)
from boxloop.loop import Iteration, run
from boxloop.numeric import single_threaded
from boxloop.types import Source

MeasureFunction = Callable[[Tensor], EquationMoments]
ROUNDING = 64.0 * torch.finfo(torch.float64).eps
"""Rounding error of a mean equation, relative to the terms of the parameters in it."""
SINGULAR_TOLERANCE = 1e-12
SUFFICIENT_DECREASE = 0.1
"""Fraction of the predicted decrease that a step must reach; if none does, the best decrease is taken."""
STEP_GROWTH = 2.0
"""Most growth of the next step: near a root steps shrink; where psi saturates they explode."""


@dataclass(frozen=True)
class RootState:
    """A point, the moments of the equations there, and whether no step from it helps."""

    point: Tensor
    moments: EquationMoments
    is_stuck: bool = False


def make_newton_step(
    measure: MeasureFunction, whiten: Tensor, is_converged: Callable[[RootState], bool]
) -> Callable[[RootState], Iteration[RootState]]:
    """An iteration of the safeguarded search; C, (q, q), is the unit in which the equations are measured."""

    def step(state: RootState) -> Iteration[RootState]:
        residual = whiten @ state.moments.mean
        length = float(residual.norm())
        if is_converged(state):
            return Iteration(state, -length, final=True)
        slope = whiten @ state.moments.slope
        is_calm = _make_step_length_test(whiten, state.moments)
        best: tuple[bool, RootState] | None = None
        for move, gain in propose_steps(slope, residual):
            trial = measure(state.point + move)
            if not trial.is_finite():
                continue
            candidate, calm = RootState(state.point + move, trial), is_calm(trial)
            fall = length**2 - float((whiten @ trial.mean).norm()) ** 2
            if calm and (
                (gain > 0.0 and fall >= SUFFICIENT_DECREASE * gain)
                or _has_lower_gradient(whiten, state.moments, trial)
            ):
                return Iteration(candidate, -length)
            rival = state.moments if best is None or calm > best[0] else best[1].moments
            shorter = (whiten @ trial.mean).norm() < (whiten @ rival.mean).norm()
            if (best is None or calm >= best[0]) and bool(shorter):
                best = (calm, candidate)
        return Iteration(
            replace(state, is_stuck=True) if best is None else best[1], -length, final=best is None
        )

    return step


def _make_step_length_test(whiten: Tensor, moments: EquationMoments) -> Callable[[EquationMoments], bool]:
    """A test that the step after a step would not be much longer, which distinguishes roots from flat regions."""
    slope = whiten @ moments.slope
    unit = slope.norm(dim=0)
    stride = float((unit * next(propose_steps(slope, whiten @ moments.mean))[0]).norm())

    def is_calm(trial: EquationMoments) -> bool:
        if slope.shape[0] > slope.shape[1]:
            return True
        ahead = next(propose_steps(whiten @ trial.slope, whiten @ trial.mean))[0]
        return float((unit * ahead).norm()) <= STEP_GROWTH * stride

    return is_calm


def _has_lower_gradient(whiten: Tensor, moments: EquationMoments, trial: EquationMoments) -> bool:
    """Whether the gradient falls, near a minimum where a decrease is below rounding error."""
    before, after = (float((whiten @ one.mean).norm()) for one in (moments, trial))
    if moments.slope.shape[0] == moments.slope.shape[1] or after > (1.0 + 1e-12) * before:
        return False
    slope, fresh = (compute_scaled_gradient(whiten, one).norm() for one in (moments, trial))
    return bool(fresh < 0.5 * slope)


def compute_scaled_gradient(whiten: Tensor, moments: EquationMoments) -> Tensor:
    """Gradient of half the squared whitened equations, per unit of their change with each parameter, (p,)."""
    slope, residual = whiten @ moments.slope, whiten @ moments.mean
    length = slope.norm(dim=0)
    return (slope.mT @ residual) / torch.where(length > 0, length, 1.0)


def propose_steps(slope: Tensor, residual: Tensor) -> Iterator[tuple[Tensor, float]]:
    """Steps to try, the full one first, each with the decrease of the squared length in the linear model."""
    length = slope.norm(dim=0)
    unit = torch.where(length > 0, 1.0 / length.clamp(min=1e-300), 0.0)
    left, size, right = torch.linalg.svd(slope * unit, full_matrices=False)
    good = size > SINGULAR_TOLERANCE * size[0]
    share = torch.where(good, left.mT @ residual, 0.0)
    full = -unit * (right.mT @ (share / torch.where(good, size, 1.0)))
    reach = float(share.square().sum())
    for halving in range(13):
        yield full * 0.5**halving, (1.0 - (1.0 - 0.5**halving) ** 2) * reach
    for power in range(-3, 10):
        damping = size[0].square() * 10.0**power / (size.square() + size[0].square() * 10.0**power)
        move = -unit * (right.mT @ (share * (1.0 - damping) / torch.where(good, size, 1.0)))
        yield move, float(((1.0 - damping.square()) * share.square()).sum())
    for longer in (1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0):  # across a plateau of discontinuous equations
        yield full * longer, 0.0


def is_root(point: Tensor, moments: EquationMoments, tol: float) -> bool:
    """Whether every mean equation is zero, within ``tol`` standard errors or rounding."""
    return bool((standardise_residuals(point, moments) <= tol).all())


def standardise_residuals(point: Tensor, moments: EquationMoments) -> Tensor:
    """Absolute mean equations in units of their standard errors, (q,); 0 within rounding error."""
    noise = ROUNDING * (moments.slope.abs() @ point.abs())
    return torch.where(moments.mean.abs() <= noise, 0.0, moments.z.abs())


def is_minimum(point: Tensor, moments: EquationMoments, whiten: Tensor, tol: float) -> bool:
    """Whether the squared length of the whitened equations is minimal."""
    left = float(compute_scaled_gradient(whiten, moments).abs().max())
    noise = ROUNDING * float(((whiten @ moments.slope).abs() @ point.abs()).norm())
    return moments.weight**0.5 * left <= tol or left <= noise


NEAR_ZERO = 1e-4
"""Standard errors from zero that rounding may leave where no step helps."""
STEP_TOLERANCE = 0.05
"""The same for discontinuous equations, or 6 p / sqrt(n) if more: they need no exact root (Le Corff, theorem A.6)."""
DISTINCT = 1e-3
"""Standard errors beyond which two roots are different."""


@dataclass(frozen=True)
class SearchResult:
    """The end of a search."""

    point: Tensor
    moments: EquationMoments
    n_iter: int
    converged: bool


def find_root(
    measure: MeasureFunction,
    start: Tensor,
    names: Sequence[str],
    *,
    max_iter: int,
    tol: float,
    stepped: bool = False,
    describe_bad: Callable[[Tensor], str],
) -> SearchResult:
    """Root of as many mean equations as parameters; ``stepped`` for discontinuous ones, which need no exact root."""
    first = measure_start(measure, start, describe_bad)
    whiten = torch.diag(1.0 / first.size)
    step = make_newton_step(measure, whiten, lambda state: is_root(state.point, state.moments, tol))
    outcome = run(step, RootState(start, first), max_iter=max_iter)
    state, n_iter = outcome.state, outcome.n_iter - int(outcome.converged)
    if is_root(state.point, state.moments, tol):
        return SearchResult(state.point, state.moments, n_iter, True)
    left, p = standardise_residuals(state.point, state.moments), len(start)
    worst = float(left.max())
    enough = max(STEP_TOLERANCE, 6.0 * p / state.moments.weight**0.5) if stepped else NEAR_ZERO
    if worst <= enough and (state.is_stuck or stepped):
        return SearchResult(state.point, state.moments, n_iter, True)
    # Where the length of the equations is minimal, more iterations would not help.
    slope = compute_scaled_gradient(whiten, state.moments).norm()
    if state.is_stuck or float(slope) <= 1e-3 * float((whiten @ state.moments.mean).norm()):
        raise NoRootError(_describe_failure(state, names))
    warn_caller(
        f"The search for a root did not converge in {n_iter} iterations: the mean of equation "
        f"{int(left.argmax())} is still {worst:.3g} standard errors from zero",
        EstimateWarning,
    )
    return SearchResult(state.point, state.moments, n_iter, False)


def measure_start(
    measure: MeasureFunction, start: Tensor, describe_bad: Callable[[Tensor], str]
) -> EquationMoments:
    """Moments at the start, which must be finite."""
    first = measure(start)
    if not first.is_finite():
        raise EquationError(f"at the start {describe_bad(start)}")
    return first


def find_minimum(
    measure: MeasureFunction,
    whiten: Tensor,
    start: Tensor,
    first: EquationMoments,
    *,
    max_iter: int,
    tol: float,
) -> SearchResult:
    """Minimum of the squared whitened mean equations, more of them than parameters."""
    step = make_newton_step(
        measure, whiten, lambda state: is_minimum(state.point, state.moments, whiten, tol)
    )
    outcome = run(step, RootState(start, first), max_iter=max_iter)
    state, n_iter = outcome.state, outcome.n_iter - int(outcome.converged)
    enough = max(tol, NEAR_ZERO) if state.is_stuck else tol
    done = is_minimum(state.point, state.moments, whiten, enough)
    if not done:
        warn_caller(
            f"The weighted equations did not reach their minimum in {n_iter} iterations: raise max_iter",
            EstimateWarning,
        )
    return SearchResult(state.point, state.moments, n_iter, done)


def select_distinct_points(points: Sequence[Tensor], error: Tensor) -> list[Tensor]:
    """The points that differ, in units of the parameters' standard errors."""
    distinct: list[Tensor] = []
    unit = torch.where(error > 0, error, 1.0)
    for point in points:
        if all(float(((point - other) / unit).abs().max()) > DISTINCT for other in distinct):
            distinct.append(point)
    return distinct


def _describe_failure(state: RootState, names: Sequence[str]) -> str:
    moments, z = state.moments, standardise_residuals(state.point, state.moments)
    worst = int(z.argmax())
    place = ", ".join(f"{name} = {float(value):.6g}" for name, value in zip(names[:6], state.point))
    text = (
        f"No root was found: at the best point ({place}{', ...' if len(names) > 6 else ''}) |mean psi| is "
        f"{float(moments.mean.norm()):.3g}, with equation {worst} {float(z[worst]):.3g} standard errors from zero"
    )
    free = describe_free_direction(moments.slope, names)
    return text if free is None else f"{text}; there {free}"


Steps = Literal["one", "two", "iterated"]
STEP_NAMES = {"one": "one step", "two": "two steps", "iterated": "iterated"}
DEPENDENCE_TOLERANCE = 1e-10
"""Smallest relative eigenvalue of the correlation of the equations that is not zero."""


@dataclass(frozen=True)
class WeightedSearch:
    """The end of the last search, its weighting, and the covariance of the equations there."""

    found: SearchResult
    whiten: Tensor
    meat: Tensor


def solve_weighted(
    measure: MeasureFunction,
    start: Tensor,
    first: EquationMoments,
    meat: Callable[[SearchResult | None], Tensor],
    steps: Steps,
    *,
    max_iter: int,
    tol: float,
) -> WeightedSearch:
    r"""Minimise :math:`\bar\psi(\theta)^\top W \bar\psi(\theta)`, W from the covariance of the equations (Hansen 1982).

    W is diagonal in the first step, with the inverse variances of the equations; then the inverse of their
    covariance at the last estimate, which is efficient. ``meat`` is that covariance at the end of a search.
    """
    whiten = torch.diag(1.0 / _standard_deviations(meat(None)))
    search = find_minimum(measure, whiten, start, first, max_iter=max_iter, tol=tol)
    n_iter = search.n_iter
    for _ in range({"one": 0, "two": 1, "iterated": max_iter}[steps]):
        before = search.point
        whiten = whitening_matrix(meat(search))
        search = find_minimum(measure, whiten, before, search.moments, max_iter=max_iter, tol=tol)
        n_iter += search.n_iter
        moved = whiten @ search.moments.slope @ (search.point - before)
        if float(search.moments.weight**0.5 * moved.norm()) <= DISTINCT * tol**0.5:
            break
    done = SearchResult(search.point, search.moments, n_iter, search.converged)
    return WeightedSearch(done, whiten, meat(search))


def hansen_test(weighed: WeightedSearch, p: int) -> JTest:
    r"""Hansen's :math:`J = n \bar\psi^\top S^{-1} \bar\psi \sim \chi^2_{q - p}`, for ``steps`` two or iterated."""
    moments = weighed.found.moments
    statistic = moments.weight * float((whitening_matrix(weighed.meat) @ moments.mean).square().sum())
    degrees = len(moments.mean) - p
    return JTest(statistic, degrees, float(stats.chi2.sf(statistic, degrees)))


def whitening_matrix(covariance: Tensor) -> Tensor:
    """C with C' C the inverse of a covariance, computed from its correlations."""
    deviations = _standard_deviations(covariance)
    correlation = covariance / deviations / deviations[:, None]
    values, vectors = torch.linalg.eigh(correlation)
    if float(values[0]) <= DEPENDENCE_TOLERANCE * float(values[-1]):
        parts: Sequence[int] = torch.nonzero(vectors[:, 0].abs() > 1e-3)[:4, 0].tolist()
        combination = " ".join(f"{float(vectors[j, 0]):+.2g} x equation {j}" for j in parts)
        raise EquationError(f"The equations are linearly dependent: {combination} does not vary")
    factor = torch.linalg.cholesky(correlation)
    eye = torch.eye(len(deviations), dtype=factor.dtype)
    return torch.linalg.solve_triangular(factor, eye, upper=False) / deviations


def _standard_deviations(covariance: Tensor) -> Tensor:
    deviations = covariance.diagonal().clamp(min=0.0).sqrt()
    if not bool((deviations > 0).all()):
        raise EquationError(
            f"equation {int((deviations <= 0).float().argmax())} is the same on every row, so it cannot be weighted "
            f"by its standard error"
        )
    return deviations


@single_threaded
def z_estimate(
    psi: Callable[[Any, Tensor], Tensor],
    X: object,
    start: object,
    *,
    sample_weight: object = None,
    groups: object = None,
    smooth: float | Sequence[float] | Tensor | None = None,
    steps: Steps = "two",
    starts: Sequence[object] = (),
    correction: bool = False,
    max_iter: int = 100,
    tol: float = 1e-8,
    names: Sequence[str] | None = None,
) -> Estimate:
    r"""Root of mean estimating equations, with sandwich standard errors.

    .. math:: \frac1n \sum_{i=1}^n \psi(\hat\theta, x_i) = 0, \qquad
              \widehat{\mathrm{Cov}}(\hat\theta) = \frac1n A^{-1} B A^{-\top}, \quad
              A = \frac1n \sum_i \frac{\partial \psi}{\partial \theta}(\hat\theta, x_i), \quad
              B = \frac1n \sum_i \psi \psi^\top(\hat\theta, x_i)

    Le Corff, section A.2; van der Vaart 1998, theorem 5.21. The derivative is by autograd. Only sums of psi, of its
    derivative and of its outer products are needed, so files may be larger than memory.

    Args:
        psi: ``psi(theta, rows)``, a torch function of the parameters and of rows (n, d) that returns (n, q). With
            q more than p parameters, the generalised method of moments is used.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: p numbers, or a dictionary of tensors, which psi then gets.
        sample_weight: one weight per row, or the name of a column; a row of weight 2 is two rows. For sampling
            weights (inverse inclusion probabilities) add ``groups=range(n)``.
        groups: a label per row, or the name of a column: rows of a group may depend on one another, and the errors
            use sums of psi within groups. Memory: q numbers per group.
        smooth: for a discontinuous psi (quantiles): steps h, one or p, of central differences of the mean of psi,
            :math:`(\bar\psi(\theta + h) - \bar\psi(\theta - h)) / 2h`. For a quantile that is a density estimate with a
            box of half-width h; it must shrink with n, but slower than :math:`n^{-1/2}`.
        steps: with more equations than parameters: ``one``, ``two`` or ``iterated`` weightings.
        starts: further starting points; all roots are kept in ``roots``, with a warning if they differ. Not for more
            equations than parameters.
        correction: multiply the covariance by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most iterations of Newton's method.
        tol: largest mean equation at a root, in units of its standard error.
        names: of the parameters.

    Returns:
        The estimate with its errors.

    Raises:
        EquationError: psi has a wrong shape, fewer equations than parameters, or is not finite at a row, which is
            named.
        NoRootError: no root; the message gives the best point.
        NotIdentifiedError: the equations leave a direction free, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.0, 1.0], [1.0, 3.0], [2.0, 4.0], [3.0, 8.0]])
        >>> def line(theta, rows):  # least squares of column 1 on column 0
        ...     x, y = rows[:, 0], rows[:, 1]
        ...     return torch.stack([torch.ones_like(x), x], 1) * (y - theta[0] - theta[1] * x)[:, None]
        >>> z_estimate(line, rows, [0.0, 0.0], names=["intercept", "slope"])
        Z-estimate from 4 rows, 1 iteration
          intercept 0.7 ± 0.278
          slope     2.2 ± 0.254
    """
    source = open_source(X, sample_weight)
    check_callable(psi, "psi", "parameters and rows")
    begin = [read_start(one, names) for one in (start, *starts)]
    first = begin[0]
    values = check_function(lambda vector, rows: psi(first.restore_shape(vector), rows), len(first.vector))
    read = None if groups is None else read_groups(groups, source, len(first.vector))
    equations = Equations(values, source, _check_smooth(smooth, len(first.vector)), read)
    if equations.count_equations(first.vector) > len(first.vector):
        if starts:
            raise ValueError("starts are for as many equations as parameters; give a single start")
        return _estimate_weighted(equations, first, steps, correction, max_iter, tol)
    searches = _search_roots(equations, begin, max_iter, tol)
    found = searches[0]
    meat = equations.estimate_meat(found.point, found.moments, centre=False)
    estimate = build_estimate("Z-estimate", first, found, meat, equations.n_groups, correction)
    if len(searches) == 1:
        return estimate
    error = estimate.covariance.diagonal().sqrt()
    roots = select_distinct_points([one.point for one in searches if one.converged], error)
    if len(roots) > 1:
        warn_caller(
            f"{len(roots)} different roots were found from {len(begin)} starts; see .roots", EstimateWarning
        )
    return replace(estimate, roots=tuple(first.restore_shape(root) for root in roots))


@dataclass(frozen=True)
class Equations:
    """Equations over a source, with smoothing steps, the group of each row and the number of groups."""

    values: RowFunction
    source: Source
    smooth: Tensor | None = None
    groups: tuple[Tensor, int] | None = None

    @property
    def n_groups(self) -> int | None:
        """None where rows are independent."""
        return None if self.groups is None else self.groups[1]

    def measure(self, point: Tensor) -> EquationMoments:
        """Moments of the equations at a point."""
        return measure_equations(self.values, self.source, point, self.smooth)

    def count_equations(self, point: Tensor) -> int:
        """Number of equations, from one row."""
        row, _ = next(iter(self.source.chunks(1)))
        with torch.no_grad():
            return self.values(point.to(row.device), row).shape[1]

    def describe_bad_row(self, point: Tensor) -> str:
        """A sentence about the first row at which the equations are not finite."""
        return describe_bad_row(self.values, self.source, point)

    def estimate_meat(self, point: Tensor, moments: EquationMoments, centre: bool) -> Tensor:
        """Covariance of the equations of one row, (q, q), or of one group per row."""
        if self.groups is None:
            return moments.centred if centre else moments.second
        mean = moments.mean if centre else None
        return sum_group_products(self.values, self.source, point, self.groups[0], mean)


def _check_smooth(smooth: float | Sequence[float] | Tensor | None, p: int) -> Tensor | None:
    if smooth is None:
        return None
    steps = torch.as_tensor(smooth, dtype=torch.float64)
    if steps.ndim > 1 or (steps.ndim == 1 and len(steps) != p) or not bool((steps > 0).all()):
        raise ValueError(f"smooth must be one positive step or {p} of them")
    return steps.expand(p)


def _search_roots(
    equations: Equations, begin: Sequence[Parameters], max_iter: int, tol: float
) -> list[SearchResult]:
    """The root from each start; a start without a root is an error only if no other has one."""
    searches, failure = [], None
    for one in begin:
        try:
            searches.append(
                find_root(
                    equations.measure,
                    one.vector,
                    one.names,
                    max_iter=max_iter,
                    tol=tol,
                    stepped=equations.smooth is not None,
                    describe_bad=equations.describe_bad_row,
                )
            )
        except NoRootError as error:
            failure = failure or error
    if not searches and failure is not None:
        raise failure
    return searches


def build_estimate(
    method: str,
    start: Parameters,
    search: SearchResult,
    meat: Tensor,
    n_groups: int | None,
    correction: bool,
    whiten: Tensor | None = None,
    j_test: JTest | None = None,
) -> Estimate:
    """The end of a search as an estimate, with sandwich errors from the covariance ``meat`` of the equations."""
    moments = search.moments
    check_identified(moments.slope, start.names)
    if whiten is None:
        whiten = torch.diag(equilibrate(moments.slope)[0])
    factor = small_sample_factor(moments.weight, len(search.point), n_groups) if correction else 1.0
    return Estimate(
        theta=start.restore_shape(search.point),
        names=start.names,
        covariance=factor * sandwich(moments.slope, meat, moments.weight, whiten),
        method=method,
        weight=moments.weight,
        n_iter=search.n_iter,
        converged=search.converged,
        residual=float(standardise_residuals(search.point, moments).max()),
        n_groups=n_groups,
        j_test=j_test,
    )


def _estimate_weighted(
    equations: Equations, first: Parameters, steps: Steps, correction: bool, max_iter: int, tol: float
) -> Estimate:
    start = measure_start(equations.measure, first.vector, equations.describe_bad_row)

    def estimate_meat(found: SearchResult | None) -> Tensor:
        point, moments = (first.vector, start) if found is None else (found.point, found.moments)
        return equations.estimate_meat(point, moments, centre=True)

    done = solve_weighted(
        equations.measure, first.vector, start, estimate_meat, steps, max_iter=max_iter, tol=tol
    )
    method = f"weighted equations, {STEP_NAMES[steps]},"
    test = None if steps == "one" else hansen_test(done, len(first.vector))
    return build_estimate(
        method, first, done.found, done.meat, equations.n_groups, correction, done.whiten, test
    )
