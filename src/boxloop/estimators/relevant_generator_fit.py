"""The fit of a generator: variables of the rows, a linear layer and a network, then a law of codes and noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from sklearn.base import BaseEstimator
from torch import nn

from boxloop.data import Standardisation, fingerprint_values, select_rows
from boxloop.estimators._params import pick_dtype
from boxloop.estimators._training import IGNORED, TrainingRun, check_convergence, make_plan
from boxloop.fit import Epochs, Trainer, TrainState, coordinates, current_workers, hold_out
from boxloop.loop import Progress
from boxloop.models import Layers, ModuleNetwork, Part
from boxloop.numeric import generator, seed, spawn
from boxloop.twoview import (
    Coder,
    GeneratorModel,
    HeldError,
    RelevanceModel,
    SquaredError,
    coded,
    leftover,
    linear_code,
    moments_of,
    most_relevant,
    standardised,
    with_mixture,
)
from boxloop.types import Source

OWN_WATCHERS = (*IGNORED, "features", "prior", "prior_components")
"""Parameters that do not change the path of training, or that are told otherwise."""

HELD_VALUES = 1 << 26
"""Most values of the rows held out: they are in memory."""


@dataclass(frozen=True)
class Generated:
    """A fitted model in the units of the data, and how the fit went."""

    model: GeneratorModel
    history: dict[str, list[float]]
    epochs: int
    error: float
    converged: bool
    interrupted: bool
    events: tuple[str, ...]
    digest: str | None


def fit_generator(estimator: BaseEstimator, relevance: RelevanceModel, source: Source) -> Generated:
    """Train by the parameters of an estimator.

    Args:
        estimator: a ``RelevantGenerator``.
        relevance: canonical variables, on the device of the rows.
        source: rows, checked, on their device.
    """
    if source.n_rows < 3:
        raise ValueError(f"a generator needs at least 3 rows, got n_samples = {source.n_rows}")
    relevance = most_relevant(relevance, estimator.n_relevant)
    variables = len(relevance.canonical.correlation)
    frame = coordinates(source, "columns" if estimator.image_shape_ is None else "common")
    rows = coded(source, relevance, frame, pick_dtype(estimator.dtype))
    splits, orders, own, start, starts = spawn(generator(estimator.random_state), 5)
    most = max(1, HELD_VALUES // (variables + source.n_columns))
    mask, held = hold_out(rows, estimator.validation_fraction, seed(splits), most)
    train = rows if mask is None else select_rows(rows, ~mask)
    moments = moments_of(train)
    code = linear_code(moments, variables, estimator.n_components)
    coder = _start(estimator, code, source.n_columns, start)
    epochs = Epochs(rows, estimator.batch_size, seed(orders), mask)
    loss = SquaredError(variables, frame.weight / source.n_rows, current_workers())
    validate = None if held is None else HeldError(held, variables, current_workers())
    plan = make_plan(estimator, estimator.max_iter * epochs.per_epoch, held is not None)
    trainer = Trainer(coder, epochs, loss, plan, None, validate, current_workers())
    also = {"code": fingerprint_values(coder.code)}
    outcome = TrainingRun(estimator, trainer, rows, teller(trainer), seed(own), OWN_WATCHERS, also)()
    state = outcome.state
    fitted = state.fitted(coder)
    judge = train if held is None else held
    residual = leftover(fitted, judge, variables, estimator.variance, estimator.noise_floor)
    model = standardised(fitted, relevance, moments, frame, residual)
    if estimator.prior == "mixture":
        with torch.no_grad():
            tiles = [(model.encode(tile), weight) for tile, weight in source.chunks()]
        codes, weight = (torch.cat(parts) for parts in zip(*tiles, strict=True))
        model = with_mixture(model, codes, weight, estimator.prior_components, starts)
    return Generated(
        model,
        _in_units(state.history_by_name(), frame),
        state.epoch,
        _error(fitted, judge, variables, frame),
        check_convergence(estimator, outcome, held is not None, "the error of validation rows still fell"),
        outcome.interrupted,
        tuple(outcome.events),
        frame.digest,
    )


def _start(estimator: BaseEstimator, code: torch.Tensor, columns: int, stream: torch.Generator) -> Coder:
    """The linear layer at its linear optimum, the network at random: the same on every device."""
    dtype, k = pick_dtype(estimator.dtype), code.shape[1]
    if isinstance(estimator.decoder, nn.Module):
        part = Part(*ModuleNetwork.of(estimator.decoder, dtype, code.device))
        with torch.no_grad():
            shape = tuple(part(torch.zeros(1, k, dtype=dtype, device=code.device)).shape)
        if shape != (1, columns):
            raise ValueError(f"the decoder must make {columns} columns from {k}; one row becomes {shape}")
    else:
        network = Layers(k, tuple(int(width) for width in estimator.hidden), columns)
        part = Part(network, network.start(stream, dtype)).to(device=code.device)
    return Coder(code.to(dtype), part)


def _error(coder: Coder, source: Source, variables: int, frame: Standardisation) -> float:
    """Mean squared error over columns, in the units of the data."""
    each = leftover(coder, source, variables, "diagonal", 0.0)
    return float((each * frame.scale.to(each).square()).mean())


def _in_units(history: dict[str, list[float]], frame: Standardisation) -> dict[str, list[float]]:
    """Errors of the history in the units of the data, where all columns share one."""
    unit = float(frame.scale[0]) ** 2 if bool((frame.scale == frame.scale[0]).all()) else 1.0
    return {
        name: [unit * value for value in values] if name in ("loss", "validation_loss") else values
        for name, values in history.items()
    }


def teller(trainer: Trainer[Coder]) -> Callable[[Progress[TrainState]], str]:
    """What a progress bar says after a round: the pass, its error, the error on rows held out (standard units)."""

    def told(progress: Progress[TrainState]) -> str:
        state = progress.state
        past = state.history_by_name()
        said = [f"epoch {state.epoch}"]
        if state.names:
            said.append(f"error {float(state.recent[0]):.4g}")
        if past.get("validation_loss"):
            said.append(f"held out {past['validation_loss'][-1]:.4g}")
        return ", ".join(said)

    return told
