"""How a model is trained, and everything that the next round of its training depends on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.average import Schedule
from boxloop.fit.adam import Constant, joined, parted
from boxloop.loop import Outcome
from boxloop.tree import Tree

Batch = tuple[Tensor, Tensor]


class Trainable(Protocol):
    """A model whose learned tensors can be replaced."""

    def trainable(self) -> tuple[Tensor, ...]:
        """All tensors that are learned, in a fixed order."""

    def with_trainable(self, learned: tuple[Tensor, ...]) -> Self:
        """The model at other values of them; differentiable."""


class Batched(Protocol):
    """Mini-batches, as :class:`boxloop.fit.epochs.Epochs` gives them."""

    per_epoch: int

    def __call__(self, t: int) -> Batch:
        """Rows and weights of update t = 0, 1, ..."""


M = TypeVar("M", bound=Trainable)
Parts = dict[str, Tensor]
Loss = Callable[[M, Tensor, Tensor, Generator], tuple[Tensor, Parts]]
"""(model, rows, weight, generator) -> what is to be lowered, and named numbers to report, the same at every call."""

Penalty = Callable[[M, Tensor, Generator], Tensor]
"""(model, rows, generator) -> a number that enters the loss by a weight of its own."""

Validation = Callable[[M, Generator], tuple[Tensor, Parts]]
"""(model, generator) -> what is to be low on rows held out, and named numbers; the same random numbers every time."""


@dataclass(frozen=True)
class TrainPlan:
    """How a model is trained.

    Args:
        rate: learning rate of update t = 1, 2, ...
        weight: of the penalty at update t.
        clip: largest norm of a gradient.
        decay: weight decay, apart from the gradient.
        block: mini-batches of a round, at most; an epoch's last round may be shorter.
        patience: epochs in a row without a better validation before training ends; None never ends it.
        least: updates before which epochs without a better validation do not count.
        by_weight: give the penalty, which takes no weights, the rows of a batch drawn anew by their weights.
        graphs: on a GPU, capture steps in CUDA graphs and replay them.
        mixed: networks in bfloat16 where autocast says so; parameters, the penalty and validation stay as they are.
    """

    rate: Schedule = field(default_factory=lambda: Constant(1e-3))
    weight: Schedule = field(default_factory=lambda: Constant(0.0))
    clip: float = 100.0
    decay: float = 0.0
    block: int = 100
    patience: int | None = None
    least: int = 0
    by_weight: bool = False
    graphs: bool = True
    mixed: bool = False

    def __post_init__(self) -> None:
        if self.block < 1 or (self.patience is not None and self.patience < 1):
            raise ValueError("block and patience must be at least 1")
        if not (self.clip > 0.0 and self.decay >= 0.0):
            raise ValueError("clip must be positive and decay not negative")


@dataclass(frozen=True)
class TrainState(Tree):
    """Everything that the next round depends on, so that training resumes bit for bit.

    Args:
        point: the parameters as one vector, (p,).
        first: running mean of their gradient.
        second: running mean of its square.
        best: parameters of the best validation so far; those of the last epoch without one.
        totals: of this epoch so far: rows, then each number times its rows.
        recent: each number's mean over the last round.
        history: one row an epoch, one column for each of ``columns``.
        seed: of all randomness.
        names: of the numbers: ``loss``, the parts that the loss names, ``penalty``.
        columns: of the history: ``names``, ``rate``, ``refused``, and what validation names.
        count: mini-batches seen.
        taken: steps that were not refused.
        refused: steps refused in a row.
        slower: factor of the learning rate, halved by every refused step.
        lowest: best validation so far.
        stale: epochs since.
    """

    point: Tensor
    first: Tensor
    second: Tensor
    best: Tensor
    totals: Tensor
    recent: Tensor
    history: Tensor
    seed: int
    names: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    count: int = 0
    taken: int = 0
    refused: int = 0
    slower: float = 1.0
    lowest: float = math.inf
    stale: int = 0

    @classmethod
    def start(cls, model: Trainable, seed: int) -> TrainState:
        """Before the first step of a model."""
        point = joined(model.trainable()).detach()
        zero, none = torch.zeros_like(point), torch.zeros(0, dtype=torch.float64)
        return cls(point, zero, zero, point, none, none, torch.zeros(0, 0, dtype=torch.float64), seed)

    def fitted(self, model: M) -> M:
        """The model at the best point."""
        return model.with_trainable(parted(self.best, model.trainable()))

    def kept_on(self, device: torch.device) -> TrainState:
        """The same state with what steps need on a device; the accounts stay with the host."""
        names = ("point", "first", "second", "best")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def told(self) -> dict[str, list[float]]:
        """The history by column."""
        return {name: self.history[:, j].tolist() for j, name in enumerate(self.columns)}


def drawn_by_weight(rows: Tensor, weight: Tensor, stream: Generator) -> Tensor:
    """As many rows, drawn with replacement by weight; alike where no row has any."""
    return rows[torch.multinomial(weight.clamp(min=1e-30), len(rows), replacement=True, generator=stream)]


def continued(resume: Outcome[TrainState] | None, device: torch.device) -> Outcome[TrainState] | None:
    """An outcome read from a file, onto the CPU, as one to go on from on any device."""
    return None if resume is None else replace(resume, state=resume.state.kept_on(device))
