"""Fault 35 in the first seconds of a fit: the first checkpoint stands after the first iteration, for every estimator.

Run as a script, this file is the process that suffers the kills.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS)] if __name__ == "__main__" else []

from boxloop.persist import CheckpointWriter, read_container  # noqa: E402
from estimators.public_cases import PUBLIC, Public, quietly  # noqa: E402

KEPT_IN = [
    public
    for public in PUBLIC
    if "checkpoint" in public.make().get_params() and public.name != "ModelSearchCV"
]
LEARNED = {"x_features": "network", "y_features": "network", "features": "network"}
"""Features that take more than one iteration to fit."""


def made(public: Public, path: str) -> Any:
    """An estimator that takes several iterations and saves its progress."""
    estimator = public.make()
    given = estimator.get_params(deep=False)
    own = {} if public.name == "RelevantGenerator" else {k: v for k, v in LEARNED.items() if k in given}
    if "solver" in given:
        own["solver"] = "em"
    if "batch_size" in given and "tol" not in given:
        own["batch_size"] = 20
    return estimator.set_params(checkpoint=path, max_iter=4, **own)


def fit(public: Public, path: str) -> Any:
    X, y = public.data()
    return quietly(lambda: made(public, path).fit(X, *(() if y is None else (y,)), **public.settings()))


def killed_at_first_save(public: Public, path: str) -> None:
    """Fit in a child process that dies by SIGKILL as soon as one checkpoint is on disk."""
    child = os.fork()
    if child == 0:
        save: Callable[..., None] = CheckpointWriter.save

        def save_and_die(writer: CheckpointWriter, progress: Any) -> None:
            save(writer, progress)
            os.kill(os.getpid(), signal.SIGKILL)

        CheckpointWriter.save = save_and_die  # type: ignore[method-assign]
        try:
            fit(public, path)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), public.name


def iterations_of(path: str) -> int:
    """Iterations behind a checkpoint."""
    tree: Any = read_container(path).document["tree"]
    return int(tree["fields"]["n_iter"])


def main() -> None:
    found: dict[str, list[Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for public in KEPT_IN:
            path, other = f"{folder}/{public.name}", f"{folder}/{public.name}-whole"
            killed_at_first_save(public, path)
            kept = iterations_of(path)
            resumed, whole = fit(public, path), fit(public, other)
            found[public.name] = [kept, resumed.n_iter_, whole.n_iter_]
    print(json.dumps(found))


@pytest.mark.skipif(sys.platform == "win32", reason="no fork")
def test_f35_a_kill_after_the_first_iteration_loses_nothing() -> None:
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == len(KEPT_IN)
    assert {name: kept for name, (kept, _, _) in found.items() if kept != 1} == {}
    assert {name: (one, two) for name, (_, one, two) in found.items() if one != two} == {}


if __name__ == "__main__":
    main()
