"""Rounds taken in hope: several for one wait for the device, exactly those that careful steps would have been.

A step asks its questions by :func:`boxloop.asking.ask`. On a device where answers must be waited for, some rounds are
taken with the usual answers; then doubts and objectives of all of them are read at once. Rounds before the first wrong
hope are what they would have been, bit for bit; the others are forgotten, and the loop goes on carefully for a while.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from boxloop.asking import is_far, noting
from boxloop.fit.replay import Hoped, Replays, hoped
from boxloop.run import Repeatable, Round, Takes
from boxloop.tree import Tree

S = TypeVar("S", bound=Tree)

MOST = 8
"""Most rounds for one wait: with so many the wait is a small part of the quickest of them."""

SECONDS = 0.25
"""Longest time for which rounds are not read: who watches, or presses Ctrl-C, waits no longer."""

BYTES = 1 << 28
"""Most memory for the states of rounds that are not read yet."""

PATIENCE, DISMAY = 64.0, 4.0
"""Most careful rounds after a wrong hope; so many times more after each, and one less for as many right ones."""

QUICK = 0.005
"""Seconds of a round that is worth a graph: a longer one keeps the device busy as it is."""

ASTRAY = (ArithmeticError, RuntimeError, ValueError)
"""What a step may raise when it goes on from a wrong answer: a careful round tells whether it is meant."""


@dataclass(frozen=True)
class Hopeful(Repeatable[S]):
    """A pure step whose questions may be answered later.

    Args:
        step: one round. In hope its objective, and whether it is rejected, may be tensors that stand for what they will
            be, and the new state may hold that objective.
        still: whether all that a round reads but its state stays where it is in the memory of a GPU, so that quick
            rounds may be replayed from CUDA graphs.
        rounded: how far rounding may move the objective of a state.
    """

    step: Callable[[S], Round[S]]
    still: bool = False
    rounded: Callable[[S], float] | None = None

    def __call__(self, state: S) -> Round[S]:
        """One round, with care."""
        return self.step(state)

    def takes(self) -> Takes[S]:
        """Blocks of rounds where the state is far, one after the other where it is near."""
        return _Pace(self.step, self.still)

    def rounding(self, state: S) -> float:
        """How far rounding may move the objective of a state."""
        return 0.0 if self.rounded is None else self.rounded(state)


class _Pace(Generic[S]):
    """How far to hope, in one loop: further while hopes come true, not at all for a while after a wrong one."""

    def __init__(self, step: Callable[[S], Round[S]], still: bool) -> None:
        self.step = step
        self.replays = Replays(step) if still else None
        self.length, self.careful, self.pause = MOST, 1, 1.0
        self.seconds = 0.0  # of the last round
        self.near: bool | None = None
        self.unread: tuple[S, S] | None = None  # the last state read, and as it was before

    def __call__(self, state: S, left: int) -> Sequence[Round[S]]:
        if self.near is None:  # once: a loop stays where it begins
            self.near = not any(is_far(leaf) for _, leaf in state.leaves())
        if self.near:
            return (self.step(state),)
        begin = time.monotonic()
        if self.careful:
            rounds: Sequence[Round[S]] = (self._carefully(state),)
        else:
            rounds = self._ahead(state, min(left, self._reach(state)))
        self.seconds = (time.monotonic() - begin) / max(len(rounds), 1)
        return rounds

    def _carefully(self, state: S) -> Round[S]:
        """A round that knows its answers; while they are not the usual ones there is nothing to hope for."""
        with noting() as watch:
            done = self.step(state)
        self.careful = max(self.careful - 1, int(watch.odd))
        return done

    def _hoped(self, state: S) -> Hoped[S]:
        if self.replays is None or self.seconds > QUICK:
            return hoped(self.step, state)
        return self.replays(state)

    def _reach(self, state: S) -> int:
        size = sum(leaf.numel() * leaf.element_size() for _, leaf in state.leaves())
        quick = SECONDS / max(self.seconds, 1e-9)
        return max(1, int(min(self.length, quick, BYTES / max(size, 1))))

    def _ahead(self, state: S, count: int) -> Sequence[Round[S]]:
        """The rounds from here on for which hopes came true."""
        taken: list[Hoped[S]] = []
        lost = False
        if self.unread is not None and state is self.unread[0]:
            state = self.unread[
                1
            ]  # all that stands for a number in it does so still: a state of a kind met before
        while len(taken) < count and not lost:
            try:
                taken.append(self._hoped(state))
            except ASTRAY:
                lost = True
            else:
                state = taken[-1][0].state
        rounds = _read(taken)
        if rounds:
            self.unread = rounds[-1].state, taken[len(rounds) - 1][0].state
        if lost or len(rounds) < len(taken):
            self.length, self.careful = 2, int(self.pause)
            self.pause = min(DISMAY * self.pause, PATIENCE)
        else:
            self.length = min(2 * self.length, MOST)
            self.pause = max(1.0, self.pause - len(rounds) / DISMAY)
        return rounds


def _read(taken: Sequence[Hoped[S]]) -> list[Round[S]]:
    """The rounds before the first wrong hope, all that stood for a number read: the one wait."""
    values: list[Any] = []
    for done, doubts in taken:
        values += [torch.stack(doubts).any() if doubts else False, done.objective, done.rejected]
    unread = [value.double() for value in values if isinstance(value, Tensor)]
    read = iter(torch.stack(unread).tolist() if unread else ())
    numbers = [next(read) if isinstance(value, Tensor) else value for value in values]
    rounds = []
    for (done, _), wrong, objective, rejected in zip(
        taken, numbers[::3], numbers[1::3], numbers[2::3], strict=True
    ):
        if wrong:
            break
        rounds.append(replace(_told(done, objective), rejected=bool(rejected)))
    return rounds


def _told(done: Round[S], objective: float) -> Round[S]:
    """The round with its objective as a number, in the state too where that holds it."""
    known: Any = lambda leaf: objective if leaf is done.objective else leaf  # noqa: E731
    return replace(done, state=done.state.map(known), objective=objective)
