"""From a source of rows to a fitted model: coordinates, start, engine, and the way back.

Both functions here survey the rows once, run their engine in standard coordinates, map the model back, and say what
should worry the reader. They know nothing of files, frames or scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, Frame, Standardised, identity_frame, shuffled, summarise_moments, survey
from boxloop.estimate.em import EMState, accelerated_em, em
from boxloop.estimate.plan import Plan
from boxloop.estimate.restarts import race
from boxloop.estimate.start import AUTO, PARTITIONS, Sample, start_mixture
from boxloop.estimate.worries import worries
from boxloop.laws.family import Family
from boxloop.models import FactorModel, Mixture, PrincipalModel
from boxloop.models.linear import LinearGaussian
from boxloop.run import Outcome, run
from boxloop.tree import Tree
from boxloop.types import Source

M = TypeVar("M")
L = TypeVar("L", bound=LinearGaussian)
Coordinates = Literal["columns", "common", "none"]

MOMENT_COLUMNS = 4096
"""Widest table whose second moments are worth a d x d matrix."""


@dataclass(frozen=True)
class Fit(Generic[M]):
    """A fitted model in the data's coordinates and in its own, with how the fit went.

    ``level`` is what coordinates and base measure add to every objective of the trace; ``statistics`` are the
    averages whose M step is the standard model, for a stream of rows that goes on from here.
    """

    model: M
    standard: M
    frame: Frame
    outcome: Outcome[Any]
    level: float
    worries: tuple[str, ...] = field(default=())
    statistics: Any = None

    @property
    def trace(self) -> list[float]:
        """Mean log-likelihood of a row after each round, in the data's coordinates."""
        return [value + self.level for value in self.outcome.trace]


def coordinates(source: Source, kind: Coordinates) -> Frame:
    """Survey the rows: a scale for each column, one for all, or none at all."""
    frame = identity_frame(source) if kind == "none" else survey(source)
    scale = frame.scale.tolist()
    for name, seen, spread in zip(source.names, frame.observed.tolist(), scale, strict=True):
        if seen <= 0.0:
            raise ValueError(f"column {name!r} has no observed value")
        if not spread < float("inf"):
            raise ValueError(f"column {name!r} holds values so large that their squares overflow: rescale it")
    if kind == "common":
        free = frame.scale[~frame.constant]
        common = free.square().mean().sqrt() if len(free) else frame.scale.new_ones(())
        frame = replace(frame, scale=common.expand_as(frame.scale).contiguous())
    return frame


def to_standard(model: Any, frame: Frame, kind: Coordinates) -> Any:
    """A model of the data as a model of standardised rows."""
    return model if kind == "none" else model.affine(-frame.origin / frame.scale, 1.0 / frame.scale)


def from_standard(model: Any, frame: Frame, kind: Coordinates) -> Any:
    """A model of standardised rows as a model of the data."""
    return model if kind == "none" else model.affine(frame.origin, frame.scale)


def draw_sample(source: Source, size: int, generator: Generator) -> Sample:
    """About ``size`` rows, each with equal chance, in one pass; all of them when there are no more."""
    chance = size / source.n_rows
    rows, weights = [], []
    for tile, weight in source.chunks():
        dense = tile.to_dense() if tile.layout != torch.strided else tile
        if chance < 1.0:
            keep = torch.rand(len(weight), generator=generator, device=generator.device) < chance
            dense, weight = dense[keep.to(dense.device)], weight[keep.to(weight.device)]
        rows.append(dense.double())
        weights.append(weight)
    return Sample.of(torch.cat(rows), torch.cat(weights))


def fit_mixture(
    source: Source,
    template: Family[Any],
    *,
    kind: Coordinates,
    generator: Generator,
    plan: Plan,
    starts: Sequence[str] = AUTO,
    start: Mixture[Any] | None = None,
    adjust: Callable[[Mixture[Any]], Mixture[Any]] | None = None,
) -> Fit[Mixture[Any]]:
    """Fit a mixture by EM from the best of several starts.

    Args:
        source: rows in the data's coordinates.
        template: k members of the family; their values only fix shapes and floors.
        kind: which coordinates the family may be fitted in.
        generator: for the starts, and the order of the rows where they come in mini-batches.
        plan: how long to iterate.
        starts: names from :data:`boxloop.estimate.start.PARTITIONS`, raced against each other.
        start: a model to start from instead, in the data's coordinates.
        adjust: changes the winner of the race before EM goes on from it, in the data's coordinates.
    """
    source = source if plan.engine == "em" else shuffled(source, generator)
    frame = coordinates(source, kind)
    standard = Standardised(source, frame, plan.dtype) if kind != "none" else source
    cut = False
    if plan.resume is not None:
        model = plan.resume.state.model
    elif start is not None:
        model = to_standard(start, frame, kind)
    else:
        model, cut = _raced(standard, template, starts, generator, plan)
        if adjust is not None:
            model = to_standard(adjust(from_standard(model, frame, kind)), frame, kind)
    if cut:
        outcome: Outcome[Any] = Outcome(
            EMState(model), events=["interrupted before the first round"], interrupted=True
        )
    else:
        outcome = plan.run(standard, model, generator)
    best = outcome.state.best
    return Fit(
        from_standard(best, frame, kind),
        best,
        frame,
        outcome,
        level_of(best, source, frame),
        worries(best, frame, source.names, outcome),
        _averages(outcome, standard),
    )


