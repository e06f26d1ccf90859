import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from boxloop.average import Power, Running
from boxloop.loop import Iteration, Progress, run
from boxloop.persist import (
    CheckpointWriter,
    ModelFileError,
    checkpoint as checkpoint_module,
    load_tree,
    read_checkpoint,
    save_tree,
)
from boxloop.tree import Tree


@dataclass(frozen=True)
class Point(Tree):
    x: Tensor


@dataclass(frozen=True)
class Walk(Tree):
    point: Point
    mean: Running[Point]
    stream: Tensor


CLASSES = {"Point": Point, "Walk": Walk, "Running": Running}
FIT = {"model": "walk", "seed": 1}


def start() -> Walk:
    return Walk(
        Point(torch.zeros(3, dtype=torch.float64)), Running(), torch.Generator().manual_seed(1).get_state()
    )


def walk(state: Walk) -> Iteration[Walk]:
    generator = torch.Generator()
    generator.set_state(state.stream)
    x = 0.9 * state.point.x + torch.randn(3, generator=generator, dtype=torch.float64)
    mean = state.mean.update(Point(x), Power())
    return Iteration(Walk(Point(x), mean, generator.get_state()), float(x.sum()))


def bits(state: Walk):
    return [(name, leaf.reshape(-1).view(torch.uint8).tolist()) for name, leaf in state.leaves()]


@pytest.mark.parametrize("stop", [1, 4, 10])
def test_resuming_from_a_file_gives_the_same_trajectory_bit_for_bit(tmp_path, stop):
    path = tmp_path / "c.boxloop"
    whole = run(walk, start(), max_iter=10)
    run(walk, start(), max_iter=stop, observers=[CheckpointWriter(path, FIT)])
    found = read_checkpoint(path, CLASSES, FIT)
    assert found.n_iter == stop
    rest = run(walk, start(), max_iter=10, resume=found)
    assert rest.trace == whole.trace
    assert bits(rest.state) == bits(whole.state)
    assert rest.state.mean.count == whole.state.mean.count


def test_a_checkpoint_holds_the_whole_outcome(tmp_path):
    path = tmp_path / "c.boxloop"
    objectives = [0.1, math.inf, -math.inf, math.nan, 5e-324]

    def step(n):
        return Iteration(n + 1, objectives[n], ("moved",) if n in (1, 4) else (), final=n == 4)

    done = run(step, 0, max_iter=9, observers=[CheckpointWriter(path, {})])
    found = read_checkpoint(path, {}, {})
    assert repr(found) == repr(done)
    assert (found.converged, found.excused, found.events) == (
        True,
        True,
        ["iteration 2: moved", "iteration 5: moved"],
    )


def test_a_converged_checkpoint_is_not_continued(tmp_path):
    path = tmp_path / "c.boxloop"

    def step(n):
        return Iteration(n + 1, 1.0)

    done = run(step, 0, max_iter=9, tol=0.1, observers=[CheckpointWriter(path, {})])
    assert run(step, 0, max_iter=9, tol=0.1, resume=read_checkpoint(path, {}, {})) == done


def progress(number: int, stopped: bool = False) -> Progress[int]:
    return Progress(number, number, 99, [0.0] * number, [], stopped)


def saves(monkeypatch, writer, steps):
    """The iterations that are saved when the clock shows ``now`` at each progress."""
    found = []
    for now, seen in steps:
        monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda now=now: now)
        writer.path.unlink(missing_ok=True)
        writer(seen)
        if writer.path.exists():
            found.append(read_checkpoint(writer.path, {}, {}).n_iter)
    return found


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(checkpoint_module.time, "monotonic", lambda: 0.0)


@pytest.mark.usefixtures("clock")
def test_saves_every_few_iterations_and_at_the_end(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path / "c", {}, every=3, seconds=None)
    steps = [(1e9, progress(n)) for n in range(1, 9)] + [(1e9, progress(8, stopped=True))]
    assert saves(monkeypatch, writer, steps) == [3, 6, 8]


@pytest.mark.usefixtures("clock")
def test_saves_at_first_as_often_as_the_time_doubles(tmp_path, monkeypatch):
    """So a kill in the first seconds loses no more than the half of them, and no fit saves more than once a second."""
    writer = CheckpointWriter(tmp_path / "c", {}, seconds=10.0)
    steps = [(0.1 * n, progress(n)) for n in range(1, 400)]
    times = [0.1 * n for n in saves(monkeypatch, writer, steps)]
    assert times == pytest.approx([0.1, 1.1, 2.2, 4.4, 8.8, 17.6, 27.6, 37.6], abs=0.11)


