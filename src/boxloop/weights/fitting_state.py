"""All that the next epoch of a training depends on, as one tree: in memory for Ctrl-C, in a file for a restart."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from boxloop.tree import Tree
from boxloop.weights.posterior import PosteriorState, WeightPosterior


@dataclass(frozen=True)
class Table(Tree):
    """A dictionary, as a tree holds it.

    Args:
        keys: in order.
        values: of each.
    """

    keys: tuple[str | int, ...]
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Row(Tree):
    """A list, as a tree holds it."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class FitState(Tree):
    """A training after a whole epoch.

    Args:
        net: parameters and buffers.
        others: parameters that the optimiser moves and the network does not have.
        optimiser: its state.
        scheduler: its state, None without one.
        order: state of the generator of the batches' order, None where they have none.
        followed: of each posterior.
        epochs: complete.
        steps: since observing began.
        skipped: steps, as a number was not finite.
        row: of them, those in a row at the end.
    """

    net: Table
    others: tuple[Tensor, ...]
    optimiser: Table
    scheduler: Table | None
    order: Tensor | None
    followed: tuple[PosteriorState, ...]
    epochs: int = 0
    steps: int = 0
    skipped: int = 0
    row: int = 0


@dataclass(frozen=True)
class Live:
    """What a training changes in place.

    Args:
        net: that is trained.
        posteriors: that observe it.
        optimiser: of its parameters, and maybe others.
        scheduler: of the learning rate.
        batches: whose order may come from a generator.
    """

    net: nn.Module
    posteriors: Sequence[WeightPosterior]
    optimiser: Optimizer
    scheduler: LRScheduler | None
    batches: Iterable[Any]

    def parameters(self) -> list[Tensor]:
        """All that the optimiser moves."""
        return [value for group in self.optimiser.param_groups for value in group["params"]]

    def taken(self, epochs: int = 0, steps: int = 0, skipped: int = 0, row: int = 0) -> FitState:
        """A copy of all of it, beside the numbers given."""
        scheduler = None if self.scheduler is None else to_tree(self.scheduler.state_dict())
        order = _order(self.batches)
        found = FitState(
            to_tree(self.net.state_dict()),
            tuple(value.detach() for value in self.others()),
            to_tree(self.optimiser.state_dict()),
            scheduler,
            None if order is None else order.get_state(),
            (),
            epochs,
            steps,
            skipped,
            row,
        ).map(torch.clone)
        return replace(found, followed=tuple(posterior.state() for posterior in self.posteriors))

    def restore(self, state: FitState) -> None:
        """Put everything back to where it was, from memory or from a file; the state itself is left alone."""
        self.net.load_state_dict(from_tree(state.net))
        with torch.no_grad():
            for value, kept in zip(self.others(), state.others, strict=True):
                value.copy_(kept)
        self.optimiser.load_state_dict(from_tree(state.optimiser.map(torch.clone)))
        if self.scheduler is not None and state.scheduler is not None:
            self.scheduler.load_state_dict(from_tree(state.scheduler.map(torch.clone)))
        order = _order(self.batches)
        if order is not None and state.order is not None:
            order.set_state(state.order)
        for posterior, followed in zip(self.posteriors, state.followed, strict=True):
            again = WeightPosterior.restore(followed, posterior.net, posterior.device)
            vars(posterior).update(vars(again))

    def others(self) -> list[Tensor]:
        """Of them, those that the network does not have."""
        own = {id(value) for value in self.net.parameters()}
        return [value for value in self.parameters() if id(value) not in own]


class Spare:
    """The buffers of a network as they were before a step, in memory that every step uses again.

    Args:
        net: whose forward pass may change them, as BatchNorm's does.
    """

    def __init__(self, net: nn.Module) -> None:
        self._owners = [
            module for module in net.modules() if any(True for _ in module.buffers(recurse=False))
        ]
        self._live: list[tuple[nn.Module, str, Tensor]] = []
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def keep(self) -> None:
        """Copy them as they are now."""
        before, self._live = (
            self._live,
            [
                (module, name, value)
                for module in self._owners
                for name, value in module.named_buffers(recurse=False)
            ],
        )
        now = [value for *_, value in self._live]
        if [id(value) for value in now] != [id(value) for *_, value in before]:
            self._kept = [torch.empty_like(value) for value in now]
        if now:
            torch._foreach_copy_(self._kept, now)

    @torch.no_grad()
    def put_back(self) -> None:
        """As they were; also those that the network has put others in place of."""
        for (module, name, value), kept in zip(self._live, self._kept, strict=True):
            setattr(module, name, value.copy_(kept))


def to_tree(value: Any) -> Any:
    """Dictionaries and lists, at any depth, as trees; the rest as it is."""
    if isinstance(value, dict):
        return Table(tuple(value), tuple(to_tree(item) for item in value.values()))
    if isinstance(value, list):
        return Row(tuple(to_tree(item) for item in value))
    return tuple(to_tree(item) for item in value) if type(value) is tuple else value


def from_tree(value: Any) -> Any:
    """The inverse of :func:`to_tree`."""
    if isinstance(value, Table):
        return {key: from_tree(item) for key, item in zip(value.keys, value.values, strict=True)}
    if isinstance(value, Row):
        return [from_tree(item) for item in value.values]
    return tuple(from_tree(item) for item in value) if type(value) is tuple else value


def _order(batches: Iterable[Any]) -> torch.Generator | None:
    """The generator that shuffles batches, where a loader was given one."""
    return batches.generator if isinstance(batches, DataLoader) else None
