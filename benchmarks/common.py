"""What the benchmarks share: interleaved timing, the machine's limits, tables and JSON.

They run as a user runs the library, without thread variables, on all cores; on one under ``taskset -c 0``.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable
from datetime import date
from functools import cache
from pathlib import Path

import numpy as np
import torch

RESULTS = Path(__file__).parent / "results"


def interleave(candidates: dict[str, Callable[[], object]], repeats: int = 3) -> dict[str, float]:
    """Best time of each candidate, in seconds: one warm-up, then ``repeats`` iterations in which each runs once."""
    for candidate in candidates.values():
        candidate()
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(repeats):
        for name, candidate in candidates.items():
            begin = time.perf_counter()
            candidate()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


@cache
def gemm_rate(dtype: str = "float64") -> float:
    """Operations a second of a large matrix product, the better of torch's and NumPy's library."""
    a = torch.randn(1024, 1024, dtype=getattr(torch, dtype))
    b = a.numpy()
    times = interleave({"torch": lambda: a @ a, "numpy": lambda: np.matmul(b, b)}, 5)
    return 2.0 * 1024**3 / min(times.values())


def processor_model() -> str:
    """The processor's own name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    names = (
        [line for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0].partition(":")[2].strip() if names else platform.processor()


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    return {
        "date": date.today().isoformat(),
        "processor": platform.machine(),
        "model": processor_model(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gemm_float64_gflops": round(gemm_rate("float64") / 1e9, 1),
        "gemm_float32_gflops": round(gemm_rate("float32") / 1e9, 1),
    }


def report(name: str, rows: list[dict]) -> None:
    """Print a table and write it, with the machine, to ``results/NAME.json``, on one core to ``NAME_one_core.json``."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    text = [[_cell(row.get(key)) for key in keys] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in text)) for i, key in enumerate(keys)]
    for line in [keys, *text]:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)))
    RESULTS.mkdir(exist_ok=True)
    name += "_one_core" if len(os.sched_getaffinity(0)) == 1 else ""
    (RESULTS / f"{name}.json").write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(head: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines])


def number(value: float) -> str:
    """Three significant digits, thousands separated."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
