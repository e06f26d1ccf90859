"""Mixtures of posteriors: shares, draws, stacking, and members that do not depend on who trains them."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Generator, Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR

from boxloop.networks import (
    Component,
    Layout,
    MultiPosterior,
    WeightDistribution,
    WeightPosterior,
    WeightWarning,
    stacking_weights,
)
from networks.small_training import network, optimiser, rows, shuffled


class Known:
    """A posterior whose distribution is given."""

    def __init__(self, distribution: WeightDistribution) -> None:
        self.net = nn.Linear(distribution.size - 1, 1)
        self.distribution = distribution

    def components(self) -> tuple[Component, ...]:
        return (Component(1.0, self.net, Layout.from_network(self.net), self.distribution),)


def made(mean: float, size: int = 3) -> Known:
    draws = torch.Generator().manual_seed(int(mean))
    loadings = torch.randn(size, 2, generator=draws).double()
    return Known(
        WeightDistribution(torch.full((size,), mean).double(), loadings, 0.3 * torch.ones(size).double())
    )


def fitted(**given: Any) -> MultiPosterior:
    plain = {"epochs": 4, "burn_in": 1, "members": 3, "method": "swa", "random_state": 0}
    return MultiPosterior.fit(
        given.pop("make_net", network),
        given.pop("batches", shuffled),
        given.pop("loss", mse_loss),
        optimiser,
        **{**plain, **given},
    )


def test_shares_multiply_through_mixtures_of_mixtures() -> None:
    inner = MultiPosterior([made(0.0), made(1.0)], [1.0, 3.0])
    outer = MultiPosterior([inner, made(2.0), made(3.0)], torch.tensor([2.0, 2.0, 0.0]))
    assert [part.weight for part in outer.components()] == [0.125, 0.375, 0.5]
    assert [part.distribution.mean[0].item() for part in outer.components()] == [0.0, 1.0, 2.0]
    assert len(outer) == 3
    assert MultiPosterior([made(0.0)] * 4).weights == (0.25,) * 4


def test_draws_have_the_moments_of_the_mixture() -> None:
    members, weights = [made(0.0), made(4.0), made(-3.0)], [0.5, 0.3, 0.2]
    multi, n = MultiPosterior(members, weights), 40_000
    found = multi.draw(n, random_state=1).numpy()
    distributions = [member.distribution for member in members]
    mean = sum(w * distribution.mean for w, distribution in zip(weights, distributions, strict=True))
    second = sum(
        w * (distribution.covariance().dense()[0] + torch.outer(distribution.mean, distribution.mean))
        for w, distribution in zip(weights, distributions, strict=True)
    )
    # 3 means and 6 second moments; |z| < 4.4 each: a false alarm in less than 1e-4 of the seeds.
    z = (found.mean(0) - mean.numpy()) / (found.std(0) / math.sqrt(n))
    products = np.einsum("ni,nj->nij", found, found)
    more = (products.mean(0) - second.numpy()) / (products.std(0) / math.sqrt(n))
    assert abs(z).max() < 4.4
    assert abs(more).max() < 4.4
    assert torch.equal(multi.draw(50, 3), multi.draw(50, 3))
    # Which row comes from which member is by chance: rows of one half are not those of one member.
    assert abs(np.mean(found[: n // 2, 0] > 2.0) - 0.3 * 0.9) < 0.05


def test_draws_of_unlike_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="the components have 3, 4 weights"):
        MultiPosterior([made(0.0), made(1.0, 4)]).draw(2)


@pytest.mark.parametrize("weights", [[1.0], [1.0, -0.1], [0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0]])
def test_weights_must_be_shares(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights must be 2 non-negative numbers"):
        MultiPosterior([made(0.0), made(1.0)], weights)


def test_a_mixture_of_networks_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"posteriors must hold posteriors, such as WeightPosterior.*got a Linear"
    ):
        MultiPosterior([nn.Linear(1, 1)])
    with pytest.raises(TypeError, match=r"posteriors must be a list of posteriors, got a single Known"):
        MultiPosterior(made(0.0))


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        MultiPosterior([])


def test_stacking_finds_the_best_score() -> None:
    draws = np.random.default_rng(0)
    score = draws.normal(-1.0, 1.0, size=(4, 60))
    score[3] -= 3.0  # a member that adds nothing
    weights = stacking_weights(torch.tensor(score)).numpy()

    def lost(free: np.ndarray) -> float:
        w = np.exp(free - free.max())
        return -np.log((w / w.sum()) @ np.exp(score)).mean()

    best = minimize(lost, np.zeros(4), method="BFGS", options={"gtol": 1e-9})
    reached = np.log(weights @ np.exp(score)).mean()
    assert reached >= -best.fun - 1e-8
    # The first-order condition of a maximum on the simplex: no member would add by having more.
    slope = (np.exp(score) / (weights @ np.exp(score))).mean(1)
    assert slope.max() < 1.0 + 1e-4


def test_stacking_survives_scores_that_underflow() -> None:
    score = torch.tensor([[-2000.0, -3000.0], [-2001.0, -math.inf]]).double()
    assert stacking_weights(score)[0] > 0.99


@pytest.mark.parametrize(
    "score",
    [torch.zeros(5), torch.zeros(2, 0), torch.full((2, 1), -math.inf), torch.tensor([[math.nan], [0.0]])],
)
def test_scores_that_make_no_sense_are_refused(score: Tensor) -> None:
    with pytest.raises(ValueError, match=r"log_density must have|must be free of NaN"):
        stacking_weights(score)


def test_stacking_finds_the_member_that_is_right() -> None:
    x, y = rows()
    nets = [nn.Linear(2, 1) for _ in range(3)]
    for net, slope in zip(nets, (1.0, 0.5, -1.0), strict=True):
        nn.init.constant_(net.weight, slope)
        nn.init.zeros_(net.bias)
    members = [WeightPosterior(net, "swa") for net in nets]
    for member in members:
        member.observe()
    multi = MultiPosterior(members)
    predictor = multi.predictor("regression", 30, noise=0.1)
    found = multi.stack(predictor, x, y)
    assert found.weights[0] > 0.999
    before, after = (one.predictor("regression", 30, noise=0.1).predict(x) for one in (multi, found))
    assert after.log_prob(y).mean() > before.log_prob(y).mean()


def test_a_mixture_can_be_pickled() -> None:
    multi = fitted(method="factor", rank=2)
    again = pickle.loads(pickle.dumps(MultiPosterior([multi, made(0.0)], [1.0, 2.0])))
    assert torch.equal(again.posteriors[0].draw(3, 0), multi.draw(3, 0))
    assert again.weights == (1.0 / 3.0, 2.0 / 3.0)
    assert again.posteriors[0].trainings == multi.trainings


@pytest.mark.slow
def test_members_do_not_depend_on_who_trains_them() -> None:
    here, there = (fitted(method="factor", rank=2, epochs=8, n_jobs=jobs) for jobs in (1, 2))
    assert [member.count for member in there.posteriors] == [28, 28, 28]
    for one, other in zip(here.posteriors, there.posteriors, strict=True):
        assert torch.equal(one.mean(), other.mean())
        assert torch.equal(one.trace.values, other.trace.values)
    assert here.trainings == there.trainings
    assert torch.equal(here.draw(5, 0), there.draw(5, 0))


def test_members_differ_in_start_and_order() -> None:
    multi = fitted()
    one, two, three = (member.mean() for member in multi.posteriors)
    assert not torch.equal(one, two)
    assert not torch.equal(two, three)
    orders: list[float] = []

    def record(draws: Generator) -> list[tuple[Tensor, Tensor]]:
        batches = shuffled(draws)
        orders.append(batches[0][0][0, 0].item())
        return batches

    fitted(batches=record)
    assert len(set(orders)) == 3


def test_a_member_is_what_a_fit_alone_gives() -> None:
    some = shuffled(torch.Generator().manual_seed(3))
    scheduler = lambda moves: StepLR(moves, 1, 0.5)  # noqa: E731
    multi = fitted(
        batches=some, make_scheduler=scheduler, make_net=lambda draws: network(torch.Generator()), every=2
    )
    net = network(torch.Generator())
    posterior = WeightPosterior(net, "swa")
    from boxloop.networks import fit

    moves = optimiser(net)
    fit(posterior, some, mse_loss, moves, epochs=4, burn_in=1, every=2, scheduler=scheduler(moves))
    for member in multi.posteriors:
        assert torch.equal(member.mean(), posterior.mean())


def test_make_net_must_make_nets() -> None:
    net = network(torch.Generator())
    with pytest.raises(ValueError, match="the same network twice"):
        fitted(make_net=lambda draws: net)
    with pytest.raises(TypeError, match="a function that returns a network, got a Sequential"):
        fitted(make_net=net)
    with pytest.raises(TypeError, match="a function that returns an optimiser, given a network; got a SGD"):
        MultiPosterior.fit(network, [], mse_loss, torch.optim.SGD(net.parameters(), lr=0.1), epochs=1)


def test_no_members_are_refused() -> None:
    with pytest.raises(ValueError, match="members must be at least 1"):
        fitted(members=0)


class Stopping:
    """A loss that is interrupted at one of its calls."""

    def __init__(self, when: int) -> None:
        self.calls, self.when = 0, when

    def __call__(self, out: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.when:
            raise KeyboardInterrupt
        return mse_loss(out, y)


def test_ctrl_c_keeps_the_members_so_far() -> None:
    with pytest.warns(WeightWarning) as record:
        multi = fitted(loss=Stopping(16 + 2))
    assert len(multi) == 1
    assert "the mixture has 1 of 3 members" in str(record[-1].message)
    with pytest.warns(WeightWarning):
        assert len(fitted(loss=Stopping(16 + 10))) == 2  # the second had been observed for an epoch
    with pytest.raises(KeyboardInterrupt), pytest.warns(WeightWarning):
        fitted(loss=Stopping(2))


def test_checkpoints_of_each_member(tmp_path: Path) -> None:
    path = tmp_path / "multi.boxloop"
    with pytest.warns(WeightWarning):
        fitted(loss=Stopping(16 + 10), checkpoint=path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["multi.boxloop.0", "multi.boxloop.1"]
    resumed, whole = fitted(checkpoint=path), fitted()
    for one, other in zip(resumed.posteriors, whole.posteriors, strict=True):
        assert torch.equal(one.mean(), other.mean())
        assert one.count == other.count
