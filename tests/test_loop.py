import math
import random
import signal
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from boxloop.loop import Iteration, MonotonicityError, Outcome, run
from boxloop.tree import Tree


@dataclass(frozen=True)
class Walk(Tree):
    x: Tensor
    stream: Tensor


def start() -> Walk:
    return Walk(torch.zeros(3, dtype=torch.float64), torch.Generator().manual_seed(1).get_state())


def walk(state: Walk) -> Iteration[Walk]:
    generator = torch.Generator()
    generator.set_state(state.stream)
    x = 0.9 * state.x + torch.randn(3, generator=generator, dtype=torch.float64)
    return Iteration(Walk(x, generator.get_state()), float(state.x.sum()))


def count(n: int) -> Iteration[int]:
    return Iteration(n + 1, float(n))


def following(objectives, events=None, final_at=None):
    """A step whose objectives and events are given in advance; the state counts the iterations."""
    events = events or {}
    return lambda n: Iteration(n + 1, objectives[n], events.get(n, ()), final=n == final_at)


def watcher():
    seen = []
    return seen, seen.append


def interrupt(*_):
    raise KeyboardInterrupt


def test_the_trace_holds_the_objective_of_the_state_a_iteration_was_given():
    outcome = run(count, 0, max_iter=3)
    assert (outcome.state, outcome.trace, outcome.n_iter) == (3, [0.0, 1.0, 2.0], 3)
    assert (outcome.converged, outcome.interrupted, outcome.events) == (False, False, [])


def test_stops_when_the_objective_settles():
    outcome = run(following([0.0, 1.0, 1.5, 1.6, 1.61, 5.0]), 0, max_iter=6, tol=0.2)
    assert outcome.converged
    assert outcome.trace == [0.0, 1.0, 1.5, 1.6]


def test_zero_tolerance_never_stops_early():
    assert run(following([1.0] * 5), 0, max_iter=5, tol=0.0).n_iter == 5


def test_a_iteration_with_events_neither_converges_nor_is_compared():
    events = {1: ("moved",)}
    outcome = run(following([1.0, 1.0, 1.0, 1.0, 9.0], events), 0, max_iter=5, tol=0.1)
    assert (outcome.n_iter, outcome.converged) == (4, True)
    assert outcome.events == ["iteration 2: moved"]


def test_a_rejected_iteration_is_no_sign_of_convergence():
    outcome = run(lambda n: Iteration(n + 1, 1.0, rejected=n == 1), 0, max_iter=9, tol=0.1)
    assert (outcome.n_iter, outcome.converged) == (3, True)


def test_a_final_iteration_ends_the_loop():
    outcome = run(following([0.0, 5.0, 9.0], final_at=1), 0, max_iter=3)
    assert (outcome.n_iter, outcome.converged) == (2, True)


def test_no_iterations_allowed_gives_back_the_start():
    seen, observe = watcher()
    outcome = run(count, 7, max_iter=0, observers=[observe])
    assert (outcome.state, outcome.n_iter, outcome.trace) == (7, 0, [])
    assert [progress.stopped for progress in seen] == [True]


def test_a_fall_is_an_error_with_the_iteration_and_the_amount():
    with pytest.raises(MonotonicityError, match=r"iteration 3, from -1\.0 to -1\.5 \(by 0\.5\)"):
        run(following([-2.0, -1.0, -1.5]), 0, max_iter=3, monotone=True)


def test_rounding_is_no_fall():
    trace = [-1e6, -1e6 * (1 + 0.9e-9)]
    assert run(following(trace), 0, max_iter=2, monotone=True).trace == trace
    with pytest.raises(MonotonicityError):
        run(following([-1e6, -1e6 * (1 + 1.1e-9)]), 0, max_iter=2, monotone=True)


def test_an_event_excuses_the_next_fall_only():
    events = {1: ("component 2 re-seeded",)}
    assert run(following([0.0, 1.0, -5.0], events), 0, max_iter=3, monotone=True).n_iter == 3
    with pytest.raises(MonotonicityError, match="iteration 4"):
        run(following([0.0, 1.0, -5.0, -6.0], events), 0, max_iter=4, monotone=True)


