r"""Coordinate-ascent variational inference is EM whose M step is a conjugate posterior.

With :math:`q(\theta) \prod_i q(z_i)` and every :math:`q(z_i)` at its best for :math:`q(\theta)`, the bound is

.. math:: L(q) = \sum_i w_i \log \int e^{E_{q(\theta)}[\log p(x_i, z \mid \theta)]} \, dz - KL(q(\theta) \| p(\theta))

(Le Corff, sections 3.1 and 3.2). The sum is what ``expect`` returns as its log-likelihood, its statistics are those of
EM, and ``solve`` adds them to the prior. So batch, accelerated and online EM are coordinate ascent, accelerated
coordinate ascent and stochastic variational inference (Hoffman et al. 2013) without code of their own.

This file has the bound, and the fits of variational mixtures and of variational factor analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, Standardisation, shuffle_rows, standardise_rows
from boxloop.distributions import MixturePrior
from boxloop.fit.em import EMState, Step, accelerated_em, em, rounding_error
from boxloop.fit.fit import (
    Coordinates,
    Fit,
    Plan,
    averages,
    coordinates,
    from_standard,
    level_of,
    to_standard,
    unstandardise,
)
from boxloop.fit.linear import SAMPLE_ROWS, fit_linear, prepare_rows
from boxloop.fit.start import AUTO, Sample, choose_race_size, draw_starts, race
from boxloop.loop import Iteration, Outcome, run
from boxloop.models import FactorModel, RelevancePrior, VariationalFactor, VariationalMixture
from boxloop.numeric import gram, join_words
from boxloop.tree import Tree
from boxloop.types import ExpectationModel, Expected, Source

S = TypeVar("S", bound=Tree)


class VariationalModel(ExpectationModel[S], Protocol[S]):
    """A posterior over the parameters of a model, which ``solve`` updates from averaged statistics."""

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence of the posterior over parameters from their prior, a scalar."""


def elbo(model: VariationalModel[Any], expected: Expected[Any]) -> float:
    """Evidence lower bound per unit weight, without the base measure: the objective of coordinate ascent.

    Args:
        model: a posterior over parameters.
        expected: result of its ``expect`` over all rows.
    """
    return float((expected.log_likelihood - model.divergence()) / expected.weight)


Model = VariationalMixture[Any]
PriorMaker = Callable[[Source, Standardisation], MixturePrior]
"""(rows in standard coordinates, frame) -> prior in standard coordinates."""


RACE_ITERATIONS = 10
"""Iterations of every start in the race, and of a trial without a component."""

TRIAL_ITERATIONS = 3
"""Iterations after which a trial without a component may be abandoned."""

EMPTY_COUNT = 1e-3
"""Expected rows below which a component is empty."""


def fit_variational_mixture(
    source: Source,
    prior: PriorMaker,
    *,
    kind: Coordinates,
    generator: Generator,
    plan: Plan,
    starts: Sequence[str] = AUTO,
    start: Model | None = None,
) -> Fit[Model]:
    """Fit the posterior of a mixture by coordinate ascent, or by stochastic variational inference on mini-batches.

    The trace is the evidence lower bound per unit weight. With mini-batches only the last value is of all rows; the
    others are of one batch each, without the divergence from the prior.
    """
    source = source if plan.engine == "em" else shuffle_rows(source, generator)
    frame = coordinates(source, kind)
    standard = source if kind == "none" else standardise_rows(source, frame, plan.dtype)
    interrupted = False
    if plan.resume is not None:
        model = plan.resume.state.model
    else:
        parameter_prior = prior(standard, frame)
        if start is not None:
            model = replace(
                to_standard(start, frame, kind), parameter_prior=parameter_prior, total=frame.weight
            )
        else:
            model, interrupted = _race_starts(
                standard, parameter_prior, frame.weight, starts, generator, plan
            )
    outcome = _ascend_and_prune(standard, model, generator, replace(plan, objective=elbo), interrupted)
    return _finish_mixture(outcome, source, standard, frame, kind)


