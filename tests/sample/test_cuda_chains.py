"""Chains on a GPU: the same moves as on a CPU, and as graphs the same as one operation after another."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from boxloop.chain import Chains, Kernel, Noise, advance, advance_with_noise
from boxloop.numeric import generator
from boxloop.sample import (
    HMC,
    MALA,
    Gibbs,
    GraphSteps,
    Independent,
    PseudoMarginal,
    RandomWalk,
    SampleWarning,
    Target,
    sample_density,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
SCALE = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
SCALES = {device: SCALE.to(device) for device in ("cpu", "cuda")} if torch.cuda.is_available() else {}


def density(x: Tensor) -> Tensor:
    return -0.5 * (x / SCALES[x.device.type]).square().sum(1)


def wandering(x: Tensor) -> Tensor:
    """A density that copies from the host, which no graph can hold."""
    return -0.5 * (x / SCALE.to(x)).square().sum(1)


ALGORITHMS: dict[str, Any] = {
    "walk": RandomWalk(scale=0.8),
    "mala": MALA(scale=0.8),
    "hmc": HMC(scale=0.6, trajectory=3.0),
    "estimated": PseudoMarginal(lambda x, v: density(x) + v[:, 0] - 0.5, 1, correlation=0.3, scale=0.8),
}


def moved(item: Any, device: str) -> Any:
    if isinstance(item, Tensor):
        return item.to(device)
    if isinstance(item, Noise):
        return Noise(*(moved(part, device) for part in item.parts))
    if isinstance(item, tuple):
        parts = [moved(part, device) for part in item]
        return tuple(parts) if type(item) is tuple else type(item)(*parts)
    return [moved(part, device) for part in item] if isinstance(item, list) else item


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_noise_makes_the_same_moves_as_on_a_cpu(name: str) -> None:
    kernel: Kernel = ALGORITHMS[name].kernel(Target(density))
    start = kernel.init(torch.ones(40, 3, dtype=torch.float64))
    noise = kernel.noise(start, 30, generator(0))
    with torch.no_grad():
        here = advance_with_noise(kernel, start, noise)
        there = advance_with_noise(
            kernel, Chains(*(moved(part, "cuda") for part in start)), moved(noise, "cuda")
        )
    torch.testing.assert_close(there.position.cpu(), here.position, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_graphs_make_the_same_moves(name: str) -> None:
    kernel: Kernel = ALGORITHMS[name].kernel(Target(density))
    start = kernel.init(torch.ones(40, 3, dtype=torch.float64, device="cuda"))
    mover = GraphSteps()
    with torch.no_grad():
        captured = mover(kernel, start, 32, generator(0, "cuda"))
        again = mover(kernel, start, 32, generator(0, "cuda"))
        plain = advance(kernel, start, 32, generator(0, "cuda"))
    torch.testing.assert_close(captured.position, plain.position, rtol=1e-12, atol=1e-12)
    assert torch.equal(captured.position, again.position)
    torch.testing.assert_close(captured.log_ratio, plain.log_ratio, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["eager", "graph"])
@pytest.mark.parametrize("kernel", [None, "mala", "random_walk"])
def test_sampling_on_a_gpu_is_right(kernel: str | None, mode: str) -> None:
    """|z| < 4.5 on three means by the draws' own errors: a chance of 2e-5 each to fail a right sampler."""
    draws = sample_density(
        density,
        torch.zeros(3, dtype=torch.float64),
        kernel,
        chains=64,
        draws=400,
        warmup=300,
        random_state=0,
        device="cuda",
        mode=mode,
    )
    assert draws.positions.is_cuda
    values = draws["x"].flatten(0, 1).cpu()
    error = torch.as_tensor(draws.diagnosis.mcse)
    assert (values.mean(0).abs() < 4.5 * error).all()
    effective = torch.as_tensor(draws.diagnosis.ess_bulk) / 4
    assert ((values.var(0) / SCALE**2 - 1.0).abs() < 4.5 * (2.0 / effective).sqrt()).all()


def test_a_density_that_no_graph_can_hold_is_run_as_it_is_and_says_so() -> None:
    start = torch.zeros(8, 3, dtype=torch.float64, device="cuda")
    options = {"draws": 50, "warmup": 0, "random_state": 0}
    with pytest.warns(SampleWarning, match="cannot be captured"):
        found = sample_density(wandering, start, RandomWalk(scale=0.8), **options)
    plain = sample_density(wandering, start, RandomWalk(scale=0.8), mode="eager", **options)
    torch.testing.assert_close(found.positions, plain.positions, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match=r"cannot be captured.*mode='eager'"):
        sample_density(wandering, start, RandomWalk(scale=0.8), mode="graph", **options)


def test_gibbs_and_independence_run_there() -> None:
    from boxloop.distributions import DiagonalGaussian

    wide = DiagonalGaussian(torch.zeros(1, 3).double().cuda(), 5.0 * torch.ones(1, 3).double().cuda())
    draws = sample_density(
        density, torch.zeros(16, 3).double().cuda(), Independent(wide), draws=100, warmup=10, random_state=0
    )
    assert draws.positions.is_cuda

    def one(values: dict[str, Tensor], stream: torch.Generator) -> Tensor:
        return torch.randn(16, generator=stream, device="cuda", dtype=torch.float64)

    start = {"a": torch.zeros(16).double().cuda(), "b": torch.zeros(16).double().cuda()}
    assert sample_density(None, start, Gibbs({"a": one, "b": one}), draws=40, warmup=0, random_state=0)[
        "a"
    ].is_cuda
