"""Online factor analysis: nanoseconds a dimension and observed vector, against the paper's order of operations.

The floor is two reads and one write of D x K numbers at the bandwidth measured in the same run. A stream whose update
waits for the next observation needs one read and one write, so it may pass that floor.

    python benchmarks/bench_online_fa.py [--quick] [--device cuda]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from boxloop.fit import FactorStream, GradientStream
from common import interleave, report

RANK, WARMUP, REFRESH, RATE = 10, 20, 16, 1e-3
TARGETS = {"exact": 10.0, "lazy": 30.0, "mini-batch": 40.0, "gradient": 8.0}
"""Ratios to the paper's order of operations, on one core, from D = 1e6 on."""


class PaperEM:
    """Brownlie (2021), Algorithm 2, in its own order, D x K row-major."""

    def __init__(self, start: Tensor) -> None:
        self.f, self.psi = start, start.new_ones(len(start))
        self.mean, self.square = torch.zeros_like(self.psi), torch.zeros_like(self.psi)
        self.a, self.b = torch.zeros_like(start), start.new_zeros(RANK, RANK)
        self.eye, self.t = torch.eye(RANK, dtype=start.dtype, device=start.device), 0

    def observe(self, theta: Tensor) -> None:
        self.t += 1
        self.mean = self.mean + (theta - self.mean) / self.t
        d = theta - self.mean
        c = (self.f / self.psi[:, None]).T
        sigma = torch.linalg.inv(self.eye + c @ self.f)
        m = sigma @ (c @ d)
        self.b = self.b + (torch.outer(m, m) - self.b) / self.t
        h = sigma + self.b
        self.a = self.a + (torch.outer(d, m) - self.a) / self.t
        self.square = self.square + (d**2 - self.square) / self.t
        if self.t > WARMUP:
            self.f = self.a @ torch.linalg.inv(h)
            self.psi = self.square + ((self.f @ h) * self.f - 2 * self.f * self.a).sum(1)


class PaperSGA:
    """Brownlie (2021), Algorithm 1, in its own order."""

    def __init__(self, start: Tensor) -> None:
        self.f, self.psi = start, start.new_ones(len(start))
        self.beta, self.mean = torch.zeros_like(self.psi), torch.zeros_like(self.psi)
        self.eye, self.t = torch.eye(RANK, dtype=start.dtype, device=start.device), 0

    def observe(self, theta: Tensor) -> None:
        self.t += 1
        self.mean = self.mean + (theta - self.mean) / self.t
        d = theta - self.mean
        if self.t <= WARMUP:
            return
        c = (self.f / self.psi[:, None]).T
        sigma = torch.linalg.inv(self.eye + c @ self.f)
        m = sigma @ (c @ d)
        h = sigma + torch.outer(m, m)
        by_f = (torch.outer(d, m) - self.f @ h) / self.psi[:, None]
        spread = d * d - 2 * d * (self.f @ m) + ((self.f @ h) * self.f).sum(1)
        by_psi = 0.5 / self.psi**2 * spread - 0.5 / self.psi
        self.f = self.f + RATE * by_f
        self.beta = self.beta + RATE * by_psi * self.psi
        self.psi = self.beta.exp()


def seconds_at_floor(size: int, device: str) -> float:
    """Two reads and one write of ``size`` float32 numbers, as a read and an update in place."""
    long = torch.rand(size, device=device)

    def read() -> float:
        return float(torch.dot(long, long))

    def update() -> None:
        long.mul_(0.999)
        _settle(device)

    return sum(interleave({"read": read, "update": update}, 5).values())


