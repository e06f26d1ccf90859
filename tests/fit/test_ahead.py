"""Rounds taken in hope are those of careful steps, bit for bit, for one wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from boxloop.asking import ask, hoping, told
from boxloop.data import ArraySource
from boxloop.distributions import (
    DiagonalGaussian,
    FullGaussian,
    Sums,
    TiedGaussian,
    gaussian_diagonal,
    gaussian_full,
    gaussian_tied,
)
from boxloop.fit import EMState, accelerated_em, ahead, em, extrapolate, mean_log_likelihood
from boxloop.models import mixture
from boxloop.numeric import ConditionError
from boxloop.run import MonotonicityError, Outcome, Round, run
from boxloop.tree import Tree
from boxloop.types import Expected
from contract.law_checks import holed
from contract.models import model_cases
from fit.hope_cases import assert_alike, creeping, far, followed, problem

CASES = model_cases()
ENGINES = pytest.mark.parametrize("engine", [em, accelerated_em])


@ENGINES
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_every_model_takes_the_rounds_of_careful_steps(name: str, gaps: bool, engine: Any) -> None:
    case = CASES[name]
    rows = holed(case.rows, rate=0.25) if gaps else case.rows
    assert_alike(problem(engine, case.model, rows, case.weight), tol=1e-7)


@ENGINES
@pytest.mark.parametrize("rounds", [0, 1, 2, 9, 10, 11, 17, 20])
def test_any_number_of_rounds(rounds: int, engine: Any) -> None:
    outcome, _ = assert_alike(problem(engine, *creeping(FullGaussian)), max_rounds=rounds)
    assert isinstance(outcome, Outcome)
    assert outcome.rounds == rounds


@ENGINES
@pytest.mark.parametrize("tol", [3e-4, 1e-4, 5e-5, 2.4e-5])
def test_convergence_inside_a_block(tol: float, engine: Any) -> None:
    outcome, _ = assert_alike(problem(engine, *creeping(FullGaussian)), tol=tol)
    assert isinstance(outcome, Outcome)
    assert outcome.converged
    assert 2 < outcome.rounds < 24


@ENGINES
def test_an_empty_component_inside_a_block(engine: Any) -> None:
    with patch.object(mixture, "EMPTY", 0.36):
        outcome, _ = assert_alike(problem(engine, *creeping(FullGaussian)), monotone=True)
    assert isinstance(outcome, Outcome)
    assert outcome.events
    assert not outcome.events[0].startswith("round 1:")


@ENGINES
@pytest.mark.parametrize("kind", [FullGaussian, TiedGaussian])
def test_a_floor_that_is_reached_or_left_on_the_way(kind: type, engine: Any) -> None:
    model, rows = creeping(kind)
    ends = run(engine(ArraySource(rows)), EMState(model), max_rounds=6).state.best.family
    floor = float(torch.linalg.eigvalsh(ends.covariance().dense()).min())
    if kind is TiedGaussian:
        floor = 0.8617  # the first covariances are short of it
    assert_alike(
        problem(engine, replace(model, family=replace(model.family, floor=floor)), rows), monotone=True
    )


def narrowness(family: Any) -> float:
    """What a family compares with the limit of its quick form."""
    if isinstance(family, DiagonalGaussian):
        return float((family.mean.square() / family.variance).max().maximum(1.0 / family.variance.min()))
    far_out = (family.whitener @ family.mean[..., None]).abs().max()
    return float(far_out.maximum(family.whitener.abs().max())) ** 2


@ENGINES
@pytest.mark.parametrize(
    ("kind", "room"),
    [(FullGaussian, gaussian_full), (TiedGaussian, gaussian_tied), (DiagonalGaussian, gaussian_diagonal)],
)
@pytest.mark.parametrize("number", [0, 3, 7, 8, 9])
def test_another_formula_from_a_round_on(kind: type, room: Any, number: int, engine: Any) -> None:
    """A model that has answered in hope is not believed when its round is taken again."""
    model, rows = creeping(kind)
    path: list[float] = []
    step = engine(ArraySource(rows))
    run(
        step,
        EMState(model),
        max_rounds=24,
        observers=[lambda p: path.append(narrowness(p.state.model.family))],
    )
    with patch.object(room, "QUADRATIC_CONDITION", path[number]):
        assert_alike(problem(engine, model, rows))


@ENGINES
def test_a_fall_in_the_middle_names_its_round(engine: Any) -> None:
    def bent(model: Any, expected: Any) -> float:
        value = expected.log_likelihood / expected.weight
        return told(-(value + 3.0938).abs())

    error, seen = assert_alike(problem(engine, *creeping(FullGaussian), objective=bent), monotone=True)
    assert isinstance(error, MonotonicityError)
    assert 2 < len(seen) < 15


@ENGINES
def test_an_objective_that_becomes_nan(engine: Any) -> None:
    def lost(model: Any, expected: Any) -> float:
        return told((-3.0938 - expected.log_likelihood / expected.weight).log())

    make = problem(engine, *creeping(FullGaussian), objective=lost)
    error, _ = assert_alike(make, monotone=True)
    assert isinstance(error, MonotonicityError)


@ENGINES
def test_an_objective_that_is_read_at_once_serves_too(engine: Any) -> None:
    def plain(model: Any, expected: Any) -> float:
        return float(mean_log_likelihood(model, expected))

    make = problem(engine, *creeping(FullGaussian), objective=plain)
    assert_alike(make)


@ENGINES
def test_a_covariance_that_collapses_is_the_same_error_in_the_same_round(engine: Any) -> None:
    model, rows = creeping(FullGaussian, floor=0.0)
    rows = torch.cat([rows, torch.full((3, 2), 6.0, dtype=torch.float64)])
    start = replace(model, family=replace(model.family, mean=torch.stack([rows[0], rows[-1] - 0.5])))
    error, seen = assert_alike(problem(engine, start, rows), max_rounds=60)
    assert isinstance(error, ConditionError)
    assert len(seen) > 3


@ENGINES
@pytest.mark.parametrize("cut", [1, 4, 9, 12])
def test_resumed_loops_go_on_as_if_never_stopped(cut: int, engine: Any) -> None:
    make = problem(engine, *creeping(FullGaussian))
    whole, _ = followed(make, max_rounds=20)
    assert isinstance(whole, Outcome)
    with far():
        part, _ = followed(make, max_rounds=cut)
        rest, _ = followed(make, max_rounds=20, resume=part)
    near_rest, _ = followed(make, max_rounds=20, resume=part)
    for found in (rest, near_rest):
        assert isinstance(found, Outcome)
        assert found.trace == whole.trace
        pairs = zip(found.state.leaves(), whole.state.leaves(), strict=True)
        assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)


def interrupting(make: Callable[[], tuple[Any, Any]], call: int) -> tuple[Any, Any]:
    """Ctrl-C within so-many-th call of the step."""
    step, state = make()
    calls: list[None] = []

    def nervous(at: Any) -> Any:
        calls.append(None)
        if len(calls) == call:
            raise KeyboardInterrupt
        return step(at)

    return ahead.Hopeful(nervous), state


@pytest.mark.parametrize(("call", "left"), [(1, 0), (2, 1), (5, 1), (9, 1), (10, 9), (13, 9)])
def test_ctrl_c_keeps_the_last_round_that_was_read(call: int, left: int) -> None:
    make = problem(em, *creeping(FullGaussian))
    with far():
        outcome, _ = followed(lambda: interrupting(make, call), max_rounds=24)
        assert isinstance(outcome, Outcome)
        assert (outcome.rounds, outcome.interrupted) == (left, True)
        rest, _ = followed(make, max_rounds=24, resume=outcome)
    assert isinstance(rest, Outcome)
    assert rest.trace == run(*make(), max_rounds=24).trace


@dataclass(frozen=True)
class Point(Tree):
    """A number that fits itself to an average, and one that says how likely it is."""

    at: Tensor
    height: Tensor
    empty: bool = False

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Sums]:
        return Expected(Sums(self.at + rows[:1]), self.height, torch.ones((), dtype=torch.float64))

    def repair(self, statistics: Sums) -> tuple[Sums, tuple[str, ...]]:
        return statistics, ("moved",) if ask(torch.tensor(self.empty)) else ()

    def solve(self, statistics: Sums) -> Point:
        return replace(self, at=statistics.features)


def point(at: float, height: float = 0.0, empty: bool = False) -> Point:
    return Point(*(torch.tensor(value, dtype=torch.float64) for value in ([[at]], height)), empty)


def after_extrapolation(height: float, empty: bool = False) -> tuple[Any, list[bool]]:
    """The round after an extrapolation to 5 from a safe 3 with objective 1, and whether it is in doubt."""
    path = (Sums(torch.full((1, 1), 2.0, dtype=torch.float64)),)
    state: Any = EMState(point(5.0, height, empty), path, safe=point(3.0, 1.0), bar=1.0)
    step: Any = accelerated_em(ArraySource(torch.zeros(1, 1, dtype=torch.float64)))
    careful = step(state)
    with far(), hoping() as watch:
        hoped = step(state)
    for name in ("objective", "rejected"):
        assert float(getattr(hoped, name)) == float(getattr(careful, name)) or empty
    return careful, [bool(doubt) for doubt in watch.doubts]


@pytest.mark.parametrize("height", [0.5, torch.inf, torch.nan])
@pytest.mark.parametrize("empty", [False, True])
def test_what_a_refused_extrapolation_would_have_led_to_is_no_doubt(height: float, empty: bool) -> None:
    done, doubts = after_extrapolation(height, empty)
    assert (done.rejected, done.objective, float(done.state.model.at)) == (True, 1.0, 3.0)
    assert not any(doubts)


@pytest.mark.parametrize("empty", [False, True])
def test_what_an_extrapolation_leads_to_is_in_doubt(empty: bool) -> None:
    done, doubts = after_extrapolation(1.5, empty)
    assert (done.rejected, done.objective, done.events) == (False, 1.5, ("moved",) if empty else ())
    assert any(doubts) is empty


@pytest.mark.parametrize(
    ("third", "bold"), [(3.5, None), (3.0, None), (1.5, 2.0), (2.0 - 1e-9, 200.0 - 1e-5)]
)
def test_an_extrapolation_is_longer_than_a_step_and_not_too_long(third: float, bold: float | None) -> None:
    """From 0 by 1 to ``third``: Aitken's limit where the steps shrink, at most a hundred times as far."""
    path = tuple(Sums(torch.tensor([[value]], dtype=torch.float64)) for value in (0.0, 1.0, third))
    found = extrapolate(point(0.0), path)
    assert found is None if bold is None else float(found.at) == pytest.approx(bold, rel=1e-12)
    with far(), hoping() as watch:
        extrapolate(point(0.0), path)
    assert any(bool(doubt) for doubt in watch.doubts) is (bold is None)


@pytest.mark.parametrize("error", [ValueError, RuntimeError, ZeroDivisionError])
def test_a_step_that_goes_astray_from_a_wrong_answer_is_taken_again(error: type[Exception]) -> None:
    def step(state: EMState[Any]) -> Round[EMState[Any]]:
        there = state.model.at + 1
        if not ask((there == 5).all()) and float(there) == 5:
            raise error("this cannot be")
        return Round(EMState(replace(state.model, at=there)), told(there.sum()))

    outcome, _ = assert_alike(lambda: (ahead.Hopeful(step), EMState(point(0.0))))
    assert isinstance(outcome, Outcome)
    assert outcome.trace == [float(n) for n in range(1, 25)]
