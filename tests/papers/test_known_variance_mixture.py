"""Algorithm 4 (Le Corff, section 3.3) against the algorithm written out, the generic engine, and the evidence."""

from __future__ import annotations

import inspect
import math

import pytest
import torch

from boxloop.data import ArraySource
from boxloop.distributions import Node
from boxloop.fit import EMState, VariationalModel, accelerated_em, cavi, elbo, em
from boxloop.loop import run
from boxloop.numeric import generator, normal
from fit import cavi_cases as cases
from papers.cavi_mixture import CountSum, KnownVarianceMixture

WEIGHTS, VARIANCE = [0.2, 0.5, 0.3], 4.0
X = cases.mixture_rows(30, [-2.0, 0.0, 2.5], seed=1)
START = KnownVarianceMixture.at(cases.double([[-1.0], [0.1], [1.0]]), cases.double(WEIGHTS), VARIANCE, 30.0)


def test_every_sweep_is_that_of_the_generic_engine():
    nodes = {
        "c": Node.categorical(3, 30),
        "mu": Node.normal(3, {"mean": START.mean[:, 0], "variance": START.variance}),
    }
    joint = cases.mixture(X, WEIGHTS, VARIANCE)
    step, state, found = em(ArraySource(X[:, None]), elbo), EMState(START), None
    for sweep in range(1, 10):
        done = step(state)
        phi = state.model.posterior(X[:, None])
        state = done.state
        found = cavi(nodes, joint, max_iter=sweep, tol=0.0, random_state=0, resume=found)
        torch.testing.assert_close(found["mu"].mean, state.model.mean[:, 0], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["mu"].sd ** 2, state.model.variance, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(found["c"].mean, phi, rtol=1e-12, atol=1e-12)


def test_the_bounds_agree_at_the_end():
    outcome = run(em(ArraySource(X[:, None]), elbo), EMState(START), max_iter=2000, tol=1e-14, monotone=True)
    nodes = {
        "c": Node.categorical(3, 30),
        "mu": Node.normal(3, {"mean": START.mean[:, 0], "variance": START.variance}),
    }
    found = cavi(nodes, cases.mixture(X, WEIGHTS, VARIANCE), tol=1e-12, random_state=0)
    assert 30 * outcome.trace[-1] == pytest.approx(found.elbo, rel=1e-11)
    fast = run(
        accelerated_em(ArraySource(X[:, None]), elbo),
        EMState(START),
        max_iter=2000,
        tol=1e-14,
        monotone=True,
    )
    assert fast.trace[-1] == pytest.approx(outcome.trace[-1], abs=1e-9)
    assert fast.n_iter < outcome.n_iter


def test_chunks_weights_and_averages_add_up():
    rows = normal((20, 2), generator(3))
    model = KnownVarianceMixture.at(normal((3, 2), generator(4)), cases.double(WEIGHTS), VARIANCE, 40.0)
    weight = torch.ones(20, dtype=torch.float64)
    whole = model.expect(rows, weight)
    parts = model.expect(rows[:7], weight[:7]) + model.expect(rows[7:], weight[7:])
    twice = model.expect(torch.cat([rows, rows]), torch.ones(40).double())
    double = model.expect(rows, 2 * weight)
    for one, other in ((whole, parts), (twice, double)):
        for (_, a), (_, b) in zip(one.leaves(), other.leaves(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
    solved, averaged = model.solve(double.statistics), model.solve(double.statistics * (1 / 40))
    torch.testing.assert_close(solved.mean, averaged.mean, rtol=1e-12, atol=0.0)
    share = model.posterior(rows)
    torch.testing.assert_close(
        solved.mean, 2 * share.mT @ rows / (1 / VARIANCE + 2 * share.sum(0))[:, None], rtol=1e-12, atol=0.0
    )


def test_solve_is_the_maximum_of_the_bound_over_q_of_the_means():
    rows = normal((20, 2), generator(3))
    model = KnownVarianceMixture.at(normal((3, 2), generator(4)), cases.double(WEIGHTS), VARIANCE, 20.0)
    statistics = model.expect(rows, torch.ones(20).double()).statistics
    solved = model.solve(statistics)
    free = {name: value.clone().requires_grad_() for name, value in solved.free_parameters().items()}
    there = solved.with_free_parameters(free)
    (there.expected_log_likelihood(statistics) - there.divergence()).backward()
    for value in free.values():
        assert float(value.grad.abs().max()) < 1e-10


def test_divergence_and_predictive_distribution():
    model = KnownVarianceMixture(
        cases.double([[1.0, -2.0], [0.5, 0.0]]),
        cases.double([0.3, 2.0]),
        cases.double([0.4, 0.6]).log(),
        4.0,
        10.0,
    )
    normals = torch.distributions.Normal
    known = torch.distributions.kl_divergence(
        normals(model.mean, model.variance[:, None].sqrt().expand(2, 2)),
        normals(torch.zeros(2, 2).double(), 2.0),
    )
    assert float(model.divergence()) == pytest.approx(float(known.sum()), rel=1e-12)
    rows = normal((5, 2), generator(0))
    mean = model.mean + model.variance[:, None].sqrt() * normal((200_000, 2, 2), generator(1))
    drawn = (
        (model.log_weight + normals(mean[None], 1.0).log_prob(rows[:, None, None, :]).sum(-1)).exp().sum(-1)
    )
    error = drawn.std(1) / drawn.shape[1] ** 0.5
    z = (model.log_prob(rows).exp() - drawn.mean(1)) / error
    assert float(z.abs().max()) < 4.8  # five normal scores: one run in 100,000
    _, covariance = model.moments()
    sample, _ = model.sample(100_000, generator(2))
    variance = covariance.diagonal()[0]
    assert bool(((sample.var(0) - variance).abs() < 5 * variance * (3 / 100_000) ** 0.5).all())


def test_it_is_a_variational_model():
    wanted = {
        name: list(inspect.signature(method).parameters)
        for base in VariationalModel.__mro__
        for name, method in vars(base).items()
        if inspect.isfunction(method) and not name.startswith("_") and "boxloop" in method.__module__
    }
    for name, arguments in wanted.items():
        assert list(inspect.signature(getattr(KnownVarianceMixture, name)).parameters) == arguments
    assert {"expect", "solve", "divergence"} <= set(wanted)


def test_an_empty_component_keeps_the_prior():
    model = KnownVarianceMixture.at(cases.double([[0.0], [1.0]]), cases.double([0.5, 0.5]), 4.0, 10.0)
    solved = model.solve(CountSum(cases.double([10.0, 0.0]), cases.double([[3.0], [0.0]])))
    assert solved.mean[1].tolist() == [0.0]
    assert float(solved.variance[1]) == pytest.approx(4.0)


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="prior variance must be positive"):
        KnownVarianceMixture.at(torch.zeros(2, 1), torch.tensor([0.5, 0.5]), 0.0, 1.0)
    with pytest.raises(ValueError, match="add up to one"):
        KnownVarianceMixture.at(torch.zeros(2, 1), torch.tensor([0.5, 0.6]), 1.0, 1.0)
    with pytest.raises(ValueError, match="units already"):
        START.affine(torch.ones(1), torch.ones(1))
    assert START.affine(torch.zeros(1), torch.ones(1)) is START
    assert math.isfinite(elbo(START, START.expect(X[:, None], torch.ones(30).double())))