@pytest.mark.usefixtures("clock")
def test_saves_at_first_and_when_time_has_passed_since_the_last_save(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path / "c", {}, seconds=10.0)
    steps = [
        (9.0, progress(1)),
        (10.0, progress(2)),
        (19.0, progress(3)),
        (21.0, progress(4)),
        (22.0, progress(5)),
    ]
    assert saves(monkeypatch, writer, steps) == [1, 3]


@pytest.mark.usefixtures("clock")
def test_the_end_is_saved_once_and_nothing_before_the_first_iteration(tmp_path, monkeypatch):
    writer = CheckpointWriter(tmp_path / "c", {}, every=1, seconds=None)
    steps = [
        (0.0, progress(0, stopped=True)),
        (0.0, progress(1)),
        (0.0, progress(1, stopped=True)),
        (0.0, progress(1)),
    ]
    assert saves(monkeypatch, writer, steps) == [1, 1]


def test_ctrl_c_during_a_save_saves_again_at_the_end(tmp_path, monkeypatch):
    path = tmp_path / "c.boxloop"
    real, calls = checkpoint_module.save_tree, []

    def nervous(*args, **options):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(*args, **options)

    monkeypatch.setattr(checkpoint_module, "save_tree", nervous)
    outcome = run(walk, start(), max_iter=9, observers=[CheckpointWriter(path, FIT, every=1)])
    assert (outcome.n_iter, outcome.interrupted, len(calls)) == (2, True, 3)
    assert read_checkpoint(path, CLASSES, FIT).n_iter == 2


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"model": "walk", "seed": 2}, "'seed' is 1 there and 2 here"),
        ({"model": "walk"}, "'seed' is 1 there and absent here"),
        ({**FIT, "tol": 0.1}, "'tol' is absent there and 0.1 here"),
        ({"model": "run", "seed": 1}, "'model' is \"walk\" there"),
        ({"model": "walk", "seed": True}, "'seed' is 1 there and true here"),
    ],
)
def test_another_fit_is_refused_by_the_entry_that_differs(tmp_path, other, named):
    path = tmp_path / "c.boxloop"
    run(walk, start(), max_iter=1, observers=[CheckpointWriter(path, FIT)])
    with pytest.raises(ModelFileError, match=f"c.boxloop: a checkpoint of another fit: {named}"):
        read_checkpoint(path, CLASSES, other)


def test_fingerprints_compare_as_json(tmp_path):
    path = tmp_path / "c.boxloop"
    fingerprint = {"shape": (2, 3), "missing": math.nan, "nested": {"b": 1, "a": 2}}
    run(walk, start(), max_iter=1, observers=[CheckpointWriter(path, fingerprint)])
    again = {"nested": {"a": 2, "b": 1}, "missing": math.nan, "shape": [2, 3]}
    assert read_checkpoint(path, CLASSES, again).n_iter == 1


def test_a_model_is_not_a_checkpoint_nor_a_checkpoint_a_model(tmp_path):
    save_tree(tmp_path / "m", start())
    with pytest.raises(ModelFileError, match="a model, not a checkpoint"):
        read_checkpoint(tmp_path / "m", CLASSES, FIT)
    run(walk, start(), max_iter=1, observers=[CheckpointWriter(tmp_path / "c", FIT)])
    with pytest.raises(ModelFileError, match="'Checkpoint'"):
        load_tree(tmp_path / "c", CLASSES)


def test_a_checkpoint_has_one_objective_per_iteration():
    with pytest.raises(ValueError, match="3 iterations"):
        checkpoint_module.Checkpoint(start(), torch.zeros(2), (), 3, False, False)


@pytest.mark.parametrize(
    ("options", "named"),
    [({"every": 0}, "every"), ({"seconds": -1.0}, "seconds"), ({"seconds": math.nan}, "seconds")],
)
def test_impossible_intervals_are_refused(tmp_path, options, named):
    with pytest.raises(ValueError, match=named):
        CheckpointWriter(tmp_path / "c", FIT, **options)
