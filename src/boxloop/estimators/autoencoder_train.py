"""The fit of an autoencoder from rows to a model: start, training at one weight of the penalty or several, choice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator

from boxloop.average import Schedule
from boxloop.data import Standardisation, StandardisedSource, has_equal_weights, identity_standardisation
from boxloop.estimators._params import pick_device, pick_dtype
from boxloop.estimators.autoencoder_fit import (
    ALPHAS,
    BoundLoss,
    HeldOut,
    chosen,
    level_of,
    moment_gap,
    worries_of,
)
from boxloop.estimators.autoencoder_start import head_of, latent_of, levelled, start_model
from boxloop.estimators.learned import NetworkShapes, Run, plan_of, settled
from boxloop.fit import Constant, Epochs, Trainer, TrainState, Warming, coordinates, current_workers, hold_out
from boxloop.loop import Outcome, Progress
from boxloop.models import Autoencoder
from boxloop.numeric import generator, seed, spawn
from boxloop.types import Source

WATCHERS = ("verbose", "checkpoint", "device", "score_draws", "warm_start")
"""Parameters that do not change the path of a fit."""

HELD_VALUES = 1 << 25
"""Most values of the rows held out: they are in memory."""

RISE = 0.2
"""Share of all passes over which a penalty that begins late rises to its weight."""


@dataclass(frozen=True)
class Trained:
    """A fitted model in the units of the data, and how the fit went."""

    model: Autoencoder
    history: dict[str, list[float]]
    epochs: int
    alpha: float
    alphas: dict[str, list[float]] | None
    converged: bool
    interrupted: bool
    events: tuple[str, ...]
    weight: float
    digest: str | None


@dataclass(frozen=True)
class _Ready:
    """All that training needs, whatever the weight of the penalty."""

    start: Autoencoder
    epochs: Epochs
    loss: BoundLoss
    held: HeldOut | None
    source: Source
    device: torch.device
    seed: int
    weighted: bool


def train(estimator: BaseEstimator, source: Source, before: Autoencoder | None = None) -> Trained:
    """Fit rows by the parameters of an estimator, from an earlier model where one is given.

    Args:
        estimator: a ``VariationalAutoencoder``.
        source: its rows, checked.
        before: the model of an earlier fit, in the units of the data.
    """
    if source.n_rows < 2:
        raise ValueError(f"an autoencoder needs at least 2 rows, got n_samples = {source.n_rows}")
    if estimator.precision == "mixed" and estimator.dtype != "float32":
        raise ValueError("precision='mixed' needs dtype='float32'")
    looked = coordinates(source, "columns" if estimator.image_shape_ is None else "common")
    frame = looked if estimator.likelihood == "gaussian" else identity_standardisation(source)
    if before is not None:
        frame = replace(frame, origin=before.origin.to(frame.origin), scale=before.scale.to(frame.scale))
    ready = _prepared(estimator, source, frame, looked, before)
    worries = worries_of(looked, source.names, estimator.n_components, estimator.likelihood)
    if isinstance(estimator.alpha, str):
        outcome, alpha, table = _best(estimator, ready)
    else:
        outcome, alpha, table = _run(estimator, ready, estimator.alpha, 0), _last(estimator, ready), None
    state = outcome.state
    model = state.fitted(ready.start)
    model = model.affine(frame.origin, frame.scale) if model.head.continuous else _widened(model)
    done = settled(estimator, outcome, ready.held is not None, "the validation bound still rose")
    return Trained(
        replace(model, score_draws=estimator.score_draws),
        state.history_by_name(),
        state.epoch,
        alpha,
        table,
        done,
        outcome.interrupted,
        (*worries, *_untouched(estimator, state, alpha), *outcome.events),
        frame.weight,
        looked.digest,
    )


def _untouched(estimator: BaseEstimator, state: TrainState, alpha: float) -> tuple[str, ...]:
    """Whether the pass that is kept came before the penalty did."""
    values = state.history_by_name().get("validation_loss", [])
    if callable(estimator.alpha) or not alpha or not values:
        return ()
    best = int(np.nanargmin(values)) + 1 if np.isfinite(values).any() else 0
    if best > estimator.alpha_from * estimator.max_iter or not estimator.alpha_from:
        return ()
    share = f"alpha_from={estimator.alpha_from:g} of max_iter={estimator.max_iter}"
    return (
        f"pass {best}, the best on validation rows, came before the moment penalty began ({share}): it has moved "
        "nothing; lower max_iter or alpha_from",
    )


def _widened(model: Autoencoder) -> Autoencoder:
    """A model whose results are in double precision, as those with a frame are."""
    return replace(model, origin=model.origin.double(), scale=model.scale.double())


def _prepared(
    estimator: BaseEstimator,
    source: Source,
    frame: Standardisation,
    looked: Standardisation,
    before: Autoencoder | None,
) -> _Ready:
    device, dtype = pick_device(estimator.device), pick_dtype(estimator.dtype)
    rows = StandardisedSource(source, frame, dtype)
    streams = spawn(generator(estimator.random_state), 5)
    splits, orders, own = (seed(stream) for stream in streams[:3])
    most = max(1, HELD_VALUES // source.n_columns)
    mask, held = hold_out(rows, estimator.validation_fraction, splits, most)
    kind, floor = (estimator.likelihood, estimator.variance, estimator.rank), estimator.noise_floor
    head = head_of(*kind, source, dtype, streams[3], floor)
    latent = latent_of(estimator.prior, estimator.n_components, estimator.prior_components, dtype, streams[3])
    shapes = NetworkShapes(source.n_columns, estimator.n_components, estimator.image_shape_, estimator.hidden)
    start = start_model(shapes, head, latent, estimator.encoder, estimator.decoder, device, dtype, streams[4])
    start = levelled(start, estimator.likelihood, looked) if before is None else _again(start, before)
    unit = frame.weight / source.n_rows
    loss = BoundLoss(estimator.beta, estimator.n_draws, unit, level_of(frame), current_workers())
    epochs = Epochs(rows, estimator.batch_size, orders, mask)
    weighted = not has_equal_weights(source)
    gap = moment_gap(estimator.penalty_nodes, device)
    validation = None if held is None else HeldOut(held, loss, gap, weighted)
    return _Ready(start, epochs, loss, validation, source, device, own, weighted)


def _again(start: Autoencoder, before: Autoencoder) -> Autoencoder:
    """The start with what an earlier fit learned."""
    learned = tuple(value.to(like) for value, like in zip(before.trainable(), start.trainable()))
    if [value.shape for value in learned] != [value.shape for value in start.trainable()]:
        raise ValueError(
            "warm_start needs a previous fit with the same columns, networks, likelihood and prior"
        )
    return start.with_trainable(learned)


def _last(estimator: BaseEstimator, ready: _Ready) -> float:
    """The weight of the penalty at the end of its schedule."""
    alpha = estimator.alpha
    return float(alpha(estimator.max_iter * ready.epochs.per_epoch) if callable(alpha) else alpha)


def _run(estimator: BaseEstimator, ready: _Ready, alpha: Any, number: int) -> Outcome[TrainState]:
    """Train at one weight of the penalty."""
    steps = estimator.max_iter * ready.epochs.per_epoch
    rise, after = int(RISE * steps), int(estimator.alpha_from * steps)
    late = Warming(float(alpha), rise, after) if not callable(alpha) and after else None
    weight: Schedule = alpha if callable(alpha) else late or Constant(float(alpha))
    plan = plan_of(
        estimator,
        steps,
        ready.held is not None,
        weight=weight,
        least=after + rise if late is not None and alpha > 0.0 else 0,
        by_weight=ready.weighted,
        mixed=estimator.precision == "mixed",
    )
    last = weight(steps)
    if not last >= 0.0:
        raise ValueError(f"alpha must not be negative, got {last} at step {steps}")
    penalised = callable(alpha) or last > 0.0
    penalty = moment_gap(estimator.penalty_nodes, ready.device).gap if penalised else None
    validate = None if ready.held is None else replace(ready.held, alpha=last)
    trainer = Trainer(ready.start, ready.epochs, ready.loss, plan, penalty, validate, current_workers())
    several = isinstance(estimator.alpha, str)
    name = f"{type(estimator).__name__} alpha={alpha:g}" if several else ""
    watch = teller(trainer)
    return Run(estimator, trainer, ready.source, watch, ready.seed, WATCHERS, name=name, number=number)()


def teller(trainer: Trainer[Autoencoder]) -> Callable[[Progress[TrainState]], str]:
    """What a progress bar says after a round: the pass, the bound and its parts, the moment gap."""

    def told(progress: Progress[TrainState]) -> str:
        state = progress.state
        now = dict(zip(state.names, state.recent.tolist()))
        said = [f"epoch {state.epoch}"]
        if now:
            said.append(f"elbo {now['elbo']:.4g} = {now['reconstruction']:.4g} - {now['divergence']:.4g}")
        past = state.history_by_name()
        if past.get("validation_elbo"):
            said.append(f"validation {past['validation_elbo'][-1]:.4g}, gap {past['validation_gap'][-1]:.3g}")
        elif "penalty" in now:
            said.append(f"gap {now['penalty']:.3g}")
        return ", ".join(said)

    return told


def _best(
    estimator: BaseEstimator, ready: _Ready
) -> tuple[Outcome[TrainState], float, dict[str, list[float]]]:
    """Train at every weight of the grid from the same start, and choose on rows held out."""
    held = ready.held
    if held is None:
        raise ValueError("alpha='validation' needs rows to validate on: set validation_fraction above 0")
    outcomes: list[Outcome[TrainState]] = []
    for number, alpha in enumerate(ALPHAS):
        outcomes.append(_run(estimator, ready, alpha, number))
        if outcomes[-1].interrupted:
            break
    tried = ALPHAS[: len(outcomes)]
    models = [outcome.state.fitted(ready.start) for outcome in outcomes]
    bounds = [held.each(model, ready.seed) for model in models]
    gaps = [held.gap_of(model, ready.seed) for model in models]
    assert held.rows.weight is not None
    pick, table = chosen(tried, bounds, gaps, held.rows.weight.double().cpu().numpy())
    cut = outcomes[-1].interrupted
    events = [event for outcome in outcomes for event in outcome.events]
    return replace(outcomes[pick], events=events, interrupted=cut), tried[pick], table
