"""One epoch of a training that posteriors follow."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from boxloop.loop import Iteration
from boxloop.weights.fitting_state import FitState, Live, Spare
from boxloop.weights.inputs import mapped

PATIENCE = 10
"""Steps in a row that may be skipped before a training gives up."""

Loss = Callable[[Any, Any], Tensor]
"""(what the network says, y) -> one number."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the batches, as a step for :func:`boxloop.loop.run`.

    Args:
        live: what it changes in place.
        loss: of a batch.
        burn_in: epochs that are not observed.
        every: steps between two observations.
        clip: largest norm of a gradient.
    """

    live: Live
    loss: Loss
    burn_in: int = 0
    every: int = 1
    clip: float | None = None

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every must be at least 1, got {self.every}")
        if self.clip is not None and not self.clip > 0.0:
            raise ValueError(f"clip must be above 0, got {self.clip}")
        if not isinstance(self.live.optimiser, Optimizer):
            raise TypeError(
                f"optimiser must be a torch optimiser of the network, got a {type(self.live.optimiser).__name__}"
            )
        if isinstance(self.live.optimiser, LBFGS):
            raise ValueError("LBFGS asks for the loss several times a step, and is not followed: use another")
        if len(self.live.others()) == len(self.live.parameters()):
            raise ValueError("the optimiser moves none of the network's parameters")
        if isinstance(self.live.batches, Iterator):
            raise ValueError(
                "batches can be passed over once only: give a list, a DataLoader, or another iterable"
            )

    def __call__(self, state: FitState) -> Iteration[FitState]:
        """Go on from where everything stands, which is ``state``."""
        steps, skipped, row = state.steps, 0, state.row
        total, rows, seen = 0.0, 0, 0
        spare = Spare(self.live.net)
        for batch in self.live.batches:
            spare.keep()
            value, size, worry = self._step(batch)
            seen += 1
            if worry is None:
                total, rows, row = total + value * size, rows + size, 0
            else:
                spare.put_back()
                skipped, row = skipped + 1, row + 1
                self._give_up(row, worry)
            if state.epochs >= self.burn_in:
                steps += 1
                if steps % self.every == 0:
                    self._observe(value, worry)
        if not seen:
            raise ValueError("batches are empty: there is nothing to train on")
        mean = total / rows if rows else math.nan
        self._cool(mean)
        after = self.live.taken(state.epochs + 1, steps, state.skipped + skipped, row)
        told = f"{skipped} of {seen} steps were skipped, as the loss or its gradient was not finite"
        return Iteration(after, -mean, (told,) if skipped else ())

    def _step(self, batch: Any) -> tuple[float, int, str | None]:
        """The loss before one step, the rows of its batch, and why the step was not taken."""
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise ValueError(f"a batch must be a pair (x, y), got {_told(batch)}")
        place = next(self.live.net.parameters()).device
        x, y = mapped(batch, lambda one: one.to(place, non_blocking=True))
        self.live.optimiser.zero_grad()
        value = _usable(self.loss(self.live.net(x), y))
        size, number = len(y) if isinstance(y, Tensor) and y.ndim else 1, float(value.detach())
        if not math.isfinite(number):
            return number, size, f"the loss is {number}"
        value.backward()
        free = self.live.parameters()
        norm = get_total_norm([v.grad for v in free if v.grad is not None])
        if not math.isfinite(float(norm)):
            return number, size, f"the norm of the gradient is {float(norm)}"
        if self.clip is not None:
            clip_grads_with_norm_(free, self.clip, norm)
        self.live.optimiser.step()
        return number, size, None

    def _observe(self, value: float, worry: str | None) -> None:
        for posterior in self.live.posteriors:
            if worry is None:
                posterior.observe(value)
            else:
                posterior._refuse(worry)

    def _give_up(self, row: int, worry: str) -> None:
        if row >= PATIENCE:
            raise FloatingPointError(
                f"{PATIENCE} steps in a row could not be taken, the last as {worry}: lower the learning rate, give "
                "clip=, or look for values in the batches that are missing or huge"
            )

    def _cool(self, mean: float) -> None:
        scheduler = self.live.scheduler
        if isinstance(scheduler, ReduceLROnPlateau):
            scheduler.step(mean)
        elif scheduler is not None:
            scheduler.step()

    def known(self) -> dict[str, Any]:
        """What tells this training from others, for its checkpoint."""
        live = self.live
        groups = [
            {k: v for k, v in group.items() if isinstance(v, int | float | str)} | {"lr": _first_rate(group)}
            for group in live.optimiser.param_groups
        ]
        return {
            "optimiser": type(live.optimiser).__name__,
            "groups": [{k: v for k, v in group.items() if k != "initial_lr"} for group in groups],
            "scheduler": type(live.scheduler).__name__,
            "methods": [repr(posterior.method) for posterior in live.posteriors],
            "parameters": [posterior.layout.names for posterior in live.posteriors],
            "shapes": [posterior.layout.shapes for posterior in live.posteriors],
            "others": [tuple(value.shape) for value in live.others()],
            "batches": length_hint(live.batches, -1),
            "burn_in": self.burn_in,
            "every": self.every,
            "clip": self.clip,
        }


def _usable(value: Any) -> Tensor:
    """A loss that can be followed downhill."""
    if not isinstance(value, Tensor):
        raise ValueError(
            f"the loss must be a tensor of one number, but is a {type(value).__name__}: leave out .item()"
        )
    if value.is_complex():
        raise ValueError(f"the loss must be a real number, but is {value.dtype}: take its .real, or .abs()")
    if value.ndim:
        raise ValueError(
            f"the loss must be one number for a batch, its mean or its sum, but has shape {tuple(value.shape)}"
        )
    if not value.requires_grad:
        raise ValueError(
            "the loss has no gradient: it must be computed from what the network says, without .detach()"
        )
    return value


def _told(batch: Any) -> str:
    """What a batch is that is no pair."""
    if isinstance(batch, Tensor):
        return f"a tensor of shape {tuple(batch.shape)}"
    return f"a {type(batch).__name__}" + (f" of {len(batch)}" if isinstance(batch, tuple | list) else "")


def _first_rate(group: dict[str, Any]) -> float:
    """The learning rate before any scheduler changed it."""
    return float(group.get("initial_lr", group["lr"]))
