"""Faults 26 to 30, and 35 to 39 as chains meet them. Run as a script, this file is the process that suffers them."""

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
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.distributions import DiagonalGaussian
from boxloop.figures import png
from boxloop.loop import Progress
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.sample import (
    HMC,
    MALA,
    STATES,
    Draws,
    Gibbs,
    Independent,
    PseudoMarginal,
    RandomWalk,
    SampleWarning,
    diagnose,
    sample_density,
)

SAME: dict[str, Any] = {"rtol": 0.0, "atol": 0.0}
SHORT: dict[str, Any] = {"draws": 64, "warmup": 64, "random_state": 0}


def bowl(x: Tensor) -> Tensor:
    return -0.5 * x.square().sum(1)


def half(x: Tensor) -> Tensor:
    """No density on the left."""
    return torch.where(x[:, 0] > 0.0, bowl(x), -torch.inf)


every_name = pytest.mark.parametrize("kernel", ["hmc", "mala", "random_walk", None])


@every_name
@pytest.mark.parametrize("bad", [-torch.inf, torch.inf, torch.nan])
def test_f26_start_without_density(kernel: Any, bad: float) -> None:
    start = torch.ones(4, 2).double()
    start[2] = -1.0
    calls = 0

    def density(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.where(x[:, 0] > 0.0, bowl(x), bad)

    with pytest.raises(ValueError, match=rf"log-density is {bad} at the start of chain 2 \(1 of 4 chains\)"):
        sample_density(density, start, kernel, **SHORT)
    assert calls == 1, "it is said before sampling"


def test_f26_scattered_starts_come_nearer_until_there_is_a_density() -> None:
    point = torch.tensor([0.01, 0.0]).double()
    found = sample_density(
        half, point, RandomWalk(0.5), chains=16, draws=8, warmup=0, start_sd=1.0, random_state=0
    )
    assert bool((found.positions[..., 0] > 0.0).all())
    with pytest.raises(ValueError, match=r"\(16 of 16 chains\): begin where the density is positive"):
        sample_density(half, -point, chains=16, start_sd=1e-4, **SHORT)


def test_f26_estimates_and_gradients_count_too() -> None:
    """Where an estimate is zero, or a gradient is not a number, a chain could not move either."""
    nothing = PseudoMarginal(lambda x, v: torch.full((len(x),), -torch.inf).double(), 1)
    with pytest.raises(ValueError, match="log-density is -inf at the start of chain 0"):
        sample_density(None, torch.zeros(2).double(), nothing, chains=3, **SHORT)
    with pytest.raises(ValueError, match="the gradient is nan at the start of chain 0"):
        sample_density(lambda x: bowl(x) - x.abs().sqrt().sum(1), torch.zeros(3, 2).double(), "hmc", **SHORT)


@pytest.mark.parametrize("kernel", [RandomWalk(0.8), MALA(0.5), HMC(0.8), RandomWalk(), MALA(), HMC()])
@pytest.mark.parametrize("where", ["density", "gradient"])
def test_f27_nan_in_one_chain(kernel: Any, where: str) -> None:
    """Chain 1 sees NaN wherever it goes: it stays, and is counted; others go on as if nothing had been.

    With tuning the others hear of it by the common scale, so that their draws are compared without.
    """
    if where == "gradient" and isinstance(kernel, RandomWalk):
        pytest.skip("has no gradient")
    start = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5], [-1.0, 0.0]]).double()

    def pair(x: Tensor, fault: bool) -> tuple[Tensor, Tensor]:
        value, slope = bowl(x), -x
        if fault and not torch.equal(x[1], start[1]):
            (value if where == "density" else slope)[1] = torch.nan
        return value, slope

    found = []
    for fault in (False, True):
        run = dict(SHORT)
        if not isinstance(kernel, RandomWalk):
            run["value_and_gradient"] = lambda x, fault=fault: pair(x, fault)
        density = lambda x, fault=fault: pair(x, fault)[0]  # noqa: E731
        if not fault:
            found.append(sample_density(density, start, kernel, **run))
            continue
        with pytest.warns(
            SampleWarning, match="rejected because the density or its gradient was not a number"
        ):
            found.append(sample_density(density, start, kernel, **run))
    sound, broken = found
    assert int(sound.nan_proposals.sum()) == 0
    assert broken.nan_proposals.tolist() == [0, 64, 0, 0]
    assert bool((broken.positions[:, 1] == start[1]).all())
    assert bool(torch.isfinite(broken.positions).all())
    assert bool(torch.isfinite(broken.log_density).all())
    assert not broken.converged
    assert any("constant in 1 of 4 chains" in concern for concern in broken.concerns)
    if kernel.scale is not None:
        assert_close(broken.positions[:, [0, 2, 3]], sound.positions[:, [0, 2, 3]], **SAME)
    else:
        assert all(len(broken.positions[:, i].unique(dim=0)) > 10 for i in (0, 2, 3))


