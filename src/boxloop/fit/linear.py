"""From a source of rows to a fitted factor model, or to probabilistic principal components."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, Standardisation, StandardisedSource, shuffle_rows, summarise_moments
from boxloop.fit.em import EMState, Step, em
from boxloop.fit.fit import Coordinates, Fit, Plan, coordinates, to_standard, unstandardise
from boxloop.fit.profile import profile_noise
from boxloop.fit.start import Sample, race
from boxloop.loop import Outcome, run
from boxloop.models import FactorModel, LinearGaussian, PrincipalModel
from boxloop.numeric import gram
from boxloop.types import Source

L = TypeVar("L", bound=LinearGaussian)

SAMPLE_ROWS = 4096
"""Rows that start a fit whose second moments are not known."""

EXPLAINED = 1e-6
"""Less than this part of a column's variance left by the others is rounding."""

RACED_COLUMNS, RACED_ROUNDS = 40, 15
"""Widest table on which two starts race, and for how many rounds: there a round takes less than a millisecond."""

PROFILE_COLUMNS = 512
"""Widest table for which eigenvalues in every step are cheap beside hundreds of EM rounds."""


def fit_linear(
    source: Source,
    k: int,
    model: type[L],
    *,
    kind: Coordinates,
    generator: Generator,
    plan: Plan,
    floor: float,
    start: L | None = None,
    exact: bool = True,
) -> Fit[L]:
    """Fit a factor model or probabilistic principal components.

    Complete rows are summarised by their second moments in one pass, after which the cost of a round does not
    depend on their number. Principal components then have a closed form, taken when ``exact``.

    Args:
        source: rows in the data's coordinates.
        k: number of factors.
        model: :class:`FactorModel` or :class:`PrincipalModel`.
        kind: which coordinates the model may be fitted in.
        generator: for the sample that starts a fit with missing values, and the order of mini-batches.
        plan: how long to iterate.
        floor: smallest noise variance, relative to the scale of the coordinates.
        start: a model to start from, in the data's coordinates.
        exact: use the closed form where there is one.
    """
    source, frame, standard = condensed(source, kind, generator, plan)
    summed = not isinstance(standard, StandardisedSource)
    mean, spread = _sample_moments(standard, generator)
    if plan.resume is not None:
        first: Any = plan.resume.state.model
    elif start is not None:
        first = to_standard(start, frame, kind)
    else:
        first = _linear_start(model, mean, spread, k, floor)
    alone = plan.resume is not None or start is not None
    outcome: Outcome[Any] = Outcome(EMState(first))
    if issubclass(model, PrincipalModel) and exact and summed and start is None:
        outcome = run(em(standard), EMState(first), max_iter=1)
        outcome = replace(outcome, state=EMState(first, outcome.state.path), converged=True)
    else:
        profile = issubclass(model, FactorModel) and summed and len(mean) <= PROFILE_COLUMNS
        helped = partial(profile_noise, mean=mean, covariance=gram(spread)) if profile else None
        narrow = len(mean) <= RACED_COLUMNS and plan.max_iter > RACED_ROUNDS
        if profile and narrow and not alone and plan.accelerate and plan.finish:
            outcome = _raced(profile_noise(em(standard), mean, gram(spread)), first, spread)
            first = outcome.state.best
        if not outcome.interrupted:
            outcome = plan.run(standard, first, generator, helped)
    fit = unstandardise(outcome, source, standard, frame, kind)
    return replace(fit, model=fit.model.canonical())


def condensed(
    source: Source, kind: Coordinates, generator: Generator, plan: Plan
) -> tuple[Source, Standardisation, Source]:
    """The rows in the order of the engine, their frame, and what is fitted: second moments where these are enough.

    Args:
        source: rows in the data's coordinates.
        kind: of coordinates.
        generator: of the order of mini-batches.
        plan: which engine, in which precision.
    """
    if plan.engine != "em":
        source = shuffle_rows(source, generator)
    summary = summarise_moments(source, plan.dtype) if plan.engine == "em" else None
    if summary is None:
        frame = coordinates(source, kind)
        return source, frame, StandardisedSource(source, frame, plan.dtype)
    frame = coordinates(source, kind, summary.frame)
    return source, frame, summary.rows(frame.origin, frame.scale)


def _sample_moments(source: Source, generator: Generator) -> tuple[Tensor, Tensor]:
    """Mean (d,) and rows whose Gram matrix is the covariance: enough for principal directions of any width."""
    if isinstance(source, ArraySource) and source.weight is not None:  # moments, as rows
        filled, weight = source.rows, source.weight
    else:
        sample = Sample.draw(source, SAMPLE_ROWS, generator)
        filled, weight = torch.from_numpy(sample.filled).to(sample.rows.device), sample.weight
    share = weight / weight.sum()
    mean = share @ filled
    return mean, (filled - mean) * share.sqrt()[:, None]


def _linear_start(model: type[L], mean: Tensor, spread: Tensor, k: int, floor: float) -> L:
    """Principal directions of the sample, noise from what they leave; for factors, from what columns share."""
    d = len(mean)
    values, axes = _principal(spread, k)
    rest = (spread.square().sum() - values.sum()).clamp(min=0.0) / max(d - k, 1)
    noise = rest.clamp(min=floor)
    loadings = axes * (values - noise).clamp(min=0.0).sqrt()
    if not issubclass(model, FactorModel):
        return model(mean, loadings, noise[None], floor)
    variance = spread.square().sum(0)
    own = _unshared(spread, k)
    if own is None:
        own = (variance - loadings.square().sum(1)).maximum(0.05 * variance)
    return model(mean, loadings, own.clamp(min=floor), floor)


def _raced(step: Step[FactorModel], first: FactorModel, spread: Tensor) -> Outcome[EMState[FactorModel]]:
    """The better of two starts after some rounds: what columns share, and what principal directions leave."""
    variance, k = spread.square().sum(0), first.loadings.shape[1]
    values, axes = _principal(spread, k)
    left = (variance - (axes.square() * values).sum(1)).maximum(0.05 * variance)
    other = replace(first, noise=left.clamp(min=first.floor))
    heat = race(step, [EMState(first), EMState(other)], iterations=RACED_ROUNDS, tol=1e-9)
    return next((outcome for outcome in heat if outcome.interrupted), heat[0])


def _unshared(spread: Tensor, k: int) -> Tensor | None:
    """Variance of each column that the others do not explain, Joreskog's start, (d,); None where they explain all."""
    n, d = spread.shape
    factor, failed = torch.linalg.cholesky_ex(gram(spread)) if n > d else (spread, True)
    if bool(failed):
        return None
    own = (1.0 - 0.5 * k / d) / torch.cholesky_inverse(factor).diagonal()
    return own if bool((own > EXPLAINED * spread.square().sum(0)).all()) else None


def _principal(spread: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest eigenvalues of ``spread.T @ spread`` and their vectors (d, k), zero beyond the rank."""
    n, d = spread.shape
    if n >= d:
        squares, vectors = torch.linalg.eigh(gram(spread))
        return squares[-k:].flip(0).clamp(min=0.0), vectors[:, -k:].flip(1)
    _, size, right = torch.linalg.svd(spread, full_matrices=False)
    values, axes = size.new_zeros(k), size.new_zeros(d, k)
    values[: min(k, n)] = size[:k].square()
    axes[:, : min(k, n)] = right[:k].mT
    return values, axes
