"""How time and memory grow: with rows in Parquet files, columns, components and workers of a cluster.

Rows stay in files and are read anew in every pass; each case of `rows` runs in a process of its own, whose peak of
resident memory is reported. `workers` and `overhead` start clusters of processes on this machine. The figures of one
part are kept when another is run again. Linux only.

    python benchmarks/bench_scale.py [--quick] [--only rows] [--largest 1e8] [--folder DIR]
    python benchmarks/estimate_scale.py    # from these figures to 1e10 rows on 100 workers
    python benchmarks/scale_page.py        # tables and pictures of docs/scale.md
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.mixture import GaussianMixture as Peer

from bench_memory import peak_mib
from boxloop.data import ArraySource, StandardisedSource, open_source, summarise_moments
from common import interleave, report
from scale_cluster import measure_overhead, measure_workers
from scale_jobs import CLOSE, JOBS, SETTLED, centres, mixture, size_of, standard, timed_job, write_rows

COLUMNS = 10
ROW_BYTES = 4 * COLUMNS
SPARE = 4 << 30
"""Bytes of the disk that stay free."""
UNIT = (20, 16)
"""Columns and components of the estimate."""


def slope(x: list[float], y: list[float]) -> float:
    """Of y against x on logarithmic axes."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def lengths(largest: float, folder: Path) -> list[int]:
    """Tenfold numbers of rows, as far as the disk has room for their files."""
    free = shutil.disk_usage(folder).free
    wanted = [10**e for e in range(4, 13) if 10**e <= largest]
    found = [n for n in wanted if n * ROW_BYTES + SPARE <= free]
    if found != wanted:
        print(
            f"sizes end at {found[-1]:.0e} rows: {wanted[-1] * ROW_BYTES / 1e9:.1f} GB of files would leave less than "
            f"{SPARE / 1e9:.1f} GB of the {free / 1e9:.1f} GB that are free"
        )
    return found


