"""From a source of rows to the posterior of a mixture: coordinates, prior, starts, engine, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.data import Standardisation, StandardisedSource, shuffle_rows
from boxloop.distributions import MixturePrior
from boxloop.fit.em import EMState, accelerated_em, rounding_error
from boxloop.fit.fit import (
    Coordinates,
    Fit,
    Plan,
    averages,
    coordinates,
    from_standard,
    level_of,
    to_standard,
)
from boxloop.fit.start import AUTO, BLEND, draw_sample, partitions, race, race_rows, track
from boxloop.fit.variational import elbo
from boxloop.loop import Outcome, run
from boxloop.models import VariationalMixture
from boxloop.numeric import gram
from boxloop.tree import Tree
from boxloop.types import Expected, Source

Model = VariationalMixture[Any]
PriorMaker = Callable[[Source, Standardisation], MixturePrior]
"""(rows in standard coordinates, the frame) -> the prior in standard coordinates."""


HEAT = 10
"""Rounds in which a start shows what it is worth."""

GLANCE = 3
"""Rounds after which a trial without a component may be given up."""

GONE = 1e-3
"""Expected rows below which a component is empty."""


def fit_variational(
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

    Args:
        source: rows in the data's coordinates.
        prior: makes the prior, in standard coordinates.
        kind: which coordinates the family may be fitted in.
        generator: for the starts, and the order of the rows where they come in mini-batches.
        plan: how long to iterate; its objective is the evidence bound, whatever it says.
        starts: names from :data:`boxloop.fit.start.PARTITIONS`, raced against each other.
        start: a model to start from instead, in the data's coordinates.

    Returns:
        The model, and the evidence bound per unit weight after each round. After mini-batches the last of these is
        that of all rows; those before are of a batch each, and leave out the divergence from the prior.
    """
    source = source if plan.engine == "em" else shuffle_rows(source, generator)
    frame = coordinates(source, kind)
    standard = StandardisedSource(source, frame, plan.dtype) if kind != "none" else source
    cut = False
    if plan.resume is not None:
        model = plan.resume.state.model
    else:
        given = prior(standard, frame)
        if start is not None:
            model = replace(to_standard(start, frame, kind), given=given, total=frame.weight)
        else:
            model, cut = _raced(standard, given, frame.weight, starts, generator, plan)
    if cut:
        note = ["interrupted before the first iteration"]
        outcome: Outcome[Any] = Outcome(EMState(model), events=note, interrupted=True)
    else:
        outcome = _climbed(standard, model, generator, replace(plan, objective=elbo))
    return _finished(outcome, source, standard, frame, kind)


def _raced(
    source: Source,
    given: MixturePrior,
    total: float,
    starts: Sequence[str],
    generator: Generator,
    plan: Plan,
) -> tuple[Model, bool]:
    """The winner of the starts, and whether Ctrl-C ended the race.

    A sample of rows is weighted to stand for all of them, or the prior would weigh more in the race than in the fit.
    """
    k, d = given.n_components, source.n_columns
    sample = draw_sample(source, race_rows(k, d), generator)
    shares = partitions(starts, sample, k, generator)
    sample = replace(sample, weight=sample.weight * (total / float(sample.weight.sum())))
    models: list[Any] = []
    for share in shares:
        blended = ((1.0 - BLEND) * share + BLEND / k) * sample.weight
        begun: Model = VariationalMixture.started(given, sample.rows, blended, total)
        models.append(begun.ordered()[0])
    if k == 1:
        return models[0], False
    rows = track(source, sample)
    step: Any = accelerated_em(rows, elbo)
    rounding = rounding_error(rows, elbo)
    heat = race(
        step, [EMState(m) for m in models], iterations=HEAT, tol=min(plan.tol, 1e-4), rounding=rounding
    )
    if any(outcome.interrupted for outcome in heat):
        return heat[0].state.best, True
    last = run(step, EMState(heat[0].state.best), max_iter=HEAT, monotone=True, rounding=rounding)
    last = _pruned(rows, last)
    return last.state.best.ordered()[0], last.interrupted


