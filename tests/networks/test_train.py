"""Training that a posterior follows: the same as a loop of one's own, stopped and gone on with at will."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau, SequentialLR, StepLR
from torch.utils.data import DataLoader, TensorDataset

from boxloop import use_threads
from boxloop.fit import PATIENCE
from boxloop.networks import WeightPosterior, WeightWarning, fit
from boxloop.persist import ModelFileError

METHODS = ["swa", "swag", "factor", "gradient", "full"]
OPTIMISERS = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: AdamW([{"params": list(p), "lr": 0.02}], weight_decay=0.1),
}
SCHEDULERS = {
    "none": lambda o: None,
    "step": lambda o: StepLR(o, 2, 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 8),
    "plateau": lambda o: ReduceLROnPlateau(o, patience=0),
    "two": lambda o: SequentialLR(o, [StepLR(o, 1, 0.9), StepLR(o, 1, 0.5)], milestones=[3]),
}


def rows(n: int = 60) -> tuple[Tensor, Tensor]:
    draws = torch.Generator().manual_seed(0)
    x = torch.randn(n, 3, generator=draws)
    return x, (x @ torch.tensor([1.0, -2.0, 0.5]))[:, None] + 0.1 * torch.randn(n, 1, generator=draws)


def pairs(size: int = 20) -> list[tuple[Tensor, Tensor]]:
    x, y = rows()
    return list(zip(x.split(size), y.split(size), strict=True))


def network(seed: int = 0) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in net.parameters():
            value.copy_(0.5 * torch.randn(value.shape, generator=draws))
    return net


def followed(method: str = "swa") -> WeightPosterior:
    return WeightPosterior(network(), method, rank=2, random_state=0)


def same(one: WeightPosterior, other: WeightPosterior) -> None:
    """Bit for bit: network, distribution and record."""
    for name, value in one.net.state_dict().items():
        assert torch.equal(value, other.net.state_dict()[name]), name
    for mine, theirs in zip(one.distribution().leaves(), other.distribution().leaves(), strict=True):
        assert torch.equal(mine[1], theirs[1]), mine[0]
    assert torch.equal(one.trace.values, other.trace.values)
    assert (one.count, one.n_refused) == (other.count, other.n_refused)


class Failing:
    """A loss that does something else at one of its calls."""

    def __init__(self, *when: int, value: Any = KeyboardInterrupt) -> None:
        self.calls, self.when, self.value = 0, when, value

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        if self.calls in self.when:
            if isinstance(self.value, type):
                raise self.value
            return mse_loss(out, y) * self.value
        return mse_loss(out, y)


def test_the_loop_is_the_usual_one() -> None:
    done, own = followed(), followed()
    optimiser = SGD(done.net.parameters(), lr=0.1, momentum=0.9)
    with use_threads(torch.get_num_threads()):  # one thread rounds otherwise than several
        training = fit(done, pairs(), mse_loss, optimiser, epochs=5, burn_in=2, every=2)
    optimiser, t, losses = SGD(own.net.parameters(), lr=0.1, momentum=0.9), 0, []
    for epoch in range(5):
        found = []
        for x, y in pairs():
            optimiser.zero_grad()
            loss = mse_loss(own.net(x), y)
            loss.backward()
            optimiser.step()
            found.append(loss.item())
            t += epoch >= 2
            if epoch >= 2 and t % 2 == 0:
                own.observe(loss.item())
        losses.append(sum(found) / 3)
    same(done, own)
    assert done.count == 4
    assert training.losses == pytest.approx(losses, rel=1e-12)
    assert not training.interrupted
    assert training.n_refused == 0


def test_the_loss_of_an_epoch_counts_rows_not_batches() -> None:
    posterior = followed()
    uneven = [(x, y) for x, y in zip(rows()[0].split(50), rows()[1].split(50), strict=True)]
    still = SGD(posterior.net.parameters(), lr=0.0)
    values = [mse_loss(posterior.net(x), y).item() for x, y in uneven]
    found = fit(posterior, uneven, mse_loss, still, epochs=1)
    assert found.losses[0] == pytest.approx((50 * values[0] + 10 * values[1]) / 60, rel=1e-6)


def test_gradients_are_shortened_to_the_clip() -> None:
    posterior = followed()
    before = copy.deepcopy(posterior.net)
    fit(posterior, pairs(60), mse_loss, SGD(posterior.net.parameters(), lr=1.0), epochs=1, clip=1e-3)
    moves = zip(posterior.net.parameters(), before.parameters(), strict=True)
    length = math.sqrt(sum((a - b).square().sum().item() for a, b in moves))
    assert length == pytest.approx(1e-3, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "optimiser", "scheduler"),
    [
        *(("swa", optimiser, scheduler) for optimiser in OPTIMISERS for scheduler in SCHEDULERS),
        *((method, "momentum", "cosine") for method in METHODS[1:]),
    ],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # torch's own, in SequentialLR
@pytest.mark.filterwarnings("ignore:18 vectors give a distribution")
def test_a_run_in_two_halves_is_one_run(tmp_path: Path, method: str, optimiser: str, scheduler: str) -> None:
    def begun() -> tuple[WeightPosterior, Optimizer, Any, DataLoader[Any]]:
        posterior = followed(method)
        moves = OPTIMISERS[optimiser](posterior.net.parameters())
        shuffled = torch.Generator().manual_seed(7)
        batches = DataLoader(TensorDataset(*rows()), batch_size=20, shuffle=True, generator=shuffled)
        return posterior, moves, SCHEDULERS[scheduler](moves), batches

    def go(epochs: int, checkpoint: Path | None = None) -> tuple[WeightPosterior, Any, Optimizer]:
        posterior, moves, cooling, batches = begun()
        result = fit(
            posterior,
            batches,
            mse_loss,
            moves,
            epochs=epochs,
            burn_in=2,
            scheduler=cooling,
            checkpoint=checkpoint,
        )
        return posterior, result, moves

    path = tmp_path / "half.boxloop"
    go(4, path)
    resumed, result, moves = go(8, path)
    whole, expected, theirs = go(8)
    same(resumed, whole)
    assert result.losses == expected.losses
    assert [g["lr"] for g in moves.param_groups] == [g["lr"] for g in theirs.param_groups]


@pytest.mark.parametrize("when", [1, 4, 5, 8, 9, 12])
def test_ctrl_c_keeps_the_last_whole_epoch(when: int) -> None:
    whole = (when - 1) // 3
    cut, plain = followed(), followed()
    optimiser = Adam(cut.net.parameters(), lr=0.01)
    batches = DataLoader(
        TensorDataset(*rows()), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    with pytest.warns(WeightWarning, match=f"as after epoch {whole} of 6"):
        result = fit(cut, batches, Failing(when), optimiser, epochs=6)
    assert result.interrupted
    assert len(result.losses) == whole
    assert cut.count == 3 * whole
    again = DataLoader(
        TensorDataset(*rows()), batch_size=20, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    other = Adam(plain.net.parameters(), lr=0.01)
    if whole:
        fit(plain, again, mse_loss, other, epochs=whole)
        same(cut, plain)
    # and both go on alike: the optimiser and the order of rows were put back too
    fit(cut, batches, mse_loss, optimiser, epochs=2)
    fit(plain, again, mse_loss, other, epochs=2)
    same(cut, plain)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_ctrl_c_after_a_restart_goes_back_to_the_file(tmp_path: Path, optimiser: str) -> None:
    cut, plain = followed(), followed()
    moves, others = (OPTIMISERS[optimiser](one.net.parameters()) for one in (cut, plain))
    path = tmp_path / "half"
    first = followed()
    fit(first, pairs(), mse_loss, OPTIMISERS[optimiser](first.net.parameters()), epochs=2, checkpoint=path)
    with pytest.warns(WeightWarning, match="as after epoch 2 of 4"):
        fit(cut, pairs(), Failing(3), moves, epochs=4, checkpoint=path)
    same(cut, first)
    fit(cut, pairs(), mse_loss, moves, epochs=2)
    fit(plain, pairs(), mse_loss, others, epochs=4)
    same(cut, plain)


def test_parameters_of_the_loss_are_kept_too(tmp_path: Path) -> None:
    def go(epochs: int, path: Path | None = None) -> Tensor:
        posterior, level = followed(), nn.Parameter(torch.zeros(()))
        moves = SGD([*posterior.net.parameters(), level], lr=0.05, momentum=0.9)
        fit(
            posterior, pairs(), lambda out, y: mse_loss(out + level, y), moves, epochs=epochs, checkpoint=path
        )
        return level.detach()

    go(3, tmp_path / "level")
    assert torch.equal(go(6, tmp_path / "level"), go(6))


def test_a_step_that_is_not_finite_is_not_taken() -> None:
    posterior = followed()
    optimiser = SGD(posterior.net.parameters(), lr=0.05)
    with pytest.warns(WeightWarning, match="were refused: the loss is nan"):
        result = fit(posterior, pairs(), Failing(5, 8, value=math.nan), optimiser, epochs=4, burn_in=1)
    assert (posterior.n_refused, posterior.count, result.n_refused) == (2, 7, 2)
    assert result.events == tuple(
        f"iteration {i}: 1 of 3 steps had a loss or gradient that is not finite: refused" for i in (2, 3)
    )
    assert all(math.isfinite(value) for value in result.losses)
    assert all(bool(value.isfinite().all()) for value in posterior.net.parameters())


def test_a_gradient_that_is_not_finite_is_not_taken() -> None:
    posterior = followed()

    def cornered(out: Tensor, y: Tensor) -> Tensor:
        return mse_loss(out, y) + (posterior.net[0].bias * 0.0).sum().sqrt()  # 0, with an infinite slope

    optimiser = SGD(posterior.net.parameters(), lr=0.05)
    with (
        pytest.warns(WeightWarning, match="the norm of the gradient"),
        pytest.raises(FloatingPointError, match="the norm of the gradient is nan"),
    ):
        fit(posterior, pairs(), cornered, optimiser, epochs=4)
    assert posterior.count == 0


class Counting(nn.Module):
    """A level that is kept by putting another tensor in its place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("level", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.level = self.level + x.mean()
        return x


def test_a_step_that_is_not_taken_leaves_buffers_as_they_were() -> None:
    good = pairs()
    bad = (good[0][0].clone(), good[0][1])
    bad[0][0, 0] = math.nan

    def trained(batches: list[tuple[Tensor, Tensor]]) -> nn.Module:
        net = nn.Sequential(network(), Counting())
        posterior = WeightPosterior(net, "swa", random_state=0)
        fit(posterior, batches, mse_loss, SGD(net.parameters(), lr=0.05), epochs=3, burn_in=2)
        return net.eval()

    with pytest.warns(WeightWarning, match="were refused: the loss is nan"):
        found = trained([good[0], bad, *good[1:]])
    wanted = trained(good)
    for name, value in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    assert bool(found(rows()[0]).isfinite().all())


def test_ten_in_a_row_end_it() -> None:
    posterior = followed()
    bad = Failing(*range(4, 4 + PATIENCE - 1), value=math.inf)  # nine, then a good one
    fit(posterior, pairs(), bad, SGD(posterior.net.parameters(), lr=0.05), epochs=6, burn_in=5)
    worse = Failing(*range(4, 40), value=math.inf)
    optimiser = SGD(posterior.net.parameters(), lr=0.05)
    with pytest.raises(FloatingPointError, match=r"10 steps in a row .* lower the learning rate"):
        fit(posterior, pairs(), worse, optimiser, epochs=12, burn_in=11)
    assert worse.calls == 3 + PATIENCE


def test_modes_are_put_back() -> None:
    posterior, seen = followed(), []
    posterior.net.eval()
    posterior.net[1].train()

    def watched(out: Tensor, y: Tensor) -> Tensor:
        seen.append([module.training for module in posterior.net.modules()])
        return mse_loss(out, y)

    fit(posterior, pairs(), watched, SGD(posterior.net.parameters(), lr=0.05), epochs=1)
    assert all(all(flags) for flags in seen)
    assert [module.training for module in posterior.net.modules()] == [False, False, True, False, False]


def test_batches_of_several_inputs_are_moved_whole() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 1)

        def forward(self, parts: dict[str, Tensor]) -> Tensor:
            return self.inner(parts["a"]) + self.inner(parts["b"])

    posterior = WeightPosterior(Sum(), "swa")
    batches = [({"a": x, "b": -x}, y) for x, y in pairs()]
    fit(posterior, batches, mse_loss, SGD(posterior.net.parameters(), lr=0.05), epochs=1)
    assert posterior.count == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"burn_in": 3}, "below epochs=3, got 3"),
        ({"every": 0}, "every must be at least 1"),
        ({"every": 7, "burn_in": 1}, "every=7 must be at most 6"),
        ({"every": 1.5}, "every must be a whole number, got 1.5"),
        ({"epochs": 2.0}, "epochs must be a whole number"),
        ({"burn_in": 0.5}, "burn_in must be a whole number"),
        ({"loss": lambda out, y: mse_loss(out, y).item()}, "a scalar tensor, got a float"),
        ({"loss": lambda out, y: mse_loss(out, y).detach()}, "The loss has no gradient"),
        ({"loss": lambda out, y: mse_loss(out, y) * 1j}, "must return a real number, got torch.complex64"),
        ({"clip": 0.0}, "clip must be above 0"),
        ({"batches": iter(pairs())}, "only once"),
        ({"batches": []}, "batches are empty"),
        ({"batches": [torch.ones(20, 3)]}, r"a pair \(x, y\), got a tensor of shape \(20, 3\)"),
        ({"batches": [(1, 2, 3)]}, r"a pair \(x, y\), got a tuple of 3"),
        ({"loss": lambda out, y: (out - y).square()}, r"one number per batch.*\(20, 1\)"),
    ],
)
def test_what_makes_no_sense_is_refused(given: dict[str, Any], message: str) -> None:
    posterior = followed()
    plain = {"batches": pairs(), "loss": mse_loss, "optimiser": SGD(posterior.net.parameters(), lr=0.05)}
    with pytest.raises(ValueError, match=message):
        fit(posterior, **{**plain, "epochs": 3, **given})


