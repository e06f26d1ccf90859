"""What every estimator that learns by gradient shares: bounds of parameters, default networks, a plan, a run."""

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
"""Whole numbers from 1, numbers from 0, numbers above 0."""

WATCHERS = ("verbose", "checkpoint", "device")
"""Parameters that change no fit's path."""


WIDTHS, CHANNELS = (128, 128), (32, 64)
"""Hidden layers of the networks where none are named: for rows, and for images."""


@dataclass(frozen=True)
class NetworkShapes:
    """What default networks must fit.

    Args:
        columns: d.
        codes: k.
        image: (H, W) or (C, H, W) of images, None for plain rows.
        hidden: widths of hidden layers, or channels of convolutions.
    """

    columns: int
    codes: int
    image: Shape | None
    hidden: Sequence[int] | None

    @property
    def channels_first(self) -> tuple[int, int, int] | None:
        """(C, H, W)."""
        if self.image is None:
            return None
        channels = 1 if len(self.image) == 2 else self.image[0]
        return channels, self.image[-2], self.image[-1]

    @property
    def widths(self) -> tuple[int, ...]:
        """Of hidden layers, or channels."""
        if self.hidden is not None:
            return tuple(int(width) for width in self.hidden)
        if self.channels_first is None:
            return WIDTHS
        halves = int(math.log2(min(self.channels_first[1:])))  # small images cannot be halved twice
        return CHANNELS[:halves]

    @property
    def convolution_input(self) -> tuple[int, int, int] | None:
        """The image that convolutions may see; None for rows, or images too small to be halved."""
        return self.channels_first if self.widths else None


def make_part(
    module: nn.Module | None, network: Any, device: torch.device, dtype: torch.dtype, stream: Generator
) -> Part:
    """A user's module, or a default network with a start that is the same on every device."""
    if module is not None:
        return Part(*ModuleNetwork.of(module, dtype, device))
    return Part(network, network.start(stream, dtype)).to(device=device)


def plan_of(estimator: BaseEstimator, steps: int, judged: bool, **more: Any) -> TrainPlan:
    """How an estimator's parameters say that it is trained.

    Args:
        estimator: with ``learning_rate``, ``schedule``, ``clip``, ``weight_decay`` and ``patience``.
        steps: of the whole training.
        judged: whether rows are held out.
        more: what else the plan says.
    """
    cool = Cooling(estimator.learning_rate, steps) if estimator.schedule == "cosine" else None
    rate: Schedule = cool or Constant(estimator.learning_rate)
    patience = estimator.patience if judged else None
    return TrainPlan(rate, clip=estimator.clip, decay=estimator.weight_decay, patience=patience, **more)


