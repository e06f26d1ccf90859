"""Faults 35 to 39: kills, signals, a full disk. Run as a script, this file is the process that suffers them."""

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from boxloop.average import Power, Running
from boxloop.persist import CheckpointWriter, load_tree, read_checkpoint, save_tree
from boxloop.run import Progress, Round, run
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
ROUNDS = 400


def start() -> Walk:
    stream = torch.Generator().manual_seed(1).get_state()
    return Walk(Point(torch.zeros(3, dtype=torch.float64)), Running(), stream)


def walk(state: Walk) -> Round[Walk]:
    generator = torch.Generator()
    generator.set_state(state.stream)
    x = 0.9 * state.point.x + torch.randn(3, generator=generator, dtype=torch.float64)
    return Round(Walk(Point(x), state.mean.update(Point(x), Power()), generator.get_state()), float(x.sum()))


def slow_walk(state: Walk) -> Round[Walk]:
    time.sleep(0.002)
    return walk(state)


def announce(progress: Progress[Walk]) -> None:
    if progress.round == 3 and not progress.stopped:
        print("ready", flush=True)


def write_for_ever(path: Path, first: int) -> None:
    """Checkpoints of 1 MB whose every number is their round."""
    writer = CheckpointWriter(path, FIT, every=1)
    for number in range(first, first + 10**9):
        state = Point(torch.full((125_000,), float(number), dtype=torch.float64))
        writer(Progress(state, number, 10**9, [float(number)] * number, []))


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix == ".tmp"]


def suffer_kills(path: Path) -> None:
    """Fork a writer, kill it at a random moment, load what it left; a hundred times."""
    torch.set_num_threads(1)
    delays, loaded, leftovers, rounds = random.Random(0), 0, 0, 1
    CheckpointWriter(path, FIT)(Progress(Point(torch.ones(125_000)), 1, 1, [1.0], [], stopped=True))
    for _ in range(100):
        child = os.fork()
        if child == 0:
            write_for_ever(path, rounds + 1)
        time.sleep(delays.uniform(0.005, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = read_checkpoint(path, CLASSES, FIT)
        loaded += (
            bool((found.state.x == found.rounds).all())
            and found.trace == [float(found.rounds)] * found.rounds
        )
        leftovers += len(temporaries(path.parent)) > 0
        rounds = found.rounds
    save_tree(path, Point(torch.ones(1)))
    print(
        json.dumps(
            {"loaded": loaded, "leftovers": leftovers, "rounds": rounds, "after": temporaries(path.parent)}
        )
    )


def suffer_full_disk(path: Path) -> None:
    save_tree(path, Point(torch.ones(2)))
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        save_tree(path, Point(torch.ones(1_000_000)))
    except OSError as error:
        print(json.dumps({"errno": error.errno, "files": [item.name for item in path.parent.iterdir()]}))


def suffer_ctrl_c(path: Path) -> None:
    outcome = run(
        slow_walk, start(), max_rounds=10**6, observers=[announce, CheckpointWriter(path, FIT, seconds=None)]
    )
    print(json.dumps({"interrupted": outcome.interrupted, "trace": outcome.trace, "events": outcome.events}))
    raise SystemExit(130)


def suffer_sigterm(path: Path) -> None:
    def leave(number, frame):
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    run(slow_walk, start(), max_rounds=10**6, observers=[announce, CheckpointWriter(path, FIT, seconds=None)])


def suffer_death(path: Path) -> None:
    run(slow_walk, start(), max_rounds=ROUNDS, observers=[CheckpointWriter(path, FIT, every=1), announce])


def child(task, path: Path, signalled: signal.Signals | None = None) -> tuple[int, str]:
    """Run one of the functions above in a process of its own; its status and what it printed after "ready"."""
    command = [sys.executable, __file__, task.__name__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if signalled is not None:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            process.send_signal(signalled)
        output = process.communicate(timeout=60)[0]
    return process.returncode, output


def reference(rounds: int):
    return run(walk, start(), max_rounds=rounds)


def assert_same(found, whole):
    assert found.trace == whole.trace
    for (name, left), (_, right) in zip(found.state.leaves(), whole.state.leaves(), strict=True):
        assert torch.equal(left, right), name
    assert found.state.mean.count == whole.state.mean.count


def test_f35_kill_during_checkpoint(tmp_path):
    status, output = child(suffer_kills, tmp_path / "c.boxloop")
    report = json.loads(output)
    assert status == 0
    assert report["loaded"] == 100
    assert report["leftovers"] > 0, "no kill fell into a write"
    assert report["rounds"] >= 10, "the writer hardly got anywhere between kills"
    assert report["after"] == []


def test_f36_disk_full(tmp_path):
    status, output = child(suffer_full_disk, tmp_path / "m.boxloop")
    assert (status, json.loads(output)) == (0, {"errno": errno.EFBIG, "files": ["m.boxloop"]})
    assert torch.equal(load_tree(tmp_path / "m.boxloop", CLASSES).tree.x, torch.ones(2))


def test_f37_ctrl_c(tmp_path):
    status, output = child(suffer_ctrl_c, tmp_path / "c.boxloop", signal.SIGINT)
    report = json.loads(output)
    rounds = len(report["trace"])
    assert (status, report["interrupted"]) == (130, True)
    assert report["events"] == [f"interrupted after round {rounds}"]
    assert report["trace"] == reference(rounds).trace
    assert_same(read_checkpoint(tmp_path / "c.boxloop", CLASSES, FIT), reference(rounds))


def test_f38_sigterm(tmp_path):
    status, _ = child(suffer_sigterm, tmp_path / "c.boxloop", signal.SIGTERM)
    assert status == 143
    found = read_checkpoint(tmp_path / "c.boxloop", CLASSES, FIT)
    assert found.rounds >= 3
    assert_same(found, reference(found.rounds))


def test_f39_resume_bit_for_bit(tmp_path):
    status, _ = child(suffer_death, tmp_path / "c.boxloop", signal.SIGKILL)
    assert status == -signal.SIGKILL
    found = read_checkpoint(tmp_path / "c.boxloop", CLASSES, FIT)
    assert 3 <= found.rounds < ROUNDS
    assert_same(run(walk, start(), max_rounds=ROUNDS, resume=found), reference(ROUNDS))


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
