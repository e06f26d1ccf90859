"""Bayesian mixtures: the bound climbs, stays below the exact evidence, and its parts are what they should be."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate
from torch import Tensor
from torch.testing import assert_close

from boxloop.criticise import mega
from boxloop.data import ArraySource
from boxloop.distributions import Dirichlet, FullGaussian, MixturePrior, NormalInverseWishart
from boxloop.fit import EMState, accelerated_em, elbo, em
from boxloop.loop import MonotonicityError, run
from boxloop.models import VariationalMixture
from boxloop.numeric import generator
from contract.distribution_checks import near, with_missing
from contract.scores import assert_scores, mean_scores, moment_scores
from models.variational_cases import (
    GAUSSIAN,
    KINDS,
    WEIGHTS,
    begun,
    bound,
    climbed,
    evidence,
    joints,
    prior_of,
    rows_of,
    shares,
)

every_kind = pytest.mark.parametrize("kind", KINDS)
every_weight = pytest.mark.parametrize("weights", WEIGHTS)
EXACT = {"rtol": 1e-10, "atol": 1e-10}


def gaps(kind: str, rows: Tensor) -> Tensor:
    return with_missing(rows, rate=0.25)


@every_kind
@every_weight
@pytest.mark.parametrize("missing", [False, True])
def test_every_sweep_climbs(kind: str, weights: str, missing: bool) -> None:
    rows = rows_of(kind, 60, d=3)
    rows = gaps(kind, rows) if missing else rows
    for seed in range(2):
        model = begun(prior_of(kind, 4, weights, d=3), rows, seed)
        for step in (em, accelerated_em):
            outcome = run(step(ArraySource(rows), elbo), EMState(model), max_iter=40, monotone=True)
            assert outcome.trace[-1] > outcome.trace[0] + 1e-3


@every_kind
def test_one_component_is_exact(kind: str) -> None:
    """With one component nothing is lost to the mean field: the bound is the evidence."""
    rows = rows_of(kind, 9, d=3)
    prior = prior_of(kind, 1, d=3)
    model = VariationalMixture.from_responsibilities(prior, rows, torch.ones(1, 9).double())
    assert bound(model, rows) == pytest.approx(evidence(kind, prior, rows), abs=1e-8)


@every_kind
@every_weight
def test_the_bound_is_below_the_evidence(kind: str, weights: str) -> None:
    """And, from the posterior given any assignment of the rows, above the joint density of rows and assignment."""
    n = 7
    rows = rows_of(kind, n, seed=3)
    prior = prior_of(kind, 2, weights)
    every = joints(kind, prior, rows)
    exact = float(every.logsumexp(0))
    assigned = torch.cartesian_prod(*[torch.arange(2)] * n)
    for place in range(0, 2**n, 5):
        share = torch.nn.functional.one_hot(assigned[place], 2).mT.double()
        begin = bound(VariationalMixture.from_responsibilities(prior, rows, share), rows)
        assert float(every[place]) < begin < exact
    top = torch.nn.functional.one_hot(assigned[int(every.argmax())], 2).mT.double()
    best = bound(climbed(VariationalMixture.from_responsibilities(prior, rows, top), rows), rows)
    assert float(every.max()) < best < exact
    assert max(bound(climbed(begun(prior, rows, seed), rows), rows) for seed in range(4)) < exact


@every_kind
def test_the_bound_with_missing_values_is_below_the_evidence(kind: str) -> None:
    rows = rows_of(kind, 5, seed=3, d=3)
    rows[-1, 1] = torch.nan
    for k in (1, 2):
        prior = prior_of(kind, k, d=3)
        every = joints(kind, prior, rows)
        exact = float(every.logsumexp(0))
        assigned = torch.cartesian_prod(*[torch.arange(k)] * 5).reshape(-1, 5)[int(every.argmax())]
        top = torch.nn.functional.one_hot(assigned, k).mT.double()
        found = bound(climbed(VariationalMixture.from_responsibilities(prior, rows, top), rows), rows)
        assert found < exact
        starts = range(4 if k > 1 else 0)  # one component has one start alone
        assert all(bound(climbed(begun(prior, rows, seed), rows), rows) < exact for seed in starts)


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_missing_values_are_integrated_out(kind: str) -> None:
    r"""log sum_k int exp(E[log p(x_o, x_m, k)]) dx_m, by quadrature."""
    rows = rows_of(kind, 30)
    model = begun(prior_of(kind, 3), rows)
    row = torch.tensor([0.4, torch.nan], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)

    def density(value: float) -> float:
        return float(model.plug_in_mixture.log_prob(torch.tensor([[0.4, value]], dtype=torch.float64)).exp())

    exact, _ = integrate.quad(density, -30, 30, epsabs=1e-12)
    expected = model.expect(row[None], one)
    assert float(expected.log_likelihood) == pytest.approx(np.log(exact), abs=1e-8)


@every_kind
@every_weight
def test_solve_is_the_peak_of_the_bound(kind: str, weights: str) -> None:
    rows = rows_of(kind, 40)
    model = begun(prior_of(kind, 3, weights), rows)
    statistics = model.expect(rows, torch.ones(40).double()).statistics
    best = model.solve(statistics)
    near(model.solve(statistics * 7.0), best)
    top, stream = float(best.expected_log_likelihood(statistics)), generator(0)
    for size in (1e-3, 1e-2, 1e-1):

        def moved(leaf: Tensor, size: float = size) -> Tensor:
            noise = torch.rand(leaf.shape, generator=stream, dtype=torch.float64) - 0.5
            square = leaf.dim() >= 2 and kind in ("full", "tied") and leaf.shape[-1] == leaf.shape[-2]
            noise = 0.5 * (noise + noise.mT) if square else noise
            return leaf * (1.0 + size * noise)

        for _ in range(10):
            other = replace(best, parameter_posterior=best.parameter_posterior.map(moved))
            assert float(other.expected_log_likelihood(statistics)) < top
    # With its own statistics, complete and the entropy of responsibilities make up the bound.
    assert float(best.expected_log_likelihood(statistics)) > float(model.expected_log_likelihood(statistics))


@every_kind
def test_chunks_weights_and_repetition(kind: str) -> None:
    rows = rows_of(kind, 30, d=3)
    model = begun(prior_of(kind, 3, d=3), rows)
    times = torch.arange(30) % 4
    for table in (rows, gaps(kind, rows)):
        weight = torch.linspace(0.2, 2.0, 30, dtype=torch.float64)
        whole = model.expect(table, weight)
        parts = [model.expect(r, w) for r, w in zip(table.split(11), weight.split(11), strict=True)]
        near(parts[0] + parts[1] + parts[2], whole)
        repeated = table.repeat_interleave(times, 0)
        near(model.expect(table, times.double()), model.expect(repeated, torch.ones(len(repeated)).double()))


@pytest.mark.parametrize("kind", GAUSSIAN)
@every_weight
def test_other_units(kind: str, weights: str) -> None:
    """A change of units of rows and prior changes the bound by its Jacobian, after any number of sweeps."""
    origin = torch.tensor([5.0, -3.0], dtype=torch.float64)
    scale = torch.tensor([3.0, 3.0] if kind == "spherical" else [0.01, 7.0], dtype=torch.float64)
    rows, prior = rows_of(kind, 30), prior_of(kind, 3, weights)
    here, there = begun(prior, rows), begun(prior.affine(origin, scale), origin + scale * rows)
    for _ in range(5):
        gap = bound(here, rows) - bound(there, origin + scale * rows)
        assert gap == pytest.approx(30 * float(scale.log().sum()), rel=1e-8)
        near(here.affine(origin, scale), there, rtol=1e-8)
        near(
            there.log_prob(origin + scale * rows),
            here.log_prob(rows) - scale.log().sum(),
            rtol=1e-8,
            atol=1e-8,
        )
        here, there = climbed(here, rows, 1), climbed(there, origin + scale * rows, 1)


@every_kind
@every_weight
def test_predictive(kind: str, weights: str) -> None:
    """log_prob is the mean over q of the mixture's density; sample draws from it; moments are its own."""
    rows = rows_of(kind, 40)
    model = climbed(begun(prior_of(kind, 3, weights), rows), rows, 10)
    drawn = torch.stack([m.log_prob(rows[:5]) for m in model.draw(1000, generator(0))]).exp()
    assert_scores(mean_scores(drawn, model.log_prob(rows[:5]).exp()))
    sampled, z = model.sample(20_000, generator(1))
    mean, covariance = model.moments()
    assert_scores(mean_scores(sampled, mean))
    if kind == "words":  # fourth moments of t distributions with few degrees of freedom are not finite
        assert_scores(moment_scores(sampled, mean, covariance.dense()[0]))
    share = torch.nn.functional.one_hot(z.long(), 3).double()
    assert_scores(mean_scores(share[:, :2], model.parameter_posterior.weights.mean()[:2]))
    joint = model.prior().log_prob(torch.arange(3)).mT + model.emission(torch.arange(3)).log_prob(rows)
    near(joint.logsumexp(0), model.log_prob(rows))
    near(model.posterior(rows).sum(1), torch.ones(40, dtype=torch.float64))
    named = model.named_parameters()
    near(named["weights"].sum(), torch.ones((), dtype=torch.float64))
    assert all(bool(torch.isfinite(value).all()) for value in named.values())


