"""Mixture EM and factor analysis on a GPU: time a round, and the share of the arithmetic ceiling.

python benchmarks/bench_gpu.py
"""

from __future__ import annotations

import time

import torch

from boxloop.data import ArraySource, Standardised, summarise_moments, survey
from boxloop.estimate import EMState, em
from boxloop.laws import FullGaussian
from boxloop.models import Mixture
from boxloop.run import run
from common import report


def ceiling(dtype: torch.dtype) -> float:
    a = torch.randn(8192, 8192, dtype=dtype, device="cuda")
    a @ a
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        a @ a
    torch.cuda.synchronize()
    return 5 * 2.0 * 8192**3 / (time.perf_counter() - begin)


def mixture(n: int, d: int, k: int) -> dict:
    stream = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(n, d, generator=stream, device="cuda", dtype=torch.float64)
    source = ArraySource(rows + 3.0 * torch.randint(k, (n, 1), generator=stream, device="cuda"))
    standard = Standardised(source, survey(source))
    eye = torch.eye(d, dtype=torch.float64, device="cuda").expand(k, d, d).contiguous()
    start = Mixture(
        torch.full((k,), 1.0 / k, dtype=torch.float64, device="cuda").log(),
        FullGaussian(rows[:k].clone(), eye, 1e-6),
    )
    run(em(standard), EMState(start), max_rounds=2)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    run(em(standard), EMState(start), max_rounds=5, monotone=True)
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - begin) / 5
    flops = 4.0 * n * k * (1 + d + d * (d + 1) // 2) if d <= 12 else 4.0 * n * k * d * d
    return {
        "case": f"mixture n={n} d={d} K={k}",
        "ms": 1e3 * seconds,
        "of_ceiling": flops / seconds / ceiling(torch.float64),
    }


def factor(n: int, d: int) -> dict:
    rows = torch.randn(n, d, device="cuda", dtype=torch.float64)
    source = ArraySource(rows)
    summarise_moments(source)
    torch.cuda.synchronize()
    begin = time.perf_counter()
    summarise_moments(source)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    return {
        "case": f"second moments n={n} d={d}",
        "ms": 1e3 * seconds,
        "of_ceiling": 2.0 * n * d * d / seconds / ceiling(torch.float64),
    }


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    report(
        "gpu",
        [
            mixture(1_000_000, 8, 16),
            mixture(1_000_000, 50, 10),
            factor(100_000, 1000),
            factor(1_000_000, 1000),
        ],
    )


if __name__ == "__main__":
    main()
