"""From a source of rows to a variational law over the parameters of factor analysis."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Generator

from boxloop.data import ArraySource, Standardised, shuffled, summarise_moments
from boxloop.estimate.em import EMState, Step, em
from boxloop.estimate.fit import Coordinates, Fit, coordinates, draw_sample, finished, to_standard, usable
from boxloop.estimate.linear import SAMPLE_ROWS, fit_linear
from boxloop.estimate.plan import Plan
from boxloop.estimate.variational import elbo
from boxloop.models import FactorModel
from boxloop.models.relevance import RelevancePrior
from boxloop.models.variational_factor import VariationalFactor
from boxloop.run import Round
from boxloop.types import Source

KIND: Coordinates = "columns"

START_ROUNDS = 10
"""Rounds of maximum likelihood that give the first laws of the factors: enough to turn them, too few to overfit."""

START_FLOOR = 0.05
"""Least noise of a column at the start: coordinate ascent leaves noise near zero slowly."""


SETTLED = 0.05
"""Rise of the whole bound, in nats, below which a round has settled."""

TRIAL_ROUNDS = 5
"""Rounds that a law without one of its factors gets to settle."""


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
    r"""Fit Bayesian factor analysis by coordinate ascent on the evidence bound (document 002, section 3.2).

    The prior is stated in standard coordinates, relative to the mean and the variance of each column (see
    :meth:`boxloop.models.relevance.RelevancePrior.around`), and maps back with the law: a fit to rescaled rows is the
    rescaled fit, and the bound moves by the Jacobian alone. Complete rows are read once, as second moments.

    Args:
        source: rows in the data's coordinates.
        k: most factors; those that the rows do not ask for are emptied.
        generator: for the sample that starts a fit with missing values, and the order of mini-batches.
        plan: how long to iterate; its objective is replaced by the bound. ``gradient`` is not known here.
        relevance_shape: of the prior of the relevance precisions.
        relevance_rate: of the prior of the relevance precisions.
        start: a law to start from, in the data's coordinates; its own prior is not kept.

    Returns:
        The law in the data's coordinates, most relevant factors first. The trace is the bound per unit weight.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.numeric import generator
        >>> stream = generator(0)
        >>> z = torch.randn(200, 1, generator=stream, dtype=torch.float64)
        >>> rows = z + 0.5 * torch.randn(200, 5, generator=stream, dtype=torch.float64)
        >>> fit = fit_variational_factor(ArraySource(rows), 2, generator=stream, plan=Plan())
        >>> fit.model.used
        tensor([ True, False])
    """
    if plan.engine not in ("em", "online"):
        raise ValueError(f"variational factor analysis is fitted by 'em' or 'online', not by {plan.engine!r}")
    source = source if plan.engine == "em" else shuffled(source, generator)
    summary = summarise_moments(source, plan.dtype) if plan.engine == "em" else None
    if summary is None:
        frame = coordinates(source, KIND)
        standard: Source = Standardised(source, frame, plan.dtype)
    else:
        frame = usable(summary.frame, KIND, source.names)
        standard = summary.rows(frame.origin, frame.scale)
    zero = torch.zeros_like(frame.scale)
    prior = RelevancePrior.around(
        zero, zero + 1.0, relevance_shape=relevance_shape, relevance_rate=relevance_rate
    )
    if plan.resume is not None:
        first: Any = plan.resume.state.model
    elif start is not None:
        first = replace(to_standard(start, frame, KIND), prior_law=prior, total=frame.weight)
    else:
        first = _first_law(standard, prior, k, frame.weight, generator)
    helped = partial(thinned, source=standard, tol=plan.tol)
    outcome = replace(plan, objective=elbo).run(standard, first, generator, helped)
    fit = finished(outcome, source, standard, frame, KIND)
    return replace(fit, model=fit.model.canonical())


def thinned(step: Step[VariationalFactor], source: Source, tol: float) -> Step[VariationalFactor]:
    r"""Coordinate ascent that, where it has settled, empties the weakest factor if the bound is higher without it.

    A factor in use and an empty one are both maxima of the bound while its signal is weak: from a start with many
    factors the ascent alone stops at too many.

    Args:
        step: of coordinate ascent.
        source: rows in standard coordinates.
        tol: rise of the bound per unit weight below which the ascent stops.
    """
    plain: Step[VariationalFactor] = em(source, elbo)

    def height(model: VariationalFactor) -> float:
        return elbo(model, source.reduce(model.expect))

    def round_(state: EMState[VariationalFactor]) -> Round[EMState[VariationalFactor]]:
        done = step(state)
        weakest = _doubtful(done.state.best)
        if weakest is None or done.rejected:
            return done
        best, settled = done.state.best, max(tol, SETTLED / done.state.best.total)
        reached = height(best)
        if reached - done.objective > settled:
            return done
        trial = EMState(best.emptied(weakest))
        for _ in range(TRIAL_ROUNDS):
            trial = plain(trial).state
        return replace(done, state=trial) if height(trial.best) > reached + settled else done

    return round_


def _doubtful(model: VariationalFactor) -> int | None:
    r"""The weakest factor in use, if what it explains may be less than what it costs.

    It explains about :math:`\frac n2 (g - \log(1 + g))` nats, where g = d times its signal, and costs about
    :math:`\frac d2 \log n` and a few for its relevance; twice that leaves room for doubt.
    """
    if not bool(model.used.any()):
        return None
    d, n = len(model.rate), max(model.total, 2.0)
    signal = torch.where(model.used, model.signal, torch.inf)
    weakest = int(signal.argmin())
    gain = d * float(signal[weakest])
    return weakest if 0.5 * n * (gain - math.log1p(gain)) < d * math.log(n) + 20.0 else None


def _first_law(
    source: Source, prior: RelevancePrior, k: int, weight: float, generator: Generator
) -> VariationalFactor:
    """The law given factors as a maximum-likelihood fit to moments, or to a filled sample, sees them."""
    if isinstance(source, ArraySource):
        rows = source
    else:
        sample = draw_sample(source, SAMPLE_ROWS, generator)
        rows = ArraySource(torch.from_numpy(sample.filled).to(sample.rows.device), sample.weight)
    rough = Plan(max_rounds=START_ROUNDS, accelerate=False, finish=False)
    model = fit_linear(
        rows, k, FactorModel, kind=KIND, generator=generator, plan=rough, floor=START_FLOOR
    ).model
    statistics = rows.reduce(model.expect).statistics
    return VariationalFactor.vague(prior, k, weight).solve(statistics)
