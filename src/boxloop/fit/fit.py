"""From a source of rows to a fitted model: coordinates, start, engine, and the way back.

A fit surveys the rows once, runs its engine in standard coordinates, maps the model back, and lists what deserves a
look. It knows nothing of files, frames or scikit-learn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.average import Power
from boxloop.data import Standardisation, fit_standardisation, identity_standardisation
from boxloop.fit.em import EMState, Objective, accelerated_em, em, mean_log_likelihood, rounding_error
from boxloop.fit.gradient import AscentState, gradient_ascent
from boxloop.fit.online import Batches, OnlinePlan, OnlineState, online_em
from boxloop.loop import Observer, Outcome, run
from boxloop.models import LinearGaussian, Mixture, PrincipalModel
from boxloop.numeric import join_words
from boxloop.tree import Tree
from boxloop.types import Source

M = TypeVar("M")

Engine = Literal["em", "online", "gradient", "spectral"]
"""The last has no iterations: a model that knows it is fitted without a plan's loop."""

Coordinates = Literal["columns", "common", "none"]
"""One scale for each column, one for all columns, or the data's own coordinates."""


@dataclass(frozen=True)
class Plan:
    """How a fit iterates.

    Args:
        engine: ``em`` passes over all rows each iteration; ``online`` and ``gradient`` take one mini-batch.
        max_iter: most EM iterations, or passes over the rows.
        tol: EM stops when the mean log-likelihood rises by less.
        accelerate: extrapolate (guarded SQUAREM); ``False`` is plain EM.
        finish: go to the very maximum where there is a quick way (factor analysis with vanishing noise). Not for the
            start of a stream: noise at its floor on few rows is hard to leave again.
        batch_size: rows of a mini-batch.
        observers: notified of every iteration.
        resume: where an interrupted fit stood.
        dtype: precision of the passes over rows; parameters and sums stay in float64.
        objective: what EM's iterations climb.

    Example:
        >>> Plan(engine="online", max_iter=2).batch_size
        100
    """

    engine: Engine = "em"
    max_iter: int = 200
    tol: float = 1e-6
    accelerate: bool = True
    finish: bool = True
    batch_size: int = 100
    observers: Sequence[Observer[Any]] = ()
    resume: Outcome[Any] | None = None
    dtype: torch.dtype = torch.float64
    objective: Objective = mean_log_likelihood

    def run(
        self,
        source: Source,
        start: Any,
        generator: Generator,
        helped: Callable[[Any], Any] | None = None,
        *,
        interrupted: bool = False,
    ) -> Outcome[Any]:
        """Iterate from a model in the source's coordinates; the outcome's state has the result as ``best``.

        ``helped`` may improve the accelerated step. After an interrupted race for the start nothing is iterated.
        """
        if interrupted:
            events = ["interrupted before the first iteration"]
            return Outcome(EMState(start), events=events, interrupted=True)
        if self.engine == "em":
            engine = accelerated_em if self.accelerate else em
            step: Any = engine(source, self.objective)
            if self.accelerate and self.finish and helped is not None:
                step = helped(step)
            return run(
                step,
                EMState(start),
                max_iter=self.max_iter,
                tol=self.tol,
                monotone=self.dtype == torch.float64,
                rounding=partial(rounding_error, source=source, objective=self.objective),
                observers=self.observers,
                resume=self.resume,
            )
        batches = Batches(source, self.batch_size)
        iterations = self.max_iter * batches.per_epoch
        state: Any
        if self.engine == "online":
            # Half-power steps forget the start; averaging the last nine tenths of the path removes their noise.
            moves = OnlinePlan(Power(0.5), smooth_after=iterations // 10, smoothing=Power(1.0))
            step, state = online_em(batches, moves), OnlineState(start)
        else:
            step, state = (
                gradient_ascent(batches, Power(0.5, offset=100.0, scale=0.5)),
                AscentState.start(start),
            )
        return run(step, state, max_iter=iterations, observers=self.observers, resume=self.resume)


@dataclass(frozen=True)
class Fit(Generic[M]):
    """A fitted model in the data's coordinates and in its own, with how the fit went.

    ``trace`` is the mean log-likelihood after each iteration, in the data's coordinates; ``statistics`` are
    the averages whose M step is the standard model, for a stream of rows that goes on from here.
    """

    model: M
    standard: M
    frame: Standardisation
    outcome: Outcome[Any]
    trace: list[float]
    concerns: tuple[str, ...] = field(default=())
    statistics: Any = None


SMALLEST = 1e-152
"""Standard deviation below which squares lose digits of float64, or vanish and make a column look constant."""


def coordinates(source: Source, kind: Coordinates, frame: Standardisation | None = None) -> Standardisation:
    """A scale for each column, one for all, or none at all; refuses columns without a value, or with squares beyond
    float64.

    Args:
        source: rows; read once.
        kind: of coordinates.
        frame: what a pass over the rows has found already.
    """
    if frame is None:
        frame = identity_standardisation(source) if kind == "none" else fit_standardisation(source)
    scale = frame.scale.tolist()
    size = torch.where(frame.constant & (frame.origin != 0.0), frame.origin.abs(), frame.scale).tolist()
    for name, seen, spread, least in zip(source.names, frame.observed.tolist(), scale, size, strict=True):
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


def unstandardise(
    outcome: Outcome[Any], source: Source, standard: Source, frame: Standardisation, kind: Coordinates
) -> Fit[Any]:
    """The best model of a loop over standardised rows, in the data's coordinates."""
    best = outcome.state.best
    level = level_of(best, source, frame)
    return Fit(
        from_standard(best, frame, kind),
        best,
        frame,
        outcome,
        [value + level for value in outcome.trace],
        list_concerns(best, frame, source.names, outcome),
        averages(outcome, standard),
    )


def averages(outcome: Outcome[Any], source: Source) -> Any:
    """The averaged statistics behind the best model; one more pass where no engine kept them, none after Ctrl-C."""
    state = outcome.state
    if state.statistics is not None or outcome.interrupted:
        return state.statistics
    expected = source.reduce(state.best.expect)
    return state.best.repair_statistics(expected.statistics)[0] * (1.0 / expected.weight)


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


MOST_COLUMNS = 4096
"""Widest covariance whose eigenvalues are worth computing for a message."""
MOST_NAMED = 10
SAME = 1e-8
"""Relative distance within which two components are one."""

AT_FLOOR = "is held at the floor"
"""How a concern says that a variance would have vanished."""


def list_concerns(
    model: Mixture[Any] | LinearGaussian,
    frame: Standardisation,
    names: tuple[str, ...],
    outcome: Outcome[Any],
) -> tuple[str, ...]:
    """One sentence for each thing that deserves a look.

    Args:
        model: fitted, in the frame's coordinates.
        frame: what the survey of the rows found.
        names: of the columns.
        outcome: how the loop ended.
    """
    found = []
    constant = torch.nonzero(frame.constant)[:, 0].tolist()
    if constant:
        which = join_words([repr(names[j]) for j in constant], most=MOST_NAMED)
        found.append(f"constant column(s) {which}: their variance is not known")
    floored = model.family.is_floored() if isinstance(model, Mixture) else model.is_floored()
    low = torch.nonzero(floored)[:, 0].tolist()
    if low:
        found.append(
            f"{_name_variances(model, low, names)} {AT_FLOOR} ({_condition(model)}); the data do not determine it "
            f"(too few rows, {'' if isinstance(model, Mixture) else 'too many factors, '}"
            "duplicate rows or collinear columns)"
        )
    for one, other in _equal_components(model) if isinstance(model, Mixture) else ():
        found.append(f"components {one} and {other} are the same: the data do not distinguish them")
    return (*found, *outcome.events)


def _name_variances(model: Mixture[Any] | LinearGaussian, low: list[int], names: tuple[str, ...]) -> str:
    """The variances at the floor, in words."""
    if isinstance(model, Mixture):
        return f"the variance of component(s) {join_words(list(map(str, low)), most=MOST_NAMED)}"
    if isinstance(model, PrincipalModel):
        return "the noise variance"
    return f"the noise variance of column(s) {join_words([repr(names[j]) for j in low], most=MOST_NAMED)}"


def _equal_components(model: Mixture[Any]) -> list[tuple[int, int]]:
    """Neighbouring pairs of equal components; likely with random starts, certain with one kind of row."""
    mean = model.family.mean
    gap = torch.cdist(mean, mean, compute_mode="donot_use_mm_for_euclid_dist")
    near = torch.triu(gap <= SAME * (1.0 + mean.norm(dim=1)), diagonal=1)
    pairs = [(int(row.nonzero()[-1]), j) for j, row in enumerate(near.mT) if bool(row.any())]

    def equal(*pair: int) -> bool:
        members: list[Any] = [model.family.select(torch.tensor([k])) for k in pair]
        leaves = zip(members[0].leaves(), members[1].leaves(), strict=True)
        return all(bool(((a - b).abs() <= SAME * (1.0 + a.abs())).all()) for (_, a), (_, b) in leaves)

    return [pair for pair in pairs if equal(*pair)]


def _condition(model: Mixture[Any] | LinearGaussian) -> str:
    """Largest over smallest eigenvalue of the worst covariance, in standard units."""
    covariance = model.family.covariance() if isinstance(model, Mixture) else model.moments()[1]
    if covariance.diagonal().shape[1] > MOST_COLUMNS:
        return "condition number not computed"
    values = torch.linalg.eigvalsh(covariance.dense())
    return f"condition number {float((values[:, -1] / values[:, 0]).max()):.3g}"
