"""Checkpoints of a fit: killed after any iteration and resumed, it ends where it would have ended, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_digits

from boxloop import FactorAnalysis, GaussianMixture
from boxloop.estimators import checkpoints
from boxloop.loop import Progress
from boxloop.persist import CheckpointWriter, ModelFileError
from estimators.cases import (
    CASES,
    EVERYONE,
    Case,
    assert_same,
    blobs,
    everyone,
    fit_with_warnings,
    over,
    paired,
)

ENGINES = {
    "em": {"max_iter": 40, "tol": 0.0},
    "plain em": {"max_iter": 20, "tol": 0.0, "accelerate": False},
    "online": {"method": "online", "max_iter": 3, "batch_size": 40},
    "gradient": {"method": "gradient", "max_iter": 3, "batch_size": 40},
}


class Killed(BaseException):
    """Stands for a process that is gone: nothing is written after it."""


def kill_after(iterations: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints every third iteration; the process dies after ``iterations``."""

    class Doomed(CheckpointWriter):
        dead = False

        def __init__(self, path: Any, fingerprint: Any, **options: Any) -> None:
            super().__init__(path, fingerprint, every=3, seconds=None)

        def __call__(self, progress: Progress[Any]) -> None:
            if self.dead:
                return
            if progress.iteration == iterations:
                self.dead = True
                raise Killed
            super().__call__(progress)

    monkeypatch.setattr(checkpoints, "CheckpointWriter", Doomed)


def settings(case: Case, engine: str) -> dict[str, Any]:
    slow = {"ppca": {"solver": "em"}, "factor": {"accelerate": False}}  # both know quicker ways
    return ENGINES[engine] | slow.get(case.name, {})