def test_an_optimiser_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the network's parameters"):
        fit(followed(), pairs(), mse_loss, SGD(network().parameters(), lr=0.05), epochs=3)


def test_what_is_no_optimiser_is_refused() -> None:
    with pytest.raises(TypeError, match=r"a torch\.optim\.Optimizer of the network, got a str"):
        fit(followed(), pairs(), mse_loss, "sgd", epochs=3)  # type: ignore[arg-type]


def test_lbfgs_is_refused() -> None:
    posterior = followed()
    with pytest.raises(ValueError, match="LBFGS"):
        fit(posterior, pairs(), mse_loss, torch.optim.LBFGS(posterior.net.parameters()), epochs=3)


@pytest.mark.parametrize("what", ["rate", "every", "optimiser", "method"])
def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path, what: str) -> None:
    def go(**given: Any) -> None:
        posterior = followed(given.get("method", "swa"))
        kind = Adam if what == "optimiser" and given else SGD
        moves = kind(posterior.net.parameters(), lr=given.get("rate", 0.05))
        every = given.get("every", 1)
        fit(posterior, pairs(), mse_loss, moves, epochs=2, every=every, checkpoint=tmp_path / "one")

    go()
    with pytest.raises(ModelFileError, match="a checkpoint of another fit"):
        go(**{"rate": 0.1} if what == "rate" else {what: {"every": 2, "method": METHODS[-1]}.get(what, 1)})


def test_a_finished_checkpoint_does_nothing_more(tmp_path: Path) -> None:
    first, second = followed(), followed()
    for posterior in (first, second):
        moves = StepLR(optimiser := SGD(posterior.net.parameters(), lr=0.05), 1, 0.5)
        fit(posterior, pairs(), mse_loss, optimiser, epochs=2, scheduler=moves, checkpoint=tmp_path / "done")
    same(first, second)
    # in the same process the scheduler has changed the rate by now, and this is still the same training
    again = fit(second, pairs(), mse_loss, optimiser, epochs=2, scheduler=moves, checkpoint=tmp_path / "done")
    assert len(again.losses) == 2
    assert second.count == 6


def test_a_progress_bar_is_shown_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    posterior = followed()
    optimiser = SGD(posterior.net.parameters(), lr=0.05)
    fit(posterior, pairs(), mse_loss, optimiser, epochs=2)
    assert capsys.readouterr() == ("", "")
    fit(posterior, pairs(), mse_loss, optimiser, epochs=2, verbose=True)
    assert "6 vectors" in capsys.readouterr().err.replace("12 vectors", "6 vectors")
