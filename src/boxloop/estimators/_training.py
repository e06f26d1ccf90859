"""Training by stochastic gradients, as estimators share it: default networks, plan, run, checkpoint, convergence."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils._param_validation import Interval
from torch import Generator, nn

from boxloop.average import Schedule
from boxloop.caller import warn_caller
from boxloop.data import fingerprint_source, fingerprint_values
from boxloop.estimators._input import Shape
from boxloop.fit import STATES, Constant, Cooling, Trainer, TrainPlan, TrainState
from boxloop.loop import Outcome, Progress, run
from boxloop.models import ModuleNetwork, Part
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.types import Source

COUNT, RATE, POSITIVE = (
    Interval(Integral, 1, None, closed="left"),
    Interval(Real, 0.0, None, closed="left"),
    Interval(Real, 0.0, None, closed="neither"),
)
"""Integers from 1, numbers from 0, numbers above 0."""

IGNORED = ("verbose", "checkpoint", "device")
"""Parameters that do not change the path of a fit."""


def make_plan(estimator: BaseEstimator, steps: int, has_validation: bool, **options: Any) -> TrainPlan:
    """The training plan of an estimator's parameters; ``options`` are other fields of the plan."""
    cosine = Cooling(estimator.learning_rate, steps) if estimator.schedule == "cosine" else None
    rate: Schedule = cosine or Constant(estimator.learning_rate)
    patience = estimator.patience if has_validation else None
    return TrainPlan(rate, clip=estimator.clip, decay=estimator.weight_decay, patience=patience, **options)


@dataclass(frozen=True)
class TrainingRun:
    """One training of an estimator, with the progress bar and the checkpoint of its parameters.

    ``rows`` and ``identity`` distinguish its checkpoint from others, ``number`` the trainings of one fit.
    """

    estimator: BaseEstimator
    trainer: Trainer[Any]
    rows: Source
    describe: Callable[[Progress[TrainState]], str]
    seed: int
    ignored: Collection[str] = IGNORED
    identity: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    number: int = 0

    def __call__(self) -> Outcome[TrainState]:
        """Train, from the checkpoint if it exists; of several processes the first alone writes and shows progress."""
        observers: list[Any] = []
        workers, device = self.trainer.workers, self.trainer.device
        workers.count(
            0, device
        )  # No process reads a checkpoint while the first still writes that of another fit.
        if self.estimator.verbose and workers.leads:
            name = self.name or type(self.estimator).__name__
            observers.append(ProgressBar(show=True).stage(name, describe=self.describe))
        resume = None
        if self.estimator.checkpoint is not None:
            path = Path(self.estimator.checkpoint)
            if self.number:
                path = path.with_name(f"{path.name}.{self.number}")
            known = self._fingerprint_training()
            if workers.leads:
                observers.append(CheckpointWriter(path, known, seconds=10.0))
            if path.exists():
                resume = read_checkpoint(path, STATES, known)
        state = self.trainer.start(self.seed)
        iterations = self.trainer.iterations(self.estimator.max_iter)
        if not workers.alone:
            state = self._synchronise_processes(
                state, [iterations, 0 if resume is None else 1 + resume.n_iter]
            )
        with workers.interruptible(self.trainer, device) as step:
            return run(step, state, max_iter=iterations, observers=observers, resume=resume)

    def _synchronise_processes(self, state: TrainState, numbers: list[int]) -> TrainState:
        """The start of several processes, the same on all of them to the last digit; refuses different rows."""
        trainer, workers = self.trainer, self.trainer.workers
        rows, weight = next(trainer.batches.epoch(0))
        point = torch.cat([value.reshape(-1) for value in state.parameters])
        sizes = [*numbers, trainer.batches.per_epoch, state.seed, *rows.shape, len(point)]
        sums = torch.stack([_checksum(part) for part in (point, rows, weight)])
        if not workers.have_equal(torch.cat([sums, sums.new_tensor(sizes)])):
            raise ValueError(
                "the processes do not train the same model on the same rows: all of them need the same complete "
                "data, the same parameters and checkpoint, and the same integer as random_state"
            )
        means = tuple(workers.mean(value) for value in state.parameters)
        return replace(state, parameters=means, best=means)

    def _fingerprint_training(self) -> dict[str, Any]:
        parameters = self.estimator.get_params(deep=False)
        modules = [name for name, value in parameters.items() if isinstance(value, nn.Module)]
        known = fingerprint_fit(self.estimator, self.rows, self.ignored, modules)
        return {**known, **self.identity, "number": self.number}


