"""The cost of following weights: one ``observe()`` beside one step of training, its floor, and SWAG as published.

The floor of a method is the bytes that it must move: for SWAG a read of the weights, mean, second moment and one row of
deviations, with the last three written; for factor analysis one read and one write of rank + b rows, mean, mean square
and noise for b vectors that share a pass (16 unless said), which are read from the network, kept and read again. The
published code of SWAG walks over parameters one by one, allocates new means, and joins all deviations to the newest one
at every call; the class here does the same operations in the same order.

    python benchmarks/bench_networks.py [--quick] [--device cuda]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from boxloop.networks import SWA, SWAG, FactorEM, FactorGradient, WeightPosterior
from common import interleave, report

RANK, WARMUP, EVERY, ROWS, BLOCK = 10, 12, 10, 128, 16
METHODS = {
    "swa": SWA(),
    "swag": SWAG(RANK),
    "factor": FactorEM(RANK, warmup=WARMUP),
    "factor, 8 together": FactorEM(RANK, warmup=WARMUP, refresh=8),
    "factor, alone": FactorEM(RANK, warmup=WARMUP, refresh=1),
    "gradient": FactorGradient(RANK, warmup=WARMUP),
}
MOVED = {"swa": 3, "swag": 7, "factor, alone": 2 * (RANK + 4) + 1, "gradient": 2 * (RANK + 3) + 1}
MOVED |= {word: (2 * (RANK + 3) + 5 * b) / b for word, b in (("factor", 16), ("factor, 8 together", 8))}
"""Vectors of D numbers that a method reads and writes, at least."""
SEEN = 64
"""Vectors after which 16 share a pass: fewer do before, no more than a quarter of those seen."""
TARGET = 0.05
"""Most of the time of training that ``observe()`` may take at every tenth step."""


class Published:
    """SWAG in the published order of operations, parameter by parameter."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.count = net, 0
        self.means = [torch.zeros_like(value) for value in net.parameters()]
        self.squares = [torch.zeros_like(value) for value in net.parameters()]
        self.deviations = [value.new_empty(0, value.numel()) for value in net.parameters()]

    @torch.no_grad()
    def observe(self) -> None:
        for i, value in enumerate(self.net.parameters()):
            share = self.count / (self.count + 1.0)
            self.means[i] = self.means[i] * share + value.detach() / (self.count + 1.0)
            self.squares[i] = self.squares[i] * share + value.detach() ** 2 / (self.count + 1.0)
            fresh = (value.detach() - self.means[i]).view(1, -1)
            self.deviations[i] = torch.cat((self.deviations[i], fresh))
            if len(self.deviations[i]) > RANK:
                self.deviations[i] = self.deviations[i][1:]
        self.count += 1


def layers(width: int, depth: int) -> nn.Module:
    """A plain network of ``depth`` layers of one width."""
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*parts, nn.Linear(width, 10))


def convolutions(channels: int) -> nn.Module:
    """A small convolutional network on 32 x 32 images."""
    parts: list[nn.Module] = []
    before = 3
    for level in range(3):
        after = channels << level
        parts += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.Conv2d(after, after, 3, padding=1)]
        parts += [nn.ReLU(), nn.MaxPool2d(2)]
        before = after
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


def step_of(net: nn.Module, shape: tuple[int, ...], device: str) -> Callable[[], None]:
    """One step of SGD with momentum on a batch of images or rows."""
    dtype = next(net.parameters()).dtype
    rows, labels = (
        torch.randn(ROWS, *shape, device=device, dtype=dtype),
        torch.randint(10, (ROWS,), device=device),
    )
    optimiser = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        functional.cross_entropy(net(rows), labels).backward()
        optimiser.step()
        settle(device)

    return step


def settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def bytes_a_second(device: str) -> float:
    """Of an update in place of a long vector: a read and a write."""
    long = torch.rand(1 << 28 if device != "cpu" else 1 << 25, device=device)

    def update() -> None:
        long.mul_(0.999)
        settle(device)

    return 2.0 * 4 * len(long) / interleave({"update": update}, 5)["update"]