@dataclass(frozen=True)
class Run:
    """One training of an estimator, with a progress bar and a checkpoint where they were asked for.

    Args:
        estimator: with ``max_iter``, ``verbose`` and ``checkpoint``.
        trainer: what is trained, on what, and how.
        rows: by which a checkpoint knows its data.
        told: what the progress bar says after a round.
        seed: of the random numbers in training.
        watchers: parameters that do not change the path of the fit.
        also: what else tells this training from others.
        name: of the progress bar.
        number: of several trainings of one fit.
    """

    estimator: BaseEstimator
    trainer: Trainer[Any]
    rows: Source
    told: Callable[[Progress[TrainState]], str]
    seed: int
    watchers: Collection[str] = WATCHERS
    also: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    number: int = 0

    def __call__(self) -> Outcome[TrainState]:
        """Train, from the checkpoint where there is one; of several processes the first alone writes and shows."""
        observers: list[Any] = []
        workers, device = self.trainer.workers, self.trainer.device
        workers.count(0, device)  # none reads a checkpoint while the first still writes that of another fit
        if self.estimator.verbose and workers.leads:
            name = self.name or type(self.estimator).__name__
            observers.append(ProgressBar(show=True).stage(name, describe=self.told))
        resume = None
        if self.estimator.checkpoint is not None:
            path = Path(self.estimator.checkpoint)
            if self.number:
                path = path.with_name(f"{path.name}.{self.number}")
            known = self._known()
            if workers.leads:
                observers.append(CheckpointWriter(path, known, seconds=10.0))
            if path.exists():
                resume = read_checkpoint(path, STATES, known)
        state = self.trainer.start(self.seed)
        rounds = self.trainer.iterations(self.estimator.max_iter)
        if not workers.alone:
            state = self._alike(state, [rounds, 0 if resume is None else 1 + resume.n_iter])
        with workers.interruptible(self.trainer, device) as step:
            return run(step, state, max_iter=rounds, observers=observers, resume=resume)

    def _alike(self, state: TrainState, numbers: list[int]) -> TrainState:
        """The start of several processes, the same on all of them to the last digit.

        Raises:
            ValueError: the processes do not train the same model on the same rows.
        """
        trainer, workers = self.trainer, self.trainer.workers
        rows, weight = next(trainer.batches.epoch(0))
        point = torch.cat([value.reshape(-1) for value in state.parameters])
        plain = [*numbers, trainer.batches.per_epoch, state.seed, *rows.shape, len(point)]
        sums = torch.stack([_told(part) for part in (point, rows, weight)])
        if not workers.have_equal(torch.cat([sums, sums.new_tensor(plain)])):
            raise ValueError(
                "the processes do not train the same model on the same rows: all of them need the same data, whole, "
                "the same parameters and checkpoint, and the same integer as random_state"
            )
        alike = tuple(workers.mean(value) for value in state.parameters)
        return replace(state, parameters=alike, best=alike)

    def _known(self) -> dict[str, Any]:
        given = self.estimator.get_params(deep=False)
        modules = [name for name, value in given.items() if isinstance(value, nn.Module)]
        known = fingerprint(self.estimator, self.rows, self.watchers, modules)
        return {**known, **self.also, "number": self.number}


def _told(values: torch.Tensor) -> torch.Tensor:
    """One number that other values, signs or orders would not give; nothing cancels in it."""
    flat = values.detach().double().flatten()
    return (3.0 * flat.abs() + flat) @ torch.linspace(
        1.0, 2.0, len(flat), dtype=flat.dtype, device=flat.device
    )


def settled(estimator: BaseEstimator, outcome: Outcome[TrainState], judged: bool, rising: str) -> bool:
    """Whether validation rows stopped improving; a warning where training was cut short of that.

    A fit of planned length (a cosine schedule, no patience, no rows held out) tests nothing at its end, and is not said
    to have converged.

    Args:
        estimator: with ``schedule``, ``patience`` and ``max_iter``.
        outcome: of the training.
        judged: whether rows were held out.
        rising: what still became better on them, in words.
    """
    planned = estimator.schedule == "cosine" or estimator.patience is None or not judged
    if not (outcome.converged or outcome.interrupted or planned):
        warn_caller(
            f"training reached max_iter={estimator.max_iter} while {rising} within the last "
            f"patience={estimator.patience} passes; raise max_iter, or set schedule='cosine'",
            ConvergenceWarning,
        )
    return outcome.converged


def fingerprint(
    estimator: BaseEstimator,
    source: Source,
    watchers: Collection[str],
    modules: Collection[str],
) -> dict[str, Any]:
    """What a checkpoint must share with the fit that continues it.

    Args:
        estimator: its parameters, its seed.
        source: its rows and weights.
        watchers: parameters that do not change the path of the fit.
        modules: parameters that are networks or None, told by what they hold.
    """
    if not isinstance(estimator.random_state, int | np.integer):
        raise ValueError(
            "a checkpoint needs an integer random_state: the same random numbers must come again"
        )
    given = estimator.get_params(deep=False)
    return {
        "estimator": type(estimator).__name__,
        **{k: _word(v) for k, v in given.items() if k not in watchers and k not in modules},
        **{name: _held(given[name]) for name in modules},
        "rows": fingerprint_source(source),
    }


def _held(module: Any) -> str:
    """A network as a digest of its layers and what they start from."""
    start = {} if module is None else module.state_dict()
    return fingerprint_values(module, *start.items())


def _word(value: Any) -> str:
    """A parameter as text that does not change from one process to the next."""
    return str(getattr(value, "__qualname__", value))
