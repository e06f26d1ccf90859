"""Method of moments: parameters under which expected statistics are those of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import check_callable, open_source
from boxloop.fit.equations.faults import EquationError
from boxloop.fit.equations.identified import check_identified
from boxloop.fit.equations.newton import left_over
from boxloop.fit.equations.parameters import Parameters, read_start
from boxloop.fit.equations.result import Estimate
from boxloop.fit.equations.sandwich import read_groups, sandwich, small_sample
from boxloop.fit.equations.search import find_root, measured
from boxloop.fit.equations.sums import Measure, first_bad_row, group_outer, measure_equations, slope_of
from boxloop.fit.equations.weighing import TOLD, Steps, Weighed, find_weighed, hansen
from boxloop.numeric import RandomState, generator, seed, single_threaded
from boxloop.types import Source

Sampler = Callable[[Any, Generator, int], Tensor]


@single_threaded
def match_moments(
    statistics: Callable[[Tensor], Tensor],
    expected: Callable[[Any], Tensor] | None,
    X: object,
    start: object,
    *,
    sampler: Sampler | None = None,
    draws: int = 100_000,
    random_state: RandomState = 0,
    smooth: float | Sequence[float] | Tensor | None = None,
    steps: Steps = "two",
    sample_weight: object = None,
    groups: object = None,
    correction: bool = False,
    max_iter: int = 100,
    tol: float = 1e-8,
    names: Sequence[str] | None = None,
) -> Estimate:
    r"""Parameters under which expected statistics are those of the rows.

    .. math:: e(\hat\theta) = \frac1n \sum_{i=1}^n T(x_i), \qquad e(\theta) = E_\theta[T(X)]

    Document 002, section A.1. With more statistics than parameters the differences are weighed
    (:math:`\min_\theta g^\top W g`; generalised method of moments, Hansen 1982) and tested for contradiction. The rows
    are read once: only the mean of T and its covariance are kept.

    Args:
        statistics: T, a torch function of rows (n, d) that returns (n, q).
        expected: e, a torch function of the parameters that returns (q,); None with a sampler.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: where to begin: p numbers, or a dictionary of tensors, which ``expected`` then gets.
        sampler: ``sampler(theta, generator, m)`` gives m rows of the model, (m, d), in place of ``expected``. It gets
            a generator in the same state in every round, so that the same noise moves smoothly with theta
            (McFadden 1989); the variance grows by the factor 1 + n / m.
        draws: m.
        random_state: of the sampler's noise.
        smooth: steps, one or p, of central differences in place of autograd, for samples that jump (counts).
        steps: ``one`` weighs each statistic by its own variance, ``two`` by their covariance, which is efficient.
            ``iterated`` weighs anew at each estimate; the covariance about the mean of T does not depend on theta, so
            that it gives the same as ``two``, and differs only in :func:`boxloop.z_estimate`.
        sample_weight: one weight a row, or the name of a column; a row of weight 2 is two rows.
        groups: a label a row, or the name of a column: rows of a group may depend on one another.
        correction: multiply the covariance by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most rounds of a search.
        tol: how nearly the equations are solved, in standard errors.
        names: of the parameters.

    Returns:
        The estimate with its errors, and with ``j_test`` where there are more statistics than parameters.

    Raises:
        EquationError: a wrong shape, fewer statistics than parameters, or a value that is not finite.
        NoRootError: no parameters have these expected statistics.
        NotIdentifiedError: the expected statistics leave a direction free, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.5], [1.0], [4.5]])
        >>> match_moments(lambda x: x, lambda rate: 1 / rate, rows, [1.0], names=["rate"])  # example A.1
        moments matched from 3 rows, 1 round
          rate 0.5 ± 0.257
    """
    if (expected is None) == (sampler is None):
        raise ValueError("give either expected or sampler")
    source = open_source(X, sample_weight)
    check_callable(statistics, "statistics", "the rows")
    first = read_start(start, names)
    facts = _facts(statistics, source, groups, len(first.vector))
    q, p = len(facts.mean), len(first.vector)
    if q < p:
        raise EquationError(f"{q} statistic(s) for {p} parameters: they cannot be determined")
    law = _Law(statistics, expected, sampler, draws, seed(random_state), smooth)
    measure = _measuring(facts, law, first)
    meat = facts.meat * (1.0 if sampler is None else 1.0 + facts.weight / draws)
    if q == p:
        root = find_root(measure, first.vector, first.names, max_iter=max_iter, tol=tol, bad=_no_value)
        done = Weighed(root, torch.diag(1.0 / facts.spread), meat)
    else:
        here = measured(measure, first.vector, _no_value)
        done = find_weighed(measure, first.vector, here, lambda _: meat, steps, max_iter=max_iter, tol=tol)
    estimate = _estimate(facts, first, done, correction)
    if q == p:
        return estimate
    test = None if steps == "one" else hansen(done, p)
    return replace(estimate, method=f"moments matched, {TOLD[steps]},", j_test=test)


def _estimate(facts: _Facts, first: Parameters, done: Weighed, correction: bool) -> Estimate:
    found, p = done.found, len(first.vector)
    check_identified(found.here.slope, first.names)
    factor = small_sample(facts.weight, p, facts.n_groups) if correction else 1.0
    return Estimate(
        theta=first.shaped(found.point),
        names=first.names,
        covariance=factor * sandwich(found.here.slope, done.meat, facts.weight, done.whiten),
        method="moments matched",
        weight=facts.weight,
        n_iter=found.n_iter,
        converged=found.converged,
        residual=float(left_over(found.point, found.here).max()),
        n_groups=facts.n_groups,
    )


@dataclass(frozen=True)
class _Facts:
    """All that is kept of the rows: mean of T, its covariance (of group sums where there are groups), weight."""

    mean: Tensor
    covariance: Tensor
    meat: Tensor
    weight: float
    n_groups: int | None

    @property
    def spread(self) -> Tensor:
        found = self.covariance.diagonal().clamp(min=0.0).sqrt()
        return torch.where(found > 0, found, 1.0)


def _facts(statistics: Callable[[Tensor], Tensor], source: Source, groups: object, p: int) -> _Facts:
    def values(_: Tensor, rows: Tensor) -> Tensor:
        found = statistics(rows)
        if not isinstance(found, Tensor) or found.ndim != 2 or found.shape[0] != rows.shape[0]:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EquationError(f"statistics must return ({rows.shape[0]}, q) here; it returned {shape}")
        return found.to(torch.float64)

    nowhere = torch.zeros(1, dtype=torch.float64)
    rough = measure_equations(values, source, nowhere, nowhere + 1.0)
    if not rough.is_finite():
        raise EquationError(first_bad_row(values, source, nowhere, "statistics"))
    # A second pass about the mean: squares about zero lose the digits of statistics far from it.
    about = measure_equations(
        lambda v, rows: values(v, rows) - rough.mean.to(rows.device), source, nowhere, nowhere + 1.0
    )
    mean = rough.mean + about.mean
    if groups is None:
        return _Facts(mean, about.centred, about.centred, rough.weight, None)
    labels, count = read_groups(groups, source, p)
    meat = group_outer(values, source, nowhere, labels, mean)
    return _Facts(mean, about.centred, meat, rough.weight, count)


@dataclass(frozen=True)
class _Law:
    """Expected statistics of the model, in closed form or by simulation."""

    statistics: Callable[[Tensor], Tensor]
    expected: Callable[[Any], Tensor] | None
    sampler: Sampler | None
    draws: int
    seed: int
    smooth: float | Sequence[float] | Tensor | None

    def mean(self, theta: Any, q: int) -> Tensor:
        """(q,)."""
        if self.sampler is not None:
            rows = self.sampler(theta, generator(self.seed), self.draws)
            found = self.statistics(rows).to(torch.float64).mean(0)
        else:
            assert self.expected is not None
            found = self.expected(theta)
        if not isinstance(found, Tensor) or found.shape != (q,):
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise EquationError(f"expected must return ({q},), one number a statistic; it returned {shape}")
        return found.to("cpu", torch.float64)


def _measuring(facts: _Facts, law: _Law, first: Parameters) -> Callable[[Tensor], Measure]:
    """Mean statistics less expected ones, at any point, without the rows."""
    q = len(facts.mean)

    def gap(vector: Tensor) -> Tensor:
        return facts.mean - law.mean(first.shaped(vector), q)

    def measure(point: Tensor) -> Measure:
        with torch.no_grad():
            mean = gap(point)
        if law.smooth is None:
            moving = point.detach().clone().requires_grad_()
            with torch.enable_grad():
                slope = slope_of(gap(moving), moving)
        else:
            step = torch.as_tensor(law.smooth, dtype=torch.float64).expand(len(point))
            moved = [
                (gap(point + shift) - gap(point - shift)) / (2.0 * shift.sum()) for shift in torch.diag(step)
            ]
            slope = torch.stack(moved, dim=1)
        return Measure(mean, slope, facts.covariance + torch.outer(mean, mean), facts.weight)

    return measure


def _no_value(point: Tensor) -> str:
    return "the expected statistics or their derivative are not finite"
