"""Fits that one process and several must end alike; run by torchrun, this file is one of several processes."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

import boxloop
from boxloop import RelevantClassifier, RelevantFeatures, RelevantGenerator, VariationalAutoencoder
from boxloop.fit import Trainer
from boxloop.persist import CheckpointWriter
from boxloop.twoview import GaussianNoise

RNG = np.random.default_rng(0)
FACTOR = RNG.normal(size=(203, 1))
X = np.sin(FACTOR * [1.0, 2.0, -1.0]) + 0.2 * RNG.normal(size=(203, 3))
Y = np.hstack([FACTOR**2, FACTOR + RNG.normal(size=(203, 1))])
LABEL = (FACTOR[:, 0] > 0.0).astype(int) + (FACTOR[:, 0] > 1.0)
WEIGHT = RNG.uniform(0.5, 2.0, size=203)
COMMON = {"hidden": (8,), "dtype": "float64", "random_state": 0, "learning_rate": 0.01}
"""Batches of 46 and 47 rows of 162, and the like: uneven shares."""

Found = dict[str, object]


def autoencoder(**more) -> VariationalAutoencoder:
    plain = {"batch_size": 47, "max_iter": 4, "patience": None, "validation_fraction": 0.2}
    return VariationalAutoencoder(1, **{**COMMON, **plain, **more})


def coded(fit: VariationalAutoencoder) -> Found:
    point = torch.cat([value.reshape(-1) for value in fit.model_.trainable()])
    return {"point": point, "alpha": fit.alpha_, **history(fit)}


def history(fit) -> Found:
    return {f"history {name}": values for name, values in fit.history_.items()}


def related(fit, rows) -> Found:
    """Canonical variables up to their signs."""
    return {"relevance": fit.relevance_, "square": fit.transform(rows) ** 2, **history(fit)}


def views(**more) -> RelevantFeatures:
    plain = {
        "x_features": "network",
        "y_features": "network",
        "batch_size": 61,
        "max_iter": 3,
        "patience": None,
    }
    return RelevantFeatures(2, **{**COMMON, **plain, **more})


def classified(folder: Path) -> Found:
    labels = RelevantClassifier(batch_size=61, max_iter=3, patience=None, **COMMON).fit(X, LABEL)
    return {"probability": labels.predict_proba(X), **history(labels)}


def generated(folder: Path) -> Found:
    inner = views(channel=GaussianNoise(0.3))
    made = RelevantGenerator(1, features=inner, batch_size=47, max_iter=3, patience=None, **COMMON)
    made.fit(X, sample_weight=WEIGHT)
    return {"error": made.error_, "codes": made.transform(X) ** 2, **history(made)}


CASES: dict[str, Callable[[Path], Found]] = {
    "penalty": lambda folder: coded(
        autoencoder(alpha=0.2, alpha_from=0.0, prior="mixture", prior_components=3, n_draws=2).fit(
            X, sample_weight=WEIGHT
        )
    ),
    "chosen": lambda folder: coded(autoencoder(alpha="validation", alpha_from=0.2, max_iter=3).fit(X)),
    "images": lambda folder: coded(
        autoencoder(likelihood="bernoulli", hidden=(2,), max_iter=2).fit(
            (X[:200].reshape(-1, 2, 6) > 0.0) * 1.0
        )
    ),
    "file": lambda folder: coded(autoencoder().fit(folder / "rows.parquet")),
    "views": lambda folder: related(views().fit(X, Y), X),
    "weighted views": lambda folder: related(views(constant="learned").fit(X, Y, sample_weight=WEIGHT), X),
    "channel": lambda folder: related(views(channel=GaussianNoise(0.3)).fit(X), X),
    "labels": classified,
    "generator": generated,
}
"""What must be the same for one process and for several."""


def checkpointed(folder: Path, rank: int) -> Found:
    """Ctrl-C reaches process 1 alone, in the second iteration; then all go on. Who wrote?"""
    path, plain, write = folder / "fit.boxloop", Trainer.__call__, CheckpointWriter.save
    iterations, saves = [], []

    def counted(self, state):
        iterations.append(1)
        if len(iterations) == 2 and rank == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(self, state)

    def noted(self, progress):
        saves.append(1)
        write(self, progress)

    Trainer.__call__, CheckpointWriter.save = counted, noted
    try:
        cut = autoencoder(checkpoint=path).fit(X)
        if rank == 0:
            shutil.copy(path, folder / "half.boxloop")
        dist.barrier()
        whole = autoencoder(checkpoint=path).fit(X)
    finally:
        Trainer.__call__, CheckpointWriter.save = plain, write
    record = {
        "cut": cut.n_iter_,
        "interrupted": cut.interrupted_,
        "iterations": len(iterations),
        "saves": len(saves),
    }
    return {**coded(whole), **record}


def shown(folder: Path, rank: int) -> Found:
    with redirect_stderr(io.StringIO()) as text:
        autoencoder(verbose=1).fit(X)
    return {"said": len(text.getvalue())}


def refused(fit: Callable[[], object]) -> Found:
    try:
        fit()
    except ValueError as error:
        return {"error": str(error)}
    return {"error": ""}


def _all(folder: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.simplefilter("ignore")  # fits this short warn; what they say is tested elsewhere
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    own = np.roll(X, rank, 1) + rank
    found = {"apart": coded(autoencoder().fit(own))}
    with boxloop.distributed() as workers:
        assert (workers.rank, workers.size) == (rank, 3)
        found |= {name: case(folder) for name, case in CASES.items()}
        found["checkpoint"], found["shown"] = checkpointed(folder, rank), shown(folder, rank)
        found["other rows"] = refused(lambda: autoencoder().fit(own))
        found["other seeds"] = refused(lambda: views(random_state=None).fit(X, Y))
        found["fewer rows"] = refused(lambda: autoencoder().fit(X[rank::3]))
    found["kept"] = {"group": dist.is_initialized()}
    flat = {
        f"{case}/{name}": np.asarray(value) for case, each in found.items() for name, value in each.items()
    }
    np.savez(folder / f"{rank}.npz", **flat)
    dist.destroy_process_group()


def write_rows(folder: Path) -> None:
    pd.DataFrame(X, columns=["a", "b", "c"]).to_parquet(folder / "rows.parquet")


if __name__ == "__main__":
    _all(Path(sys.argv[1]))
