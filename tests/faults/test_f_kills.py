"""Faults 35 to 39: kills, signals, a full disk, in fits of estimators. Run as a script, this file suffers them."""

from __future__ import annotations

import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import boxloop
from boxloop.cli import main
from boxloop.estimators import checkpoints
from boxloop.loop import Progress
from boxloop.persist import Checkpoint, CheckpointWriter, get_model_file, load_tree

ITERATIONS = 60
MODELS = {
    "mixture": lambda **more: boxloop.GaussianMixture(4, init_params="kmeans", **more),
    "factor": lambda **more: boxloop.FactorAnalysis(2, accelerate=False, **more),
    "bayesian": lambda **more: boxloop.BayesianGaussianMixture(4, init_params="kmeans", **more),
    "online": lambda **more: boxloop.PoissonMixture(
        3, init_params="kmeans", method="online", batch_size=20, **more
    ),
}
KILLS = 100


def rows(columns: int = 6) -> np.ndarray:
    """Counts of three overlapping groups: EM needs many iterations."""
    rng = np.random.default_rng(0)
    rates = rng.uniform(2.0, 6.0, size=(3, columns))
    return rng.poisson(rates[rng.integers(0, 3, 400)]).astype(float)


def make(name: str, **more: Any) -> Any:
    return MODELS[name](**{"tol": 0.0, "max_iter": 10**6, "random_state": 0, **more})


class Announcing(CheckpointWriter):
    """Writes after every iteration, and says when three are complete; iterations take long enough to be met."""

    def __init__(self, path: Any, fingerprint: Any, **options: Any) -> None:
        super().__init__(path, fingerprint, every=1, seconds=None)

    def __call__(self, progress: Progress[Any]) -> None:
        super().__call__(progress)
        if progress.iteration == 3 and not progress.stopped:
            print("ready", flush=True)
        time.sleep(0.002)


def watch_fits() -> None:
    checkpoints.CheckpointWriter = Announcing


def fit_for_ever(path: Path, name: str) -> None:
    watch_fits()
    warnings.simplefilter("ignore")
    fit = make(name, checkpoint=path).fit(rows())
    fit.save(path.with_suffix(".fitted"))
    raise SystemExit(130 if fit.interrupted_ else 0)


def fit_to_the_end(path: Path, name: str) -> None:
    watch_fits()
    warnings.simplefilter("ignore")
    make(name, checkpoint=path, max_iter=ITERATIONS).fit(rows())


def leave_on_sigterm(path: Path, name: str) -> None:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    fit_for_ever(path, name)


