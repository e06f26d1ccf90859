"""The loop over rounds that are there already."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from boxloop.run import MonotonicityError, Progress, Repeatable, Round, Takes, run

OBJECTIVES = [0.0, 1.0, 1.5, 1.6, 1.61, 1.62, 0.5, 9.0]


def step(n: int) -> Round[int]:
    return Round(n + 1, OBJECTIVES[n], ("moved",) if n == 1 else ())


@dataclass(frozen=True)
class Blocks(Repeatable[int]):
    """Rounds by the given numbers at once, then one by one; asked for no more than are left."""

    sizes: tuple[int, ...]
    one: Callable[[int], Round[int]] = step

    def __call__(self, state: int) -> Round[int]:
        return self.one(state)

    def takes(self) -> Takes[int]:
        sizes = iter(self.sizes)

        def take(state: int, left: int) -> Sequence[Round[int]]:
            return [self.one(state + i) for i in range(min(next(sizes, 1), left))]

        return take


def heard(how: Any, **options: Any) -> tuple[Any, list[Any]]:
    seen: list[Any] = []

    def note(progress: Progress[int]) -> None:
        seen.append(
            (progress.state, progress.round, list(progress.trace), list(progress.events), progress.stopped)
        )

    try:
        return run(how, 0, observers=[note], **options), seen
    except MonotonicityError as error:
        return repr(error), seen


BLOCKS = pytest.mark.parametrize("sizes", [(8,), (1, 3, 8), (0, 2, 0, 8), (3, 3, 3)])


@BLOCKS
@pytest.mark.parametrize(
    "options",
    [
        {"max_rounds": 5},
        {"max_rounds": 6, "tol": 0.2},
        {"max_rounds": 8, "monotone": True},
        {"max_rounds": 0},
    ],
    ids=str,
)
def test_blocks_are_the_rounds_one_by_one(sizes: tuple[int, ...], options: Any) -> None:
    assert heard(Blocks(sizes), **options) == heard(step, **options)


def test_rounds_after_the_last_are_forgotten() -> None:
    outcome = run(Blocks((8,)), 0, max_rounds=8, tol=0.2)
    assert (outcome.state, outcome.rounds, outcome.converged) == (4, 4, True)
    assert outcome.trace == OBJECTIVES[:4]


def test_a_final_round_ends_its_block() -> None:
    outcome = run(Blocks((8,), lambda n: Round(n + 1, 0.0, final=n == 2)), 0, max_rounds=8)
    assert (outcome.state, outcome.rounds, outcome.converged) == (3, 3, True)


@pytest.mark.parametrize("at", [1, 3, 4])
def test_ctrl_c_in_an_observer_keeps_its_round_of_the_block(at: int) -> None:
    def nervous(progress: Progress[int]) -> None:
        if progress.round == at and not progress.stopped:
            raise KeyboardInterrupt

    outcome = run(Blocks((2, 4)), 0, max_rounds=6, observers=[nervous])
    assert (outcome.state, outcome.rounds, outcome.interrupted) == (at, at, True)
    assert outcome.trace == OBJECTIVES[:at]


def test_every_loop_begins_its_blocks_anew() -> None:
    blocks = Blocks((3,))
    part = run(blocks, 0, max_rounds=2)
    assert run(blocks, 0, max_rounds=6, resume=part) == run(step, 0, max_rounds=6)


@dataclass(frozen=True)
class Rounded(Blocks):
    """Its objective is known to 1.2 and no better: asked only where it fell."""

    def rounding(self, state: int) -> float:
        assert state == 6
        return 1.2


@BLOCKS
def test_a_fall_that_rounding_may_cause_is_noted_and_excused(sizes: tuple[int, ...]) -> None:
    outcome = run(Rounded(sizes), 0, max_rounds=8, monotone=True)
    assert outcome.trace == OBJECTIVES
    assert outcome.events[1:] == [
        "round 7: the objective fell by 1.1, as rounding alone may move it by 1.2: a matrix is "
        "nearly singular, or some rows are far larger than the others"
    ]
    with pytest.raises(MonotonicityError, match="iteration 7"):
        run(Blocks(sizes), 0, max_rounds=8, monotone=True)