def _race_starts(
    source: Source,
    parameter_prior: MixturePrior,
    total: float,
    starts: Sequence[str],
    generator: Generator,
    plan: Plan,
) -> tuple[Model, bool]:
    """The best start, and whether Ctrl-C ended the race."""
    k = parameter_prior.n_components
    sample, shares, rows = draw_starts(source, starts, k, generator)
    # The sample is weighted to the total of all rows; otherwise the prior would have more influence in the race.
    weight = sample.weight * (total / float(sample.weight.sum()))
    if rows is not source:
        rows = ArraySource(sample.rows, weight)
    models: list[Any] = []
    for share in shares:
        candidate: Model = VariationalMixture.from_responsibilities(
            parameter_prior, sample.rows, share * weight, total
        )
        models.append(candidate.order_components()[0])
    if k == 1:
        return models[0], False
    step: Any = accelerated_em(rows, elbo)
    rounding = partial(rounding_error, source=rows, objective=elbo)
    ranking = race(
        step,
        [EMState(m) for m in models],
        iterations=RACE_ITERATIONS,
        tol=min(plan.tol, 1e-4),
        rounding=rounding,
    )
    if any(outcome.interrupted for outcome in ranking):
        return ranking[0].state.best, True
    start = EMState(ranking[0].state.best)
    last = run(step, start, max_iter=RACE_ITERATIONS, monotone=True, rounding=rounding)
    last = _prune_components(rows, last)
    return last.state.best.order_components()[0], last.interrupted


def _prune_components(rows: Source, last: Outcome[Any], exact: bool = True) -> Outcome[Any]:
    """Remove components, the smallest first, while the bound is higher without."""
    # Coordinate ascent empties components slowly or not at all: two that share a cluster are a local maximum.
    # A trial is abandoned if its bound, extrapolated from its last rise, stays too low.
    # After Ctrl-C the last outcome is marked as interrupted.
    step: Any = accelerated_em(rows, elbo)
    run_trial = partial(
        run, step, monotone=exact, rounding=partial(rounding_error, source=rows, objective=elbo)
    )
    for j in torch.argsort(last.state.best.component_counts, stable=True).tolist():
        best, mean = last.state.best, last.state.statistics
        if (
            float(best.component_counts[j]) < EMPTY_COUNT
            or int((best.component_counts >= EMPTY_COUNT).sum()) < 2
        ):
            continue
        index = torch.tensor([j], device=mean.features.device)
        start = EMState(best.solve(mean.replace_members(index, torch.zeros_like(mean.features[index]))))
        trial = run_trial(start, max_iter=TRIAL_ITERATIONS)
        possible_rise = 0.0
        if len(trial.trace) == TRIAL_ITERATIONS:
            possible_rise = 2 * RACE_ITERATIONS * (trial.trace[-1] - trial.trace[-2])
        if not trial.interrupted and _bound_in_best_order(trial) + possible_rise > _bound_in_best_order(last):
            trial = run_trial(start, max_iter=RACE_ITERATIONS, resume=trial)
        if trial.interrupted:
            return replace(last, interrupted=True)
        last = trial if _bound_in_best_order(trial) > _bound_in_best_order(last) else last
    return last


def _bound_in_best_order(outcome: Outcome[Any]) -> float:
    """The bound with components in their best order, in which empty sticks come last."""
    model = outcome.state.best
    gain: float = model.order_components()[2]
    return outcome.trace[-1] + gain / float(model.total)


def _ascend_and_prune(
    standard: Source, model: Model, generator: Generator, plan: Plan, interrupted: bool
) -> Outcome[Any]:
    """The loop of the engine, continued where another order of components, or fewer, raises the bound."""
    # Starts race on a sample, whose chance clusters have too large a weight, so components are removed again
    # afterwards.
    outcome = plan.run(standard, model, generator, interrupted=interrupted)
    while plan.engine == "em" and outcome.converged and outcome.n_iter < plan.max_iter:
        better, order, gain = outcome.state.best.order_components()
        state = EMState(better, (_permute_statistics(outcome.state.statistics, order),))
        if gain <= plan.tol * better.total:
            if standard.n_rows <= choose_race_size(model.n_components, standard.n_columns):
                break
            fewer = _prune_components(standard, outcome, plan.dtype == torch.float64)
            if (
                fewer.interrupted
                or not _bound_in_best_order(fewer) > _bound_in_best_order(outcome) + plan.tol
            ):
                return replace(outcome, interrupted=fewer.interrupted)
            state = EMState(fewer.state.best)
        again = replace(outcome, state=state, converged=False, excused=True)
        outcome = replace(plan, resume=again).run(standard, state.model, generator)
    return outcome


def _finish_mixture(
    outcome: Outcome[Any], source: Source, standard: Source, frame: Standardisation, kind: Coordinates
) -> Fit[Model]:
    statistics = averages(outcome, standard)
    model, order, _ = outcome.state.best.order_components()
    if statistics is not None:
        statistics = _permute_statistics(statistics, order)
    if not isinstance(outcome.state, EMState) and not outcome.interrupted:
        expected: Expected[Any] = standard.reduce(model.expect)
        outcome = replace(outcome, trace=[*outcome.trace[:-1], elbo(model, expected)])
    constant = [repr(source.names[j]) for j in torch.nonzero(frame.constant)[:, 0].tolist()]
    concerns = (
        (f"constant column(s) {join_words(constant)}: the prior alone says how they vary",)
        if constant
        else ()
    )
    level = level_of(model, source, frame)
    concerns = (*concerns, *outcome.events)
    trace = [value + level for value in outcome.trace]
    return Fit(from_standard(model, frame, kind), model, frame, outcome, trace, concerns, statistics)


