"""Seconds of one pass over the rows, by one process and by several that train together.

Each process is started by ``torchrun`` with one thread, or one GPU. What sharing can gain is the time of the networks;
what it costs is one sum of the gradient over processes for every mini-batch (of two views, of the products too).

    python benchmarks/bench_parallel.py [--quick] [--device cuda] [--processes 1 2]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np

import boxloop
from common import report

ROWS, COLUMNS, PASSES = 20_000, 64, 3
WIDTHS = {"small": (128, 128), "wide": (1024, 1024)}
BATCHES = (256, 2048)


def seconds(fit: Callable[[int], object]) -> float:
    """Of one pass: what more passes take, so that all that comes before and after does not count."""
    times = []
    for passes in (1, 1, 1 + PASSES):  # the first warms up
        begin = time.perf_counter()
        fit(passes)
        times.append(time.perf_counter() - begin)
    return (times[2] - times[1]) / PASSES


def measured(device: str, quick: bool) -> list[dict[str, object]]:
    """Every case, in the processes that there are."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(ROWS // 10 if quick else ROWS, 4)) @ rng.normal(size=(4, COLUMNS))
    X = np.tanh(rows) + 0.1 * rng.normal(size=rows.shape)
    common = {"validation_fraction": 0.0, "random_state": 0, "device": device}
    found = []
    for name, hidden in WIDTHS.items():
        for batch in BATCHES:

            def autoencoder(passes: int, hidden: tuple[int, ...] = hidden, batch: int = batch) -> object:
                made = boxloop.VariationalAutoencoder(
                    4, hidden=hidden, batch_size=batch, max_iter=passes, **common
                )
                return made.fit(X)

            def views(passes: int, hidden: tuple[int, ...] = hidden, batch: int = batch) -> object:
                made = boxloop.RelevantFeatures(
                    4,
                    x_features="network",
                    y_features="network",
                    hidden=hidden,
                    batch_size=batch,
                    max_iter=passes,
                    **common,
                )
                return made.fit(X[:, ::2], X[:, 1::2])

            for what, fit in (("autoencoder", autoencoder), ("two views", views)):
                found.append({"what": what, "network": name, "batch": batch, "seconds": seconds(fit)})
    return found


def started(processes: int, device: str, quick: bool) -> list[dict[str, object]]:
    """What process 0 of several measured."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command += [__file__, "--worker", "--device", device, *["--quick"] * quick]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)


def main() -> None:
    """Print and write the table; with --worker, be one of the processes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        warnings.simplefilter("ignore")  # a few passes are not enough, and say so
        with boxloop.distributed() as workers:
            found = measured(given.device, given.quick)
        if workers.leads:
            print(json.dumps(found))
        return
    table: list[dict[str, object]] = []
    for processes in given.processes:
        table += [{"processes": processes, **row} for row in started(processes, given.device, given.quick)]
    report("parallel", table)


if __name__ == "__main__":
    main()
