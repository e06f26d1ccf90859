"""From a source of rows to a fitted model: coordinates, start, engine, and the way back.

A fit surveys the rows once, runs its engine in standard coordinates, maps the model back, and says what should worry
the reader. It knows nothing of files, frames or scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.data import (
    ArraySource,
    Standardisation,
    StandardisedSource,
    fit_standardisation,
    identity_standardisation,
    sample_rows,
    shuffle_rows,
)
from boxloop.distributions import Family
from boxloop.fit.em import EMState, accelerated_em, rounding_error
from boxloop.fit.plan import Plan
from boxloop.fit.restarts import race
from boxloop.fit.spectral import SpectralError
from boxloop.fit.start import AUTO, PARTITIONS, Sample, start_mixture
from boxloop.fit.worries import worries
from boxloop.loop import Outcome
from boxloop.models import Mixture
from boxloop.tree import Tree
from boxloop.types import Source

M = TypeVar("M")

RACE_ROWS = 20_000
"""Most rows on which starts race."""

SAMPLE_VALUES = 1 << 22
"""Values of the sample on which starts race, where that leaves enough rows: it is held dense."""

Coordinates = Literal["columns", "common", "none"]


@dataclass(frozen=True)
class Fit(Generic[M]):
    """A fitted model in the data's coordinates and in its own, with how the fit went.

    ``level`` is what coordinates and base measure add to every objective of the trace; ``statistics`` are the
    averages whose M step is the standard model, for a stream of rows that goes on from here.
    """

    model: M
    standard: M
    frame: Standardisation
    outcome: Outcome[Any]
    level: float
    worries: tuple[str, ...] = field(default=())
    statistics: Any = None

    @property
    def trace(self) -> list[float]:
        """Mean log-likelihood of a row after each iteration, in the data's coordinates."""
        return [value + self.level for value in self.outcome.trace]


SMALLEST = 1e-152
"""Standard deviation below which squares lose digits of float64, or vanish and make a column look constant."""


def coordinates(source: Source, kind: Coordinates) -> Standardisation:
    """Survey the rows: a scale for each column, one for all, or none at all."""
    return usable(
        identity_standardisation(source) if kind == "none" else fit_standardisation(source),
        kind,
        source.names,
    )


def usable(frame: Standardisation, kind: Coordinates, names: tuple[str, ...]) -> Standardisation:
    """A frame of the given kind, if its columns can be fitted."""
    scale = frame.scale.tolist()
    size = torch.where(frame.constant & (frame.origin != 0.0), frame.origin.abs(), frame.scale).tolist()
    for name, seen, spread, least in zip(names, frame.observed.tolist(), scale, size, strict=True):
        if seen <= 0.0:
            raise ValueError(f"column {name!r} has no observed value")
        if not (spread < float("inf") and least * least < float("inf")):
            raise ValueError(f"column {name!r} holds values so large that their squares overflow: rescale it")
        if least < SMALLEST:
            raise ValueError(
                f"column {name!r} holds values so small that their squares underflow: rescale it"
            )
    if kind == "common":
        free = frame.scale[~frame.constant]
        common = free.square().mean().sqrt() if len(free) else frame.scale.new_ones(())
        frame = replace(frame, scale=common.expand_as(frame.scale).contiguous())
    return frame


def to_standard(model: Any, frame: Standardisation, kind: Coordinates) -> Any:
    """A model of the data as a model of standardised rows."""
    return model if kind == "none" else model.affine(-frame.origin / frame.scale, 1.0 / frame.scale)


def from_standard(model: Any, frame: Standardisation, kind: Coordinates) -> Any:
    """A model of standardised rows as a model of the data."""
    return model if kind == "none" else model.affine(frame.origin, frame.scale)