def _permute_statistics(statistics: Any, order: Tensor) -> Any:
    """Statistics with the components in another order."""
    return replace(statistics, features=statistics.features[order])


@dataclass(frozen=True)
class _SecondMoments(Tree):
    total: Tensor
    observed: Tensor


def estimate_standard_covariance(standard: Source) -> Tensor:
    """Covariance of standardised rows about their origin, (d, d), with variance 1 for constant columns.

    Missing values are replaced by the mean of their column, and variances are rescaled to those of the observed values.
    So the result is positive definite if the rows are, and correlations shrink to zero where much is missing.
    """

    def sum_products(rows: Tensor, weight: Tensor) -> _SecondMoments:
        observed = ~torch.isnan(rows)
        filled = torch.where(observed, rows, 0.0).double()
        return _SecondMoments(gram(filled, weight), observed.double().mT @ weight)

    sums = standard.reduce(sum_products)
    weight = sums.observed.max()
    ratio = (weight / sums.observed.clamp(min=1e-300)).sqrt()
    covariance = ratio[:, None] * (sums.total / weight) * ratio
    constant = covariance.diagonal() <= 0.0
    return covariance + torch.diag(constant.to(covariance.dtype))


KIND: Coordinates = "columns"

START_ITERATIONS = 10
"""Iterations of maximum likelihood at the start: enough to orient the factors, too few to overfit."""

FACTOR_RACE_ITERATIONS = 10
"""Iterations of every start of the race of factor models."""

START_FLOOR = 0.05
"""Smallest noise of a column at the start: coordinate ascent is slow to leave noise near zero."""


PRUNE_BELOW = 1.0
"""Rise of the total bound, in nats, below which unneeded factors are sought."""

PRUNE_STEP = 2
"""Iterations since the last extrapolation at which factors are sought: once per cycle of acceleration."""

PRUNE_ITERATIONS = 5
"""Iterations of a trial without one of the factors."""


def fit_variational_factor(
    source: Source,
    k: int,
    *,
    generator: Generator,
    plan: Plan,
    relevance_shape: float = 1e-3,
    relevance_rate: float = 1e-3,
    start: VariationalFactor | None = None,
) -> Fit[VariationalFactor]:
    """Fit Bayesian factor analysis by coordinate ascent on the evidence lower bound (Le Corff, section 3.2).

    The prior is stated in standard coordinates, relative to the mean and the variance of each column, and maps back
    with the posterior: the fit is equivariant to rescaling of columns. ``plan.tol`` is the rise of the total bound in
    nats, since that is the scale on which posteriors narrow; the trace is the bound per unit weight.
    """
    if plan.engine not in ("em", "online"):
        raise ValueError(f"variational factor analysis needs engine 'em' or 'online', got {plan.engine!r}")
    source, frame, standard = prepare_rows(source, KIND, generator, plan)
    zero = torch.zeros_like(frame.scale)
    prior = RelevancePrior.from_moments(
        zero, zero + 1.0, relevance_shape=relevance_shape, relevance_rate=relevance_rate
    )
    plan = replace(plan, objective=elbo, tol=plan.tol / frame.weight)
    wrap = partial(make_pruning_step, source=standard, tol=plan.tol)
    if plan.resume is not None:
        outcome = plan.run(standard, plan.resume.state.model, generator, wrap)
    elif start is not None:
        first = replace(to_standard(start, frame, KIND), parameter_prior=prior, total=frame.weight)
        outcome = plan.run(standard, first, generator, wrap)
    else:
        outcome = _race_factor_starts(standard, prior, k, generator, plan)
        if not outcome.interrupted:
            # Averages over mini-batches stay in the coordinates of the factors that they were taken in.
            first = replace(outcome.state.best, total=frame.weight, expand=plan.engine == "em")
            outcome = plan.run(standard, first, generator, wrap)
    fit = unstandardise(outcome, source, standard, frame, KIND)
    return replace(fit, model=fit.model.to_canonical_form())


