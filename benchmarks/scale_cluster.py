"""Passes on a cluster of processes on this machine: over rows, and over next to none, which leaves the overhead."""

from __future__ import annotations

import argparse
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.optimize import nnls

from bench_memory import peak_mib
from boxloop.data import ArrayPartition, StandardisedSource, dask_source, open_source, sum_partitions
from boxloop.models import Mixture
from boxloop.types import Source
from common import interleave
from scale_jobs import standard, write_rows

CASES = {
    "ten columns": (10, 8, 10_000_000, 1 << 18),
    "two hundred partitions": (20, 16, 2_000_000, 10_000),
}
"""Columns, components, rows, rows of a partition."""

PARTITIONS = (10, 100, 1000)
SIZES = {"K=8 d=10": (8, 10), "K=16 d=20": (16, 20), "K=8 d=100": (8, 100)}


KEPT = {"MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
"""Dask starts workers that give freed memory back at once, so that every temporary of a tile is made of fresh pages;
with this those of up to 32 MiB are kept, as in any other process."""


@contextmanager
def processes(workers: int, settings: dict[str, str] = KEPT) -> Iterator[Any]:
    """A client of so many processes, one thread each, reached by this machine alone."""
    from distributed import Client, LocalCluster

    with patch.dict(
        os.environ, settings
    ):  # to which Dask adds its own, that would be there for the next cluster
        cluster = LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            host="127.0.0.1",
            dashboard_address=":0",
            memory_limit=0,
        )
    with cluster, Client(cluster) as client:
        yield client


def measure_workers(folder: Path, given: argparse.Namespace) -> list[dict]:
    """A pass over Parquet files by this process alone, and by one and two workers."""
    found = []
    with processes(1) as one, processes(2) as two, processes(2, {}) as plain:
        clients = {"one worker": one, "two workers": two, "two workers, as Dask starts them": plain}
        for case, (d, k, n, part_rows) in CASES.items():
            n = n // 100 if given.quick else n
            part_rows = part_rows // 100 if given.quick else part_rows
            table = write_rows(folder / f"workers-{d}", n, d, k, part_rows, 20 * part_rows)
            seen, model = standard(open_source(table, memory=0), "full", k)
            with two.as_current():
                source = dask_source(table, part_rows=part_rows)
            about = {"case": case, "rows": n, "columns": d, "components": k, "partitions": len(source.parts)}
            found += raced(about, seen, StandardisedSource(source, seen.frame), model, clients, given.repeats)
            shutil.rmtree(table)
    return found


def raced(
    about: dict, alone: Source, shared: Source, model: Mixture, clients: dict[str, Any], repeats: int
) -> list[dict]:
    """Best times of the same pass, after its sums were found to be the same: to the bit on one or two workers."""

    def on(client: Any) -> Any:
        with client.as_current():
            return shared.reduce(model.expect)

    jobs: dict[str, Callable[[], Any]] = {"this process": lambda: alone.reduce(model.expect)}
    jobs |= {name: lambda client=client: on(client) for name, client in clients.items()}
    sums = [leaves(job()) for job in jobs.values()]
    for other in sums[2:]:
        assert all(torch.equal(a, b) for a, b in zip(sums[1], other, strict=True))
    for a, b in zip(sums[0], sums[1], strict=True):
        assert float((a - b).abs().max()) <= 1e-10 * float(a.abs().max())
    best = interleave(jobs, repeats)
    rows = []
    for name, seconds in best.items():
        row = {
            **about,
            "who": name,
            "workers": 0,
            "seconds": seconds,
            "speedup": best["this process"] / seconds,
        }
        if name in clients:
            client = clients[name]
            parts = np.array(followed(client, jobs[name])["part"])
            row["workers"] = len(client.scheduler_info(n_workers=-1)["workers"])
            row["task_ms"] = 1e3 * float(parts.mean())
            row["spread"] = np.quantile(parts / parts.mean(), np.linspace(0, 1, 11)).round(3).tolist()
            row["worker_peak_mib"] = max(client.run(peak_mib).values())
        rows.append(row)
    return rows


