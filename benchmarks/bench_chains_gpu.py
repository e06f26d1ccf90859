"""Chain steps on a GPU: one operation after another, and whole blocks as CUDA graphs.

The floor of a random walk is the traffic of its positions and noise: read, moved, compared and stored once each.

    python benchmarks/bench_chains_gpu.py
"""

from __future__ import annotations

import time

import torch

from boxloop.chain import advance
from boxloop.numeric import generator
from boxloop.sample import HMC, MALA, RandomWalk, Target
from boxloop.sample.movers import Graphs

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


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    for c, d in ((4, 10), (256, 100), (4096, 10), (4096, 100), (65536, 100)):
        for dtype in (torch.float32, torch.float64):
            for name, kernel in (
                ("walk", RandomWalk(scale=0.2).kernel(Target(density))),
                ("mala, formula", MALA(scale=0.4).kernel(Target(density, pair))),
                ("mala, autograd", MALA(scale=0.4).kernel(Target(density))),
                ("hmc, autograd, 1-8 steps", HMC(scale=0.4, trajectory=3.2).kernel(Target(density))),
            ):
                chains = kernel.init(torch.zeros(c, d, dtype=dtype, device="cuda"))
                eager, graph = per_step(advance, kernel, chains), per_step(Graphs(), kernel, chains)
                floor = 6 * c * d * chains.position.element_size() / 4.8e12
                print(
                    f"c {c} d {d} {str(dtype)[6:]} {name}: eager {eager * 1e6:.1f} us, graph {graph * 1e6:.1f} us, "
                    f"{graph / floor:.1f} floors of traffic"
                )


if __name__ == "__main__":
    main()
