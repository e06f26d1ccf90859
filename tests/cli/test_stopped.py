"""Faults 37, 38 and 39 at the command line: Ctrl-C, SIGTERM, and going on as if neither had happened."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from boxloop import load
from boxloop.estimators import LatentEstimator
from boxloop.fit import fit as fit_module
from boxloop.loop import run
from boxloop.persist import read_container
from cli.calls import call, clusters, counts, done, signalled, table

ENDLESS = ["--tol", 0, "--max-iter", 1_000_000]
SHOWN = r"[1-9]\d*/1000000"


def same(one: LatentEstimator, other: LatentEstimator) -> bool:
    """Whether two fits are the same, to the last bit."""
    pairs = zip(one.model_.leaves(), other.model_.leaves(), strict=True)
    equal = all(name == name_ and (a == b).all() for (name, a), (name_, b) in pairs)
    return equal and one.lower_bounds_ == other.lower_bounds_ and one.n_iter_ == other.n_iter_


@pytest.mark.filterwarnings("ignore:EM reached max_iter")
def test_f37_ctrl_c_keeps_the_last_complete_round(tmp_path: Path) -> None:
    data, out = table(tmp_path / "rows.csv", clusters()), tmp_path / "m.boxloop"
    arguments = ["fit", data, "--model", "gaussian-mixture", "-k", 4, *ENDLESS, "-o", out]
    code, printed, shown = signalled(arguments, signal.SIGINT, SHOWN)
    assert code == 130, shown
    assert printed == ""
    assert "Traceback" not in shown
    assert shown.count("Interrupted.") == 1
    model = load(out)
    assert model.interrupted_
    assert not model.converged_
    assert f"The model after iteration {model.n_iter_} is kept in {out}." in shown
    assert "interrupted" in done("show", out).stdout
    rest = ["-k", 4, "--tol", 0, "--max-iter", model.n_iter_, "-o", tmp_path / "whole"]
    done("fit", data, "--model", "gaussian-mixture", *rest, "-q")
    assert same(model, load(tmp_path / "whole"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:EM reached max_iter")
def test_f38_f39_sigterm_leaves_a_checkpoint_and_the_fit_goes_on_bit_for_bit(tmp_path: Path) -> None:
    data, kept = table(tmp_path / "rows.csv", clusters()), tmp_path / "c.boxloop"
    fit = ["fit", data, "--model", "gaussian-mixture", "-k", 4, "-q"]
    loud = [*fit[:-1], *ENDLESS, "-o", tmp_path / "m", "--checkpoint", kept]
    code, printed, shown = signalled(loud, signal.SIGTERM, SHOWN)
    assert code == 143, shown
    assert printed == ""
    assert "Traceback" not in shown
    assert f"the same command continues from {kept}." in shown
    assert not (tmp_path / "m").exists()
    iterations = read_container(kept).document["tree"]["fields"]["n_iter"]
    fit += ["--tol", 0, "--max-iter", iterations + 20]
    on = done(*fit, "-o", tmp_path / "resumed", "--checkpoint", kept)
    assert on.stderr.startswith(f"Continuing from {kept}.")
    done(*fit, "-o", tmp_path / "whole")
    assert same(load(tmp_path / "resumed"), load(tmp_path / "whole"))
    other = call(*fit, "--tol", 0.5, "-o", tmp_path / "x", "--checkpoint", kept)
    assert other.exit_code == 1
    assert "a checkpoint of another fit: 'tol' is 0.0 there and 0.5 here" in other.stderr


@pytest.mark.parametrize("method", ["em", "online", "gradient"])
@pytest.mark.parametrize("model", ["gaussian-mixture", "factor-analysis", "poisson-mixture"])
@pytest.mark.filterwarnings("ignore:EM reached max_iter")
def test_f39_every_method_goes_on_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, method: str
) -> None:
    rows = counts(300) if model == "poisson-mixture" else clusters(300)
    data, kept = table(tmp_path / "rows.parquet", rows), tmp_path / "c.boxloop"
    fit = ["fit", data, "--model", model, "-k", 2, "--tol", 0, "--max-iter", 9, "--method", method, "-q"]
    fit += [] if method == "em" else ["--batch-size", 100]
    done(*fit, "-o", tmp_path / "whole")

    def terminate(progress):
        if progress.iteration == 5 and not progress.stopped:
            signal.raise_signal(signal.SIGTERM)

    def stopped(*args, observers, **options):
        return run(*args, observers=[*observers, terminate], **options)

    with monkeypatch.context() as patch:
        patch.setattr(fit_module, "run", stopped)
        ended = call(*fit, "-o", tmp_path / "m", "--checkpoint", kept)
    assert ended.exit_code == 143
    assert f"the same command continues from {kept}." in ended.stderr
    assert kept.exists()
    assert not (tmp_path / "m").exists()
    other = call(*fit, "--tol", 0.5, "-o", tmp_path / "m", "--checkpoint", kept)
    assert other.exit_code == 1
    assert "a checkpoint of another fit: 'tol' is 0.0 there and 0.5 here" in other.stderr
    on = done(*fit, "-o", tmp_path / "m", "--checkpoint", kept)
    assert on.stderr.startswith(f"Continuing from {kept}.")
    assert same(load(tmp_path / "m"), load(tmp_path / "whole"))
    assert np.isfinite(load(tmp_path / "m").score_samples(data)).all()


def test_sigterm_without_a_checkpoint_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*args, **options):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(fit_module, "run", stopped)
    result = call("fit", "iris", "--model", "factor-analysis", "-k", 1, "-o", tmp_path / "m")
    assert result.exit_code == 143
    assert result.output == ""
    assert list(tmp_path.iterdir()) == []
