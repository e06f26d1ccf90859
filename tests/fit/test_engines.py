"""Engines other than batch EM, through the same contract."""

import pytest
import torch

from boxloop.average import Power
from boxloop.data import ArraySource
from boxloop.distributions import Bernoulli, DiagonalGaussian, FullGaussian, Poisson
from boxloop.fit import (
    AscentState,
    Batches,
    EMState,
    OnlinePlan,
    OnlineState,
    em,
    generalised_em,
    gradient_ascent,
    online_em,
    race,
)
from boxloop.loop import run
from boxloop.models import FactorModel, Mixture, flatten, unflatten
from boxloop.numeric import generator, normal


def clusters(n=400, seed=0):
    stream = generator(seed)
    label = torch.randint(2, (n,), generator=stream)
    return normal((n, 2), stream) + 4.0 * label[:, None]


def start_gaussian(rows):
    eye = torch.eye(2, dtype=torch.float64).expand(2, 2, 2).contiguous()
    return Mixture(
        torch.full((2,), 0.5, dtype=torch.float64).log(), FullGaussian(rows[:2].clone(), eye, 1e-6)
    )


def start_factor(rows):
    stream = generator(1)
    d = rows.shape[1]
    return FactorModel(rows.mean(0), 0.3 * normal((d, 1), stream), rows.var(0), 1e-6)


STARTS = {
    "gaussian": start_gaussian,
    "diagonal": lambda rows: Mixture(
        torch.full((2,), 0.5).double().log(),
        DiagonalGaussian(rows[:2].clone(), torch.ones(2, 2).double(), 1e-6),
    ),
    "factor": start_factor,
}


@pytest.mark.parametrize("name", STARTS)
def test_online_em_with_whole_batches_and_full_steps_is_batch_em(name):
    rows = clusters()
    model, source = STARTS[name](rows), ArraySource(rows)
    batch = run(em(source), EMState(model), max_iter=5)
    plan = OnlinePlan(Power(0.0), smooth_after=None)
    online = run(online_em(Batches(source, len(rows)), plan), OnlineState(model), max_iter=5)
    assert online.trace == pytest.approx(batch.trace, rel=1e-12)
    for (_, a), (_, b) in zip(online.state.model.leaves(), batch.state.model.leaves(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_the_average_with_steps_one_over_t_is_the_plain_mean():
    rows = torch.poisson(torch.full((60, 2), 3.0, dtype=torch.float64), generator=generator(0))
    model = Mixture(torch.zeros(1).double(), Poisson(torch.ones(1, 2).double()))
    plan = OnlinePlan(Power(1.0), smooth_after=None)
    outcome = run(online_em(Batches(ArraySource(rows), 10), plan), OnlineState(model), max_iter=6)
    torch.testing.assert_close(outcome.state.best.family.mean[0], rows.mean(0))


def test_warm_up_moves_the_averages_only():
    rows = clusters()
    model = start_gaussian(rows)
    plan = OnlinePlan(warmup=3, smooth_after=None)
    outcome = run(online_em(Batches(ArraySource(rows), 20), plan), OnlineState(model), max_iter=3)
    assert outcome.state.model is model
    assert outcome.state.average.count == 3


def test_batches_can_be_asked_for_after_a_restart():
    source = ArraySource(torch.arange(10.0).double()[:, None])
    straight = [Batches(source, 3)(t)[0] for t in (0,)]
    batches = Batches(source, 3)
    path = [batches(t)[0] for t in range(8)]
    assert batches.per_epoch == 4
    torch.testing.assert_close(path[0], straight[0])
    torch.testing.assert_close(Batches(source, 3)(6)[0], path[6])
    torch.testing.assert_close(batches(2)[0], path[2])


@pytest.mark.parametrize("name", STARTS)
def test_generalised_em_climbs_to_the_same_maximum(name):
    rows = clusters(200)
    model, source = STARTS[name](rows), ArraySource(rows)
    exact = run(em(source), EMState(model), max_iter=2000, tol=1e-12, monotone=True)
    partial = run(generalised_em(source), EMState(model), max_iter=6000, tol=1e-10, monotone=True)
    assert partial.trace[-1] == pytest.approx(exact.trace[-1], abs=1e-4)


def test_gradient_ascent_follows_the_gradient_of_the_log_likelihood():
    rows = clusters(50)
    model = start_gaussian(rows)
    weight = torch.linspace(0.5, 1.5, 50, dtype=torch.float64)
    step = gradient_ascent(lambda t: (rows, weight), lambda t: 0.1, adaptive=False)
    moved = step(AscentState.start(model)).state.model
    free = model.free_parameters()
    shift = flatten(moved.free_parameters()) - flatten(free)
    epsilon = 1e-6
    for i in range(len(shift)):
        up, down = flatten(free).clone(), flatten(free).clone()
        up[i] += epsilon
        down[i] -= epsilon
        rise = model.with_free_parameters(unflatten(up, free)).log_prob(rows) - model.with_free_parameters(
            unflatten(down, free)
        ).log_prob(rows)
        slope = float((rise @ weight) / weight.sum()) / (2 * epsilon)
        assert float(shift[i]) == pytest.approx(0.1 * slope, abs=1e-7)


def test_gradient_ascent_reaches_the_maximum():
    rows = (torch.rand(300, 3, generator=generator(0)) < torch.tensor([0.2, 0.5, 0.9])).double()
    model = Mixture(torch.zeros(1).double(), Bernoulli(torch.full((1, 3), 0.4).double()))
    step = gradient_ascent(Batches(ArraySource(rows), 300), Power(0.5, offset=10.0, scale=1.0))
    outcome = run(step, AscentState.start(model), max_iter=400)
    torch.testing.assert_close(outcome.state.best.family.mean[0], rows.mean(0), atol=2e-3, rtol=0)


def test_race_keeps_the_best_and_abandons_the_rest():
    rows = clusters()
    good, bad = start_gaussian(rows), start_gaussian(rows[:1].expand(4, 2) + 1e-9 * torch.arange(4)[:, None])
    outcomes = race(em(ArraySource(rows)), [EMState(bad), EMState(good), EMState(bad)], iterations=3)
    assert outcomes[0].trace[-1] == max(o.trace[-1] for o in outcomes)
    assert outcomes[0].n_iter > outcomes[-1].n_iter
    assert len(outcomes) == 3