def test_the_predictive_of_one_component_after_the_rows() -> None:
    """The next row's density is a ratio of evidences."""
    rows = rows_of("full", 8)
    prior = prior_of("full", 1)
    model = VariationalMixture.from_responsibilities(prior, rows[:-1], torch.ones(1, 7).double())
    ratio = evidence("full", prior, rows) - evidence("full", prior, rows[:-1])
    assert float(model.log_prob(rows[-1:])) == pytest.approx(ratio, abs=1e-9)


def test_it_can_be_criticised() -> None:
    rows = rows_of("full", 400)
    prior = prior_of("full", 3)
    model = climbed(begun(prior, rows[:300]), rows[:300], 50)
    result = mega(model, rows[300:].numpy(), draws=99)
    assert 0.0 < result.p_value <= 1.0


def test_extrapolations_that_are_no_distributions_are_reported() -> None:
    rows = rows_of("full", 30)
    model = begun(prior_of("full", 3), rows)
    mean = model.expect(rows, torch.ones(30).double()).statistics * (1 / 30)
    assert model.solve(mean).is_finite()
    features = mean.features.clone()
    features[0] -= 2.0 * features[0]
    assert not model.solve(replace(mean, features=features)).is_finite()
    features = mean.features.clone()
    features[0, 3:] *= -1.0
    assert not model.solve(replace(mean, features=features)).is_finite()