def measure_rows(folder: Path, given: argparse.Namespace) -> list[dict]:
    """One pass of every job against the number of rows."""
    sizes = lengths(given.largest, folder)
    warm = write_rows(folder / "warm", 10_000, COLUMNS)
    found: list[dict] = []
    for n in sizes:
        table = write_rows(folder / f"rows-{n}", n, COLUMNS)
        for job in JOBS:
            command = [sys.executable, __file__, "--child", job, str(table), str(warm)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            figures = json.loads(done.stdout)
            close = SETTLED if job == "factor analysis" else CLOSE
            assert figures["off"] < close, f"{job} over {n} rows is off by {figures['off']}"
            figures["rows_per_second"] = n / figures["seconds"]
            found.append({"job": job, "rows": n, "file_mb": size_of(table) / 1e6, **figures})
            print(job, n, f"{figures['seconds']:.3f} s", f"{figures['peak_mib']:.0f} MiB", flush=True)
        shutil.rmtree(table)
    for job in JOBS:
        mine = [row for row in found if row["job"] == job]
        longest = mine[-3:]  # where what does not depend on rows has worn off
        mine[-1]["slope"] = slope([r["rows"] for r in longest], [r["seconds"] for r in longest])
        mine[-1]["expected"] = 1.0
        mine[-1]["memory_slope"] = slope([r["rows"] for r in longest], [r["peak_mib"] for r in longest])
    return found


def child(job: str, folder: Path, warm: Path) -> None:
    """One job in this process: its time and its peak of memory."""
    n = open_source(folder, memory=0).n_rows
    before = peak_mib()
    figures = timed_job(job, folder, warm, 3 if n <= 1_000_000 else 1)
    print(json.dumps({**figures, "imports_mib": before, "peak_mib": peak_mib()}))


def checked(rows: torch.Tensor, kind: str, k: int) -> Callable[[], object]:
    """One pass in memory, after its log-likelihood was found to be scikit-learn's."""
    d = rows.shape[1]
    source, model = standard(ArraySource(rows), kind, k)
    mean, ones = centres(k, d).numpy(), np.ones(d)
    peer = Peer(k, covariance_type=kind)
    peer.weights_, peer.means_ = np.full(k, 1.0 / k), mean
    peer.precisions_cholesky_ = np.tile(
        ones if kind == "diag" else np.eye(d), (k, 1) if kind == "diag" else (k, 1, 1)
    )
    some = rows[:2000]
    ours = mixture(kind, k, d).log_prob(some)
    assert np.allclose(ours.numpy(), peer.score_samples(some.numpy()), rtol=1e-10, atol=0.0)
    level = source.frame.scale.log().sum()
    seen = StandardisedSource(ArraySource(some), source.frame).reduce(model.expect)
    base = model.log_base(some)
    total = seen.log_likelihood - len(some) * level + (0.0 if base is None else base.sum())
    assert abs(float(total / ours.sum()) - 1.0) < 1e-10
    return lambda: source.reduce(model.expect)


def clustered(n: int, d: int, k: int) -> torch.Tensor:
    rng = np.random.default_rng(0)
    rows = centres(k, d).numpy()[rng.integers(k, size=n)] + rng.normal(size=(n, d))
    return torch.from_numpy(rows)


def measure_columns(folder: Path, given: argparse.Namespace) -> list[dict]:
    """One pass over rows in memory against the number of columns."""
    n, k = (2_000 if given.quick else 20_000), 8
    sizes = [5, 10, 20] if given.quick else [5, 10, 20, 50, 100, 200]
    found = []
    for d in sizes:
        rows = clustered(n, d, k)
        source = ArraySource(rows)
        jobs = {"diag": checked(rows, "diag", k), "full": checked(rows, "full", k)}
        times = interleave({**jobs, "moments": lambda s=source: summarise_moments(s)}, given.repeats)
        found += [{"job": job, "rows": n, "columns": d, "seconds": t} for job, t in times.items()]
    return graded(found, "columns", {"diag": 1.0, "full": 2.0, "moments": 2.0})


def measure_components(folder: Path, given: argparse.Namespace) -> list[dict]:
    """One pass over rows in memory against the number of components."""
    n, d = (2_000 if given.quick else 50_000), COLUMNS
    found = []
    for k in [2, 4, 8] if given.quick else [2, 4, 8, 16, 32, 64]:
        rows = clustered(n, d, k)
        times = interleave({kind: checked(rows, kind, k) for kind in ("diag", "full")}, given.repeats)
        found += [{"job": job, "rows": n, "components": k, "seconds": t} for job, t in times.items()]
    return graded(found, "components", {"diag": 1.0, "full": 1.0})


def graded(found: list[dict], along: str, expected: dict[str, float]) -> list[dict]:
    """The same, with slopes over all sizes and over the three largest beside the last of each job."""
    for job, order in expected.items():
        mine = [row for row in found if row["job"] == job]
        x, y = [row[along] for row in mine], [row["seconds"] for row in mine]
        mine[-1] |= {"slope": slope(x, y), "slope_of_largest": slope(x[-3:], y[-3:]), "expected": order}
    return found


def measure_unit(folder: Path, given: argparse.Namespace) -> list[dict]:
    """What one core does with one row of the estimate: reading, a pass over memory and files."""
    d, k = UNIT
    n = 100_000 if given.quick else 1_000_000
    table = write_rows(folder / "unit", n, d, k)
    stream, held = open_source(table, memory=0), open_source(table, memory=1 << 40)
    jobs: dict[str, Callable[[], object]] = {"read": lambda: sum(len(w) for _, w in stream.chunks())}
    for where, source in (("files", stream), ("memory", held)):
        for dtype in ("float64", "float32"):
            seen, model = standard(source, "full", k, getattr(torch, dtype))
            jobs[f"pass, {where}, {dtype}"] = lambda s=seen, m=model: s.reduce(m.expect)
    full = [job() for name, job in jobs.items() if name.startswith("pass")]
    for other in full[1:]:
        assert abs(float(other.log_likelihood / full[0].log_likelihood) - 1.0) < 1e-6
    times = interleave(jobs, 2)
    size = size_of(table)
    shutil.rmtree(table)
    return [
        {"job": job, "rows": n, "columns": d, "components": k, "seconds": t, "ns_per_row": 1e9 * t / n}
        | ({"bytes_per_row": size / n} if job == "read" else {})
        for job, t in times.items()
    ]


PARTS: dict[str, Callable[[Path, argparse.Namespace], list[dict]]] = {
    "rows": measure_rows,
    "columns": measure_columns,
    "components": measure_components,
    "unit": measure_unit,
    "workers": measure_workers,
    "overhead": measure_overhead,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--largest", type=float, default=1e7, help="most rows of the part `rows`")
    parser.add_argument("--folder", type=Path, help="where files are written and deleted again")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.child[0], Path(given.child[1]), Path(given.child[2]))
        return
    given.repeats = 1 if given.quick else 3
    given.largest = min(given.largest, 1e5) if given.quick else given.largest
    torch.set_grad_enabled(False)
    for part in given.only:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            print(f"== {part}")
            report(f"scale_{part}", PARTS[part](Path(folder), given))


if __name__ == "__main__":
    main()
