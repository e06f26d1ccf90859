"""Whole blocks of steps make the same moves as steps one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from boxloop.chain import Noise, advance
from boxloop.numeric import generator
from boxloop.sample import (
    HMC,
    MALA,
    CompiledSteps,
    NoiseBlock,
    PseudoMarginal,
    RandomWalk,
    StepResults,
    Target,
    check_compiled_steps,
    extract_tensors,
    insert_tensors,
    sample_density,
)


def density(x: Tensor) -> Tensor:
    return -0.5 * (x * x).sum(1)


def test_blocks_take_noise_apart_and_put_it_together() -> None:
    noise = Noise(Noise(torch.arange(6.0).reshape(3, 2), torch.ones(3, 1)), torch.zeros(3, 2))
    blocks = NoiseBlock.from_noise(noise)
    assert blocks is not None
    for place, item in enumerate(noise):
        again = NoiseBlock.select_step(blocks.tensors, blocks.shape, place)
        assert torch.equal(again[0][0], item[0][0])
        assert torch.equal(again[1], item[1])


def test_numbers_stay_in_the_shape_of_an_item() -> None:
    kernel = HMC(scale=0.5, trajectory=2.0).kernel(Target(density))
    noise = kernel.noise(kernel.init(torch.zeros(3, 2)), 4, generator(0))
    assert NoiseBlock.from_noise(noise) is None
    for item in noise:
        tensors: list[Tensor] = []
        shape = extract_tensors(item, tensors)
        hash(shape)
        launch, bar = insert_tensors(shape, tuple(tensors))
        assert launch.steps == item[0].steps
        assert torch.equal(launch.momentum, item[0].momentum)
        assert torch.equal(bar, item[1])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler itself
@pytest.mark.parametrize(
    "algorithm",
    [
        RandomWalk(scale=0.7),
        MALA(scale=0.7),
        MALA(scale=0.7, metric=torch.tensor([[1.0, 0.0], [0.5, 0.8]], dtype=torch.float64)),
        PseudoMarginal(lambda x, v: density(x) + v[:, 0] - 0.5, 1, correlation=0.5, scale=0.7),
    ],
)
def test_compiled_steps_are_the_same(algorithm: RandomWalk) -> None:
    kernel = algorithm.kernel(Target(density))
    start = kernel.init(torch.ones(5, 2, dtype=torch.float64))
    with torch.no_grad():
        path = CompiledSteps()(kernel, start, 40, generator(3))
        plain = advance(kernel, start, 32, generator(3))
    torch.testing.assert_close(path.position[:32], plain.position, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(path.log_ratio[:32], plain.log_ratio, rtol=1e-9, atol=1e-12)


def test_what_cannot_be_compiled_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be compiled"):
        sample_density(
            density, torch.zeros(4, 2), HMC(scale=0.5), warmup=0, draws=32, random_state=0, mode="compiled"
        )


def test_modes_are_checked() -> None:
    with pytest.raises(ValueError, match="for a GPU"):
        sample_density(density, torch.zeros(4, 2), mode="graph")
    with pytest.raises(ValueError, match="mode must be one of 'eager', 'compiled', 'graph'"):
        sample_density(density, torch.zeros(4, 2), mode="fast")


def test_a_compiler_that_errs_is_found_out() -> None:
    right = StepResults(torch.ones(16, 3, 2), torch.ones(16, 3), torch.ones(16, 3), ())
    check_compiled_steps(right, right)
    with pytest.raises(RuntimeError, match="fault of the compiler"):
        check_compiled_steps(right._replace(log_ratio=right.log_ratio + 0.01), right)