def same_answer() -> None:
    """Ours and the published order end in one mean, variance and deviations; float64, as the latter cancels."""
    net = layers(20, 2).double()
    ours, theirs = WeightPosterior(net, SWAG(RANK), random_state=0), Published(net)
    step = step_of(net, (20,), "cpu")
    for _ in range(3 * RANK):
        step()
        ours.observe()
        theirs.observe()
    distribution = ours.distribution()
    mean, square = (torch.cat([x.reshape(-1) for x in xs]) for xs in (theirs.means, theirs.squares))
    deviations = torch.cat(theirs.deviations, dim=1)
    torch.testing.assert_close(distribution.mean, mean, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        distribution.noise, (square - mean**2).clamp(min=0.0) / 2, rtol=1e-6, atol=1e-15
    )
    gram = distribution.loadings @ (distribution.loadings.mT @ mean)
    torch.testing.assert_close(
        gram, deviations.mT @ (deviations @ mean) / (2 * (RANK - 1)), rtol=1e-6, atol=1e-15
    )


def one_net(
    name: str, net: nn.Module, shape: tuple[int, ...], device: str, repeats: int, rate: float
) -> list[dict]:
    """All methods on one network, interleaved with its training step."""
    net = net.to(device)
    size = sum(value.numel() for value in net.parameters())
    followers = {word: WeightPosterior(net, method, random_state=0) for word, method in METHODS.items()}
    peer = Published(net)
    step = step_of(net, shape, device)
    for _ in range(WARMUP + 3):
        step()
        peer.observe()
        for follower in followers.values():
            follower.observe()
    for word, follower in followers.items():
        for _ in range(SEEN if "factor" in word else 0):
            follower.observe()

    def call(observe: Callable[[], object]) -> Callable[[], None]:
        def run() -> None:
            for _ in range(BLOCK):
                observe()
            settle(device)

        return run

    plan = {"step": step, "published": call(peer.observe)}
    plan |= {word: call(follower.observe) for word, follower in followers.items()}
    found = interleave(plan, repeats)
    rows = []
    for word in ("published", *METHODS):
        floor = MOVED.get(word, MOVED["swag"]) * 4.0 * size / rate
        seconds = found[word] / BLOCK
        rows.append(
            {
                "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
                "net": name,
                "D": size,
                "method": "SWAG as published" if word == "published" else word,
                "ms": 1e3 * seconds,
                "step_ms": 1e3 * found["step"],
                "share_at_every_10": seconds / EVERY / found["step"],
                "target": TARGET if word == "factor" else None,
                "ratio_to_published": found["published"] / found[word],
                "floor_ms": 1e3 * floor,
                "of_floor": floor / seconds,
            }
        )
    return rows


def long_vector(size: int, together: int, device: str, rate: float, repeats: int) -> dict:
    """Vectors of very many weights, in one parameter, of which some share a pass: no step of training is timed."""
    net = nn.Module()
    net.weight = nn.Parameter(torch.randn(size, device=device))
    follower = WeightPosterior(net, FactorEM(RANK, warmup=2, refresh=together), random_state=0)

    def observe() -> None:
        for _ in range(together):
            with torch.no_grad():
                net.weight.add_(1e-3)
            follower.observe()
        settle(device)

    while follower.count < 4 * together:
        follower.observe()
    seconds = interleave({"factor": observe}, repeats)["factor"] / together
    moved = MOVED["factor, alone"] if together == 1 else (2 * (RANK + 3) + 5 * together) / together
    floor = (moved + 2) * 4.0 * size / rate
    return {
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
        "net": "one vector",
        "D": size,
        "method": "factor, alone" if together == 1 else f"factor, {together} together",
        "ms": 1e3 * seconds,
        "floor_ms": 1e3 * floor,
        "of_floor": floor / seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.manual_seed(0)
    same_answer()
    rate, device = bytes_a_second(options.device), options.device
    widths = [(66, 2), (218, 2), (702, 2), (2230, 2)]
    rows: list[dict] = []
    for width, depth in widths[: 2 if options.quick else None]:
        rows += one_net("dense layers", layers(width, depth), (width,), device, options.repeats, rate)
    for channels in (16,) if options.quick else (16, 64):
        rows += one_net("convolutions", convolutions(channels), (3, 32, 32), device, options.repeats, rate)
    if not options.quick:
        for size, together in ((5 * 10**7, 8), (10**8, 4)) if device != "cpu" else ((10**8, 4),):
            rows += [long_vector(size, n, device, rate, options.repeats) for n in (1, together)]
    report("weights" if device == "cpu" else f"weights_{device}", rows)


if __name__ == "__main__":
    main()