def _checksum(values: torch.Tensor) -> torch.Tensor:
    """A number that depends on values, signs and order, in which nothing cancels."""
    flat = values.detach().double().flatten()
    return (3.0 * flat.abs() + flat) @ torch.linspace(
        1.0, 2.0, len(flat), dtype=flat.dtype, device=flat.device
    )


def check_convergence(
    estimator: BaseEstimator, outcome: Outcome[TrainState], has_validation: bool, improving: str
) -> bool:
    """Whether the validation loss stopped improving; warns if training ended before that.

    A fit of planned length (a cosine schedule, no patience, no rows held out) tests nothing at its end, and is not
    reported as converged.
    """
    planned = estimator.schedule == "cosine" or estimator.patience is None or not has_validation
    if not (outcome.converged or outcome.interrupted or planned):
        warn_caller(
            f"training reached max_iter={estimator.max_iter} while {improving} within the last "
            f"patience={estimator.patience} epochs; raise max_iter, or set schedule='cosine'",
            ConvergenceWarning,
        )
    return outcome.converged


def fingerprint_fit(
    estimator: BaseEstimator,
    source: Source,
    ignored: Collection[str],
    modules: Collection[str],
) -> dict[str, Any]:
    """What a checkpoint must share with the fit that continues it; ``modules`` are identified by their tensors."""
    if not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "a checkpoint needs an integer random_state: the same random numbers must come again"
        )
    parameters = estimator.get_params(deep=False)
    return {
        "estimator": type(estimator).__name__,
        **{k: _describe_parameter(v) for k, v in parameters.items() if k not in ignored and k not in modules},
        **{name: _fingerprint_module(parameters[name]) for name in modules},
        "rows": fingerprint_source(source),
    }


def _fingerprint_module(module: Any) -> str:
    """A digest of a network's layers and tensors."""
    start = {} if module is None else module.state_dict()
    return fingerprint_values(module, *start.items())


def _describe_parameter(value: Any) -> str:
    """A parameter as text that is the same in every process."""
    return str(getattr(value, "__qualname__", value))


WIDTHS, CHANNELS = (128, 128), (32, 64)
"""Hidden layers of default networks, of rows and of images."""


@dataclass(frozen=True)
class NetworkShapes:
    """The shapes of rows, codes and images that default networks must fit."""

    columns: int
    codes: int
    convolution_input: (
        tuple[int, int, int] | None
    )  # (C, H, W); None for rows, or images too small to be halved
    widths: tuple[int, ...]  # of hidden layers, or channels

    @classmethod
    def from_parameters(
        cls, columns: int, codes: int, image: Shape | None, hidden: Sequence[int] | None
    ) -> NetworkShapes:
        """With default widths where ``hidden`` is None."""
        widths = WIDTHS if hidden is None else tuple(int(width) for width in hidden)
        if image is None:
            return cls(columns, codes, None, widths)
        channels_first = (1 if len(image) == 2 else image[0], image[-2], image[-1])
        if hidden is None:
            widths = CHANNELS[: int(math.log2(min(image[-2:])))]  # Small images cannot be halved twice.
        return cls(columns, codes, channels_first if widths else None, widths)


def make_part(
    module: nn.Module | None, network: Any, device: torch.device, dtype: torch.dtype, stream: Generator
) -> Part:
    """A user's module, or a default network whose start is the same on every device."""
    if module is not None:
        return Part(*ModuleNetwork.from_module(module, dtype, device))
    return Part(network, tuple(value.to(device) for value in network.draw_parameters(stream, dtype)))