def test_a_fall_that_rounding_may_cause_is_noted_and_excused():
    asked = []

    def rounding(state):
        asked.append(state)
        return 1.2

    step = following([0.0, 1.0, 1.5, 0.5, 9.0])
    outcome = run(step, 0, max_iter=5, monotone=True, rounding=rounding)
    assert asked == [3], "only where the objective fell"
    assert outcome.events == [
        "iteration 4: the objective fell by 1, as rounding alone may move it by 1.2: a matrix is "
        "nearly singular, or some rows are far larger than the others"
    ]
    with pytest.raises(MonotonicityError, match="iteration 4"):
        run(step, 0, max_iter=5, monotone=True, rounding=lambda state: 0.9)


@pytest.mark.parametrize("at", [0, 1, 2])
def test_nan_is_an_error_even_at_the_first_iteration_or_after_an_event(at):
    objectives = [0.0, 1.0, 2.0]
    objectives[at] = math.nan
    with pytest.raises(MonotonicityError, match=f"NaN at iteration {at + 1}"):
        run(following(objectives, {0: ("moved",)}), 0, max_iter=3, monotone=True)


def test_falls_are_allowed_where_they_can_happen():
    assert run(following([0.0, -1.0, math.nan, -9.0]), 0, max_iter=4).n_iter == 4


def test_observers_see_every_iteration_and_the_end():
    seen, observe = watcher()
    run(following([0.0, 1.0, 1.0], {0: ("moved",)}), 0, max_iter=9, tol=0.5, observers=[observe])
    assert [(p.state, p.iteration, p.stopped, p.converged, p.excused) for p in seen] == [
        (1, 1, False, False, True),
        (2, 2, False, False, False),
        (3, 3, False, True, False),
        (3, 3, True, True, False),
    ]


def test_all_observers_hear_of_the_end_though_one_fails():
    seen, observe = watcher()

    def full(progress):
        if progress.stopped:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(count, 0, max_iter=2, observers=[full, observe])
    assert seen[-1].stopped


def test_an_error_in_a_step_is_passed_on_after_the_last_complete_iteration_was_reported():
    seen, observe = watcher()
    with pytest.raises(IndexError):
        run(following([0.0, 1.0]), 0, max_iter=3, observers=[observe])
    assert (seen[-1].stopped, seen[-1].iteration, seen[-1].state) == (True, 2, 2)


def test_a_failing_observer_does_not_hide_the_first_error():
    def full(progress):
        if progress.stopped:
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full") as caught:
        run(following([0.0]), 0, max_iter=2, observers=[full])
    assert isinstance(caught.value.__context__, IndexError)


def at_iteration(number, action, step=count):
    return lambda n: action() if n == number else step(n)


def test_ctrl_c_in_a_step_keeps_the_last_complete_iteration():
    seen, observe = watcher()
    outcome = run(at_iteration(2, interrupt), 0, max_iter=9, observers=[observe])
    assert (outcome.state, outcome.n_iter, outcome.trace) == (2, 2, [0.0, 1.0])
    assert outcome.interrupted
    assert not outcome.converged
    assert outcome.events == ["interrupted after iteration 2"]
    assert seen[-1].stopped
    assert seen[-1].events == outcome.events


def test_ctrl_c_in_an_observer_counts_the_iteration():
    outcome = run(
        count,
        0,
        max_iter=9,
        observers=[lambda p: interrupt() if p.iteration == 3 and not p.stopped else None],
    )
    assert (outcome.state, outcome.n_iter, outcome.interrupted) == (3, 3, True)


def test_a_second_ctrl_c_still_returns_the_iteration():
    seen, observe = watcher()
    outcome = run(
        at_iteration(2, interrupt),
        0,
        max_iter=9,
        observers=[lambda p: interrupt() if p.stopped else None, observe],
    )
    assert (outcome.state, outcome.n_iter, outcome.interrupted) == (2, 2, True)
    assert outcome.events == ["interrupted after iteration 2"]
    assert seen[-1].stopped