def _pruned(rows: Source, last: Outcome[Any], exact: bool = True) -> Outcome[Any]:
    """Take out components, the smallest first, as long as the bound is higher without.

    Coordinate ascent empties components slowly or not at all: two that share a cluster are a local maximum. A trial
    whose bound is so low after a few rounds that as many more of its last rise would not lift it is given up.

    Args:
        rows: in standard coordinates.
        last: where rounds have led; its trace ends with the bound of its model, but for the last round's rise.
        exact: whether rounding may not lower the bound.

    Returns:
        The last trial that was better, or ``last``; marked where Ctrl-C came.
    """
    step: Any = accelerated_em(rows, elbo)
    trial_run = partial(run, step, monotone=exact, rounding=rounding_error(rows, elbo))
    for j in torch.argsort(last.state.best.counts, stable=True).tolist():
        best, mean = last.state.best, last.state.statistics
        if float(best.counts[j]) < GONE or int((best.counts >= GONE).sum()) < 2:
            continue
        gone = torch.tensor([j], device=mean.features.device)
        start = EMState(best.solve(mean.replaced(gone, torch.zeros_like(mean.features[gone]))))
        trial = trial_run(start, max_iter=GLANCE)
        hope = 2 * HEAT * (trial.trace[-1] - trial.trace[-2]) if len(trial.trace) == GLANCE else 0.0
        if not trial.interrupted and _worth(trial) + hope > _worth(last):
            trial = trial_run(start, max_iter=HEAT, resume=trial)
        if trial.interrupted:
            return replace(last, interrupted=True)
        last = trial if _worth(trial) > _worth(last) else last
    return last


def _worth(outcome: Outcome[Any]) -> float:
    """The bound with components in their best order: one emptied in the middle of the sticks costs until it is last."""
    model = outcome.state.best
    gain: float = model.ordered()[2]
    return outcome.trace[-1] + gain / float(model.total)


def _climbed(standard: Source, model: Model, generator: Generator, plan: Plan) -> Outcome[Any]:
    """The engine's loop; where the bound is higher in another order of components, or with fewer, on from there.

    Starts race on a sample, whose chance clusters are as many times too heavy as it is smaller than the rows: what it
    kept of them goes when all rows have spoken.
    """
    outcome = plan.run(standard, model, generator)
    while plan.engine == "em" and outcome.converged and outcome.n_iter < plan.max_iter:
        better, order, gain = outcome.state.best.ordered()
        state = EMState(better, (_permuted(outcome.state.statistics, order),))
        if gain <= plan.tol * better.total:
            if standard.n_rows <= race_rows(model.n_components, standard.n_columns):
                break
            fewer = _pruned(standard, outcome, plan.dtype == torch.float64)
            if fewer.interrupted or not _worth(fewer) > _worth(outcome) + plan.tol:
                return replace(outcome, interrupted=fewer.interrupted)
            state = EMState(fewer.state.best)
        again = replace(outcome, state=state, converged=False, excused=True)
        outcome = replace(plan, resume=again).run(standard, state.model, generator)
    return outcome


def _finished(
    outcome: Outcome[Any], source: Source, standard: Source, frame: Standardisation, kind: Coordinates
) -> Fit[Model]:
    statistics = averages(outcome, standard)
    model, order, _ = outcome.state.best.ordered()
    if statistics is not None:
        statistics = _permuted(statistics, order)
    if not isinstance(outcome.state, EMState) and not outcome.interrupted:
        expected: Expected[Any] = standard.reduce(model.expect)
        outcome = replace(outcome, trace=[*outcome.trace[:-1], elbo(model, expected)])
    flat = [repr(source.names[j]) for j in torch.nonzero(frame.constant)[:, 0].tolist()]
    constant = (f"constant column(s) {', '.join(flat)}: the prior alone says how they vary",) if flat else ()
    level = level_of(model, source, frame)
    concerns = (*constant, *outcome.events)
    return Fit(from_standard(model, frame, kind), model, frame, outcome, level, concerns, statistics)


def _permuted(statistics: Any, order: Tensor) -> Any:
    """Statistics of the components in another order."""
    return replace(statistics, features=statistics.features[order])


@dataclass(frozen=True)
class _Second(Tree):
    total: Tensor
    seen: Tensor


def standard_covariance(standard: Source) -> Tensor:
    """Covariance of standardised rows about their origin, (d, d); 1 in place of the variance of a constant column.

    A missing value counts as the mean of its column, and variances are then made those of the values seen: positive
    definite as far as the rows are, with correlations drawn to zero where much is missing.
    """

    def second(rows: Tensor, weight: Tensor) -> _Second:
        seen = ~torch.isnan(rows)
        filled = torch.where(seen, rows, 0.0).double()
        return _Second(gram(filled, weight), seen.double().mT @ weight)

    found = standard.reduce(second)
    weight = found.seen.max()
    ratio = (weight / found.seen.clamp(min=1e-300)).sqrt()
    covariance = ratio[:, None] * (found.total / weight) * ratio
    flat = covariance.diagonal() <= 0.0
    return covariance + torch.diag(flat.to(covariance.dtype))
