"""Rounds replayed from graphs: which states are of one kind, when one is captured, and what a replay gives back.

What a graph computes can only be seen on a GPU: see ``tests/gpu/test_replayed_rounds.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from boxloop.data import ArraySource, MappedSource, PrefetchedSource, find_array
from boxloop.distributions import DiagonalGaussian
from boxloop.fit import OFTEN, CapturedGraph, EMState, Replays, kind_of
from boxloop.models import Mixture
from boxloop.run import Round
from boxloop.tree import Tree


@dataclass(frozen=True)
class Point(Tree):
    place: Tensor
    bar: float | Tensor = 0.0


def state(d: int = 2, k: int = 3, floor: float = 1e-6, dtype: torch.dtype = torch.float64) -> EMState[Any]:
    law = DiagonalGaussian(torch.rand(k, d).to(dtype), torch.ones(k, d, dtype=dtype), floor)
    return EMState(Mixture(torch.zeros(k, dtype=dtype), law))


def test_other_numbers_are_of_the_same_kind() -> None:
    assert kind_of(state()) == kind_of(state())
    assert hash(kind_of(state())) == hash(kind_of(state()))


@pytest.mark.parametrize(
    "other",
    [
        state(d=3),
        state(k=4),
        state(floor=1e-5),
        state(dtype=torch.float32),
        replace(state(), path=(torch.ones(2),)),
        replace(state(), safe=state().model),
        replace(state(), bar=1.0),
        replace(state(), bar=torch.tensor(1.0)),
    ],
)
def test_what_leads_to_other_operations_is_of_another_kind(other: EMState[Any]) -> None:
    assert kind_of(other) != kind_of(state())


class Halved:
    """What a graph of ``halve`` would do: read its places, write its round."""

    def __init__(self, place: Tensor, done: Round[Point]) -> None:
        self.place, self.done, self.replays = place, done, 0

    def replay(self) -> None:
        self.replays += 1
        self.done.state.place.copy_(self.place / 2.0)
        self.done.objective.copy_(-self.place.sum())  # type: ignore[attr-defined]


def halve(point: Point) -> Round[Point]:
    height: Any = -point.place.sum()
    return Round(Point(point.place / 2.0, height), height)


class Pretended(Replays[Point]):
    """Graphs that are captured on the CPU."""

    captured = 0

    def _capture(self, kind: Any, state: Point) -> None:
        self.captured += 1
        place, done = state.place.clone(), halve(state)
        self._graphs[kind] = CapturedGraph(Halved(place, done), [place], done, [])


def test_a_kind_that_comes_often_is_captured_once_and_replayed_from_then_on() -> None:
    replays = Pretended(halve)
    point = Point(torch.tensor([2.0**20, 2.0**18]))
    for number in range(OFTEN + 4):
        done, doubts = replays(replace(point, bar=0.0))
        assert replays.captured == int(number >= OFTEN)
        assert torch.equal(done.state.place, point.place / 2.0)
        assert float(done.objective) == -float(point.place.sum())
        assert doubts == []
        point = done.state
    replays(Point(torch.ones(3)))
    assert replays.captured == 1, "another kind is met for the first time"


def test_a_round_is_in_memory_of_its_own_and_holds_its_objective_once() -> None:
    replays = Pretended(halve)
    rounds = [replays(Point(torch.tensor([size])))[0] for size in [1.0] * OFTEN + [8.0, 4.0, 2.0]][OFTEN:]
    assert [float(done.state.place) for done in rounds] == [4.0, 2.0, 1.0]
    assert all(done.state.bar is done.objective for done in rounds), (
        "what is read of one is known of the other"
    )


def test_a_refused_step_is_taken_as_it_is() -> None:
    replays = Pretended(halve)
    replays.refusal = "an operation that waits"
    assert [float(replays(Point(torch.ones(1)))[0].objective) for _ in range(OFTEN + 2)] == [-1.0] * (
        OFTEN + 2
    )
    assert replays.captured == 0


def test_rows_that_stay_in_memory_are_found_below_views() -> None:
    rows = ArraySource(torch.zeros(3, 2))
    assert find_array(rows) is rows
    assert find_array(MappedSource(MappedSource(rows, torch.abs), torch.abs)) is rows
    assert find_array(PrefetchedSource(rows, torch.device("cpu"))) is None, (
        "its tiles are never twice in one place"
    )
