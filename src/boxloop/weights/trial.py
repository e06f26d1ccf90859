"""A few draws on a few rows before all of them: does the network take them, what do they cost, can they go together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from boxloop.weights.functional import Buffers, NetFunction
from boxloop.weights.inputs import Inputs, cut, tensors, told, wide
from boxloop.weights.method import warn

TRIED = 2
"""Draws and rows of a trial."""
LIVE = 4
"""Tensors of a layer's size that are held at one time."""
CACHE, MEMORY = 2**24, 2**30
"""Bytes for draws in flight when nothing is asked for: on a processor what its caches hold, beyond which draws that go
together are slower than single ones; elsewhere what leaves room for others."""


@dataclass(frozen=True)
class Trial:
    """What was found.

    Args:
        together: whether draws go by ``vmap``.
        cost: bytes of the largest tensor that a row makes under one draw.
        memory: bytes that may be taken for draws in flight.
    """

    together: bool
    cost: int
    memory: int

    def draws(self, size: int, rows: int) -> int:
        """How many draws of ``size`` weights fit the memory at once, each on so many rows."""
        return max(1, self.memory // max(1, 16 * size, LIVE * self.cost * rows))

    def rows(self, draws: int) -> int:
        """How many rows fit the memory at once under so many draws."""
        return max(1, self.memory // max(1, LIVE * self.cost * draws))


def trial(
    function: NetFunction,
    vectors: Tensor,
    buffers: Buffers,
    rows: Inputs,
    together: bool | None,
    memory: int | None,
) -> Trial:
    """Run a few draws one by one and, unless that was decided, together.

    Args:
        function: the network.
        vectors: of weights, (c, D); the first few are taken.
        buffers: with a leading axis of draws.
        rows: (n, ...); the first few are taken.
        together: None to try it.
        memory: bytes that may be taken for draws in flight; None to choose.

    Raises:
        ValueError: a network that cannot take the rows, or draws random numbers of its own.
    """
    weights = function.weights(vectors[:TRIED])
    few = {name: value[:TRIED] for name, value in buffers.items()}
    rows, place = function.take(cut(rows, 0, TRIED)), function.like.device
    before = _random_states(place)
    try:
        alone = function(weights, few, rows, together=False)
        cost = function.cost({n: v[:1] for n, v in weights.items()}, {n: v[:1] for n, v in few.items()}, rows)
    except (RuntimeError, TypeError, IndexError) as error:
        name, own = type(function.net).__name__, function.like.dtype
        hint = ""
        if not any(one.is_floating_point() for one in tensors(rows)):
            hint = "; whole numbers stay whole: give X as floats where they are values"
        elif own != wide(own):
            hint = f"; weights in half precision are run in {wide(own)}: the network must not turn to half itself"
        raise ValueError(f"{name} does not take {told(rows)}: {error}{hint}") from error
    finally:
        random = _restored(place, before)
    if random:
        raise ValueError(
            f"{type(function.net).__name__} draws random numbers when it is evaluated: what it says is not a function "
            "of its weights; give a network whose dropout and noise stop with eval()"
        )
    if together is None:
        together = agree(function.net, alone, lambda: function(weights, few, rows, together=True))
    chosen = CACHE if place.type == "cpu" else MEMORY
    return Trial(together, cost, chosen if memory is None else memory)


def agree(net: nn.Module, alone: Tensor, both: Callable[[], Tensor]) -> bool:
    """Whether a run by ``vmap`` can be made and gives what single runs gave; a warning says why not."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # a loop in the guise of vmap
            why = "" if _alike(both(), alone) else "its outputs are not those of single runs"
    except (RuntimeError, ValueError, UserWarning) as error:
        why = str(error).strip().partition("\n")[0]
    if why:
        warn(
            f"{type(net).__name__} cannot be run by vmap ({why}): draws go one by one, which is slower; "
            "together=False says that this is known"
        )
    return not why


def _alike(found: Tensor, wanted: Tensor) -> bool:
    close = torch.finfo(wanted.dtype).eps ** 0.5 if wanted.is_floating_point() else 0.0
    size = wanted.abs().nan_to_num(0.0, 0.0, 0.0).max().item() if wanted.numel() else 0.0
    return found.shape == wanted.shape and torch.allclose(
        found, wanted, rtol=10 * close, atol=10 * close * size, equal_nan=True
    )


def _random_states(place: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(place)] if place.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _restored(place: torch.device, before: list[Tensor]) -> bool:
    """Put random streams back as they were; whether any had moved."""
    moved = any(not torch.equal(a, b) for a, b in zip(before, _random_states(place), strict=True))
    if moved:
        torch.set_rng_state(before[0])
        if place.type == "cuda":
            torch.cuda.set_rng_state(before[1], place)
    return moved