def make_pruning_step(step: Step[VariationalFactor], source: Source, tol: float) -> Step[VariationalFactor]:
    """Coordinate ascent that, near convergence, empties the weakest factor if the bound is higher without it.

    With a weak signal both a used and an empty factor are local maxima of the bound, so from a start with many factors
    the ascent alone ends with too many.
    """
    unaccelerated: Step[VariationalFactor] = em(source, elbo)

    def compute_bound(model: VariationalFactor) -> float:
        return elbo(model, source.reduce(model.expect))

    def iterate(state: EMState[VariationalFactor]) -> Iteration[EMState[VariationalFactor]]:
        done = step(state)
        best = done.state.best
        if done.rejected or not bool(best.is_used.any()):
            return done
        present = compute_bound(best)
        rise = present - done.objective
        ends = rise <= tol
        if not ends and (rise * best.total > PRUNE_BELOW or len(done.state.path) != PRUNE_STEP):
            return done
        weakest = int(torch.where(best.is_used, best.signal_to_noise, torch.inf).argmin())
        trial = EMState(best.without_factor(weakest))
        for _ in range(PRUNE_ITERATIONS):
            trial = unaccelerated(trial).state
        return replace(done, state=trial) if compute_bound(trial.best) > present + tol else done

    return iterate


def _race_factor_starts(
    source: Source, prior: RelevancePrior, k: int, generator: Generator, plan: Plan
) -> Outcome[EMState[VariationalFactor]]:
    """The best start from some maximum-likelihood fits, to moments or to a sample of the rows."""
    # Two fits have as many factors as exceed the noise, or one more, and the others empty: with many rows the
    # ascent is slow to remove factors. One has all k: with few rows it finds what did not exceed the noise.
    # Online fits start from that one, since an empty factor stays empty.
    if isinstance(source, ArraySource):
        rows = filled = source
    else:
        sample = Sample.draw(source, SAMPLE_ROWS, generator)
        rows = ArraySource(sample.rows, sample.weight)
        filled = ArraySource(sample.filled, sample.weight)
    assert rows.weight is not None
    total = float(rows.weight.sum())

    def fit_likelihood(factors: int, finish: bool) -> FactorModel:
        rough = Plan(max_iter=100 if finish else START_ITERATIONS, accelerate=finish, finish=finish)
        return fit_linear(
            filled, factors, FactorModel, kind=KIND, generator=generator, plan=rough, floor=START_FLOOR
        ).model

    models = [fit_likelihood(k, finish=False)]
    if plan.finish:
        models += _fit_outstanding(filled, k, total, partial(fit_likelihood, finish=True))
    vague = VariationalFactor.from_prior(prior, k, total)
    starts = [EMState(vague.solve(filled.reduce(model.expect).statistics)) for model in models]
    if len(starts) == 1:
        return Outcome(starts[0])
    step: Step[VariationalFactor] = accelerated_em(rows, elbo)
    ranking = race(
        step,
        starts,
        iterations=FACTOR_RACE_ITERATIONS,
        tol=plan.tol,
        rounding=partial(rounding_error, source=rows, objective=elbo),
    )
    return next((outcome for outcome in ranking if outcome.interrupted), ranking[0])


def _fit_outstanding(
    rows: ArraySource, k: int, n: float, fit_likelihood: Callable[[int], FactorModel]
) -> list[FactorModel]:
    """The fit with as many factors as exceed its own noise, and one with one more; at most k."""
    # Of Psi^-1/2 S Psi^-1/2 as many eigenvalues as there are factors exceed those of noise, at most (1 + sqrt(d/n))^2;
    # with psi_j = 1 / (S^-1)_jj no more (Guttman 1954), so the search goes up.
    assert rows.weight is not None
    share = rows.weight / rows.weight.sum()
    mean = share @ rows.rows
    covariance = gram(rows.rows - mean, share)
    d, r = len(mean), 0
    factor, failed = torch.linalg.cholesky_ex(covariance)
    unique = 0.5 * covariance.diagonal() if bool(failed) else 1.0 / torch.cholesky_inverse(factor).diagonal()
    model = FactorModel(mean, rows.rows.new_zeros(d, 0), unique)
    while True:
        scale = model.noise.clamp(min=START_FLOOR).rsqrt()
        sizes = torch.linalg.eigvalsh(scale[:, None] * covariance * scale)
        count = int((sizes > (1.0 + (d / n) ** 0.5) ** 2).sum())
        if count >= k:
            return [fit_likelihood(k)]
        if count <= r:
            break
        r, model = count, fit_likelihood(count)
    if r == 0:
        model = replace(model, noise=covariance.diagonal().clamp(min=START_FLOOR))
    models = [model] if r + 1 == k else [model, fit_likelihood(r + 1)]
    return [_pad_factors(model, k) for model in models]


def _pad_factors(model: FactorModel, k: int) -> FactorModel:
    """The model with empty factors added up to k."""
    empty = model.mean.new_zeros(len(model.mean), k - model.loadings.shape[1])
    return replace(model, loadings=torch.cat([model.loadings, empty], dim=1))
