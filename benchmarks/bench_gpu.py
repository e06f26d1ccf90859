"""The main passes on a GPU: time, rate, and the share of what the card can do.

A floor is the larger of two times: the arithmetic that cannot be avoided at the rate of a large square product, and the
bytes that must be moved at the rate of a long copy, both measured on the same card in the same run. Symmetric products
count half. ``of_ceiling`` is the floor over the time. Times are the least of seven after two calls to warm up, by the
card's own clock.

    python benchmarks/bench_gpu.py [--device cpu] [--small]
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from boxloop.chain import advance
from boxloop.criticise import fused_moment_gap, mega
from boxloop.data import (
    ArraySource,
    MappedSource,
    PrefetchedSource,
    StandardisedSource,
    fit_standardisation,
    open_source,
    summarise_moments,
)
from boxloop.distributions import DiagonalGaussian, FullGaussian
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import FactorModel, Mixture
from boxloop.networks import SWAG, FactorEM, WeightPosterior
from boxloop.numeric import generator, normal
from boxloop.sample import HMC, GraphSteps, RandomWalk, Target
from boxloop.twoview import relevance_loss
from common import report

REPEATS, RANK, ITERATIONS = 7, 10, 50
LOOPS = ((1_000_000, 50, 16), (1_000_000, 20, 16), (2_000, 5, 4))
"""Rows, columns and components of mixtures."""


def timed(call: Callable[[], object], device: str, repeats: int = REPEATS) -> float:
    """Seconds of the quickest call."""
    for _ in range(2):
        call()
    best = math.inf
    for _ in range(repeats):
        if device == "cpu":
            begin = time.perf_counter()
            call()
            best = min(best, time.perf_counter() - begin)
            continue
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best


@dataclass(frozen=True)
class Card:
    """A device with its limits: bytes a second, and operations a second by precision."""

    device: str
    small: bool
    copied: float
    products: dict[torch.dtype, float]

    @classmethod
    def measured(cls, device: str, small: bool) -> Card:
        long = torch.rand(1 << (20 if small else 29), device=device)
        other, side = torch.empty_like(long), 256 if small else 8192
        copied = 2.0 * 4 * len(long) / timed(lambda: other.copy_(long), device)
        products = {}
        for dtype in (torch.float64, torch.float32):
            square = torch.randn(side, side, dtype=dtype, device=device)
            products[dtype] = 2.0 * side**3 / timed(lambda square=square: square @ square, device)
        return cls(device, small, copied, products)

    def size(self, large: int, small: int) -> int:
        return small if self.small else large

    def row(self, case: str, seconds: float, flops: float, moved: float, dtype=torch.float64) -> dict:
        """What is reported of a call that cannot do with fewer operations, nor move fewer bytes."""
        by_work, by_bytes = flops / self.products[dtype], moved / self.copied
        return {
            "case": f"{case} {str(dtype)[6:]}",
            "ms": 1e3 * seconds,
            "tflops": flops / seconds / 1e12,
            "gb_a_second": moved / seconds / 1e9,
            "bound": "arithmetic" if by_work > by_bytes else "bandwidth",
            "of_ceiling": max(by_work, by_bytes) / seconds,
        }

    def ceilings(self) -> Iterator[dict]:
        yield {"case": "copy of a long vector", "gb_a_second": self.copied / 1e9}
        for dtype, rate in self.products.items():
            yield {"case": f"square product {str(dtype)[6:]}", "tflops": rate / 1e12}


def clusters(card: Card, n: int, d: int, k: int) -> tuple[ArraySource, Tensor]:
    stream = generator(0, card.device)
    rows = normal((n, d), stream)
    rows += 3.0 * torch.randint(k, (n, 1), generator=stream, device=card.device)
    source = ArraySource(rows)
    return StandardisedSource(source, fit_standardisation(source)), normal((k, d), stream)


def mixtures(card: Card) -> Iterator[dict]:
    """An iteration of EM, in a loop: reads the rows once; two products with every component."""
    large, medium, small = ((card.size(n, 2_000), *more) for n, *more in LOOPS)
    for kind, n, d, k in ((kind, *size) for kind in ("full", "diagonal") for size in (large, medium, small)):
        source, mean = clusters(card, n, d, k)
        eye = torch.eye(d, dtype=torch.float64, device=card.device).expand(k, d, d).contiguous()
        if kind == "full":
            distribution, flops = FullGaussian(mean, eye, 1e-6), 4.0 * n * k * d * d
        else:
            distribution, flops = (
                DiagonalGaussian(mean, torch.ones_like(mean), 1e-6),
                4.0 * n * k * (1 + 2 * d),
            )
        state = EMState(Mixture(mean.new_full((k,), 1.0 / k).log(), distribution))
        step = em(source)
        iterations = lambda step=step, state=state: run(step, state, max_iter=ITERATIONS, monotone=True)  # noqa: E731
        seconds = timed(iterations, card.device, 3) / ITERATIONS
        yield card.row(f"mixture {kind}, an iteration, n={n} d={d} K={k}", seconds, flops, 8.0 * n * (d + 1))


def factors(card: Card) -> Iterator[dict]:
    """Second moments in one pass, and an iteration of EM that knows nothing else of the rows."""
    for n in (card.size(100_000, 1_000), card.size(1_000_000, 2_000)):
        d = card.size(1000, 20)
        source = ArraySource(normal((n, d), generator(0, card.device)))
        seconds = timed(lambda source=source: summarise_moments(source), card.device)
        yield card.row(f"second moments, n={n} d={d}", seconds, 1.0 * n * d * (d + 1), 8.0 * n * d)
    summary = summarise_moments(source)
    assert summary is not None
    stream = generator(1, card.device)
    start = FactorModel(
        torch.zeros(d, dtype=torch.float64, device=card.device),
        normal((d, RANK), stream),
        torch.ones(d, dtype=torch.float64, device=card.device),
    )
    step, state = em(summary.rows(summary.frame.origin, summary.frame.scale)), EMState(start)
    seconds = timed(lambda: run(step, state, max_iter=ITERATIONS, monotone=True), card.device, 3) / ITERATIONS
    yield card.row(f"factor analysis, an iteration, d={d} k={RANK}", seconds, 2.0 * d * d * RANK, 8.0 * d * d)


def moments(card: Card) -> Iterator[dict]:
    """Gaps of first and second moments with their errors, and the penalty of a trainer with its gradient."""
    n, d, k = card.size(1_000_000, 2_000), 50, 8
    stream = generator(0, card.device)
    rows, mean = normal((n, d), stream), normal((k, d), stream)
    model = Mixture(mean.new_full((k,), 1.0 / k).log(), DiagonalGaussian(mean, torch.ones_like(mean)))
    seconds = timed(lambda: mega(model, rows, draws=0), card.device)
    yield card.row(f"MEGA with errors, n={n} d={d}", seconds, 2.0 * n * d * (d + 1), 8.0 * n * d)
    n, m, d = 250, card.size(5000, 300), card.size(784, 30)
    for dtype in (torch.float64, torch.float32):
        parts = [torch.rand(size, d, dtype=dtype, device=card.device) for size in (n, m)]
        spread, mean = torch.rand(d, dtype=dtype, device=card.device), parts[1].requires_grad_()

        def penalty(parts=parts, spread=spread, mean=mean) -> Tensor:
            return torch.autograd.grad(fused_moment_gap(*parts, spread), mean)[0]

        flops, moved = 1.0 * (n + m) * d * (d + 1) + 2.0 * m * d * d, spread.element_size() * d * (n + 3 * m)
        seconds = timed(penalty, card.device)
        yield card.row(f"MEGA penalty with gradient, d={d} m={m} n={n}", seconds, flops, moved, dtype)


def chains(card: Card) -> Iterator[dict]:
    """A step of every chain, from a CUDA graph: a walk moves numbers, trajectories of a regression multiply."""
    mover = advance if card.device == "cpu" else GraphSteps()
    c, d, steps = card.size(65536, 64), 100, 64
    kernel = RandomWalk(scale=0.2).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
    for dtype in (torch.float64, torch.float32):
        start = kernel.init(torch.zeros(c, d, dtype=dtype, device=card.device))

        def walk(start=start) -> None:
            with torch.no_grad():
                mover(kernel, start, steps, generator(1, card.device))

        moved = 6.0 * c * d * start.position.element_size()
        yield card.row(f"random walk, c={c} d={d}", timed(walk, card.device) / steps, 0.0, moved, dtype)
    c, d, n, leaps = card.size(4096, 8), 24, 1000, 8
    stream = generator(0, card.device)
    columns = normal((n, d), stream)
    labels = (columns @ normal((d,), stream) > 0.0).double()

    def slopes(x: Tensor) -> tuple[Tensor, Tensor]:
        level = x @ columns.mT
        density = level @ labels - nn.functional.softplus(level).sum(1) - 0.5 * (x * x).sum(1)
        return density, (labels - level.sigmoid()) @ columns - x

    target = Target(lambda x: slopes(x)[0], slopes)
    hmc = HMC(scale=0.1, trajectory=0.1 * leaps, jitter=False).kernel(target)
    begin = hmc.init(torch.zeros(c, d, dtype=torch.float64, device=card.device))

    def leap() -> None:
        with torch.no_grad():
            mover(hmc, begin, 32, generator(1, card.device))

    flops, moved = 4.0 * c * n * d * leaps, 2.0 * 8 * c * n * leaps
    seconds = timed(leap, card.device) / 32
    yield card.row(f"HMC of a logistic regression, c={c} n={n} d={d}, {leaps} leaps", seconds, flops, moved)


def views(card: Card) -> Iterator[dict]:
    """The relevance of two sets of features, with its gradient: products of both, forward and back."""
    k = card.size(200, 10)
    for n in (card.size(2_000, 200), card.size(100_000, 400)):
        for dtype in (torch.float64, torch.float32):
            left, right = (
                torch.randn(n, k, dtype=dtype, device=card.device).requires_grad_() for _ in range(2)
            )

            def loss(left=left, right=right) -> object:
                return torch.autograd.grad(relevance_loss(left, right), (left, right))

            flops, moved = 12.0 * n * k * k, left.element_size() * 8.0 * n * k
            seconds = timed(loss, card.device)
            yield card.row(f"two-view loss with gradient, n={n} k={k}", seconds, flops, moved, dtype)


def weights(card: Card) -> Iterator[dict]:
    """``observe()``: vectors of D numbers that must be read and written, as in ``bench_networks.py``."""
    for size in (card.size(10**7, 10**4), card.size(10**8, 10**5)):
        for name, method, together, vectors in (
            ("SWAG", SWAG(RANK), 1, 7),
            ("factor analysis, alone", FactorEM(RANK, warmup=2, refresh=1), 1, 2 * (RANK + 4) + 1),
            ("factor analysis, 4 together", FactorEM(RANK, warmup=2, refresh=4), 4, 2 * (RANK + 3) / 4 + 5),
        ):
            net = nn.Module()
            net.weight = nn.Parameter(torch.randn(size, device=card.device))
            follower = WeightPosterior(net, method, random_state=0)

            def observe(net=net, follower=follower, together=together) -> None:
                for _ in range(together):
                    follower.observe()

            while follower.count < max(4 * together, RANK + 4) or follower.count % together:
                with torch.no_grad():
                    net.weight.add_(1e-3)
                follower.observe()
            seconds = timed(observe, card.device) / together
            yield card.row(
                f"weights, {name}, D={size}", seconds, 0.0, 4.0 * vectors * size, dtype=torch.float32
            )


def streams(card: Card) -> Iterator[dict]:
    """A pass over a file, tiles copied as they come and ahead; the ceiling is a copy from pinned memory."""
    n, d = card.size(2_000_000, 2_000), 50
    device = torch.device(card.device)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        np.save(path, np.random.default_rng(0).normal(size=(n, d)))
        host = torch.empty(card.size(1 << 27, 1 << 16), dtype=torch.uint8)
        host = host if device.type == "cpu" else host.pin_memory()
        there = torch.empty_like(host, device=device)
        rate = len(host) / timed(lambda: there.copy_(host, non_blocking=True), card.device)
        source = open_source(path)
        ways = {
            "as they come": MappedSource(source, lambda rows: rows.to(device), device),
            "ahead": PrefetchedSource(source, device),
        }
        for name, moved in ways.items():
            seconds = timed(lambda moved=moved: summarise_moments(moved), card.device, 3)
            size = 8.0 * n * d
            yield {
                "case": f"second moments of a file, tiles {name}, n={n} d={d}",
                "ms": 1e3 * seconds,
                "gb_a_second": size / seconds / 1e9,
                "bound": "copy to the device",
                "of_ceiling": size / rate / seconds,
            }


PARTS = (mixtures, factors, moments, chains, views, weights, streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    if given.device != "cpu" and not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    card = Card.measured(given.device, given.small)
    rows = list(card.ceilings())
    for part in PARTS:
        for row in part(card):
            print(row, flush=True)
            rows.append(row)
        if given.device != "cpu":
            torch.cuda.empty_cache()
    if not given.small:
        report("gpu" if given.device != "cpu" else "gpu_cpu", rows)


if __name__ == "__main__":
    main()
