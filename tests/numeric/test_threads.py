"""Fits run on one thread of every pool, and the caller's settings come back."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import linecache
import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from boxloop import GaussianMixture, use_threads
from boxloop.numeric import hardware as limits, single_threaded
from numeric.thread_jobs import JOBS

VARIABLES = ("OMP_", "OPENBLAS_NUM", "MKL_", "GOTO_", "GOMP_", "KMP_")
QUICK = (
    "GaussianMixture",
    "FactorAnalysis",
    "BernoulliMixture",
    "RelevantFeatures.expect",
    "WeightPosterior",
    "last_layer_laplace",
    "calibration",
    "gaussian_wasserstein",
)
MOST = 1.3
"""Times one thread's CPU seconds. Without the limit most jobs take 2 to 50 times."""

UNLIMITED = {
    *("as_model", "distributed", "load", "load_posterior", "save", "save_posterior", "use_threads"),
    # They return what is called later, by functions that are limited or in a loop of the caller's.
    *(
        "accelerated_em",
        "ascent_em",
        "em",
        "energy_trainer",
        "generalised_em",
        "gradient_ascent",
        "monte_carlo_em",
    ),
    *("huber", "latent_target", "linear_regression", "mean_equation", "moment_penalty", "online_em"),
    *("parameter_target", "quantile", "quantile_step", "residual_equation", "score_of", "warm_up"),
    # Losses and norms, in a loop of the caller's, where the gradient is computed outside of them.
    *("conditional_distance", "elbo", "entrywise", "relevance_loss"),
    # Small arithmetic.
    *(
        "change_of_slope",
        "check_weight_decay",
        "implied_precision",
        "match_topics",
        "one_standard_error",
        "transition",
    ),
    *("weight_decay", "window_length"),
}
"""Public functions that leave the threads as they are."""


def ratios(names: list[str]) -> dict[str, float]:
    """CPU seconds as a user runs it over those on one thread."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("thread_jobs.py")), *names],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: free / alone for name, (free, alone) in json.loads(done.stdout).items()}


def too_many(names: list[str]) -> dict[str, float]:
    """Those above the limit in two of two measurements: a busy machine disturbs one of them now and then."""
    once = [name for name, ratio in ratios(names).items() if ratio > MOST]
    return {name: ratio for name, ratio in ratios(once).items() if ratio > MOST} if once else {}


def settings() -> list[tuple[str, int]]:
    return sorted((pool["filepath"], pool["num_threads"]) for pool in threadpool_info())


def inside() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info()} | {torch.get_num_threads()}


@pytest.fixture
def two_threads() -> object:
    """The process as a user with two cores has it, whatever the machine has."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_f51_cpu_seconds_without_thread_variables() -> None:
    assert too_many(list(QUICK)) == {}


@pytest.mark.slow
def test_f51_cpu_seconds_of_every_job() -> None:
    assert too_many(list(JOBS)) == {}


@pytest.mark.parametrize("room", ["", ".criticise", ".fit", ".sample", ".select", ".twoview", ".networks"])
def test_public_functions_that_compute_are_limited(room: str) -> None:
    module = importlib.import_module(f"boxloop{room}")
    functions = {name for name in module.__all__ if inspect.isfunction(getattr(module, name))}
    free = {name for name in functions if getattr(module, name).__code__ != single_threaded(print).__code__}
    assert free <= UNLIMITED, "public functions that compute must be single_threaded"


def test_limits_every_pool_and_restores_it(two_threads: None) -> None:
    before = settings()
    nested = single_threaded(lambda: [inside(), single_threaded(inside)(), inside()])
    assert nested() == [{1}, {1}, {1}], "the inner function restores nothing"
    assert settings() == before
    assert torch.get_num_threads() == 2


def test_restores_after_an_error(two_threads: None) -> None:
    @single_threaded
    def fail() -> None:
        raise KeyboardInterrupt

    before = settings()
    with pytest.raises(KeyboardInterrupt):
        fail()
    with pytest.raises(ValueError, match="n_components"):
        GaussianMixture(-1).fit(np.ones((3, 2)))
    assert settings() == before
    assert torch.get_num_threads() == 2


