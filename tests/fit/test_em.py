"""Batch EM and its acceleration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, FullGaussian, Sums
from boxloop.fit import EMState, accelerated_em, em, extrapolate, rounding_error
from boxloop.loop import Iteration, Outcome, run
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import ConditionError
from boxloop.tree import Tree
from boxloop.types import Expected
from contract.distribution_checks import near, with_missing
from contract.distributions import uniform
from contract.models import model_cases

PASSES = 120
CASES = model_cases()


def level(model: Any, rows: Tensor) -> float:
    base = model.log_base(rows)
    return float((model.log_prob(rows) - (0.0 if base is None else base)).mean())


def overlapping() -> tuple[Any, Tensor]:
    """Two clusters that hide in one another: EM creeps."""
    stream = Generator().manual_seed(0)
    rows = torch.randn(400, 2, generator=stream, dtype=torch.float64)
    rows[::3] += torch.tensor([1.5, 0.5], dtype=torch.float64)
    family = FullGaussian(rows[[0, 1]].clone(), torch.eye(2, dtype=torch.float64).repeat(2, 1, 1), 1e-6)
    return Mixture(torch.tensor([0.5, 0.5], dtype=torch.float64).log(), family), rows


def creeping_factors(floor: float = 1e-6) -> tuple[Any, Tensor]:
    """The plain step of factor analysis with little noise: EM creeps."""
    stream = Generator().manual_seed(1)
    truth = FactorModel(
        torch.zeros(8, dtype=torch.float64),
        uniform(stream, 8, 2, low=-1, high=1),
        uniform(stream, 8, low=0.01, high=0.2),
    )
    rows = truth.sample(300, stream)[0]
    return FactorModel(rows.mean(0), uniform(stream, 8, 2), rows.var(0), floor, expand=False), rows


SLOW = pytest.mark.parametrize("problem", [overlapping, creeping_factors], ids=lambda f: f.__name__)


def climb(step: Any, model: Any, passes: int = PASSES) -> Outcome[EMState[Any]]:
    return run(step, EMState(model), max_iter=passes, monotone=True)


def test_an_iteration_is_expect_then_solve() -> None:
    model, rows = overlapping()
    weight = uniform(Generator().manual_seed(2), len(rows))
    done = em(ArraySource(rows, weight))(EMState(model))
    expected = model.expect(rows, weight)
    assert done.objective == pytest.approx(float(expected.log_likelihood / weight.sum()), rel=1e-14)
    near(done.state.best, model.solve(expected.statistics), rtol=1e-14)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("engine", [em, accelerated_em])
def test_every_model_climbs(name: str, gaps: bool, engine: Any) -> None:
    """The loop itself refuses a fall; the last model is no worse than the last objective."""
    case = CASES[name]
    rows = with_missing(case.rows, rate=0.25) if gaps else case.rows
    model = _floored(case.model)
    outcome = climb(engine(ArraySource(rows, case.weight)), model, 60)
    final = outcome.state.best.expect(rows, case.weight)
    assert outcome.trace[-1] > outcome.trace[0]
    assert float(final.log_likelihood / final.weight) >= outcome.trace[-1] - 1e-9 * abs(outcome.trace[-1])


def _floored(model: Any) -> Any:
    """Forty rows and three components: without a floor one of them may collapse."""
    if isinstance(model, Mixture):
        return replace(model, family=_floored(model.family))
    return replace(model, floor=1e-2) if "floor" in model.__dataclass_fields__ else model


@SLOW
def test_acceleration_gets_further_in_as_many_passes(problem: Any) -> None:
    model, rows = problem()
    plain, quick = (climb(engine(ArraySource(rows)), model) for engine in (em, accelerated_em))
    assert level(quick.state.best, rows) >= level(plain.state.best, rows)
    limit = level(climb(em(ArraySource(rows)), model, 20 * PASSES).state.best, rows)
    left = [limit - level(outcome.state.best, rows) for outcome in (plain, quick)]
    assert left[1] < 0.2 * left[0], "the problem is slow, and acceleration closes most of what is left"


def test_acceleration_needs_fewer_passes_over_the_rows() -> None:
    model, rows = creeping_factors()
    plain, quick = (
        run(engine(ArraySource(rows)), EMState(model), max_iter=20_000, tol=1e-9, monotone=True)
        for engine in (em, accelerated_em)
    )
    assert plain.converged
    assert quick.converged
    assert quick.n_iter < 0.5 * plain.n_iter
    assert level(quick.state.best, rows) >= level(plain.state.best, rows) - 1e-6


@SLOW
def test_the_best_model_is_always_confirmed(problem: Any) -> None:
    """At every iteration ``best`` is at least as good as everything the loop has seen, bold or not."""
    model, rows = problem()
    step, state = accelerated_em(ArraySource(rows)), EMState(model)
    bold, refused, top = 0, 0, -torch.inf
    for _ in range(PASSES):
        done = step(state)
        top, state = max(top, done.objective), done.state
        bold += state.safe is not None
        refused += done.rejected
        assert level(state.best, rows) >= top - 1e-9 * abs(top)
    assert bold > 5
    assert refused > 0, "a guard that never acts is not tested here"


class Singular:
    """A model with a matrix that cannot be factored."""

    def expect(self, rows: Tensor, weight: Tensor) -> Any:
        raise ConditionError("the covariance of component 0 is not positive definite")


FLAT = Mixture(
    torch.zeros(1, dtype=torch.float64),
    DiagonalGaussian(torch.zeros(1, 1).double(), torch.ones(1, 1).double()),
)
ROWS = torch.zeros(3, 1, dtype=torch.float64)


def test_a_bold_model_that_cannot_be_factored_is_refused() -> None:
    state = EMState(Singular(), (), safe=FLAT, bar=-1.0)
    done: Iteration[Any] = accelerated_em(ArraySource(ROWS))(state)
    assert done.rejected
    assert done.state.model is FLAT
    assert done.state.safe is None
    assert done.objective == -1.0


def test_a_plain_model_that_cannot_be_factored_is_an_error() -> None:
    with pytest.raises(ConditionError):
        accelerated_em(ArraySource(ROWS))(EMState(Singular()))


def test_acceleration_survives_noise_that_vanishes() -> None:
    """Without a floor a bold step may take a noise variance to zero; the plain step then stands."""
    model, rows = creeping_factors(floor=0.0)
    outcome = climb(accelerated_em(ArraySource(rows)), model)
    assert outcome.state.best.is_finite()
    assert level(outcome.state.best, rows) >= level(climb(em(ArraySource(rows)), model).state.best, rows)


def test_chunks_and_order_of_rows_do_not_matter() -> None:
    model, rows = overlapping()
    whole = climb(em(ArraySource(rows)), model, 20)

    class Tiled(ArraySource):
        def chunks(self, size: int | None = None) -> Any:
            return super().chunks(37)

    tiled = climb(em(Tiled(rows.flip(0))), model, 20)
    assert tiled.trace == pytest.approx(whole.trace, rel=1e-10)
    near(tiled.state.best, whole.state.best)


@pytest.mark.parametrize("engine", [em, accelerated_em])
def test_what_rounding_does_to_a_nearly_singular_covariance_is_no_fall(engine: Any) -> None:
    """On one processor of two, covariances of condition 1e15 made EM fall by 0.03; here some of 40 tables do."""
    fell = 0
    for trial in range(40):
        rows = torch.randn(300, 3, generator=Generator().manual_seed(trial), dtype=torch.float64)
        rows[:, 2] = rows[:, 0] + 1e-7 * rows[:, 2]
        start = FullGaussian.from_covariance(rows.mean(0)[None], rows.T.cov(correction=0)[None], 1e-15)
        model = Mixture(torch.zeros(1, dtype=torch.float64), start)
        source = ArraySource(rows)
        rounding = partial(rounding_error, source=source)
        outcome = run(engine(source), EMState(model), max_iter=6, monotone=True, rounding=rounding)
        fell += any("nearly singular" in event for event in outcome.events)
    assert fell


@pytest.mark.parametrize("engine", [em, accelerated_em])
def test_rounding_is_little_where_nothing_is_singular(engine: Any) -> None:
    for model, rows in (overlapping(), creeping_factors()):
        source = ArraySource(rows)
        assert rounding_error(EMState(model), source) == 0.0
        state = run(engine(source), EMState(model), max_iter=2).state
        assert 0.0 < rounding_error(state, source) < 1e-12


@pytest.mark.parametrize("engine", [em, accelerated_em])
@pytest.mark.parametrize("cut", [1, 4, 9, 12])
def test_a_resumed_fit_goes_on_as_if_never_stopped(cut: int, engine: Any) -> None:
    model, rows = overlapping()
    step = engine(ArraySource(rows))
    whole = run(step, EMState(model), max_iter=20)
    part = run(step, EMState(model), max_iter=cut)
    rest = run(step, EMState(model), max_iter=20, resume=part)
    assert rest.trace == whole.trace
    pairs = zip(rest.state.leaves(), whole.state.leaves(), strict=True)
    assert all(torch.equal(one, other) for (_, one), (_, other) in pairs)


@dataclass(frozen=True)
class Point(Tree):
    """A number that fits itself to an average, and one that says how likely it is."""

    at: Tensor
    height: Tensor
    empty: bool = False

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[Sums]:
        return Expected(Sums(self.at + rows[:1]), self.height, torch.ones((), dtype=torch.float64))

    def repair_statistics(self, statistics: Sums) -> tuple[Sums, tuple[str, ...]]:
        return statistics, ("moved",) if self.empty else ()

    def solve(self, statistics: Sums) -> Point:
        return replace(self, at=statistics.features)


def point(at: float, height: float = 0.0, empty: bool = False) -> Point:
    return Point(*(torch.tensor(value, dtype=torch.float64) for value in ([[at]], height)), empty)


def after_extrapolation(height: float, empty: bool) -> Iteration[Any]:
    """The step after an extrapolation to 5 from a safe 3 with objective 1."""
    path = (Sums(torch.full((1, 1), 2.0, dtype=torch.float64)),)
    state: Any = EMState(point(5.0, height, empty), path, safe=point(3.0, 1.0), bar=1.0)
    return accelerated_em(ArraySource(torch.zeros(1, 1, dtype=torch.float64)))(state)


@pytest.mark.parametrize("height", [0.5, torch.inf, torch.nan])
@pytest.mark.parametrize("empty", [False, True])
def test_an_extrapolation_that_is_no_better_is_refused(height: float, empty: bool) -> None:
    done = after_extrapolation(height, empty)
    assert (done.rejected, done.objective, float(done.state.model.at)) == (True, 1.0, 3.0)
    assert done.events == ()


@pytest.mark.parametrize("empty", [False, True])
def test_an_extrapolation_that_is_better_is_kept(empty: bool) -> None:
    done = after_extrapolation(1.5, empty)
    assert (done.rejected, done.objective, done.events) == (False, 1.5, ("moved",) if empty else ())


@pytest.mark.parametrize(
    ("third", "bold"), [(3.5, None), (3.0, None), (1.5, 2.0), (2.0 - 1e-9, 200.0 - 1e-5)]
)
def test_an_extrapolation_is_longer_than_a_step_and_not_too_long(third: float, bold: float | None) -> None:
    """From 0 by 1 to ``third``: Aitken's limit where the steps shrink, at most a hundred times as far."""
    path = tuple(Sums(torch.tensor([[value]], dtype=torch.float64)) for value in (0.0, 1.0, third))
    found = extrapolate(point(0.0), path)
    assert found is None if bold is None else float(found.at) == pytest.approx(bold, rel=1e-12)
