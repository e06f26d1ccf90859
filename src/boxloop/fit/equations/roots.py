"""Z-estimation: the root of mean equations, with sandwich errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import check_callable, open_source
from boxloop.fit.equations.faults import EstimateWarning, NoRootError
from boxloop.fit.equations.identified import check_identified, scales
from boxloop.fit.equations.newton import left_over
from boxloop.fit.equations.parameters import Parameters, read_start
from boxloop.fit.equations.result import Estimate
from boxloop.fit.equations.sandwich import read_groups, sandwich, small_sample
from boxloop.fit.equations.search import Found, distinct, find_root, measured
from boxloop.fit.equations.sums import (
    Measure,
    RowFunction,
    checked,
    first_bad_row,
    group_outer,
    measure_equations,
)
from boxloop.fit.equations.weighing import TOLD, Steps, find_weighed, hansen
from boxloop.numeric import single_threaded
from boxloop.types import Source


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
    r"""The root of mean estimating equations, with sandwich standard errors.

    .. math:: \frac1n \sum_{i=1}^n \psi(\hat\theta, x_i) = 0, \qquad
              \widehat{\mathrm{Cov}}(\hat\theta) = \frac1n A^{-1} B A^{-\top}, \quad
              A = \frac1n \sum_i \frac{\partial \psi}{\partial \theta}(\hat\theta, x_i), \quad
              B = \frac1n \sum_i \psi \psi^\top(\hat\theta, x_i)

    Document 002, section A.2; van der Vaart 1998, theorem 5.21. The derivative is autograd's. Sums of psi, of its
    derivative and of its outer products are all that is kept of the rows, so files larger than memory do.

    Args:
        psi: ``psi(theta, rows)``, a torch function of the parameters and of rows (n, d) that returns (n, q). With
            q more than p parameters, the equations are weighed by the generalised method of moments.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: where to begin: p numbers, or a dictionary of tensors, which psi then gets.
        sample_weight: one weight a row, or the name of a column; a row of weight 2 is two rows. For sampling weights,
            which say how many rows a row stands for without having seen them, add ``groups=range(n)``.
        groups: a label a row, or the name of a column: rows of a group may depend on one another, and the errors
            take sums of psi within groups. One line of q numbers a group is held.
        smooth: for a psi that jumps (quantiles): steps h, one or p, by which the mean of psi is differenced,
            :math:`(\bar\psi(\theta + h) - \bar\psi(\theta - h)) / 2h`. For a quantile that is a density estimate with a
            box of half-width h; it must shrink with n, but slower than :math:`n^{-1/2}`.
        steps: with more equations than parameters: ``one``, ``two`` or ``iterated`` weightings.
        starts: other places to begin at; all roots are kept in ``roots``, and a warning is given if they differ. Not
            for more equations than parameters.
        correction: multiply the covariance by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most rounds of Newton's method.
        tol: largest mean equation at a root, in units of its standard error.
        names: of the parameters.

    Returns:
        The estimate with its errors.

    Raises:
        EquationError: psi has a wrong shape, fewer equations than parameters, or is NaN at a row that is named.
        NoRootError: no root; the message says how far from zero the best point is.
        NotIdentifiedError: the equations leave a direction free, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.0, 1.0], [1.0, 3.0], [2.0, 4.0], [3.0, 8.0]])
        >>> def line(theta, rows):  # least squares of column 1 on column 0
        ...     x, y = rows[:, 0], rows[:, 1]
        ...     return torch.stack([torch.ones_like(x), x], 1) * (y - theta[0] - theta[1] * x)[:, None]
        >>> z_estimate(line, rows, [0.0, 0.0], names=["intercept", "slope"])
        Z-estimate from 4 rows, 1 round
          intercept 0.7 ± 0.278
          slope     2.2 ± 0.254
    """
    source = open_source(X, sample_weight)
    check_callable(psi, "psi", "parameters and rows")
    begin = [read_start(one, names) for one in (start, *starts)]
    first = begin[0]
    values = checked(lambda vector, rows: psi(first.shaped(vector), rows), len(first.vector))
    equations = Equations(values, source, _steps(smooth, len(first.vector)), groups)
    if equations.width(first.vector) > len(first.vector):
        if starts:
            raise ValueError("starts are for as many equations as parameters")
        return _weighed(equations, first, steps, correction, max_iter, tol)
    found = _roots(equations, begin, max_iter, tol)
    estimate = _estimate(equations, first, found[0], correction)
    if len(found) == 1:
        return estimate
    error = estimate.covariance.diagonal().sqrt()
    roots = distinct([one.point for one in found if one.converged], error)
    if len(roots) > 1:
        warn_caller(
            f"{len(roots)} different roots were found from {len(begin)} starts; see .roots", EstimateWarning
        )
    return replace(estimate, roots=tuple(first.shaped(root) for root in roots))


@dataclass(frozen=True)
class Equations:
    """Equations of a vector over a source, with how they are differentiated and grouped."""

    values: RowFunction
    source: Source
    smooth: Tensor | None = None
    groups: object = None

    def measure(self, point: Tensor) -> Measure:
        """What the rows say at a point."""
        return measure_equations(self.values, self.source, point, self.smooth)

    def width(self, point: Tensor) -> int:
        """How many equations there are."""
        row, _ = next(iter(self.source.chunks(1)))
        with torch.no_grad():
            return self.values(point.to(row.device), row).shape[1]

    def bad(self, point: Tensor) -> str:
        """Which row is at fault at a point."""
        return first_bad_row(self.values, self.source, point)

    def meat(self, point: Tensor, here: Measure, centre: bool) -> tuple[Tensor, int | None]:
        """Covariance of the equations of one row, (q, q), and how many groups there are."""
        if self.groups is None:
            return (here.centred if centre else here.second), None
        groups, count = read_groups(self.groups, self.source, len(point))
        return group_outer(self.values, self.source, point, groups, here.mean if centre else None), count


def _steps(smooth: float | Sequence[float] | Tensor | None, p: int) -> Tensor | None:
    if smooth is None:
        return None
    found = torch.as_tensor(smooth, dtype=torch.float64)
    if found.ndim > 1 or (found.ndim == 1 and len(found) != p) or not bool((found > 0).all()):
        raise ValueError(f"smooth must be one positive step, or {p} of them")
    return found.expand(p)


def _roots(equations: Equations, begin: Sequence[Parameters], max_iter: int, tol: float) -> list[Found]:
    """Where each start leads; a start that leads nowhere is left out as long as another leads somewhere."""
    found, failure = [], None
    for one in begin:
        try:
            found.append(
                find_root(
                    equations.measure,
                    one.vector,
                    one.names,
                    max_iter=max_iter,
                    tol=tol,
                    stepped=equations.smooth is not None,
                    bad=equations.bad,
                )
            )
        except NoRootError as error:
            failure = failure or error
    if not found and failure is not None:
        raise failure
    return found


def _estimate(equations: Equations, first: Parameters, found: Found, correction: bool) -> Estimate:
    here = found.here
    check_identified(here.slope, first.names)
    meat, n_groups = equations.meat(found.point, here, centre=False)
    whiten = torch.diag(scales(here.slope)[0])
    factor = small_sample(here.weight, len(found.point), n_groups) if correction else 1.0
    return Estimate(
        theta=first.shaped(found.point),
        names=first.names,
        covariance=factor * sandwich(here.slope, meat, here.weight, whiten),
        method="Z-estimate",
        weight=here.weight,
        n_iter=found.n_iter,
        converged=found.converged,
        residual=float(left_over(found.point, here).max()),
        n_groups=n_groups,
    )


def _weighed(
    equations: Equations, first: Parameters, steps: Steps, correction: bool, max_iter: int, tol: float
) -> Estimate:
    start = measured(equations.measure, first.vector, equations.bad)

    def meat(found: Found | None) -> Tensor:
        point, here = (first.vector, start) if found is None else (found.point, found.here)
        return equations.meat(point, here, centre=True)[0]

    done = find_weighed(equations.measure, first.vector, start, meat, steps, max_iter=max_iter, tol=tol)
    estimate = _estimate(equations, first, done.found, correction=False)
    here, p = done.found.here, len(first.vector)
    factor = small_sample(here.weight, p, estimate.n_groups) if correction else 1.0
    return replace(
        estimate,
        covariance=factor * sandwich(here.slope, done.meat, here.weight, done.whiten),
        method=f"weighted equations, {TOLD[steps]},",
        j_test=None if steps == "one" else hansen(done, p),
    )