@paired(EVERYONE, "engine", ENGINES)
@pytest.mark.parametrize("iterations", [pytest.param(2, marks=pytest.mark.slow), 8])
def test_killed_and_resumed(
    case: Case, engine: str, iterations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, options = case.rows(200, seed=61), settings(case, engine)
    straight, _ = fit_with_warnings(case.quick(**options), X)
    with monkeypatch.context() as patch:
        kill_after(iterations, patch)
        with pytest.raises(Killed):
            case.quick(checkpoint=tmp_path / "c", **options).fit(X)
    assert (tmp_path / "c").exists() == (iterations > 3)
    resumed, _ = fit_with_warnings(case.quick(checkpoint=tmp_path / "c", **options), X)
    assert_same(resumed, straight, rtol=0, atol=0)
    assert resumed.lower_bounds_ == straight.lower_bounds_
    assert resumed.n_iter_ == straight.n_iter_


@pytest.mark.filterwarnings("ignore::boxloop.FitWarning")
def test_newton_killed_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = load_digits().data
    X = X[:, X.std(0) > 0.5]  # too wide for a race of starts, which would leave few iterations
    straight = FactorAnalysis(15).fit(X)
    assert straight.n_iter_ > 5
    with monkeypatch.context() as patch:
        kill_after(5, patch)
        with pytest.raises(Killed):
            FactorAnalysis(15, checkpoint=tmp_path / "c").fit(X)
    resumed = FactorAnalysis(15, checkpoint=tmp_path / "c").fit(X)
    assert_same(resumed, straight, rtol=0, atol=0)
    assert resumed.lower_bounds_ == straight.lower_bounds_


@everyone
def test_ctrl_c_keeps_the_last_iteration(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, options = case.rows(200, seed=62), settings(case, "em")
    straight, _ = fit_with_warnings(case.quick(**options), X)

    class Interrupted(CheckpointWriter):
        def __call__(self, progress: Progress[Any]) -> None:
            super().__call__(progress)
            if progress.iteration == 5 and not progress.stopped:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(checkpoints, "CheckpointWriter", Interrupted)
        cut, warned = fit_with_warnings(case.quick(checkpoint=tmp_path / "c", **options), X)
    assert cut.interrupted_
    assert not cut.converged_
    assert any("interrupted after iteration 5" in message for message in warned)
    assert cut.n_iter_ == 5
    assert np.isfinite(cut.score(X))
    resumed, _ = fit_with_warnings(case.quick(checkpoint=tmp_path / "c", **options), X)
    assert_same(resumed, straight, rtol=0, atol=0)
    assert not resumed.interrupted_


@everyone
def test_missing_values_weights_and_names(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, weight = case.rows(200, seed=63), np.random.default_rng(0).random(200)
    rows[::9, 1] = np.nan
    X = pandas.DataFrame(rows, columns=[f"column {j}" for j in range(rows.shape[1])])
    options = settings(case, "em")
    straight, _ = fit_with_warnings(case.quick(**options), X, sample_weight=weight)
    with monkeypatch.context() as patch:
        kill_after(8, patch)
        with pytest.raises(Killed):
            case.quick(checkpoint=tmp_path / "c", **options).fit(X, sample_weight=weight)
    resumed, _ = fit_with_warnings(case.quick(checkpoint=tmp_path / "c", **options), X, sample_weight=weight)
    assert_same(resumed, straight, rtol=0, atol=0)


@everyone
def test_a_finished_fit_is_not_done_again(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = case.rows(200, seed=64)
    options = {"checkpoint": tmp_path / "c", **({"solver": "em"} if case.name == "ppca" else {})}
    first = case.quick(**options).fit(X)
    monkeypatch.setattr(
        type(first.model_), "solve", lambda self, statistics: pytest.fail("an iteration was run")
    )
    again = case.quick(**options).fit(X)
    assert again.n_iter_ == first.n_iter_
    assert_same(again, first, rtol=0, atol=0)


def test_a_longer_fit_goes_on(tmp_path: Path) -> None:
    X = blobs(300, gap=2.0)
    options = {"random_state": 0, "tol": 0.0, "accelerate": False}
    fit_with_warnings(GaussianMixture(3, max_iter=6, checkpoint=tmp_path / "c", **options), X)
    longer, _ = fit_with_warnings(GaussianMixture(3, max_iter=15, checkpoint=tmp_path / "c", **options), X)
    straight, _ = fit_with_warnings(GaussianMixture(3, max_iter=15, **options), X)
    assert longer.lower_bounds_ == straight.lower_bounds_


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_components": 2}, "'n_components' is 3 there and 2 here"),
        ({"random_state": 1}, "'random_state'"),
        ({"covariance_type": "tied"}, "'covariance_type'"),
        ({"reg_covar": 1e-3}, "'reg_covar'"),
        ({"means_init": np.zeros((3, 3))}, "'means_init'"),
    ],
)
def test_another_fit_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    options = {"n_components": 3, "random_state": 0, "checkpoint": tmp_path / "c"}
    fit_with_warnings(GaussianMixture(**options), blobs(300))
    with pytest.raises(ModelFileError, match=message):
        GaussianMixture(**{**options, **change}).fit(blobs(300))


@pytest.mark.parametrize("what", ["last row", "weight", "name", "one row less"])
def test_other_rows_are_refused(tmp_path: Path, what: str) -> None:
    X = pandas.DataFrame(blobs(600), columns=["a", "b", "c"])
    estimator = GaussianMixture(2, random_state=0, checkpoint=tmp_path / "c").fit(X)
    weight = None
    if what == "last row":
        X.iloc[-1, -1] += 1e-9
    elif what == "name":
        X = X.rename(columns={"b": "B"})
    elif what == "one row less":
        X = X[:-1]
    else:
        weight = np.r_[np.ones(599), 2.0]
    with pytest.raises(ModelFileError, match="a checkpoint of another fit"):
        estimator.fit(X, sample_weight=weight)


def test_the_same_rows_from_elsewhere_are_the_same_fit(tmp_path: Path) -> None:
    X = blobs(600)
    np.save(tmp_path / "x.npy", np.asfortranarray(X))
    options = {"n_components": 2, "random_state": 0, "checkpoint": str(tmp_path / "c")}
    first = GaussianMixture(**options).fit(X)
    assert_same(GaussianMixture(**options).fit(tmp_path / "x.npy"), first, rtol=0, atol=0)
    assert_same(GaussianMixture(**{**options, "random_state": np.int64(0)}).fit(X), first, rtol=0, atol=0)


@over([case for case in CASES if case.name in ("gaussian-full", "poisson")])
def test_any_random_state_where_it_does_not_matter(case: Case, tmp_path: Path) -> None:
    X = case.rows(200)
    for state in (None, np.random.RandomState(0), np.random.default_rng(0)):
        path = tmp_path / str(type(state).__name__)
        first = case.quick(random_state=state, checkpoint=path).fit(X)
        assert_same(case.quick(random_state=state, checkpoint=path).fit(X), first, rtol=0, atol=0)
        with pytest.raises(ValueError, match="needs an integer random_state"):
            case.quick(random_state=state, method="online", checkpoint=path).fit(X)
