"""How long a user waits: importing, the help, and a whole report on 10,000 x 20 and 1,000,000 x 20 rows.

python benchmarks/bench_report.py [--quick]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from common import report

COMMAND = str(Path(sys.executable).parent / "boxloop")


def rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """Four clusters with a shared covariance, one column skewed."""
    rng = np.random.default_rng(seed)
    centres, turn = 3.0 * rng.normal(size=(4, d)), np.eye(d) + 0.3 * rng.normal(size=(d, d))
    found = centres[rng.integers(4, size=n)] + rng.normal(size=(n, d)) @ turn
    found[:, 3 % d] = np.exp(found[:, 3 % d] / 3.0)
    return found


def seconds(call: list[str], repeats: int = 1) -> float:
    """The shortest of several runs of a command."""
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        subprocess.run(call, check=True, stdout=subprocess.DEVNULL)
        taken.append(time.perf_counter() - begin)
    return min(taken)


def one_report(n: int, d: int, target: float | None) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.npy"
        np.save(data, rows(n, d))
        page = Path(folder) / "report.html"
        taken = seconds([COMMAND, "report", str(data), "-o", str(page), "-q"])
        return {
            "case": f"report on {n} x {d}",
            "seconds": taken,
            "target": target,
            "page_bytes": page.stat().st_size,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    quick = parser.parse_args().quick
    found = [
        {
            "case": "import boxloop",
            "seconds": seconds([sys.executable, "-c", "import boxloop"], 5),
            "target": None,
        },
        {"case": "boxloop --help", "seconds": seconds([COMMAND, "--help"], 5), "target": 0.3},
    ]
    sizes = [(300, 3, None)] if quick else [(10_000, 20, 120.0), (1_000_000, 20, None)]
    report("report", found + [one_report(*size) for size in sizes])


if __name__ == "__main__":
    main()
