"""AdamW beside PyTorch's own, and the small things that trainers share."""

from __future__ import annotations

import pytest
import torch

from boxloop.fit import (
    Adam,
    Constant,
    Cooling,
    adam as engine,
    clip_gradient,
    flatten_parameters,
    generator_at,
    restore_generator,
    unflatten_parameters,
)
from boxloop.numeric import generator, normal


def slope(point: torch.Tensor, t: int) -> torch.Tensor:
    """Of a bowl that leans another way at every update."""
    return point * torch.linspace(0.1, 30.0, len(point)).double() + normal((len(point),), generator(t))


def ours(rounds: int, rate: float, decay: float, tensor_count: bool = False) -> torch.Tensor:
    point = normal((7,), generator(0))
    kept = Adam.start(point)
    for t in range(1, rounds + 1):
        count = torch.tensor(float(t), dtype=torch.float64) if tensor_count else t
        kept, point = kept.step(point, slope(point, t), count, rate, decay)
    return point


def theirs(rounds: int, rate: float, decay: float) -> torch.Tensor:
    point = normal((7,), generator(0)).requires_grad_()
    optimiser = torch.optim.AdamW([point], lr=rate, weight_decay=decay)
    for t in range(1, rounds + 1):
        point.grad = slope(point.detach(), t)
        optimiser.step()
    return point.detach()


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("rate", [1e-3, 0.1])
@pytest.mark.parametrize("tensor_count", [False, True])
def test_it_is_pytorchs(rate, decay, tensor_count):
    """300 steps; the count may live on the device."""
    torch.testing.assert_close(
        ours(300, rate, decay, tensor_count), theirs(300, rate, decay), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(("name", "value"), [("BETA1", 0.91), ("BETA2", 0.99), ("EPSILON", 1e-3)])
def test_planted_memories(monkeypatch, name, value):
    monkeypatch.setattr(engine, name, value)
    assert not torch.allclose(ours(300, 0.1, 0.3), theirs(300, 0.1, 0.3), rtol=1e-6)


def test_weight_decay_is_apart_from_the_gradient():
    point = torch.tensor([4.0, -2.0]).double()
    _, moved = Adam.start(point).step(point, torch.zeros_like(point), 1, rate=0.1, decay=0.5)
    torch.testing.assert_close(moved, 0.95 * point, rtol=1e-15, atol=0.0)


def test_long_gradients_are_shortened_and_short_ones_left():
    long, short = torch.tensor([30.0, 40.0]).double(), torch.tensor([0.3, -0.4]).double()
    assert float(clip_gradient(long, 5.0).norm()) == pytest.approx(5.0, rel=1e-15)
    assert torch.equal(clip_gradient(short, 5.0), short)
    assert torch.equal(clip_gradient(torch.zeros(3), 1.0), torch.zeros(3))


def test_parts_come_back_as_they_were_joined():
    parts = (torch.ones(2, 3), torch.zeros(()), torch.arange(4.0))
    for one, other in zip(unflatten_parameters(flatten_parameters(parts), parts), parts, strict=True):
        assert torch.equal(one, other)


def test_rates():
    assert [Constant(0.2)(t) for t in (0, 9)] == [0.2, 0.2]
    cooling = Cooling(1.0, 100)
    assert cooling(0) == 1.0
    assert cooling(100) == cooling(500) == 0.0
    assert all(cooling(t) > cooling(t + 1) for t in range(99))


def test_a_stream_goes_on_from_its_state():
    stream = generator(4)
    torch.rand(3, generator=stream)
    again = restore_generator(stream.get_state(), torch.device("cpu"))
    assert torch.equal(torch.rand(5, generator=again), torch.rand(5, generator=stream))


def test_streams_of_places_are_unlike():
    """Neighbouring places, and places of other depth, must not share numbers."""
    firsts = [float(torch.rand((), generator=generator_at(*place), dtype=torch.float64))
              for place in [(0,), (1,), (0, 0), (0, 1), (1, 0), (2**61, 5), (0, 0, 1)]]  # fmt: skip
    assert len(set(firsts)) == len(firsts)
