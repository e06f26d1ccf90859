"""Chains on a GPU: steps one operation after another and as CUDA graphs, and effective draws a second.

The floor of a random walk is the traffic of its positions and noise: read, moved, compared and stored once each.

    python benchmarks/bench_chains_gpu.py
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

import numpy as np
import torch

from boxloop.chain import advance
from boxloop.numeric import generator
from boxloop.sample import HMC, MALA, GraphSteps, RandomWalk, Target, sample_density
from chains_peers import TARGETS, effective

STEPS = 320


def density(x: torch.Tensor) -> torch.Tensor:
    return -0.5 * (x * x).sum(1)


def pair(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return -0.5 * (x * x).sum(1), -x


def per_step(move, kernel, chains) -> float:
    with torch.no_grad():
        move(kernel, chains, 64, generator(0, "cuda"))
        best = float("inf")
        for _ in range(3):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            move(kernel, chains, STEPS, generator(1, "cuda"))
            torch.cuda.synchronize()
            best = min(best, (time.perf_counter() - begin) / STEPS)
    return best


def rates(device: str) -> list[dict]:
    """Effective draws a second after warm-up, and seconds of a whole call with 600 warm-up steps, by default."""
    warnings.simplefilter("ignore")
    rows = []
    for name, (target, columns) in TARGETS(device).items():
        for chains in (4, 256, 4096):
            start = torch.zeros(columns, dtype=torch.float64, device=device)
            begin = time.perf_counter()
            draws = sample_density(target, start, chains=chains, draws=100, warmup=600, random_state=0)
            whole = time.perf_counter() - begin
            best = 0.0
            for seed in range(3):
                begin = time.perf_counter()
                more = sample_density(
                    target, draws.positions[-1], draws.algorithm, draws=200, warmup=0, random_state=seed
                )
                found = np.swapaxes(more.positions.cpu().numpy(), 0, 1)
                seconds = time.perf_counter() - begin
                best = max(best, effective(found) / seconds)
            rows.append({"target": name, "chains": chains, "effective a second": best, "cold call, s": whole})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    found = {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rates("cuda")}
    place = Path(__file__).parent / "results" / "chains_gpu.json"
    place.write_text(json.dumps(found, indent=1) + "\n")
    for c, d in ((4, 10), (256, 100), (4096, 10), (4096, 100), (65536, 100)):
        for dtype in (torch.float32, torch.float64):
            for name, kernel in (
                ("walk", RandomWalk(scale=0.2).kernel(Target(density))),
                ("mala, formula", MALA(scale=0.4).kernel(Target(density, pair))),
                ("mala, autograd", MALA(scale=0.4).kernel(Target(density))),
                ("hmc, autograd, 4-8 gradients", HMC(scale=0.4, trajectory=3.2).kernel(Target(density))),
            ):
                chains = kernel.init(torch.zeros(c, d, dtype=dtype, device="cuda"))
                eager, graph = per_step(advance, kernel, chains), per_step(GraphSteps(), kernel, chains)
                floor = 6 * c * d * chains.position.element_size() / 4.8e12
                print(
                    f"c {c} d {d} {str(dtype)[6:]} {name}: eager {eager * 1e6:.1f} us, graph {graph * 1e6:.1f} us, "
                    f"{graph / floor:.1f} floors of traffic"
                )


if __name__ == "__main__":
    main()
