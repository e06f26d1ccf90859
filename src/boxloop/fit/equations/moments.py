"""Method of moments: parameters whose expected statistics equal those of the rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import check_callable, open_source
from boxloop.fit.equations.averages import (
    EquationMoments,
    describe_bad_row,
    differentiate,
    measure_equations,
    read_groups,
    sum_group_products,
)
from boxloop.fit.equations.estimate import EquationError, Estimate, Parameters, read_start
from boxloop.fit.equations.roots import (
    STEP_NAMES,
    Steps,
    build_estimate,
    find_root,
    hansen_test,
    measure_start,
    solve_weighted,
)
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
    r"""Parameters whose expected statistics equal those of the rows.

    .. math:: e(\hat\theta) = \frac1n \sum_{i=1}^n T(x_i), \qquad e(\theta) = E_\theta[T(X)]

    Le Corff, section A.1. With more statistics than parameters the differences are weighted
    (:math:`\min_\theta g^\top W g`; generalised method of moments, Hansen 1982) and tested for contradiction. Only the
    mean of T and its covariance are taken from the rows.

    Args:
        statistics: T, a torch function of rows (n, d) that returns (n, q).
        expected: e, a torch function of the parameters that returns (q,); None with a sampler.
        X: any table that :func:`boxloop.data.open_source` opens.
        start: p numbers, or a dictionary of tensors, which ``expected`` then gets.
        sampler: ``sampler(theta, generator, m)`` gives m rows of the model, (m, d), in place of ``expected``. It gets
            a generator in the same state in every iteration, so that the draws change smoothly with theta
            (McFadden 1989); the variance grows by the factor 1 + n / m.
        draws: m.
        random_state: seed of the sampler.
        smooth: steps, one or p, of central differences instead of autograd, for discontinuous samples (counts).
        steps: ``one`` weights each statistic by its variance, ``two`` by their covariance, which is efficient.
            ``iterated`` updates the weighting at each estimate; the covariance of T does not depend on theta, so it
            equals ``two`` here and differs only in :func:`boxloop.z_estimate`.
        sample_weight: one weight per row, or the name of a column; a row of weight 2 is two rows.
        groups: a label per row, or the name of a column: rows of a group may depend on one another.
        correction: multiply the covariance by n / (n - p), with groups by G / (G - 1) x (n - 1) / (n - p).
        max_iter: most iterations of a search.
        tol: error of the solution, in standard errors.
        names: of the parameters.

    Returns:
        The estimate with its errors, and with ``j_test`` if there are more statistics than parameters.

    Raises:
        EquationError: a wrong shape, fewer statistics than parameters, or a value that is not finite.
        NoRootError: no parameters have these expected statistics.
        NotIdentifiedError: the expected statistics leave a direction free, which is named.

    Example:
        >>> import torch
        >>> rows = torch.tensor([[0.5], [1.0], [4.5]])
        >>> match_moments(lambda x: x, lambda rate: 1 / rate, rows, [1.0], names=["rate"])  # example A.1
        moments matched from 3 rows, 1 iteration
          rate 0.5 ± 0.257
    """
    if (expected is None) == (sampler is None):
        raise ValueError("Give either expected or sampler, not both or neither.")
    source = open_source(X, sample_weight)
    check_callable(statistics, "statistics", "the rows")
    first = read_start(start, names)
    observed = _average_statistics(statistics, source, groups, len(first.vector))
    q, p = len(observed.mean), len(first.vector)
    if q < p:
        raise EquationError(f"{q} statistic(s) for {p} parameters: give at least {p}")
    model = _ModelMoments(statistics, expected, sampler, draws, seed(random_state), smooth)
    measure = _moment_equations(observed, model, first)
    meat = observed.meat * (1.0 if sampler is None else 1.0 + observed.weight / draws)
    if q == p:
        root = find_root(
            measure, first.vector, first.names, max_iter=max_iter, tol=tol, describe_bad=_describe_bad_value
        )
        whiten = torch.diag(1.0 / observed.standard_deviation)
        return build_estimate("moments matched", first, root, meat, observed.n_groups, correction, whiten)
    moments = measure_start(measure, first.vector, _describe_bad_value)
    done = solve_weighted(measure, first.vector, moments, lambda _: meat, steps, max_iter=max_iter, tol=tol)
    method = f"moments matched, {STEP_NAMES[steps]},"
    test = None if steps == "one" else hansen_test(done, p)
    return build_estimate(method, first, done.found, meat, observed.n_groups, correction, done.whiten, test)


@dataclass(frozen=True)
class _StatisticMoments:
    """Mean of T over the rows, its covariance, that of group sums, total weight and number of groups."""

    mean: Tensor
    covariance: Tensor
    meat: Tensor
    weight: float
    n_groups: int | None

    @property
    def standard_deviation(self) -> Tensor:
        deviation = self.covariance.diagonal().clamp(min=0.0).sqrt()
        return torch.where(deviation > 0, deviation, 1.0)


def _average_statistics(
    statistics: Callable[[Tensor], Tensor], source: Source, groups: object, p: int
) -> _StatisticMoments:
    def evaluate(_: Tensor, rows: Tensor) -> Tensor:
        result = statistics(rows)
        if not isinstance(result, Tensor) or result.ndim != 2 or result.shape[0] != rows.shape[0]:
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise EquationError(f"statistics must return ({rows.shape[0]}, q) here; it returned {shape}")
        return result.to(torch.float64)

    nowhere = torch.zeros(1, dtype=torch.float64)
    rough = measure_equations(evaluate, source, nowhere, nowhere + 1.0)
    if not rough.is_finite():
        raise EquationError(describe_bad_row(evaluate, source, nowhere, "statistics"))
    # A second pass, about the mean: squares about zero lose digits of statistics far from it.
    about = measure_equations(
        lambda v, rows: evaluate(v, rows) - rough.mean.to(rows.device), source, nowhere, nowhere + 1.0
    )
    mean = rough.mean + about.mean
    if groups is None:
        return _StatisticMoments(mean, about.centred, about.centred, rough.weight, None)
    labels, count = read_groups(groups, source, p)
    meat = sum_group_products(evaluate, source, nowhere, labels, mean)
    return _StatisticMoments(mean, about.centred, meat, rough.weight, count)


@dataclass(frozen=True)
class _ModelMoments:
    """Expected statistics of the model, in closed form or by simulation."""

    statistics: Callable[[Tensor], Tensor]
    expected: Callable[[Any], Tensor] | None
    sampler: Sampler | None
    draws: int
    seed: int
    smooth: float | Sequence[float] | Tensor | None

    def expect_statistics(self, theta: Any, q: int) -> Tensor:
        """(q,)."""
        if self.sampler is not None:
            rows = self.sampler(theta, generator(self.seed), self.draws)
            result = self.statistics(rows).to(torch.float64).mean(0)
        else:
            assert self.expected is not None
            result = self.expected(theta)
        if not isinstance(result, Tensor) or result.shape != (q,):
            shape = tuple(result.shape) if isinstance(result, Tensor) else type(result).__name__
            raise EquationError(f"expected must return ({q},), one number per statistic; it returned {shape}")
        return result.to("cpu", torch.float64)


def _moment_equations(
    observed: _StatisticMoments, model: _ModelMoments, first: Parameters
) -> Callable[[Tensor], EquationMoments]:
    """Mean minus expected statistics at any point, without reading the rows."""
    q = len(observed.mean)

    def subtract_expected(vector: Tensor) -> Tensor:
        return observed.mean - model.expect_statistics(first.restore_shape(vector), q)

    def measure(point: Tensor) -> EquationMoments:
        with torch.no_grad():
            mean = subtract_expected(point)
        if model.smooth is None:
            moving = point.detach().clone().requires_grad_()
            with torch.enable_grad():
                slope = differentiate(subtract_expected(moving), moving)
        else:
            step = torch.as_tensor(model.smooth, dtype=torch.float64).expand(len(point))
            moved = [
                (subtract_expected(point + shift) - subtract_expected(point - shift)) / (2.0 * shift.sum())
                for shift in torch.diag(step)
            ]
            slope = torch.stack(moved, dim=1)
        return EquationMoments(mean, slope, observed.covariance + torch.outer(mean, mean), observed.weight)

    return measure


def _describe_bad_value(point: Tensor) -> str:
    return "the expected statistics or their derivative are not finite"