def leaves(expected: Any) -> list[torch.Tensor]:
    """All tensors of what a pass brought back."""
    return [leaf for _, leaf in expected.leaves()]


def followed(client: Any, job: Callable[[], object]) -> dict[str, list[float]]:
    """Seconds of each task of a pass by kind, and when the first began: a pass of its own, which this slows."""
    from distributed import get_task_stream

    begin = time.time()
    with get_task_stream(client) as stream:
        job()
    spans = [
        (row["key"], span["start"], span["stop"])
        for row in stream.data
        for span in row["startstops"]
        if span["action"] == "compute"
    ]
    parts = [(start, stop) for key, start, stop in spans if key.startswith("boxloop-part")]
    sums = [stop - start for key, start, stop in spans if key.startswith("boxloop-sum")]
    return {
        "part": [stop - start for start, stop in parts],
        "sum": sums,
        "first": [min(start for start, _ in parts) - begin],
    }


class Sent:
    """A function as large as the parameters, whose sum is as large as the statistics, and which does nothing."""

    def __init__(self, k: int, d: int) -> None:
        self.values = torch.zeros(k, 1 + d + d * d, dtype=torch.float64)

    def __call__(self, rows: torch.Tensor, weight: torch.Tensor, start: int) -> torch.Tensor:
        """As many zeros."""
        return self.values * 1.0


def measure_overhead(folder: Path, given: argparse.Namespace) -> list[dict]:
    """Passes over partitions of one row: parameters out, statistics back, and Dask's own work."""
    part = ArrayPartition(torch.ones(1, 1, dtype=torch.float64), None, ("x",), "one row")
    found = []
    partitions = PARTITIONS[:2] if given.quick else PARTITIONS
    for workers in (1, 2):
        with processes(workers) as client:
            for what, shape in SIZES.items() if workers == 2 else list(SIZES.items())[:1]:
                sent = Sent(*shape)
                for count in partitions:

                    def job(sent: Sent = sent, count: int = count) -> object:
                        return sum_partitions([part] * count, [1] * count, sent)

                    job()
                    figures = min(
                        (timed(client, job) for _ in range(given.repeats)), key=lambda f: f["seconds"]
                    )
                    tasks = followed(client, job)
                    found.append(
                        {
                            "what": what,
                            "workers": workers,
                            "partitions": count,
                            "bytes": 8 * sent.values.numel(),
                            **figures,
                            "first": tasks["first"][0],
                            "part_ms": 1e3 * float(np.median(tasks["part"])),
                            "sum_ms": 1e3 * float(np.median(tasks["sum"])),
                        }
                    )
    both = [row for row in found if row["workers"] == 2]
    for key in ("seconds", "scheduler_cpu", "worker_cpu", "first"):
        a, b, c, worst = fitted(both, key)
        fit = {"a_ms": 1e3 * a, "b_ms_a_partition": 1e3 * b, "c_s_a_gigabyte": 1e9 * c}
        found.append({"what": f"fit: {key}", **fit, "worst_relative_error": worst})
    return found


def timed(client: Any, job: Callable[[], object]) -> dict[str, float]:
    """Wall time of a pass; processor time of this process (client and scheduler) and of all workers."""
    before = sum(client.run(time.process_time).values())
    begin, own = time.perf_counter(), time.process_time()
    job()
    seconds, own = time.perf_counter() - begin, time.process_time() - own
    return {
        "seconds": seconds,
        "scheduler_cpu": own,
        "worker_cpu": sum(client.run(time.process_time).values()) - before,
    }


def fitted(rows: list[dict], key: str) -> tuple[float, float, float, float]:
    """A figure of empty passes as a + b partitions + c bytes, by least squares of relative errors, none negative.

    Returns:
        a, b, c, and the largest relative error.
    """
    value = np.array([row[key] for row in rows])
    count = np.array([float(row["partitions"]) for row in rows])
    total = count * [row["bytes"] for row in rows]
    design = np.stack([np.ones_like(count), count, total], 1)
    (a, b, c), _ = nnls(design / value[:, None], np.ones_like(value))
    error = np.abs(design @ [a, b, c] - value) / value
    return float(a), float(b), float(c), float(error.max())
