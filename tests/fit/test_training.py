"""Training by gradient of any model with learned tensors; the models here have closed forms."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from boxloop.data import ArraySource, StandardisedSource, fit_standardisation, open_source
from boxloop.fit import (
    STATES,
    Constant,
    Cooling,
    Epochs,
    Trainer,
    TrainPlan,
    TrainState,
    Warming,
    hold_out,
    minibatches as order,
)
from boxloop.loop import run
from boxloop.numeric import generator, normal
from boxloop.persist import CheckpointWriter, read_checkpoint

ROWS = torch.tensor([1.0, -2.0, 3.0]).double() + normal((90, 3), generator(0))
SPOT = torch.tensor([0.5, 0.5, 0.5]).double()


@dataclass(frozen=True)
class Place:
    """A point and a slope: two learned tensors of unlike shapes."""

    at: Tensor
    slope: Tensor

    def trainable(self) -> tuple[Tensor, ...]:
        return self.at, self.slope

    def with_trainable(self, values: tuple[Tensor, ...]) -> Place:
        return Place(*values)


def start(dtype: torch.dtype = torch.float64) -> Place:
    return Place(torch.zeros(3, dtype=dtype), torch.eye(3, dtype=dtype) * 0.5)


def distance(model, rows, weight, generator):
    """Least squares of rows moved a little by chance."""
    moved = rows + 0.1 * torch.randn(rows.shape, generator=generator, dtype=rows.dtype)
    far = (moved - model.at).square().sum(1) @ weight / len(rows)
    bent = (rows @ model.slope - rows).square().sum(1) @ weight / len(rows)
    return far + bent, {"far": far, "bent": bent}


def plain(model, rows, weight, generator):
    """Least squares without chance."""
    value = (rows - model.at).square().sum(1) @ weight / len(rows) + model.slope.square().sum()
    return value, {"far": value}


def pull(model, rows, generator):
    return (model.at - SPOT).square().sum()


def made(loss=distance, batches=None, plan=None, **more) -> Trainer:
    batches = batches or Epochs(ArraySource(ROWS), 16, seed=3)
    plan = plan or TrainPlan(Cooling(0.05, 60), decay=0.01, block=4)
    return Trainer(start(), batches, loss, plan, **more)


def trained(trainer: Trainer, epochs: int, seed: int = 7, **more):
    return run(trainer, trainer.start(seed), max_iter=trainer.iterations(epochs), **more)


def alike(one: tuple[Tensor, ...], two: tuple[Tensor, ...]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def same(one: TrainState, two: TrainState) -> bool:
    """Bit for bit: every number, and every tensor wherever it is held."""
    plain = [str(s.map(lambda leaf: torch.zeros(0))) for s in (one, two)]
    return plain[0] == plain[1] and all(
        torch.equal(a, b) for (_, a), (_, b) in zip(one.leaves(), two.leaves(), strict=True)
    )


def test_it_finds_the_minimum():
    """Full batches: the mean of the rows, to the last step of a cooling rate."""
    trainer = made(plain, Epochs(ArraySource(ROWS), 90, 0), TrainPlan(Cooling(0.1, 2000)))
    at = trained(trainer, 2000).state.fitted(trainer.model)
    torch.testing.assert_close(at.at, ROWS.mean(0), rtol=0.0, atol=1e-6)
    torch.testing.assert_close(at.slope, torch.zeros(3, 3).double(), rtol=0.0, atol=1e-6)


def test_it_is_a_loop_of_pytorchs():
    """The same batches through torch.optim.AdamW, with its clipping, a cooling rate, and a penalty."""
    epochs = Epochs(ArraySource(ROWS), 16, seed=3)
    plan = TrainPlan(Cooling(0.05, 60), weight=Cooling(0.7, 60), clip=2.0, decay=0.1, block=4)
    found = trained(made(plain, epochs, plan, penalty=pull), 8).state
    parts = [value.clone().requires_grad_() for value in start().trainable()]
    optimiser = torch.optim.AdamW(parts, lr=1.0, weight_decay=0.1)
    for t, batch in enumerate(chain.from_iterable(epochs.epoch(e) for e in range(8))):
        optimiser.param_groups[0]["lr"] = float(np.float32(plan.rate(t + 1)))
        here = Place(*parts)
        loss = plain(here, *batch, None)[0] + plan.weight(t + 1) * pull(here, None, None)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parts, 2.0)
        optimiser.step()
    for own, theirs in zip(found.parameters, parts, strict=True):
        torch.testing.assert_close(own, theirs.detach(), rtol=1e-12, atol=1e-12)
    assert found.count == found.taken == 48


def test_blocks_do_not_change_what_is_learned():
    paths = [trained(made(plain, plan=TrainPlan(Constant(0.05), block=b)), 3).state for b in (1, 4, 100)]
    assert all(alike(path.parameters, paths[0].parameters) for path in paths)
    assert all(torch.allclose(path.history, paths[0].history, rtol=1e-12) for path in paths)


@pytest.mark.parametrize("iterations", [1, 3, 4, 7])
def test_a_checkpoint_resumes_bit_for_bit(tmp_path, iterations):
    """Cut within an epoch and between two."""
    whole = trained(made(), 6)
    path = tmp_path / "fit.boxloop"
    trainer = made()
    run(
        trainer, trainer.start(7), max_iter=iterations,
        observers=[CheckpointWriter(path, {"fit": 1}, every=1)],
    )  # fmt: skip
    found = read_checkpoint(path, STATES, {"fit": 1})
    again = trained(made(), 6, resume=found)
    assert same(again.state, whole.state)
    assert again.trace == whole.trace


def test_seeds_decide():
    one, two, other = (trained(made(), 2, seed).state for seed in (1, 1, 2))
    assert same(one, two)
    assert not alike(one.parameters, other.parameters)


def test_the_global_stream_is_left_alone():
    before = torch.random.get_rng_state()
    trained(made(), 2)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_ctrl_c_keeps_the_last_iteration():
    epochs = Epochs(ArraySource(ROWS), 16, seed=3)

    class Cut:
        per_epoch = epochs.per_epoch

        def epoch(self, number, start=0):
            for place, batch in enumerate(epochs.epoch(number, start), start):
                if (number, place) == (1, 5):
                    raise KeyboardInterrupt
                yield batch

    outcome = trained(made(batches=Cut()), 6)
    assert outcome.interrupted
    assert outcome.state.count == 10  # blocks of 4 and 2 in epochs of 6: the third iteration was 6 to 10
    trainer = made()
    assert same(outcome.state, run(trainer, trainer.start(7), max_iter=3).state)


def broken(at, how):
    """A loss that is not finite at some of its calls."""
    calls = iter(range(10**6))

    def loss(model, rows, weight, generator):
        value, parts = plain(model, rows, weight, generator)
        if next(calls) not in at:
            return value, parts
        if how == "gradient":  # zero, with a slope of infinity times zero
            return value + (0.0 * model.at.sum()).abs().sqrt(), parts
        return value * (math.nan if how == "nan" else math.inf), parts

    return loss


@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
def test_a_loss_that_is_not_finite_is_refused_and_reported(how):
    outcome = trained(made(broken({5, 8}, how)), 4)
    state = outcome.state
    assert state.is_finite()
    assert (state.slower, state.taken, state.count, state.refused) == (0.25, 22, 24, 0)
    assert outcome.events == [
        "iteration 2: 1 of 2 steps had a loss or gradient that is not finite: refused, learning rate lowered to 0.5 "
        "of its plan",
        "iteration 3: 1 of 4 steps had a loss or gradient that is not finite: refused, learning rate lowered to 0.25 "
        "of its plan",
    ]
    assert state.history_by_name()["refused"] == [1.0, 2.0, 2.0, 2.0]
    assert all(math.isfinite(value) for value in outcome.trace)


def test_a_refused_step_leaves_everything_as_it_was():
    trainer = made(broken({0, 1, 2, 3}, "nan"))
    state = run(trainer, trainer.start(7), max_iter=1).state
    fresh = trainer.start(7)
    assert alike(state.parameters, fresh.parameters)
    assert alike(state.best, fresh.best)
    assert [leaf for _, leaf in state.optimiser.leaves()] == []
    assert state.slower == 2.0**-4


def test_a_loss_that_is_never_finite_ends_training():
    with pytest.raises(FloatingPointError, match=r"10 steps in a row \(3 to 12; .*learning rate"):
        trained(made(broken(range(2, 10**6), "nan"), plan=TrainPlan(block=2)), 4)


def test_nine_refused_steps_do_not_end_it_and_are_counted_across_iterations():
    state = trained(made(broken(range(2, 11), "nan"), plan=TrainPlan(block=2)), 4).state
    assert state.taken == 15


def watched(values, patience=None):
    """Validation that returns the given values."""
    history = iter(values)

    def validate(model, generator):
        value = torch.tensor(next(history))
        return value, {"far": value + 1.0}

    return made(plan=TrainPlan(Constant(0.05), patience=patience), validate=validate)


def test_early_stopping_returns_the_best():
    trainer = watched([5.0, 3.0, 4.0, 2.0, 2.5, 2.25, 2.125, 0.0], patience=3)
    outcome = trained(trainer, 8)
    assert outcome.converged
    assert outcome.state.epoch == 7
    assert outcome.state.lowest == 2.0
    assert alike(outcome.state.best, trained(watched([9.0] * 4), 4).state.parameters)
    assert not alike(outcome.state.best, outcome.state.parameters)
    assert outcome.state.history_by_name()["validation_loss"] == [5.0, 3.0, 4.0, 2.0, 2.5, 2.25, 2.125]
    assert outcome.state.history_by_name()["validation_far"][0] == 6.0


def test_patience_may_begin_late():
    """Epochs of six updates: with least=13 the first two do not count, the third does."""
    trainer = watched([1.0, 2.0, 2.0, 2.0, 2.0], patience=2)
    assert trained(trainer, 5).state.epoch == 3
    later = watched([1.0, 2.0, 2.0, 2.0, 2.0], patience=2)
    later = replace(later, plan=replace(later.plan, least=13))
    outcome = trained(later, 5)
    assert outcome.state.epoch == 4
    assert outcome.state.lowest == 1.0


def test_a_validation_that_is_not_finite_is_never_the_best():
    outcome = trained(watched([math.nan, 3.0, math.nan]), 3)
    assert outcome.state.lowest == 3.0
    assert sum("validation loss is not finite" in event for event in outcome.events) == 2


def test_validation_draws_the_same_numbers_every_time():
    seen = []

    def validate(model, generator):
        seen.append(float(torch.rand((), generator=generator)))
        return torch.tensor(1.0), {}

    trained(made(validate=validate), 3)
    assert len(set(seen)) == 1


def test_the_history_is_that_of_the_epochs():
    """Means over rows of the values before each step."""
    epochs = Epochs(ArraySource(ROWS[:50]), 16, seed=3)
    trainer = made(plain, epochs, TrainPlan(Constant(1e-12), block=3))
    history = trained(trainer, 2).state.history_by_name()
    wanted = float(plain(start(), ROWS[:50], torch.ones(50).double(), None)[0])
    assert history["loss"] == pytest.approx([wanted] * 2, rel=1e-9)
    assert history["far"] == history["loss"]
    assert history["rate"] == [1e-12] * 2


def test_the_penalty_is_weighed_by_its_schedule():
    history = trained(
        made(plain, plan=TrainPlan(Constant(1e-12), Constant(3.0)), penalty=pull), 1
    ).state.history_by_name()
    assert history["loss"][0] == pytest.approx(history["far"][0] + 3.0 * history["penalty"][0], rel=1e-12)
    near = [
        float((trained(made(plain, plan=TrainPlan(Constant(0.05), Constant(w)), penalty=pull), 60).state.parameters[0]
               - SPOT).norm())
        for w in (0.0, 1.0, 10.0)
    ]  # fmt: skip
    assert near[0] > near[1] > near[2]


def test_a_penalty_that_has_not_begun_changes_nothing():
    """It draws from a stream of its own, and even one that is not finite has no slope times zero."""

    def chancy(model, rows, generator):
        return torch.rand((), generator=generator) * model.at.sum()

    def flat(model, rows, generator):
        return model.at.mul(0.0).abs().sqrt().sum()  # a slope of infinity times zero

    alone = trained(made(), 2).state
    for penalty in (chancy, flat):
        weight = Warming(1.0, 5, after=12)
        beside = trained(made(plan=replace(made().plan, weight=weight), penalty=penalty), 2).state
        assert alike(beside.parameters, alone.parameters)
        assert beside.history_by_name()["loss"] == alone.history_by_name()["loss"]
    later = trained(made(plan=replace(made().plan, weight=Warming(1.0, 5, 6)), penalty=chancy), 2).state
    assert not alike(later.parameters, alone.parameters)


def test_weights_are_repetitions():
    """In the loss of one batch, up to the number of rows it is divided by."""
    weight = torch.ones(90).double()
    weight[:10] = 3.0
    heavy = ArraySource(ROWS, weight)
    more = ArraySource(torch.cat([ROWS, ROWS[:10], ROWS[:10]]))
    history = [
        trained(made(plain, Epochs(s, 200, 0), TrainPlan(Constant(1e-12))), 1).state.history_by_name()["far"][
            0
        ]
        for s in (heavy, more)
    ]
    level = float(start().slope.square().sum())
    assert (history[0] - level) * 90 == pytest.approx((history[1] - level) * 110, rel=1e-10)


def test_half_precision_keeps_the_parameters_whole():
    def product(model, rows, weight, generator):
        value = (rows @ model.slope - rows).square().sum(1) @ weight / len(rows) + model.at.square().sum()
        seen.append((rows @ model.slope).dtype)
        return value, {}

    seen: list[torch.dtype] = []
    found = []
    for mixed in (False, True):
        trainer = replace(
            made(product, Epochs(ArraySource(ROWS.float()), 30, 0), TrainPlan(Constant(0.02), mixed=mixed)),
            model=start(torch.float32),
        )
        found.append(trained(trainer, 100).state.parameters)
    assert torch.bfloat16 in seen
    assert torch.float32 in seen
    assert found[1][1].dtype == torch.float32
    assert 0.0 < float((found[0][1] - found[1][1]).norm()) < 0.05
    torch.testing.assert_close(found[1][1], torch.eye(3), rtol=0.0, atol=0.05)


@pytest.mark.parametrize("wrong", [{"block": 0}, {"patience": 0}, {"clip": 0.0}, {"decay": -1.0}])
def test_plans_are_checked(wrong):
    with pytest.raises(ValueError, match="must"):
        TrainPlan(**wrong)


NUMBERED = torch.stack([torch.arange(100.0).double(), -torch.arange(100.0).double()], 1)


def folder(tmp_path, rows=NUMBERED):
    for i, part in enumerate(rows.split(30)):
        table = pa.table({"a": part[:, 0].numpy(), "b": part[:, 1].numpy()})
        pq.write_table(table, tmp_path / f"part{i}.parquet")
    return open_source(tmp_path, memory=0)


def epoch_of(epochs: Epochs, epoch: int) -> list[list[float]]:
    return [rows[:, 0].tolist() for rows, _ in epochs.epoch(epoch)]


@pytest.mark.parametrize("kept", ["memory", "files", "standard"])
@pytest.mark.parametrize("window", [7, 32, 1000])
@pytest.mark.parametrize("part", [False, True])
def test_every_row_once_an_epoch_in_an_order_of_its_own(tmp_path, monkeypatch, kept, window, part):
    monkeypatch.setattr(order, "WINDOW_ROWS", window)
    source = folder(tmp_path) if kept == "files" else ArraySource(NUMBERED)
    if kept == "standard":
        frame = fit_standardisation(source)
        source = StandardisedSource(
            source, replace(frame, origin=0 * frame.origin, scale=0 * frame.scale + 1.0)
        )
    mask, held = hold_out(source, 0.2, 1, 50) if part else (None, None)
    left = set() if held is None else set(held.rows[:, 0].tolist())
    assert len(left) == (20 if part else 0)
    one, two = (Epochs(source, 16, 5, mask) for _ in range(2))
    orders = [epoch_of(one, e) for e in range(3)]
    for found in orders:
        assert sorted(value for batch in found for value in batch) == sorted(
            set(map(float, range(100))) - left
        )
        assert max(map(len, found)) - min(map(len, found)) <= 1
        assert max(map(len, found)) <= 16
    assert orders[0] != orders[1] != orders[2]
    assert epoch_of(two, 2) == orders[2]  # without those before
    assert [rows[:, 0].tolist() for rows, _ in two.epoch(0, 3)] == orders[0][3:]


def test_a_batch_larger_than_the_data_is_all_of_it():
    epochs = Epochs(ArraySource(NUMBERED), 10**6, 0)
    assert epochs.per_epoch == 1
    assert [len(rows) for rows, _ in epochs.epoch(5)] == [100]


def test_weights_follow_their_rows(tmp_path):
    source = ArraySource(NUMBERED, NUMBERED[:, 0] + 1.0)
    for rows, weight in Epochs(source, 16, 5).epoch(3):
        assert torch.equal(weight, rows[:, 0] + 1.0)


@pytest.mark.parametrize(("n", "share", "most", "kept"), [(2, 0.01, 9, 1), (100, 0.3, 9, 9), (5, 0.9, 9, 4)])
def test_how_many_rows_are_held_out(n, share, most, kept):
    mask, held = hold_out(ArraySource(NUMBERED[:n]), share, 0, most)
    assert int(mask.sum()) == held.n_rows == kept
    assert torch.equal(NUMBERED[:n][mask], held.rows)
    assert hold_out(ArraySource(NUMBERED[:n]), 0.0, 0, most) == (None, None)


def test_nothing_to_train_on():
    assert hold_out(ArraySource(NUMBERED[:1]), 0.5, 0, 5) == (None, None)
    with pytest.raises(ValueError, match="no row"):
        Epochs(ArraySource(NUMBERED[:0]), 4, 0)


def test_planted_step_that_is_not_refused(monkeypatch):
    """Where every number passes for finite the parameters are lost."""
    blind = SimpleNamespace(**{**vars(math), "isfinite": lambda value: True})
    monkeypatch.setattr("boxloop.fit.train.math", blind)
    assert not trained(made(broken({5}, "nan")), 1).state.is_finite()