def same_answer() -> None:
    """Both sides give one answer before they are timed."""
    rows = torch.randn(WARMUP + 40, 500, dtype=torch.float64).cumsum(1)
    options = {"dtype": torch.float64, "warmup": WARMUP, "variant": "paper"}
    em = FactorStream.start(500, RANK, torch.Generator().manual_seed(0), **options)
    sga = GradientStream.start(500, RANK, torch.Generator().manual_seed(0), learning_rate=RATE, **options)
    peers = {}
    for stream, peer in ((em, PaperEM), (sga, PaperSGA)):
        stream.observe(rows[0])
        state = stream.state()
        start = state.start if isinstance(stream, FactorStream) else state.rows[:RANK]
        peers[stream] = peer(start.mT.clone())
        peers[stream].observe(rows[0])
        for row in rows[1:]:
            stream.observe(row)
            peers[stream].observe(row)
        model = stream.model()
        torch.testing.assert_close(model.loadings, peers[stream].f, rtol=1e-8, atol=1e-8)
        torch.testing.assert_close(model.noise, peers[stream].psi, rtol=1e-8, atol=1e-8)


def _settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def repeated(stream, values: Tensor, times: int, device: str) -> Callable[[], None]:
    """A candidate that observes ``times`` entries of ``values``, in turn."""
    turn = itertools.cycle(range(len(values)))

    def run() -> None:
        for _ in range(times):
            stream.observe(values[next(turn)])
        _settle(device)

    return run


def one_size(d: int, device: str, repeats: int) -> list[dict]:
    """All candidates at one D, interleaved."""
    batch = 32 if d < 10_000_000 else 8
    pool = max(3 * batch, 24) if d < 10_000_000 else 24
    draws = torch.Generator(device).manual_seed(0)
    values = torch.randn(pool, d, generator=draws, device=device)
    batches = values[: pool // batch * batch].view(-1, batch, d)
    times = max(1 if device == "cpu" else 4, min(64, 1_000_000 // d))

    start = torch.randn(d, RANK, generator=draws, device=device) / d**0.5
    options = {"warmup": WARMUP, "device": device}
    exact, lazy, mini = (FactorStream.start(d, RANK, draws, refresh=n, **options) for n in (1, REFRESH, 1))
    gradient = GradientStream.start(d, RANK, draws, learning_rate=RATE, **options)
    plan = {
        "paper": (PaperEM(start), values, times),
        "paper gradient": (PaperSGA(start.clone()), values, times),
        "exact": (exact, values, times),
        "gradient": (gradient, values, times),
        "lazy": (lazy, values, REFRESH),
        "mini-batch": (mini, batches, 2),
    }
    for name, (stream, _, _) in plan.items():
        for t in range(WARMUP + 2 if name != "lazy" else 4 * REFRESH + 1):
            stream.observe(values[t % pool])
    found = interleave({name: repeated(*item, device) for name, item in plan.items()}, repeats)
    ns = {name: 1e9 * found[name] / (count * part[0].numel()) for name, (_, part, count) in plan.items()}
    size = max(d, 1_000_000)
    return table(d, device, ns, 1e9 * seconds_at_floor(RANK * size, device) / size, batch)


def table(d: int, device: str, ns: dict[str, float], floor: float, batch: int) -> list[dict]:
    rows = []
    for name, value in ns.items():
        peer = ns["paper gradient" if "gradient" in name else "paper"]
        rows.append(
            {
                "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
                "D": d,
                "method": f"mini-batch of {batch}" if name == "mini-batch" else name,
                "ns": value,
                "ms": 1e-6 * value * d,
                "ratio": peer / value,
                "target": TARGETS.get(name) if d >= 1_000_000 and device == "cpu" else None,
                "floor_ns": floor,
                "of_floor": floor / value,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_grad_enabled(False)
    same_answer()
    sizes = (
        [1_000, 100_000, 1_000_000, 10_000_000]
        if options.device == "cpu"
        else [1_000_000, 50_000_000, 100_000_000]
    )
    rows = []
    for d in sizes[:2] if options.quick else sizes:
        rows += one_size(d, options.device, options.repeats)
    report("online_fa" if options.device == "cpu" else f"online_fa_{options.device}", rows)


if __name__ == "__main__":
    main()