@every_kind
def test_sizes_fall_under_sticks(kind: str) -> None:
    rows = rows_of(kind, 40)
    prior = prior_of(kind, 4, "sticks")
    share = shares(4, 40) * torch.tensor([0.1, 1.0, 0.5, 3.0]).double()[:, None]
    model = VariationalMixture.from_responsibilities(prior, rows, share / share.sum(0))
    ordered, order, _ = model.order_components()
    assert order.tolist() == [3, 1, 2, 0]
    assert bool((ordered.component_counts.diff() < 0).all())
    assert_close(ordered.component_counts, model.component_counts[order], **EXACT)
    # The gain is that of the bound at the same responsibilities, in the other order.
    statistics = model.expect(rows, torch.ones(40).double()).statistics
    was, now = model.solve(statistics), model.solve(replace(statistics, features=statistics.features[order]))
    gained = float(
        now.expected_log_likelihood(replace(statistics, features=statistics.features[order]))
    ) - float(was.expected_log_likelihood(statistics))
    assert gained == pytest.approx(was.order_components()[2], abs=1e-8)
    assert ordered.order_components()[2] == 0.0
    plain = VariationalMixture.from_responsibilities(prior_of(kind, 4), rows, shares(4, 40))
    assert plain.order_components()[0] is plain


def test_a_larger_total_weighs_more() -> None:
    rows = rows_of("full", 30)
    model = begun(prior_of("full", 2), rows)
    statistics = model.expect(rows, torch.ones(30).double()).statistics
    twice = model.with_total(60.0).solve(statistics)
    near(twice.parameter_posterior, model.parameter_prior.update(statistics * 2.0))
    near(twice.component_counts, 2.0 * model.solve(statistics).component_counts)


@dataclass(frozen=True)
class NoMeanPart(NormalInverseWishart):
    """Forgets that the mean is not known."""

    def plug_in(self) -> tuple[FullGaussian, Tensor]:
        family, offset = super().plug_in()
        return family, offset + 0.5 * self.mean.shape[-1] / self.strength


@dataclass(frozen=True)
class OneRowTooMany(NormalInverseWishart):
    """Counts a row twice in the degrees of freedom."""

    def posterior(self, sums: Tensor) -> Any:
        distribution = super().posterior(sums)
        return replace(distribution, dof=distribution.dof + 1.0)


@dataclass(frozen=True)
class NoScalePart(NormalInverseWishart):
    """Takes the plug-in covariance for the expected one."""

    def plug_in(self) -> tuple[FullGaussian, Tensor]:
        family, _ = super().plug_in()
        return family, -0.5 * self.mean.shape[-1] / self.strength


@dataclass(frozen=True)
class HalfDivergence(NormalInverseWishart):
    """Loses half of the divergence."""

    def divergence(self, prior: Any) -> Tensor:
        return 0.5 * super().divergence(prior)


@dataclass(frozen=True)
class MeanForLog(Dirichlet):
    """Takes the log of the expected weight for its expected log."""

    def expected_log(self) -> Tensor:
        return self.mean().log()


@pytest.mark.parametrize("wrong", [NoMeanPart, OneRowTooMany, NoScalePart, HalfDivergence])
def test_planted_bugs_in_components_are_found(wrong: type) -> None:
    """Each fails the exact evidence of one component."""
    rows = rows_of("full", 9)
    prior = prior_of("full", 1)
    planted = MixturePrior(prior.weights, wrong(*vars(prior.components).values()))
    model = VariationalMixture.from_responsibilities(planted, rows, torch.ones(1, 9).double())
    assert abs(bound(model, rows) - evidence("full", prior, rows)) > 1e-3


def test_a_planted_bug_in_weights_is_found() -> None:
    """The bound falls on the way, or ends above the evidence."""
    rows = rows_of("full", 7, seed=3)
    prior = prior_of("full", 2)
    planted = MixturePrior(MeanForLog(prior.weights.concentration), prior.components)
    exact = evidence("full", prior, rows)
    caught = False
    for seed in range(6):
        try:
            outcome = run(
                em(ArraySource(rows), elbo),
                EMState(begun(planted, rows, seed)),
                max_iter=200,
                monotone=True,
            )
            caught |= outcome.trace[-1] * len(rows) > exact
        except MonotonicityError:
            caught = True
    assert caught