def test_limits_in_another_python_thread_than_before(two_threads: None) -> None:
    """threadpoolctl lets one Python thread at a time set OpenBLAS's threads: a fit must not keep that right."""
    before, seen = settings(), []
    fit = single_threaded(lambda: seen.append(inside()))
    for _ in range(2):
        fit()
        thread = threading.Thread(target=fit)
        thread.start()
        thread.join()
        with threadpool_limits(1, "blas"):
            assert {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"} == {1}
        assert settings() == before
    assert seen == [{1}] * 4


def test_leaves_what_another_python_thread_sets_meanwhile(two_threads: None) -> None:
    """A limit of the user's own, which begins before the fit and ends during it."""
    before = settings()
    limited, began, restored = threading.Event(), threading.Event(), threading.Event()

    def user() -> None:
        with threadpool_limits(1, "blas"):
            limited.set()
            assert began.wait(10)
        restored.set()

    @single_threaded
    def fit() -> None:
        began.set()
        assert restored.wait(10)

    thread = threading.Thread(target=user)
    thread.start()
    assert limited.wait(10)
    fit()
    thread.join()
    assert settings() == before


def interrupt(function: Callable[[], object], step: int) -> bool:
    """Call the function with a Ctrl-C at one step of the code that limits threads; False if it has fewer steps.

    Python looks for signals between statements, but not between a lock and the block that holds it.
    """
    steps = itertools.count()

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != limits.__file__:
            return None
        line = linecache.getline(limits.__file__, frame.f_lineno)
        if event in ("call", "line") and "with _process.lock" not in line and next(steps) == step:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_restores_after_ctrl_c_at_any_step(two_threads: None) -> None:
    """Also while the limits are set and while they are taken back."""
    before, fit = settings(), single_threaded(inside)
    fit()
    step = 0
    while interrupt(fit, step):
        assert settings() == before, f"after Ctrl-C at step {step}"
        assert torch.get_num_threads() == 2, f"after Ctrl-C at step {step}"
        assert fit() == {1}, f"after Ctrl-C at step {step}"
        assert settings() == before, f"after Ctrl-C at step {step}, and another fit"
        step += 1
    assert step > 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_process_forked_beside_a_fit_has_the_users_settings(two_threads: None) -> None:
    """The child has none of the other Python threads, so nothing there would restore what they limited."""
    limited, forked = threading.Event(), threading.Event()
    receiver, sender = multiprocessing.Pipe()

    @single_threaded
    def fit() -> None:
        limited.set()
        assert forked.wait(30)

    def fork() -> None:
        child = multiprocessing.get_context("fork").Process(
            target=lambda: sender.send((torch.get_num_threads(), [count for _, count in settings()]))
        )
        child.start()
        forked.set()
        child.join(20)
        child.kill()

    before = [count for _, count in settings()]
    threads = [threading.Thread(target=fit), threading.Thread(target=fork)]
    threads[0].start()
    assert limited.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert receiver.poll()
    assert receiver.recv() == (2, before)


def test_concurrent_fits_restore_when_the_last_one_ends(two_threads: None) -> None:
    """The second thread begins during the first one's fit, and ends after it."""
    before = settings()
    began, first_ended = threading.Event(), threading.Event()
    seen: dict[str, object] = {}

    @single_threaded
    def second_fit() -> None:
        began.set()
        assert first_ended.wait(10)
        seen["inside"] = inside()

    def second() -> None:
        second_fit()
        seen["after"] = torch.get_num_threads()

    thread = threading.Thread(target=second)

    @single_threaded
    def first_fit() -> None:
        thread.start()
        assert began.wait(10)

    first_fit()
    first_ended.set()
    thread.join()
    assert seen == {"inside": {1}, "after": 2}
    assert settings() == before
    assert torch.get_num_threads() == 2


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_fits_of_many_python_threads_are_those_of_one() -> None:
    X = np.random.default_rng(0).normal(size=(3000, 4))
    alone = GaussianMixture(2, random_state=0, max_iter=5, tol=0).fit(X)
    found: list[np.ndarray] = []

    def fit() -> None:
        found.append(GaussianMixture(2, random_state=0, max_iter=5, tol=0).fit(X).means_)

    threads = [threading.Thread(target=fit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    for means in found:
        np.testing.assert_array_equal(means, alone.means_)


def test_use_threads(two_threads: None) -> None:
    @single_threaded
    def of_torch_and_blas() -> tuple[int, set[int]]:
        blas = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
        return torch.get_num_threads(), blas

    with use_threads(3):
        assert of_torch_and_blas() == (3, {1})
    assert torch.get_num_threads() == 2
    assert of_torch_and_blas() == (1, {1})


@pytest.mark.parametrize("n", [0, -1, True, 1.5, "2"])
def test_use_threads_refuses(n: object) -> None:
    with pytest.raises(ValueError, match="n must be a whole number of threads"), use_threads(n):  # type: ignore[arg-type]
        pass