def _averages(outcome: Outcome[Any], source: Source) -> Any:
    """The averaged statistics behind the best model; one more pass where no engine kept them, none after Ctrl-C."""
    state = outcome.state
    if state.statistics is not None or outcome.interrupted:
        return state.statistics
    expected = source.reduce(state.best.expect)
    return state.best.repair(expected.statistics)[0] * (1.0 / float(expected.weight))


def _raced(
    source: Source, template: Family[Any], starts: Sequence[str], generator: Generator, plan: Plan
) -> tuple[Mixture[Any], bool]:
    """The winner of the starts, and whether Ctrl-C ended the race."""
    k, d = template.mean.shape
    size = min(20_000, max(2_000, 200 * k, 10 * k * d))
    sample = draw_sample(source, size, generator)
    names = starts if k > 1 else starts[:1]
    models = [start_mixture(template, k, sample, PARTITIONS[name](sample, k, generator)) for name in names]
    if len(models) == 1:
        return models[0], False
    rows = ArraySource(sample.rows, sample.weight)
    heat = race(
        accelerated_em(rows),
        [EMState(m) for m in models],
        rounds=10,
        tol=min(plan.tol, 1e-4),
        doubtful=lambda state: bool(state.best.family.floored().any()),
    )
    return heat[0].state.best, any(outcome.interrupted for outcome in heat)


def summarisable(source: Source, frame: Frame) -> bool:
    """Whether second moments say all that a linear-Gaussian model needs, and are not too wide to hold."""
    return not frame.missing and source.n_columns <= MOMENT_COLUMNS


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
    source = source if plan.engine == "em" else shuffled(source, generator)
    frame = coordinates(source, kind)
    standard: Source = Standardised(source, frame, plan.dtype)
    summarised = plan.engine == "em" and summarisable(source, frame)
    if summarised:
        standard = summarise_moments(standard)
    mean, spread = _sample_moments(standard, standard.n_rows if summarised else 4096, generator)
    if plan.resume is not None:
        first: Any = plan.resume.state.model
    elif start is not None:
        first = to_standard(start, frame, kind)
    else:
        first = _linear_start(model, mean, spread, k, floor)
    if issubclass(model, PrincipalModel) and exact and summarised and start is None:
        outcome = run(em(standard), EMState(first), max_rounds=1)
        outcome = replace(outcome, state=EMState(first, outcome.state.path), converged=True)
    else:
        outcome = plan.run(standard, first, generator)
    best = outcome.state.best
    return Fit(
        from_standard(best.canonical(), frame, kind),
        best,
        frame,
        outcome,
        level_of(best, source, frame),
        worries(best, frame, source.names, outcome),
        _averages(outcome, standard),
    )


def _sample_moments(source: Source, size: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Mean (d,) and rows whose Gram matrix is the covariance: enough for principal directions of any width."""
    sample = draw_sample(source, size, generator)
    filled = torch.from_numpy(sample.filled).to(sample.rows.device)
    weight = sample.weight / sample.weight.sum()
    mean = weight @ filled
    return mean, (filled - mean) * weight.sqrt()[:, None]


def _linear_start(model: type[L], mean: Tensor, spread: Tensor, k: int, floor: float) -> L:
    """Principal directions of the sample, noise from what they leave."""
    d = len(mean)
    _, size, right = torch.linalg.svd(spread, full_matrices=False)
    values = torch.zeros(max(k, len(size)), dtype=mean.dtype, device=mean.device)
    values[: len(size)] = size.square()
    axes = torch.zeros(k, d, dtype=mean.dtype, device=mean.device)
    axes[: min(k, len(right))] = right[:k]
    rest = (spread.square().sum() - values[:k].sum()).clamp(min=0.0) / max(d - k, 1)
    noise = rest.clamp(min=floor)
    loadings = axes.mT * (values[:k] - noise).clamp(min=0.0).sqrt()
    if issubclass(model, FactorModel):
        variance = spread.square().sum(0)
        noise = (variance - loadings.square().sum(1)).clamp(min=floor).maximum(0.05 * variance)
        return model(mean, loadings, noise, floor)
    return model(mean, loadings, noise[None], floor)


def level_of(model: Any, source: Source, frame: Frame) -> float:
    """What the objective leaves out, per unit weight: the base measure and the change of coordinates."""

    @dataclass(frozen=True)
    class Base(Tree):
        total: Tensor

    def base(rows: Tensor, weight: Tensor) -> Base:
        values = model.log_base(rows)
        return Base(weight.new_zeros(()) if values is None else values.double() @ weight)

    probe = next(iter(source.chunks(1)))
    extra = 0.0 if model.log_base(probe[0]) is None else float(source.reduce(base).total)
    return (extra - frame.log_volume) / frame.weight
