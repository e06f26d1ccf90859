"""How often rounds taken in hope are read, and how far the loop hopes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from boxloop.asking import ask, told
from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, FullGaussian, TiedGaussian
from boxloop.fit import Batches, EMState, OnlinePlan, accelerated_em, ahead, em, online_em
from boxloop.models import mixture
from boxloop.run import Outcome, Repeatable, Round, run
from contract.law_checks import holed
from contract.models import model_cases
from fit.hope_cases import Reads, assert_alike, creeping, far, problem, reads
from fit.test_em import creeping_factors

CASES = model_cases()
ENGINES = pytest.mark.parametrize("engine", [em, accelerated_em])
KINDS = pytest.mark.parametrize("kind", [FullGaussian, TiedGaussian, DiagonalGaussian])


@ENGINES
@KINDS
def test_a_block_of_rounds_is_read_once(kind: type, engine: Any) -> None:
    make = problem(engine, *creeping(kind))
    first = reads(make, 1)
    assert first >= 4, "a careful round asks"
    assert [reads(make, 1 + rounds) - first for rounds in (1, 8, 9, 16)] == [1, 1, 2, 2]


@ENGINES
@pytest.mark.parametrize("expand", [False, True])
def test_a_block_of_a_factor_model_is_read_once(expand: bool, engine: Any) -> None:
    model, rows = creeping_factors()
    make = problem(engine, replace(model, expand=expand), rows)
    assert reads(make, 1) == 4 + expand
    assert reads(make, 17) - reads(make, 1) == 2


@pytest.mark.parametrize("name", CASES)
def test_a_block_of_any_model_is_read_once(name: str) -> None:
    make = problem(em, CASES[name].model, CASES[name].rows, CASES[name].weight)
    assert reads(make, 17) - reads(make, 1) == 2


def test_many_tiles_are_read_once() -> None:
    model, rows = creeping(FullGaussian)
    many = rows.repeat(64, 1)  # three tiles
    assert len(list(ArraySource(many).chunks())) == 3
    make = problem(em, model, many)
    assert reads(make, 1) == reads(problem(em, model, rows), 1) + 2
    assert reads(make, 17) - reads(make, 1) == 2


def test_extrapolations_that_fall_are_no_surprise() -> None:
    make = problem(accelerated_em, *creeping_factors())
    rounds = 65
    outcome, _ = assert_alike(make, max_rounds=rounds, monotone=True)
    step, state = make()
    refused = 0
    for _ in range(rounds):
        done = step(state)
        state, refused = done.state, refused + done.rejected
    assert refused > 1  # it depends on the last digits how many are
    assert reads(make, rounds) - reads(make, 1) == 8
    assert isinstance(outcome, Outcome)
    assert len(outcome.trace) == rounds


def test_an_objective_that_is_read_at_once_costs_a_wait_a_round() -> None:
    def plain(model: Any, expected: Any) -> float:
        return float(expected.log_likelihood / expected.weight)

    make = problem(em, *creeping(FullGaussian), objective=plain)
    assert reads(make, 9) - reads(make, 1) == 8 + 1


def calls_of(make: Callable[[], tuple[Any, Any]], rounds: int) -> int:
    """How many rounds are taken for so many that are kept."""
    step, state = make()
    calls: list[Any] = []

    def counted(at: Any) -> Any:
        calls.append(at)
        return step(at)

    with far():
        run(ahead.Hopeful(counted), state, max_rounds=rounds)
    return len(calls)


def test_rounds_taken_in_hope_are_kept() -> None:
    assert calls_of(problem(em, *creeping(FullGaussian)), 17) == 17


@pytest.mark.parametrize("rounds", [20, 60])
def test_what_is_never_usual_is_not_hoped_for(rounds: int) -> None:
    """Rows with missing values: all rounds are careful, and none is taken twice."""
    model, rows = creeping(FullGaussian)
    assert calls_of(problem(em, model, holed(rows, rate=0.1)), rounds) == rounds


def test_a_surprise_costs_a_block_and_no_more() -> None:
    with patch.object(mixture, "EMPTY", 0.36):
        make = problem(em, *creeping(FullGaussian))
        with far():
            outcome = run(*make(), max_rounds=24)
        assert len(outcome.events) == 1
        assert 24 < calls_of(make, 24) <= 24 + 8


def surprised(every: int) -> tuple[Any, Any]:
    """A step that is surprised in every so-many-th round."""

    def step(state: EMState[Any]) -> Round[EMState[Any]]:
        number = state.model.log_weight
        ask((number % every == 0).all())
        return Round(EMState(replace(state.model, log_weight=number + 1)), told(number.sum()))

    model, _ = creeping(FullGaussian)
    return ahead.Hopeful(step), EMState(replace(model, log_weight=torch.ones(1, dtype=torch.float64)))


@pytest.mark.parametrize("every", [2, 3, 5, 10, 50])
def test_frequent_surprises_end_the_hope(every: int) -> None:
    assert calls_of(lambda: surprised(every), 400) < 1.2 * 400


def test_after_a_surprise_hope_grows_again() -> None:
    assert reads(lambda: surprised(50), 400) < 400 / 3


def test_long_rounds_are_read_one_by_one() -> None:
    """Who watches sees every round; tiles are still not waited for."""
    make = problem(em, *creeping(FullGaussian))
    step, state = make()
    with far(), patch.object(ahead, "SECONDS", 0.0), Reads() as seen:
        run(step, state, max_rounds=17)
    assert len(seen.names) == reads(make, 1) + 16


def test_a_slow_first_round_is_forgotten() -> None:
    make = problem(em, *creeping(FullGaussian))
    step, state = make()
    clock = iter([0.0, 100.0, *(100.0 + 0.001 * i for i in range(100))])
    watch = patch.object(ahead.time, "monotonic", lambda: next(clock))
    with far(), patch.object(ahead, "SECONDS", 0.25), watch, Reads() as seen:
        run(step, state, max_rounds=18)
    assert len(seen.names) == reads(make, 1) + 1 + 2  # one round, then two blocks


def test_states_that_are_not_read_yet_fit_into_memory() -> None:
    make = problem(em, *creeping(FullGaussian))
    step, state = make()
    size = sum(leaf.numel() * leaf.element_size() for _, leaf in step(make()[1]).state.leaves())
    with far(), patch.object(ahead, "BYTES", 3 * size), Reads() as seen:
        run(step, state, max_rounds=13)
    assert len(seen.names) == reads(make, 1) + 4


def test_near_at_hand_nothing_is_hoped_nor_copied() -> None:
    given: list[Any] = []
    step, state = problem(em, *creeping(FullGaussian))()

    def seen(at: Any) -> Any:
        given.append(at)
        return step(at)

    with patch.object(ahead, "hoped", None), patch.object(ahead, "noting", None):
        outcome = run(ahead.Hopeful(seen), state, max_rounds=4)
    assert given[0] is state
    assert outcome.rounds == 4


def test_a_step_that_draws_is_never_taken_twice() -> None:
    """Only engines whose rounds depend on their state alone may be repeated."""
    assert isinstance(em(ArraySource(torch.zeros(3, 1))), Repeatable)
    assert not isinstance(online_em(Batches(ArraySource(torch.zeros(3, 1)), 2), OnlinePlan()), Repeatable)
