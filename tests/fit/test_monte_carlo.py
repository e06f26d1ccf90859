"""Monte Carlo EM: against exact EM, against quadrature, with errors that mean what they say, and planted bugs.

Statistical tests compare with an error that comes from the chains themselves or from seeds. Seeds are fixed; were they
drawn anew, the whole file would fail by chance in fewer than 1 in 1000 runs (about 60 comparisons at 4.5 standard
errors, or at the 1e-5 quantiles of their distribution).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from boxloop.average import Power, Running
from boxloop.chain import Chains, Kernel
from boxloop.fit import (
    AscentPlan,
    BurnIn,
    ChainSampler,
    MonteCarloPlan,
    MonteCarloState,
    RefinementState,
    ascent_em,
    louis_errors,
    monte_carlo_em,
    newton_refine,
    quadratic_draws,
    warm_up,
)
from boxloop.loop import run
from boxloop.models import (
    BernoulliResponse,
    EffectSums,
    PoissonResponse,
    RandomEffects,
    find_modes,
    flatten,
    group_log_likelihood,
    jacobian,
    unflatten,
)
from boxloop.numeric import generator, normal
from boxloop.persist import CheckpointWriter, read_checkpoint
from models.random_effects_cases import RESPONSES, make_model, make_table
from papers.mcem import LabelSums, TwoMeans, label_draws, random_walks, reference

every_kind = pytest.mark.parametrize("kind", RESPONSES)


def begin(rows, model, copies=8, seed=0):
    return warm_up(MonteCarloState.start(model, rows, copies, generator(seed)), rows, random_walks)


def far(kind, q=1):
    model = make_model(kind, q)
    return replace(model, coefficients=torch.zeros(2).double(), factor=1.5 * torch.eye(q).double())


@pytest.fixture(scope="module")
def problems():
    found = {}
    for kind in RESPONSES:
        rows = make_table(kind, groups=50, each=6, seed=3).rows()
        found[kind] = rows, reference(make_model(kind), rows)
    return found


def two_means(n=60):
    stream = generator(2)
    rows = torch.cat([normal((n // 3,), stream) - 1.0, normal((n - n // 3,), stream) + 1.0])
    return rows, TwoMeans(torch.tensor([0.5, 0.5]).double(), torch.tensor([-0.5, 0.8]).double())


def exact_round(model, rows):
    """EM for the mixture, in closed form."""
    joint = model.weight.log()[:, None] - 0.5 * (rows - model.mean[:, None]).square()
    share = joint.softmax(0)
    return model.solve(LabelSums(share.sum(1), share @ rows)), share


def test_one_iteration_is_exact_em_within_its_error():
    rows, model = two_means()
    _, share = exact_round(model, rows)
    m = 4000
    walk = ChainSampler(MonteCarloState.start(model, rows, 1, generator(3)), rows, label_draws)
    walk.average_draws(m)
    error = (share.prod(0).sum() / m).sqrt()  # draws of a label are independent
    assert abs(float((walk.statistics.count[1] - share[1].sum()) / error)) < 4.5
    error = ((share.prod(0) * rows.square()).sum() / m).sqrt()
    assert abs(float((walk.statistics.total[1] - share[1] @ rows) / error)) < 4.5


def test_the_path_is_that_of_exact_em_within_its_error():
    rows, start = two_means()
    exact = start
    for _ in range(15):
        exact, _ = exact_round(exact, rows)
    plan = MonteCarloPlan(draws=lambda k: 2000, n_chains=100)
    ends = []
    for seed in range(12):
        state = MonteCarloState.start(start, rows, 100, generator(seed))
        model = run(monte_carlo_em(rows, label_draws, plan), state, max_iter=15).state.model
        ends.append(flatten(model.free_parameters()) - flatten(exact.free_parameters()))
    apart = torch.stack(ends)
    t = apart.mean(0) / (apart.std(0) / len(apart) ** 0.5)
    assert float(t.abs().max()) < stats.t.isf(1e-5, len(apart) - 1)


def test_a_rate_of_one_replaces_and_a_falling_rate_averages():
    rows, start = two_means()
    state = MonteCarloState.start(start, rows, 1, generator(0))
    seen = []

    def watch(progress):
        if not progress.stopped:
            seen.append(progress.state.average.value.count)

    plan = MonteCarloPlan(draws=lambda k: 1)
    run(monte_carlo_em(rows, label_draws, plan), state, max_iter=5, observers=[watch])
    assert all(bool((count == count.round()).all()) for count in seen)  # one draw: whole labels
    seen.clear()
    plan = replace(plan, rate=BurnIn(2, Power(1.0)))
    run(monte_carlo_em(rows, label_draws, plan), state, max_iter=5, observers=[watch])
    whole = [bool((count == count.round()).all()) for count in seen]
    assert whole[:3] == [True, True, True]  # a burn-in of two, and a first step of size 1
    assert not all(whole)


def test_a_burn_in_forgets_and_squares_grow():
    assert [BurnIn(2, Power(1.0))(t) for t in range(1, 6)] == [1.0, 1.0, 1.0, 0.5, 1.0 / 3.0]
    assert [quadratic_draws(k) for k in (1, 2, 3)] == [1, 4, 9]
    assert MonteCarloPlan(n_chains=4).steps(3) == 3


@every_kind
def test_stochastic_approximation_finds_the_maximum(kind, problems):
    rows, truth = problems[kind]
    plan = MonteCarloPlan(lambda k: 16, BurnIn(30, Power(0.7)), n_chains=8, smooth_after=60)
    outcome = run(monte_carlo_em(rows, random_walks, plan), begin(rows, far(kind)), max_iter=150)
    state = replace(outcome.state, model=outcome.state.best)
    assert truth.distance(state.model) < 0.5  # half a standard error, before the last stage
    check_end(state, rows, truth)


@every_kind
def test_ascent_finds_the_maximum(kind, problems):
    rows, truth = problems[kind]
    seen = []

    def watch(progress):
        if not progress.stopped:
            level = float(group_log_likelihood(progress.state.model, rows).sum())
            seen.append((progress.state.gain, progress.state.error, level))

    step = ascent_em(rows, random_walks, AscentPlan(tol=0.02))
    outcome = run(step, begin(rows, far(kind)), max_iter=80, observers=[watch])
    assert outcome.converged
    gain, error, level = np.asarray(seen).T
    bar = stats.norm.isf(0.1)
    assert (gain[:-1] - bar * error[:-1] > 0.0).all()  # each step but the last was shown to go up
    assert gain[-1] + bar * error[-1] < 0.02
    falls = (np.diff(level)[:-1] < 0.0).sum()
    assert stats.binom.sf(falls - 1, len(level) - 2, 0.1) > 1e-4
    check_end(outcome.state, rows, truth)


def check_end(state, rows, truth):
    last = run(newton_refine(rows, random_walks, precision=0.1), RefinementState(state), max_iter=6)
    found = last.state.errors
    assert last.converged
    assert found.error_ratio < 0.1
    apart = flatten(found.model.free_parameters()) - truth.point
    assert float((apart / found.monte_carlo_covariance.diagonal().sqrt()).abs().max()) < 4.5


def test_two_effects_a_group():
    rows = make_table("poisson", 2, groups=60, each=8, seed=4).rows()
    truth = reference(make_model("poisson", 2), rows)
    plan = MonteCarloPlan(lambda k: 16, BurnIn(40, Power(0.7)), n_chains=8, smooth_after=80)
    outcome = run(monte_carlo_em(rows, random_walks, plan), begin(rows, far("poisson", 2)), max_iter=200)
    check_end(replace(outcome.state, model=outcome.state.best), rows, truth)


def information_by_quadrature(model, rows):
    free, centre = model.free_parameters(), find_modes(model, rows)

    def slope(vector):
        level = group_log_likelihood(
            model.with_free_parameters(unflatten(vector, free)), rows, 20, centre
        ).sum()
        return torch.autograd.grad(level, vector, create_graph=True)[0]

    return -jacobian(slope, flatten(free))


def louis(rows, model, seeds=10, draws=800):
    """T statistics of the information over seeds, at fixed parameters, against quadrature."""
    exact = information_by_quadrature(model, rows)
    found = []
    for seed in range(seeds):
        state = begin(rows, model, seed=seed)
        found.append(torch.linalg.pinv(louis_errors(state, rows, random_walks, draws).covariance))
    found = torch.stack(found)
    return (found.mean(0) - exact) / (found.std(0) / seeds**0.5)


@every_kind
def test_louis_information_is_that_of_quadrature(kind, problems):
    rows, truth = problems[kind]
    assert float(louis(rows, truth.model).abs().max()) < stats.t.isf(1e-5, 9)


def test_a_volume_left_out_is_found(problems, monkeypatch):
    plain = RandomEffects.transport_latent
    monkeypatch.setattr(
        RandomEffects, "transport_latent", lambda *args: (plain(*args)[0], torch.zeros(len(args[2])).double())
    )
    rows, truth = problems["bernoulli"]
    assert float(louis(rows, truth.model).abs().max()) > stats.t.isf(1e-5, 9)


def test_standard_errors_are_those_of_quadrature(problems):
    rows, truth = problems["poisson"]
    found = louis_errors(begin(rows, truth.model), rows, random_walks, 4000)
    np.testing.assert_allclose(
        found.covariance.diagonal().sqrt(), truth.errors, rtol=0.03
    )  # 5 times its spread
    exact = torch.autograd.functional.jacobian(
        lambda v: truth.model.with_free_parameters({"coefficients": v[:2], "covariance": v[2:]}).covariance[
            0, 0
        ],
        truth.point,
    )
    assert float(exact[2]) == pytest.approx(1.0)
    np.testing.assert_allclose(found.errors["covariance"][0, 0], found.covariance[2, 2].sqrt(), rtol=1e-9)


def test_the_monte_carlo_error_means_what_it_says(problems):
    rows, truth = problems["bernoulli"]
    total, p, seeds = 0.0, len(truth.point), 12
    for seed in range(seeds):
        found = louis_errors(begin(rows, truth.model, seed=seed), rows, random_walks, 800)
        apart = flatten(found.model.free_parameters()) - truth.point
        total += float(apart @ torch.linalg.solve(found.monte_carlo_covariance, apart))
    assert stats.chi2.isf(1 - 1e-4, seeds * p) < total < stats.chi2.isf(1e-4, seeds * p)


def test_posterior_means_of_effects_are_those_of_quadrature(problems):
    rows, truth = problems["poisson"]
    found = louis_errors(begin(rows, truth.model), rows, random_walks, 4000)
    grid = torch.linspace(-5.0, 5.0, 2001, dtype=torch.float64)
    z = grid.repeat(rows.n_groups)[:, None]
    share = truth.model.log_joint(rows, z).reshape(rows.n_groups, -1).softmax(1)
    mean = share @ grid
    variance = share @ grid.square() - mean.square()
    # Neighbouring draws of a walk are alike: about 12 of them are worth one.
    error = (variance * 12 / 4000).sqrt()
    assert float(((found.latent_mean[:, 0] - mean) / error).abs().max()) < 4.5
    np.testing.assert_allclose(found.latent_covariance[:, 0, 0].sum(), variance.sum(), rtol=0.05)


class Stale:
    """A planted bug: densities stored with positions are not evaluated again when parameters change."""

    def __init__(self):
        self.density = None

    def __call__(self, density, scale, shape):
        kernel = random_walks(density, scale, shape)

        def init(position):
            return kernel.init(position) if self.density is None else Chains(position, self.density)

        def step(chains, item):
            after, info = kernel.step(chains, item)
            self.density = after.log_density
            return after, info

        return Kernel(init, kernel.noise, step)


def half_a_prior(density, scale, shape):
    """A planted bug: a density with half of the logarithm of the distribution of the effects."""

    def wrong(z):
        return density(z) + 0.25 * torch.linalg.solve_triangular(shape, z.mT, upper=False).square().sum(0)

    return random_walks(wrong, scale, shape)


def moved_chains(kernels, rows, before, after):
    """Score of the mean effect under ``after``, for chains that come from ``before``: (draws - quadrature) / error."""
    state = begin(rows, before, seed=1)
    walk = ChainSampler(state, rows, kernels)
    walk.average_draws(50)
    walk = ChainSampler(replace(walk.next_state(Running(walk.statistics, 1)), model=after), rows, kernels)
    walk.discard_steps(40)
    visited = torch.cat([path.position for path in walk.average_draws(100)])[:, :, 0]
    copy = visited.reshape(100, rows.n_groups, -1).mean(0)
    grid = torch.linspace(-8.0, 8.0, 2001, dtype=torch.float64)
    share = after.log_joint(rows, grid.repeat(rows.n_groups)[:, None]).reshape(rows.n_groups, -1).softmax(1)
    error = (copy.var(1) / copy.shape[1]).sum().sqrt()
    return float((copy.mean(1) - share @ grid).sum() / error)


def test_densities_are_evaluated_again_when_parameters_change(problems):
    rows, truth = problems["bernoulli"]
    other = replace(truth.model, coefficients=truth.model.coefficients + torch.tensor([3.0, 0.0]))
    assert abs(moved_chains(random_walks, rows, truth.model, other)) < 4.5
    assert abs(moved_chains(Stale(), rows, truth.model, other)) > 6.0  # planted


def distance(kernels, rows, truth, plan, iterations, start):
    state = begin(rows, start, copies=plan.n_chains)
    outcome = run(monte_carlo_em(rows, kernels, plan), state, max_iter=iterations)
    return truth.distance(outcome.state.best)


def test_a_wrong_density_is_far_from_the_maximum(problems):
    rows, truth = problems["bernoulli"]
    plan = MonteCarloPlan(lambda k: 8, BurnIn(50, Power(0.7)), n_chains=8, smooth_after=100)
    assert distance(random_walks, rows, truth, plan, 300, far("bernoulli")) < 0.25
    assert distance(half_a_prior, rows, truth, plan, 300, far("bernoulli")) > 0.5


def test_without_a_burn_in_the_start_is_not_forgotten(problems):
    """Where EM is slow: groups that say much about themselves, and an M step that is not expanded."""
    rows, truth = problems["poisson"]
    plan = MonteCarloPlan(lambda k: 8, BurnIn(200, Power(1.0)), n_chains=8)
    start = replace(far("poisson"), shared=())
    kept = distance(random_walks, rows, truth, plan, 400, start)
    lost = distance(random_walks, rows, truth, replace(plan, rate=Power(1.0)), 400, start)
    assert lost > 2.0 * kept


def test_scales_reach_the_acceptance_that_is_best(problems):
    rows, truth = problems["poisson"]
    walk = ChainSampler(begin(rows, truth.model), rows, random_walks)
    walk.average_draws(400)
    assert 0.34 < float((walk.acceptance_sum / walk.steps).mean()) < 0.54


def test_a_kernel_that_never_refuses_keeps_its_scale():
    rows, model = two_means()
    state = MonteCarloState.start(model, rows, 2, generator(0))
    after = run(monte_carlo_em(rows, label_draws, MonteCarloPlan(n_chains=2)), state, max_iter=3).state
    assert torch.equal(after.log_scale, state.log_scale)


STATES = {
    kind.__name__: kind
    for kind in (MonteCarloState, Running, EffectSums, RandomEffects, BernoulliResponse, PoissonResponse)
}


@pytest.mark.parametrize("engine", ["fixed", "ascent"])
def test_resumed_bit_for_bit(engine, problems, tmp_path: Path):
    rows, _ = problems["poisson"]
    plan = MonteCarloPlan(lambda k: 4, BurnIn(2), n_chains=2, smooth_after=3)
    step = (
        monte_carlo_em(rows, random_walks, plan)
        if engine == "fixed"
        else ascent_em(rows, random_walks, AscentPlan(tol=1e-9, draws=4, max_draws=40))
    )
    start = begin(rows, far("poisson"), copies=2)
    straight = run(step, start, max_iter=8)
    writer = CheckpointWriter(tmp_path / "c", {"fit": 1}, every=1)
    run(step, start, max_iter=4, observers=[writer])
    resumed = run(step, start, max_iter=8, resume=read_checkpoint(tmp_path / "c", STATES, {"fit": 1}))
    assert resumed.trace == straight.trace
    for (name, one), (_, other) in zip(resumed.state.leaves(), straight.state.leaves(), strict=True):
        assert torch.equal(one, other), name


def test_ctrl_c_keeps_the_last_iteration(problems):
    rows, _ = problems["poisson"]

    def watch(progress):
        if progress.iteration == 3 and not progress.stopped:
            raise KeyboardInterrupt

    step = monte_carlo_em(rows, random_walks, MonteCarloPlan(n_chains=2))
    outcome = run(step, begin(rows, far("poisson"), copies=2), max_iter=9, observers=[watch])
    assert outcome.interrupted
    assert outcome.n_iter == outcome.state.iteration == 3


def test_a_step_in_doubt_is_noted(problems):
    rows, truth = problems["bernoulli"]
    step = ascent_em(rows, random_walks, AscentPlan(tol=1e-9, draws=4, max_draws=16))
    outcome = run(step, begin(rows, truth.model, copies=2), max_iter=3)
    assert not outcome.converged
    assert any("within its Monte Carlo error with 16 draws" in event for event in outcome.events)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"confidence": 0.4}, "confidence must lie between"),
        ({"tol": 0.0}, "must be positive"),
        ({"draws": 0}, "draws must lie between"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        AscentPlan(**change)


def test_one_chain_has_no_error(problems):
    rows, truth = problems["bernoulli"]
    state = MonteCarloState.start(truth.model, rows, 1, generator(0))
    with pytest.raises(ValueError, match="at least 2 chains"):
        louis_errors(state, rows, random_walks)
    with pytest.raises(ValueError, match="at least 2 chains"):
        run(ascent_em(rows, random_walks, AscentPlan()), state, max_iter=1)
    with pytest.raises(ValueError, match=r"plan\.n_chains is 4, but the state has 1 chains per unit"):
        run(monte_carlo_em(rows, random_walks, MonteCarloPlan(n_chains=4)), state, max_iter=1)
