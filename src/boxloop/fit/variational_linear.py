"""From a source of rows to a variational law over the parameters of factor analysis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Generator

from boxloop.data import ArraySource
from boxloop.fit.em import EMState, Step, accelerated_em, em, rounding_error
from boxloop.fit.fit import Coordinates, Fit, Plan, to_standard, unstandardise
from boxloop.fit.linear import SAMPLE_ROWS, condensed, fit_linear
from boxloop.fit.start import draw_sample, race
from boxloop.fit.variational import elbo
from boxloop.loop import Iteration, Outcome
from boxloop.models import FactorModel, RelevancePrior, VariationalFactor
from boxloop.numeric import gram
from boxloop.types import Source

KIND: Coordinates = "columns"

START_ROUNDS = 10
"""Rounds of maximum likelihood that give the first laws of the factors: enough to turn them, too few to overfit."""

RACED_ROUNDS = 10
"""Rounds after which the better of two starts is known."""

START_FLOOR = 0.05
"""Least noise of a column at the start: coordinate ascent leaves noise near zero slowly."""


SETTLED = 1.0
"""Rise of the whole bound, in nats, below which it is time to look for factors that are not needed."""

TRIED_AT = 2
"""Rounds since the last extrapolation: once in each cycle of acceleration is often enough."""

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
    :meth:`boxloop.models.RelevancePrior.around`), and maps back with the law: a fit to rescaled rows is the rescaled
    fit, and the bound moves by the Jacobian alone. Complete rows are read once, as second moments.

    Args:
        source: rows in the data's coordinates.
        k: most factors; those that the rows do not ask for are emptied.
        generator: for the sample that starts a fit with missing values, and the order of mini-batches.
        plan: how long to iterate: until the bound of all rows, not that of one, rises by less than ``tol`` nats, since
            that is the scale on which laws narrow. Its objective is replaced by the bound; no ``gradient``.
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
        >>> fit = fit_variational_factor(ArraySource(rows), 2, generator=stream, plan=Plan(tol=1e-3))
        >>> fit.model.used
        tensor([ True, False])
    """
    if plan.engine not in ("em", "online"):
        raise ValueError(f"variational factor analysis is fitted by 'em' or 'online', not by {plan.engine!r}")
    source, frame, standard = condensed(source, KIND, generator, plan)
    zero = torch.zeros_like(frame.scale)
    prior = RelevancePrior.around(
        zero, zero + 1.0, relevance_shape=relevance_shape, relevance_rate=relevance_rate
    )
    plan = replace(plan, objective=elbo, tol=plan.tol / frame.weight)
    helped = partial(thinned, source=standard, tol=plan.tol)
    if plan.resume is not None:
        outcome = plan.run(standard, plan.resume.state.model, generator, helped)
    elif start is not None:
        first = replace(to_standard(start, frame, KIND), parameter_prior=prior, total=frame.weight)
        outcome = plan.run(standard, first, generator, helped)
    else:
        outcome = _started(standard, prior, k, generator, plan)
        if not outcome.interrupted:
            # Averages over mini-batches stay in the coordinates of the factors that they were taken in.
            first = replace(outcome.state.best, total=frame.weight, expand=plan.engine == "em")
            outcome = plan.run(standard, first, generator, helped)
    fit = unstandardise(outcome, source, standard, frame, KIND)
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

    def round_(state: EMState[VariationalFactor]) -> Iteration[EMState[VariationalFactor]]:
        done = step(state)
        best = done.state.best
        if done.rejected or not bool(best.used.any()):
            return done
        reached = height(best)
        rise = reached - done.objective
        ends = rise <= tol
        if not ends and (rise * best.total > SETTLED or len(done.state.path) != TRIED_AT):
            return done
        weakest = int(torch.where(best.used, best.signal, torch.inf).argmin())
        trial = EMState(best.emptied(weakest))
        for _ in range(TRIAL_ROUNDS):
            trial = plain(trial).state
        return replace(done, state=trial) if height(trial.best) > reached + tol else done

    return round_


def _started(
    source: Source, prior: RelevancePrior, k: int, generator: Generator, plan: Plan
) -> Outcome[EMState[VariationalFactor]]:
    """The best of some laws of factors as maximum-likelihood fits see them: to moments, or to a sample of the rows.

    Two fits have as many factors as stand out from noise, or one more, and the others empty: with many rows the ascent
    is slow to give up factors. One has all k: with few rows it finds what did not stand out. A stream starts from this
    one, since an empty factor stays empty.
    """
    if isinstance(source, ArraySource):
        rows = filled = source
    else:
        sample = draw_sample(source, SAMPLE_ROWS, generator)
        rows = ArraySource(sample.rows, sample.weight)
        filled = ArraySource(torch.from_numpy(sample.filled).to(sample.rows.device), sample.weight)
    assert rows.weight is not None
    total = float(rows.weight.sum())

    def likely(factors: int, finish: bool) -> FactorModel:
        rough = Plan(max_iter=100 if finish else START_ROUNDS, accelerate=finish, finish=finish)
        return fit_linear(
            filled, factors, FactorModel, kind=KIND, generator=generator, plan=rough, floor=START_FLOOR
        ).model

    models = [likely(k, finish=False)]
    if plan.finish:
        models += _outstanding(filled, k, total, partial(likely, finish=True))
    vague = VariationalFactor.vague(prior, k, total)
    starts = [EMState(vague.solve(filled.reduce(model.expect).statistics)) for model in models]
    if len(starts) == 1:
        return Outcome(starts[0])
    step: Step[VariationalFactor] = accelerated_em(rows, elbo)
    heat = race(step, starts, iterations=RACED_ROUNDS, tol=plan.tol, rounding=rounding_error(rows, elbo))
    return next((outcome for outcome in heat if outcome.interrupted), heat[0])


def _outstanding(
    rows: ArraySource, k: int, n: float, likely: Callable[[int], FactorModel]
) -> list[FactorModel]:
    r"""The fit with as many factors as stand out from its own noise, and one with one more; at most k.

    Of :math:`\Psi^{-1/2} S \Psi^{-1/2}` as many eigenvalues as there are factors exceed those of noise, at most
    :math:`(1 + \sqrt{d/n})^2`; with :math:`\psi_j = 1 / (S^{-1})_{jj}` no more (Guttman 1954), so the search goes up.
    """
    assert rows.weight is not None
    share = rows.weight / rows.weight.sum()
    mean = share @ rows.rows
    covariance = gram(rows.rows - mean, share)
    d, r = len(mean), 0
    factor, failed = torch.linalg.cholesky_ex(covariance)
    own = 0.5 * covariance.diagonal() if bool(failed) else 1.0 / torch.cholesky_inverse(factor).diagonal()
    model = FactorModel(mean, rows.rows.new_zeros(d, 0), own)
    while True:
        scale = model.noise.clamp(min=START_FLOOR).rsqrt()
        sizes = torch.linalg.eigvalsh(scale[:, None] * covariance * scale)
        count = int((sizes > (1.0 + (d / n) ** 0.5) ** 2).sum())
        if count >= k:
            return [likely(k)]
        if count <= r:
            break
        r, model = count, likely(count)
    if r == 0:
        model = replace(model, noise=covariance.diagonal().clamp(min=START_FLOOR))
    found = [model] if r + 1 == k else [model, likely(r + 1)]
    return [_padded(model, k) for model in found]


def _padded(model: FactorModel, k: int) -> FactorModel:
    """The model with empty factors up to k."""
    empty = model.mean.new_zeros(len(model.mean), k - model.loadings.shape[1])
    return replace(model, loadings=torch.cat([model.loadings, empty], dim=1))