def test_ctrl_c_while_the_end_is_reported_loses_nothing():
    outcome = run(count, 0, max_iter=3, observers=[lambda p: interrupt() if p.stopped else None])
    assert (outcome.state, outcome.n_iter, outcome.interrupted) == (3, 3, True)


def test_ctrl_c_within_the_bookkeeping_leaves_one_objective_per_iteration():
    class Torn(Iteration):
        @property
        def state(self):
            return interrupt()

        def __init__(self):
            object.__setattr__(self, "objective", 5.0)

    outcome = run(at_iteration(2, Torn), 0, max_iter=9)
    assert (outcome.state, outcome.n_iter, outcome.trace) == (2, 2, [0.0, 1.0])


def test_an_interruption_at_any_instant_leaves_a_consistent_outcome():
    delays = random.Random(0)
    previous = signal.signal(signal.SIGALRM, interrupt)
    completed = 0
    try:
        for _ in range(200):
            try:
                signal.setitimer(signal.ITIMER_REAL, delays.uniform(2e-4, 1e-3))
                outcome = run(count, 0, max_iter=10**9)
            except KeyboardInterrupt:  # it came before the loop began
                continue
            completed += 1
            assert outcome.interrupted
            assert outcome.state == outcome.n_iter == len(outcome.trace)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    assert completed > 150


def terminate():
    raise SystemExit(143)


@pytest.mark.parametrize("last_word", [lambda p: None, lambda p: interrupt() if p.stopped else None])
def test_sigterm_exits_with_its_status_after_the_end_was_reported(last_word):
    seen, observe = watcher()
    with pytest.raises(SystemExit) as caught:
        run(at_iteration(2, terminate), 0, max_iter=9, observers=[last_word, observe])
    assert caught.value.code == 143
    assert (seen[-1].stopped, seen[-1].iteration) == (True, 2)


@pytest.mark.parametrize("stop", [0, 1, 4, 9, 10])
def test_resuming_gives_the_same_trajectory_bit_for_bit(stop):
    whole = run(walk, start(), max_iter=10)
    part = run(walk, start(), max_iter=stop)
    rest = run(walk, start(), max_iter=10, resume=part)
    assert rest.trace == whole.trace
    assert torch.equal(rest.state.x, whole.state.x)
    assert torch.equal(rest.state.stream, whole.state.stream)
    assert len(part.trace) == stop


def test_resuming_after_an_interruption_gives_the_same_trajectory():
    calls = iter(range(100))

    def nervous(state):
        return interrupt() if next(calls) == 6 else walk(state)

    part = run(nervous, start(), max_iter=10)
    assert (part.n_iter, part.interrupted) == (6, True)
    rest = run(nervous, start(), max_iter=10, resume=part)
    assert rest.trace == run(walk, start(), max_iter=10).trace
    assert not rest.interrupted
    assert rest.events == ["interrupted after iteration 6"]


def test_resuming_remembers_that_a_fall_was_excused():
    step = following([0.0, 1.0, -5.0], {1: ("re-seeded",)})
    part = run(step, 0, max_iter=2, monotone=True)
    assert run(step, 0, max_iter=3, monotone=True, resume=part).n_iter == 3
    with pytest.raises(MonotonicityError):
        run(step, 0, max_iter=3, monotone=True, resume=replace(part, excused=False))


def test_a_converged_outcome_is_not_continued():
    done = run(following([1.0, 1.0, 7.0]), 0, max_iter=9, tol=0.1)
    assert run(following([1.0, 1.0, 7.0]), 0, max_iter=9, tol=0.1, resume=done) == done


def test_resuming_does_not_change_the_outcome_it_was_given():
    part = run(count, 0, max_iter=2)
    run(count, 0, max_iter=5, resume=part)
    assert part == Outcome(2, [0.0, 1.0], [], 2)