@pytest.mark.parametrize("kernel", ["mala", "random_walk", HMC(0.5)])
def test_f27_regions_of_nan_are_refused_and_counted(kernel: Any) -> None:
    def density(x: Tensor) -> Tensor:
        return bowl(x) + x[:, 0].log() * 0.0

    with pytest.warns(SampleWarning, match="a constraint may be missing from support"):
        found = sample_density(
            density, torch.ones(2).double(), kernel, chains=8, start_sd=0.3, draws=200, random_state=0
        )
    assert int(found.nan_proposals.sum()) > 0
    assert bool((found.positions[..., 0] > 0.0).all())
    assert any("was not a number" in concern for concern in found.concerns)


def test_f28_stuck_chain() -> None:
    """A chain that never moves has perfect R-hat with itself; it is found before R-hat is asked."""
    start = torch.zeros(4, 2).double()

    def density(x: Tensor) -> Tensor:  # chain 3 sits on a needle
        needle = (torch.arange(len(x)) == 3) & (x == 0.0).all(1)
        return torch.where(needle, 1e6, bowl(x))

    with pytest.warns(SampleWarning, match=r"chain 3 accepts 0 of its moves: a smaller scale"):
        found = sample_density(density, start, RandomWalk(1.0), draws=500, warmup=50, random_state=0)
    assert not found.converged
    assert "x[0] and x[1]: constant in 1 of 4 chains" in found.concerns
    table = found.summary()
    assert table[["r_hat", "ess_bulk", "ess_tail", "mcse"]].isna().all(axis=None)
    assert "constant in 1 of 4 chains" in repr(found)


