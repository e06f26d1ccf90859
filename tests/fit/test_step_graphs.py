"""Training steps as CUDA graphs are the steps that are taken one by one; only where there is a GPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from boxloop.data import ArraySource
from boxloop.fit import Cooling, Epochs, Trainer, TrainPlan, TrainState, Warming
from boxloop.loop import Outcome, run
from boxloop.numeric import generator, normal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ROWS = normal((1030, 20), generator(0))


@dataclass(frozen=True)
class Reconstruction:
    """A perceptron that gives its rows back."""

    inner: Tensor
    level: Tensor
    outer: Tensor

    def trainable(self):
        return self.inner, self.level, self.outer

    def with_trainable(self, learned):
        return Reconstruction(*learned)


def squares(model, rows, weight, stream):
    noisy = rows + 0.1 * torch.randn(rows.shape, generator=stream, dtype=rows.dtype, device=rows.device)
    out = torch.tanh(noisy @ model.inner + model.level) @ model.outer
    value = (out - rows).square().sum(1) @ weight / len(rows)
    return value, {"twice": 2.0 * value}


def with_refusals(model, rows, weight, stream):
    """Not a number where a row is far out."""
    value, parts = squares(model, rows, weight, stream)
    return value * torch.where((rows[:, 0] > 2.5).any(), math.nan, 1.0), parts


def trained(graphs, loss=squares, resume=None, max_iter=None) -> tuple[Trainer, Outcome[TrainState]]:
    stream = generator(1)
    start = Reconstruction(*(0.3 * normal(shape, stream).cuda() for shape in ((20, 32), (32,), (32, 20))))
    plan = TrainPlan(
        Cooling(0.02, 100), Warming(0.5, 10, after=8), clip=1.0, decay=0.01, block=4, graphs=graphs
    )
    trainer = Trainer(
        start,
        Epochs(ArraySource(ROWS.cuda()), 128, seed=3),
        loss,
        plan,
        lambda m, rows, s: m.outer.square().sum(),
    )
    steps = trainer.iterations(6) if max_iter is None else max_iter
    return trainer, run(trainer, trainer.start(7), max_iter=steps, resume=resume)


def assert_same(one: Outcome[TrainState], two: Outcome[TrainState], atol: float = 1e-12) -> None:
    torch.testing.assert_close(one.state.parameters, two.state.parameters, rtol=0.0, atol=atol)
    torch.testing.assert_close(one.state.history, two.state.history, rtol=0.0, atol=1e3 * atol)
    assert one.events == two.events


@pytest.mark.parametrize("loss", [squares, with_refusals])
def test_graphs_take_the_same_steps(loss):
    _, eager = trained(False, loss)
    _, graphed = trained(True, loss)
    assert_same(graphed, eager)
    assert (graphed.state.slower, graphed.state.taken) == (eager.state.slower, eager.state.taken)


@pytest.mark.parametrize("max_iter", [1, 3, 4, 7])
def test_a_restart_continues_bit_for_bit(max_iter):
    """From the CPU, where a file is read to."""
    _, whole = trained(True)
    _, part = trained(True, max_iter=max_iter)
    _, again = trained(True, resume=replace(part, state=part.state.to("cpu")))
    assert_same(again, whole, atol=0.0)
    assert again.trace == whole.trace


def test_a_loss_that_is_never_finite_ends_training():
    def hopeless(*given):
        value, parts = squares(*given)
        return value * math.nan, parts

    with pytest.raises(FloatingPointError, match="10 steps in a row"):
        trained(True, hopeless)


def test_a_loss_that_waits_for_the_device_runs_step_by_step():
    def waiting(*given):
        value, parts = squares(*given)
        return value * float(value.detach() > 0.0), parts

    _, found = trained(True, waiting)
    assert "cannot be captured in a CUDA graph" in found.events[0]
    assert_same(replace(found, events=[]), trained(False)[1])