def draw_sample(source: Source, size: int, generator: Generator) -> Sample:
    """About ``size`` rows, each with equal chance, in one pass; all of them when there are no more."""
    kept = sample_rows(source, size, generator)
    return Sample.of(kept.rows, kept.weight)


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
    rivals: Sequence[Mixture[Any]] = (),
) -> Fit[Mixture[Any]]:
    """Fit a mixture by EM from the best of several starts.

    Args:
        source: rows in the data's coordinates.
        template: k members of the family; their values only fix shapes and floors.
        kind: which coordinates the family may be fitted in.
        generator: for the starts, and the order of the rows where they come in mini-batches.
        plan: how long to iterate.
        starts: names from :data:`boxloop.fit.start.PARTITIONS`, raced against each other.
        start: a model to start from instead, in the data's coordinates.
        rivals: models that race against the starts, in standard coordinates.
        adjust: changes the winner of the race before EM goes on from it, in the data's coordinates.
    """
    source = source if plan.engine == "em" else shuffle_rows(source, generator)
    frame = coordinates(source, kind)
    standard = StandardisedSource(source, frame, plan.dtype) if kind != "none" else source
    cut = False
    if plan.resume is not None:
        model = plan.resume.state.model
    elif start is not None:
        model = to_standard(start, frame, kind)
    else:
        model, cut = _raced(standard, template, starts, generator, plan, rivals)
        if adjust is not None:
            model = to_standard(adjust(from_standard(model, frame, kind)), frame, kind)
    if cut:
        outcome: Outcome[Any] = Outcome(
            EMState(model), events=["interrupted before the first iteration"], interrupted=True
        )
    else:
        outcome = plan.run(standard, model, generator)
    return finished(outcome, source, standard, frame, kind)


def finished(
    outcome: Outcome[Any], source: Source, standard: Source, frame: Standardisation, kind: Coordinates
) -> Fit[Any]:
    """How a loop over standardised rows ended, with its best model in the data's coordinates."""
    best = outcome.state.best
    return Fit(
        from_standard(best, frame, kind),
        best,
        frame,
        outcome,
        level_of(best, source, frame),
        worries(best, frame, source.names, outcome),
        averages(outcome, standard),
    )


def averages(outcome: Outcome[Any], source: Source) -> Any:
    """The averaged statistics behind the best model; one more pass where no engine kept them, none after Ctrl-C."""
    state = outcome.state
    if state.statistics is not None or outcome.interrupted:
        return state.statistics
    expected = source.reduce(state.best.expect)
    return state.best.repair(expected.statistics)[0] * (1.0 / expected.weight)


def _raced(
    source: Source,
    template: Family[Any],
    starts: Sequence[str],
    generator: Generator,
    plan: Plan,
    rivals: Sequence[Mixture[Any]],
) -> tuple[Mixture[Any], bool]:
    """The winner of the starts, and whether Ctrl-C ended the race."""
    k, d = template.mean.shape
    sample = draw_sample(source, race_rows(k, d), generator)
    shares = partitions(starts, sample, k, generator)
    models = [*rivals, *(start_mixture(template, k, sample, share) for share in shares)]
    if len(models) == 1:
        return models[0], False
    rows = track(source, sample)
    heat = race(
        accelerated_em(rows),
        [EMState(m) for m in models],
        iterations=10,
        tol=min(plan.tol, 1e-4),
        doubtful=lambda state: bool(state.best.family.floored().any()),
        rounding=rounding_error(rows),
    )
    return heat[0].state.best, any(outcome.interrupted for outcome in heat)


def race_rows(k: int, d: int) -> int:
    """How many rows starts of k components in d columns race on."""
    return min(RACE_ROWS, max(2_000, 200 * k, 10 * k * d), max(2_000, 50 * k, SAMPLE_VALUES // d))


def partitions(starts: Sequence[str], sample: Sample, k: int, generator: Generator) -> list[Tensor]:
    """Shares of k components in each row of a sample, (k, n), by every start that applies; one component needs one."""
    names = starts if k > 1 else starts[:1]
    found = []
    for name in names:
        try:
            found.append(PARTITIONS[name](sample, k, generator))
        except SpectralError:
            if len(set(names)) == 1:
                raise
    return found


def track(source: Source, sample: Sample) -> Source:
    """Where starts race: on a sample, or on all rows where they are few and sparse, as these are quick as they are."""
    rows, _ = next(iter(source.chunks(1)))
    whole = rows.layout != torch.strided and source.n_rows <= RACE_ROWS
    return source if whole else ArraySource(sample.rows, sample.weight)


@dataclass(frozen=True)
class _Base(Tree):
    total: Tensor


def level_of(model: Any, source: Source, frame: Standardisation) -> float:
    """What the objective leaves out, per unit weight: the base measure and the change of coordinates."""

    def base(rows: Tensor, weight: Tensor) -> _Base:
        values = model.log_base(rows)
        return _Base(weight.new_zeros(()) if values is None else values.double() @ weight)

    probe = frame.origin.new_zeros(1, source.n_columns)  # no row is asked for, of a cluster that may be gone
    extra = 0.0 if model.log_base(probe) is None else float(source.reduce(base).total)
    return (extra - frame.log_volume) / frame.weight