def test_f28_constant_number() -> None:
    def draw(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        return torch.randn(values["a"].shape, generator=stream, dtype=torch.float64)

    blocks = Gibbs({"a": draw, "b": lambda values, stream: values["b"]})
    start = {"a": torch.zeros(4).double(), "b": torch.ones(4).double()}
    found = sample_density(None, start, blocks, draws=500, warmup=10, random_state=0)
    assert found.concerns == ("b: constant in 4 of 4 chains",)
    assert not found.converged
    assert np.isfinite(found.summary().loc["a", "r_hat"])
    assert np.isnan(found.summary().loc["b", "r_hat"])


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_f28_infinite_draw(bad: float) -> None:
    """A few draws of many thousand: R-hat by ranks does not see an infinity."""

    def draw(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        fresh = torch.randn(values["x"].shape, generator=stream, dtype=torch.float64)
        fresh[1] = torch.where(fresh[1] > 2.5, bad, fresh[1])
        return fresh

    with pytest.warns(SampleWarning, match="a draw is not finite"):
        found = sample_density(
            None, torch.zeros(4, 1).double(), Gibbs({"x": draw}), draws=2000, warmup=10, random_state=0
        )
    assert 0 < int((~torch.isfinite(found.positions)).sum()) < 50
    assert not found.converged
    assert "x[0]: not finite in every draw" in found.concerns
    assert np.isnan(found.summary()["r_hat"]).all()
    assert "a draw is not finite" in repr(found)
    for kind in ("trace", "rank"):
        assert png(found.plot(kind=kind)).startswith(b"\x89PNG")


def test_f28_density_that_does_not_fall_off() -> None:
    """A density that grows for ever: draws leave for infinity, and it is said."""
    with pytest.warns(SampleWarning, match="not finite|too short|accept"):
        found = sample_density(
            lambda x: x.square().sum(1), torch.ones(4, 2), "mala", draws=300, warmup=300, random_state=0
        )
    assert not found.converged


@every_name
def test_f29_one_chain(kernel: Any) -> None:
    found = sample_density(
        bowl, torch.zeros(2).double(), kernel, chains=1, draws=500, warmup=200, random_state=0
    )
    assert not found.converged
    assert any("one chain: R-hat is not available" in concern for concern in found.concerns)
    assert np.isnan(found.summary()["r_hat"]).all()
    assert np.isfinite(found.summary()[["mcse", "ess_bulk", "ess_tail"]]).all(axis=None)
    assert "R-hat is not available" in repr(found)
    assert "nan" not in found.plot().get_title(loc="left")


def test_f29_diagnosis_of_one_chain() -> None:
    found = diagnose(np.random.default_rng(0).normal(size=(1, 5000, 1)))
    assert np.isnan(found.r_hat).all()
    assert len(found.concerns(("a",))) == 1


@pytest.mark.parametrize("algorithm", [RandomWalk, MALA, HMC])
def test_f30_acceptance_near_zero_or_one(algorithm: Any) -> None:
    point = torch.full((2,), 0.3).double()
    far = {RandomWalk: 1e4, MALA: 30.0, HMC: 30.0}[algorithm]
    with pytest.warns(SampleWarning, match="a smaller scale, a longer warm-up or another start"):
        low = sample_density(bowl, point, algorithm(far), chains=4, draws=150, warmup=20, random_state=0)
    with pytest.warns(SampleWarning, match="steps are too short to explore the target; use a larger scale"):
        high = sample_density(bowl, point, algorithm(1e-4), chains=4, draws=150, warmup=20, random_state=0)
    for found in (low, high):
        assert not found.converged
        assert any("scale" in concern for concern in found.concerns)
    assert (
        sample_density(
            bowl, point, algorithm(), chains=8, draws=150, warmup=300, random_state=0
        ).sampler_concerns
        == ()
    )


def test_f30_a_perfect_proposal_is_no_fault() -> None:
    """Proposals from the target itself are all accepted, which is best; those that never are, are named."""
    exact = DiagonalGaussian(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    found = sample_density(
        bowl, torch.zeros(2).double(), Independent(exact), chains=4, draws=500, warmup=20, random_state=0
    )
    assert float(found.acceptance.min()) > 0.999
    assert found.converged
    away = DiagonalGaussian(torch.full((1, 2), 60.0).double(), torch.ones(1, 2).double())
    with pytest.warns(SampleWarning, match="another proposal or start"):
        sample_density(
            bowl, torch.zeros(2).double(), Independent(away), chains=4, draws=500, warmup=20, random_state=0
        )


def test_f30_many_short_chains_give_no_false_alarm() -> None:
    """Of five thousand chains with five draws some accept all and some none, by chance alone."""
    found = sample_density(
        bowl,
        torch.zeros(2).double(),
        "random_walk",
        chains=5000,
        superchains=50,
        draws=5,
        warmup=80,
        random_state=0,
    )
    assert float(found.acceptance.min()) < 0.01
    assert found.sampler_concerns == ()


def slow_bowl(x: Tensor) -> Tensor:
    time.sleep(0.0002)
    return bowl(x)


def run_chains(path: Path | None, draws: int, observers: Any = (), density: Any = bowl) -> Draws:
    return sample_density(
        density,
        torch.zeros(2).double(),
        RandomWalk(),
        chains=3,
        draws=draws,
        warmup=128,
        random_state=0,
        checkpoint=path,
        observers=observers,
    )


def announce(progress: Progress[Any]) -> None:
    if progress.state.n_draws == 96 and not progress.stopped:
        print("ready", flush=True)


def suffer_kills(path: Path) -> None:
    """Fork a sampler that saves every iteration, kill it at a random moment, read what it left; a hundred times."""
    torch.set_num_threads(1)
    delays, loaded, leftovers, most = random.Random(0), 0, 0, 0
    fingerprint = {"run": "kills"}
    for _ in range(100):
        child = os.fork()
        if child == 0:
            writer = CheckpointWriter(path, fingerprint, every=1)
            run_chains(None, 10**6, [writer])
        time.sleep(delays.uniform(0.02, 0.12))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        leftovers += any(item.suffix == ".tmp" for item in path.parent.iterdir())
        if not path.exists():
            continue
        state = read_checkpoint(path, STATES, fingerprint).state
        loaded += len(state.draws) == len(state.densities) and state.steps <= 128 + state.n_draws
        most = max(most, state.steps)
    print(json.dumps({"loaded": loaded, "leftovers": leftovers, "steps": most}))


def suffer_full_disk(path: Path) -> None:
    run_chains(path, 64)
    before = path.read_bytes()
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        run_chains(path, 6400)
    except OSError as error:
        whole = path.read_bytes() == before
        print(
            json.dumps(
                {"errno": error.errno, "whole": whole, "files": [p.name for p in path.parent.iterdir()]}
            )
        )


def suffer_ctrl_c(path: Path) -> None:
    import warnings

    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        found = run_chains(path, 10**6, [announce], slow_bowl)
    print(
        json.dumps(
            {
                "interrupted": found.interrupted,
                "drawn": found.n_draws,
                "events": found.events,
                "warnings": [str(w.message) for w in record if issubclass(w.category, SampleWarning)],
                "last": found.positions[-1].tolist(),
            }
        )
    )
    raise SystemExit(130)


def suffer_sigterm(path: Path) -> None:
    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    run_chains(path, 10**6, [announce], slow_bowl)


def suffer_death(path: Path) -> None:
    def save(progress: Progress[Any]) -> None:  # as often as can be, under the name that a new run looks for
        for writer in (item for item in writers if isinstance(item, CheckpointWriter)):
            writer.every = 1
        announce(progress)

    writers: list[Any] = []

    def made(*args: Any, **options: Any) -> CheckpointWriter:
        writers.append(CheckpointWriter(*args, **options))
        return writers[-1]

    with patch("boxloop.sample.sampler.CheckpointWriter", made):
        run_chains(path, 10**6, [save], slow_bowl)


def child(task: Any, path: Path, signalled: signal.Signals | None = None) -> tuple[int, str]:
    """Run one of the functions above in a process of its own; its status and what it printed after "ready"."""
    command = [sys.executable, __file__, task.__name__, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        if signalled is not None:
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.05)
            process.send_signal(signalled)
        output = process.communicate(timeout=120)[0]
    return process.returncode, output


@pytest.mark.slow
def test_f35_kill_while_chains_are_saved(tmp_path: Path) -> None:
    status, output = child(suffer_kills, tmp_path / "c.boxloop")
    report = json.loads(output)
    assert status == 0
    assert report["loaded"] >= 90, "some are killed before their first save"
    assert report["leftovers"] > 0, "no kill fell into a write"
    assert report["steps"] > 20, "the sampler hardly got anywhere between kills"


@pytest.mark.slow
def test_f36_disk_full_while_chains_are_saved(tmp_path: Path) -> None:
    status, output = child(suffer_full_disk, tmp_path / "c.boxloop")
    assert (status, json.loads(output)) == (
        0,
        {"errno": errno.EFBIG, "whole": True, "files": ["c.boxloop"]},
    )


def test_f37_ctrl_c_while_chains_run(tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    status, output = child(suffer_ctrl_c, path, signal.SIGINT)
    report = json.loads(output)
    assert (status, report["interrupted"]) == (130, True)
    assert report["drawn"] >= 96
    assert report["drawn"] % 32 == 0
    assert report["warnings"] == [f"interrupted after {report['drawn']} draws of each chain"]
    assert report["events"][0].startswith("interrupted after iteration")
    # The checkpoint goes on, and what was kept are the first draws of a run that nobody stopped.
    more = report["drawn"] + 64
    again, whole = run_chains(path, more), run_chains(None, more)
    assert_close(again.positions, whole.positions, **SAME)
    assert whole.positions[report["drawn"] - 1].tolist() == report["last"]


@pytest.mark.slow
def test_f38_sigterm_while_chains_run(tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    status, _ = child(suffer_sigterm, path, signal.SIGTERM)
    assert status == 143
    assert_close(run_chains(path, 640).positions, run_chains(None, 640).positions, **SAME)


@pytest.mark.slow
def test_f39_chains_go_on_bit_for_bit_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "c.boxloop"
    status, _ = child(suffer_death, path, signal.SIGKILL)
    assert status == -signal.SIGKILL
    assert path.exists()
    again, whole = run_chains(path, 1280), run_chains(None, 1280)
    assert_close(again.positions, whole.positions, **SAME)
    assert_close(again.log_density, whole.log_density, **SAME)
    assert_close(again.acceptance, whole.acceptance, **SAME)
    assert again.algorithm.scale == whole.algorithm.scale


if __name__ == "__main__":
    globals()[sys.argv[1]](Path(sys.argv[2]))