def suffer_kills(path: Path, times: str) -> None:
    """Fork a fit of a large mixture, kill it at a random moment, read what it left; again and again."""
    X = rows(60)
    fit = boxloop.GaussianMixture(
        12, tol=0.0, max_iter=10**6, random_state=0, init_params="random", checkpoint=path
    )
    delays, found = random.Random(0), {"loaded": 0, "leftovers": 0, "iterations": 0}
    for _ in range(int(times)):
        before = path.stat().st_mtime_ns if path.exists() else 0
        child = os.fork()
        if child == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            watch_fits()
            fit.fit(X)
        while not path.exists() or path.stat().st_mtime_ns == before:
            time.sleep(0.001)
        time.sleep(delays.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = read_state(path)
        found["loaded"] += state.n_iter == len(state.trace) > 0 and state.state.is_finite()
        found["leftovers"] += len(temporaries(path.parent)) > 0
        assert state.n_iter >= found["iterations"]
        found["iterations"] = state.n_iter
    boxloop.FactorAnalysis(1).fit(rows()).save(path)
    print(json.dumps({**found, "after": temporaries(path.parent)}))


def read_state(path: Path) -> Any:
    """The checkpoint of a fit, whichever it is."""
    files = [get_model_file(type(make())) for make in MODELS.values()]
    parts = {name: kind for file in files for name, kind in file.classes.items()}
    classes = {**parts, **checkpoints.STATES, "Checkpoint": Checkpoint}
    return load_tree(path, classes, checkpoints.CONSTRAINTS).tree


def temporaries(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.suffix == ".tmp"]


def suffer_full_disk(path: Path, _: str) -> None:
    X = np.random.default_rng(0).normal(size=(150, 100))
    small, large = boxloop.FactorAnalysis(1).fit(X), boxloop.GaussianMixture(5, max_iter=2, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        large.fit(X)
    small.save(path)
    np.save(path.with_suffix(".npy"), X)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    found: dict[str, Any] = {}
    try:
        large.save(path)
    except OSError as error:
        found["errno"] = error.errno
    command = ["fit", path.with_suffix(".npy"), "--model", "gaussian-mixture", "-k", 5, "--max-iter", 2, "-q"]
    ended = CliRunner().invoke(main, [str(word) for word in [*command, "-o", path, "--seed", 0]])
    print(json.dumps({**found, "code": ended.exit_code, "said": ended.stderr.splitlines()[-1]}))


def child(
    task: Callable[..., None], path: Path, what: str, signalled: signal.Signals | None = None
) -> tuple[int, str]:
    """Run one of the functions above in a process of its own; its status and what it printed after "ready"."""
    command = [sys.executable, __file__, task.__name__, str(path), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if signalled is not None:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            process.send_signal(signalled)
        output = process.communicate(timeout=300)[0]
    return process.returncode, output


def assert_same(one: Any, other: Any) -> None:
    """Two fits are the same to the last bit."""
    assert one.n_iter_ == other.n_iter_
    assert one.lower_bounds_ == other.lower_bounds_
    for (name, value), (_, wanted) in zip(one.model_.leaves(), other.model_.leaves(), strict=True):
        assert (value == wanted).all(), name


@pytest.mark.parametrize("times", [10, pytest.param(KILLS, marks=pytest.mark.slow)])
def test_f35_kill_during_checkpoint(tmp_path: Path, times: int) -> None:
    status, output = child(suffer_kills, tmp_path / "c.boxloop", str(times))
    found = json.loads(output)
    assert status == 0
    assert found["loaded"] == times
    assert times < KILLS or found["leftovers"] > 0, "no kill fell into a write"
    assert found["iterations"] >= times, "the fit hardly got anywhere between kills"
    assert found["after"] == []


def test_f36_disk_full(tmp_path: Path) -> None:
    path = tmp_path / "m.boxloop"
    status, output = child(suffer_full_disk, path, "")
    found = json.loads(output)
    assert (status, found["errno"], found["code"]) == (0, errno.EFBIG, 1)
    assert found["said"].startswith("Error: ")
    assert "File too large" in found["said"]
    assert sorted(item.name for item in tmp_path.iterdir()) == ["m.boxloop", "m.npy"]
    assert type(boxloop.load(path)) is boxloop.FactorAnalysis


every_model = pytest.mark.parametrize(
    "name", ["mixture", *(pytest.param(name, marks=pytest.mark.slow) for name in [*MODELS][1:])]
)


@every_model
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::boxloop.FitWarning")
def test_f37_ctrl_c(tmp_path: Path, name: str) -> None:
    status, _ = child(fit_for_ever, tmp_path / "c.boxloop", name, signal.SIGINT)
    assert status == 130
    stopped = boxloop.load(tmp_path / "c.fitted")
    assert stopped.interrupted_
    assert not stopped.converged_
    assert stopped.n_iter_ >= 3
    assert any("interrupted" in event for event in stopped.events_)
    if name != "online":  # there the length of the fit decides where averaging begins
        assert_same(stopped, make(name, max_iter=stopped.n_iter_).fit(rows()))


@every_model
def test_f38_sigterm(tmp_path: Path, name: str) -> None:
    status, _ = child(leave_on_sigterm, tmp_path / "c.boxloop", name, signal.SIGTERM)
    assert status == 143
    state = read_state(tmp_path / "c.boxloop")
    assert state.n_iter == len(state.trace) >= 3
    assert state.state.is_finite()


@every_model
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore::boxloop.FitWarning")
def test_f39_resume_bit_for_bit(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.boxloop"
    status, _ = child(fit_to_the_end, path, name, signal.SIGKILL)
    assert status == -signal.SIGKILL
    before = read_state(path).n_iter
    assert before >= 3
    resumed = make(name, max_iter=ITERATIONS, checkpoint=path).fit(rows())
    whole = make(name, max_iter=ITERATIONS).fit(rows())
    assert_same(resumed, whole)
    assert before < len(whole.lower_bounds_)


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]), *sys.argv[3:])
