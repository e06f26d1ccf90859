"""Factor analysis as a distribution over its parameters: identities, closed forms, the evidence, planted bugs.

Statistical tests are z-scores; those of ``contract.scores`` carry their own rate, the others are beyond 4.5: 7e-6 each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Self

import pytest
import torch
from scipy.stats import multivariate_t, t as student
from torch import Tensor
from torch.testing import assert_close

from boxloop.data import ArraySource
from boxloop.distributions import DiagonalGaussian, InverseGamma
from boxloop.fit import EMState, accelerated_em, elbo
from boxloop.loop import run
from boxloop.models import (
    FactorEStep,
    FactorModel,
    LinearStatistics,
    RelevancePrior,
    VariationalFactor,
    best_transformation,
    factor_standard_errors,
)
from boxloop.numeric import generator, normal
from boxloop.sample import MALA, Target, annealed_importance, choose_temperatures
from contract import model_checks
from contract.distribution_checks import near, slope
from contract.models import ModelCase
from models.variational_factor_cases import (
    Case,
    bound,
    check_bound,
    check_monotone,
    check_regression,
    known_factors,
    make_case,
    second_bound,
    sweeps,
)

GONE = (0.0, 0.3)
both = pytest.mark.parametrize("gone", GONE)


@both
def test_the_bound_is_that_of_a_second_derivation(gone: float) -> None:
    check_bound(make_case(gone))


@both
def test_known_factors_leave_a_regression(gone: float) -> None:
    check_regression(make_case(gone))


@both
@pytest.mark.parametrize("expand", [True, False])
def test_no_sweep_lowers_the_bound(gone: float, expand: bool) -> None:
    check_monotone(make_case(gone, expand=expand))
    check_monotone(make_case(gone, d=3, k=3, n=8, expand=expand))


@both
def test_acceleration_climbs_too(gone: float) -> None:
    case = make_case(gone)
    outcome = run(
        accelerated_em(case.source, elbo), EMState(case.model), max_iter=500, tol=1e-11, monotone=True
    )
    assert outcome.converged
    _, levels = sweeps(case, 400)
    assert abs(outcome.trace[-1] * float(case.weight.sum()) - levels[-1]) < 1e-4


@pytest.mark.parametrize(
    "check",
    [
        model_checks.check_nothing_seen,
        model_checks.check_chunks,
        model_checks.check_repetition,
        model_checks.check_sample,
        model_checks.check_sample_pairs,
        model_checks.check_affine,
        model_checks.check_free,
    ],
    ids=lambda check: check.__name__,
)
@both
def test_contract(gone: float, check: Callable[[ModelCase], None]) -> None:
    case = make_case(gone, n=40)
    scale = torch.tensor([0.01, 30.0, 1.0, 0.3]).double()
    check(ModelCase(case.model, torch.nan_to_num(case.rows), case.weight, scale))


@both
def test_the_slope_of_the_bound_is_that_of_complete(gone: float) -> None:
    """Fisher's identity, of the distribution's parameters."""
    case = make_case(gone)
    statistics = case.model.expect(case.rows, case.weight).statistics
    by_q = slope(lambda model: model.expected_log_likelihood(statistics), case.model)
    free = case.model.free_parameters()
    flat = torch.cat([value.reshape(-1) for value in free.values()])
    sizes = [value.numel() for value in free.values()]
    for i in torch.arange(len(flat)).tolist()[::3]:
        step = torch.zeros_like(flat)
        step[i] = 1e-6
        ends = []
        for point in (flat + step, flat - step):
            parts = {
                name: part.reshape(value.shape)
                for part, (name, value) in zip(point.split(sizes), free.items(), strict=True)
            }
            ends.append(case.model.with_free_parameters(parts).expect(case.rows, case.weight).log_likelihood)
        assert_close((ends[0] - ends[1]) / 2e-6, by_q[i], rtol=1e-5, atol=1e-5)


@both
def test_a_change_of_units_moves_the_bound_by_its_jacobian(gone: float) -> None:
    case = make_case(gone)
    origin, scale = torch.arange(4.0).double(), torch.tensor([0.1, 5.0, 1.0, 30.0]).double()
    moved = Case(case.model.affine(origin, scale), origin + scale * case.rows, case.weight)
    volume = case.weight @ (~torch.isnan(case.rows)).double() @ scale.log()
    assert_close(bound(moved.model, moved), bound(case.model, case) - float(volume), rtol=1e-10, atol=1e-9)
    near(sweeps(moved, 5)[0].affine(-origin / scale, 1.0 / scale), sweeps(case, 5)[0], rtol=1e-8)


@both
def test_coefficients_without_width_give_the_gaussian_posterior(gone: float) -> None:
    case = make_case(gone)
    noise = torch.tensor([0.5, 1.0, 2.0, 0.3]).double()
    model = FactorModel(case.model.mean, case.model.loadings, noise)
    sharp = FactorEStep(case.model.coefficients, torch.zeros(1, 3, 3).double(), 1.0 / noise, -noise.log())
    assert_close(
        float(sharp.expect(case.rows, case.weight).log_likelihood),
        float(model.log_prob(case.rows) @ case.weight),
        rtol=1e-10,
        atol=1e-10,
    )
    mean, covariance = sharp.posterior(case.rows)
    for i, row in enumerate(case.rows):
        seen = ~torch.isnan(row)
        loadings = model.loadings[seen]
        gain = torch.linalg.solve(loadings @ loadings.mT + torch.diag(noise[seen]), loadings).mT
        assert_close(mean[i], gain @ (row - model.mean)[seen], rtol=1e-10, atol=1e-12)
        assert_close(covariance[i], torch.eye(2).double() - gain @ loadings, rtol=1e-10, atol=1e-12)


def test_without_factors_the_bound_is_the_evidence() -> None:
    """Then q is the exact posterior: every column has a multivariate Student distribution."""
    case = make_case(k=0, n=12, expand=False)
    case = replace(case, weight=torch.ones(12).double())
    model = replace(case.model, total=12.0).solve(known_factors(case.rows, case.weight, 0))
    distribution, evidence = model.parameter_prior, 0.0
    for j, x in enumerate(case.rows.mT.numpy()):
        shape = (
            float(distribution.noise_rate[j])
            / distribution.noise_shape
            * (torch.eye(12).double() + 1.0 / distribution.strength).numpy()
        )
        evidence += multivariate_t(
            [float(distribution.centre[j])] * 12, shape, df=2 * distribution.noise_shape
        ).logpdf(x)
    assert_close(bound(model, replace(case, model=model)), float(evidence), rtol=1e-10, atol=1e-10)


def quadrature_evidence(rows: Tensor, distribution: RelevancePrior, nodes: int = 48) -> float:
    """log p(rows) for one factor: columns in closed form given factors and relevance, those by quadrature."""
    import numpy as np

    n, d = rows.shape
    z, w = np.polynomial.hermite_e.hermegauss(nodes)
    z, log_w = torch.from_numpy(z), torch.from_numpy(w).log() - 0.5 * math.log(2 * math.pi)
    grid = torch.stack(torch.meshgrid(*[z] * n, indexing="ij"), -1).reshape(-1, n)
    log_grid = sum(part.reshape(-1) for part in torch.meshgrid(*[log_w] * n, indexing="ij"))
    log_alpha = torch.linspace(-14.0, 8.0, 400, dtype=torch.float64)
    gamma = torch.distributions.Gamma(distribution.relevance_shape, distribution.relevance_rate)
    levels = []
    for point in log_alpha:
        alpha = point.exp()
        inner = (
            torch.eye(n).double() + grid[:, :, None] * grid[:, None, :] / alpha + 1.0 / distribution.strength
        )
        factor = torch.linalg.cholesky(inner)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        away = torch.linalg.solve_triangular(
            factor, (rows - distribution.centre).expand(len(grid), n, d), upper=False
        )
        a = distribution.noise_shape
        density = torch.lgamma(torch.tensor(a + 0.5 * n)) - math.lgamma(a) - 0.5 * n * math.log(2 * math.pi)
        column = density.double() + a * distribution.noise_rate.log() - 0.5 * log_det[:, None]
        column = column - (a + 0.5 * n) * (distribution.noise_rate + 0.5 * away.square().sum(1)).log()
        whole = torch.logsumexp(column.sum(1) + log_grid, 0)
        levels.append(whole + gamma.log_prob(alpha.float()).double() + point)
    return float(torch.logsumexp(torch.stack(levels), 0)) + math.log(float(log_alpha[1] - log_alpha[0]))


def test_the_bound_is_below_the_evidence_of_two_rows() -> None:
    rows = torch.tensor([[1.0, -0.5, 0.8], [-0.7, 0.9, -1.2]]).double()
    distribution = RelevancePrior(torch.zeros(3).double(), torch.full((3,), 0.5).double(), 1.5, 0.1, 1.0, 1.0)
    weight = torch.ones(2).double()
    start = VariationalFactor.from_prior(distribution, 1, 2.0).solve(known_factors(rows, weight, 1))
    _, levels = sweeps(Case(start, rows, weight), 300)
    evidence = quadrature_evidence(rows, distribution)
    assert abs(evidence - quadrature_evidence(rows, distribution, nodes=32)) < 1e-3
    assert evidence - 2.5 < levels[-1] < evidence  # two rows say little: 2.2 nats, 0.7 of them the sign
    assert levels[-1] - levels[-2] < 1e-9


def test_the_bound_is_below_the_evidence_of_many_rows() -> None:
    """The evidence by annealed importance sampling, relevances integrated out; both signs of the factor count."""
    case = make_case(n=40, d=3, k=1)
    case = replace(case, weight=torch.ones(40).double(), model=replace(case.model, total=40.0))
    (fitted, levels), distribution = sweeps(case, 200), case.model.parameter_prior
    second, first = case.rows.mT @ case.rows, case.rows.sum(0)

    def density(theta: Tensor) -> Tensor:
        mean, loadings, log_noise = theta.split(3, dim=1)
        noise, strength = log_noise.exp(), distribution.strength
        cross = loadings[:, :, None] * loadings[:, None, :]
        factor = torch.linalg.cholesky(cross + torch.diag_embed(noise))
        away = second - mean[:, :, None] * first - first[:, None] * mean[:, None, :]
        away = away + 40.0 * mean[:, :, None] * mean[:, None, :]
        misfit = torch.cholesky_solve(away, factor).diagonal(dim1=-2, dim2=-1).sum(1)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        value = -0.5 * (misfit + 40.0 * (log_det + 3 * math.log(2 * math.pi)))
        a, b = distribution.noise_shape, distribution.noise_rate
        value = value + (a * b.log() - math.lgamma(a) - a * log_noise - b / noise).sum(1)
        apart = strength * (mean - distribution.centre).square() / noise
        value = value + 0.5 * (math.log(strength) - math.log(2 * math.pi) - log_noise - apart).sum(1)
        shape, rate = distribution.relevance_shape, distribution.relevance_rate
        size = rate + 0.5 * (loadings.square() / noise).sum(1)
        value = value + shape * math.log(rate) - math.lgamma(shape) + math.lgamma(shape + 1.5)
        return value - 0.5 * log_noise.sum(1) - 1.5 * math.log(2 * math.pi) - (shape + 1.5) * size.log()

    centre = torch.cat([case.rows.mean(0), torch.zeros(3).double(), fitted.noise.log()])[None]
    base = DiagonalGaussian(centre, torch.tensor([0.05] * 3 + [1.0] * 3 + [0.3] * 3).double()[None])

    def kernels(f: Any, scale: float) -> Any:
        return MALA(scale).kernel(Target(f))

    ladder = choose_temperatures(density, base, kernels, random_state=0, ess_share=0.98)
    found = annealed_importance(density, base, kernels, ladder, 1000, 1, steps=4)
    assert found.error < 0.2
    assert levels[-1] < found.log_partition + 4.5 * found.error
    assert (
        found.log_partition - levels[-1] < 6.0
    )  # 4.0 here: 0.7 for the sign, the rest what independence loses


@both
def test_no_other_change_of_factors_raises_the_bound_more(gone: float) -> None:
    """With the distribution of the factors carried along; relevances at their best for every change."""
    case = make_case(gone, n=25, expand=False)
    model, distribution = case.model, case.model.parameter_prior
    mean, spread = model.posterior(case.rows)
    inner = model.expect(case.rows, case.weight).statistics.latent
    turn = best_transformation(inner, model.coefficient_moments(), 4, distribution)
    assert_close(turn.forward @ turn.back, torch.eye(3).double(), rtol=1e-10, atol=1e-10)

    def height(forward: Tensor) -> float:
        back = torch.linalg.inv(forward)
        turned = replace(
            model,
            coefficients=model.coefficients @ back,
            coefficient_covariance=back.mT @ model.coefficient_covariance @ back,
        )
        rate = distribution.relevance_rate + 0.5 * turned.coefficient_moments().diagonal()[:-1]
        turned = replace(turned, relevance_rate=rate)
        a = forward[:-1, :-1]
        moved = (mean @ a.mT + forward[:-1, -1], a @ spread @ a.mT)
        return float(second_bound(replace(case, model=turned), moved))

    best = height(turn.forward)
    assert best > height(torch.eye(3).double()) + 1e-3
    stream = generator(9)
    for size in (1e-3, 0.03, 0.3):
        for _ in range(10):
            step = torch.eye(3).double()
            step[:-1] += size * normal((2, 3), stream)
            assert height(step @ turn.forward) <= best + 1e-9


@pytest.mark.parametrize(("n", "error"), [(12, 0.02), (60, 0.004), (300, 0.001)])
@both
def test_predictive_density_is_that_of_students_distributions(n: int, error: float, gone: float) -> None:
    """One factor: the integral over it by 4000 points, the columns independent given it. Rows far out err more."""
    import numpy as np

    case = make_case(gone, k=1, n=n)
    model, rows = sweeps(case, 20)[0], case.rows[:12].clone()
    rows[0, 0] += 6.0
    at = np.linspace(-12.0, 12.0, 4001)
    centre, scale = model.predict_given_factors(torch.from_numpy(at)[:, None])
    each = student(2 * model.shape.numpy(), centre.numpy()[:, None], scale.sqrt().numpy()[:, None])
    seen = np.nan_to_num(each.logpdf(rows.numpy())).sum(-1)
    log_weight = np.log(at[1] - at[0]) - 0.5 * at**2 - 0.5 * np.log(2 * np.pi)
    exact = torch.logsumexp(torch.from_numpy(seen + log_weight[:, None]), 0)
    away = (model.log_prob(rows) - exact).abs()
    assert float(away[1:].max()) < error
    assert float(away[0]) < 0.1


def test_factors_out_of_use_are_noise_to_the_predictive_density() -> None:
    """Moments are kept: beside the density of all the factors, by draws of parameters and factors."""
    case = make_case(n=60, k=2)
    model = replace(case.model, total=float(case.weight.sum())).without_factor(1)
    assert model.is_used.tolist() == [True, False]
    z = normal((40_000, 2), generator(1))
    centre, scale = model.predict_given_factors(z)
    row = case.rows[:1]
    each = torch.distributions.StudentT(2.0 * model.shape, centre, scale.sqrt()).log_prob(row).sum(1).exp()
    z_score = (model.log_prob(row).exp() - each.mean()) / (each.std() / 200.0)
    assert abs(float(z_score)) < 4.5


def turned_information(
    loadings: Tensor, noise: Tensor, part: Tensor | None = None, prior: Tensor | float = 0.0
) -> Tensor:
    """Inverse of the dense expected information on loadings and log-noise, F' Psi^-1 F kept diagonal.

    Args:
        loadings: (d, k).
        noise: (d,).
        part: chance that each column is present, whatever the others; one when omitted.
        prior: what a prior adds to the information on log-noise.
    """
    d, k = loadings.shape

    def covariance(point: Tensor) -> Tensor:
        f = point[: d * k].reshape(d, k)
        return f @ f.mT + torch.diag(point[d * k :].exp())

    def constraint(point: Tensor) -> Tensor:
        f = point[: d * k].reshape(d, k)
        inner = f.mT @ (f / point[d * k :].exp()[:, None])
        return inner[*torch.triu_indices(k, k, offset=1)]

    point = torch.cat([loadings.reshape(-1), noise.log()])
    slope = torch.autograd.functional.jacobian(covariance, point).permute(2, 0, 1)
    information = torch.zeros(len(point), len(point)).double()
    for chance, seen in patterns(torch.ones(d).double() if part is None else part):
        block = slope[:, seen][:, :, seen]
        scaled = torch.linalg.solve(covariance(point)[seen][:, seen], block)
        information += 0.5 * chance * torch.einsum("aij,bji->ab", scaled, scaled)
    information[d * k :, d * k :] += torch.diag(torch.as_tensor(prior).expand(d).double())
    free = torch.eye(len(point)).double()
    if k > 1:
        _, _, right = torch.linalg.svd(torch.autograd.functional.jacobian(constraint, point))
        free = right[k * (k - 1) // 2 :].mT
    return free @ torch.linalg.inv(free.mT @ information @ free) @ free.mT


def patterns(part: Tensor) -> Iterator[tuple[float, Tensor]]:
    """Every set of columns that may be present together, with its chance."""
    for seen in product([True, False], repeat=len(part)):
        mask = torch.tensor(seen)
        chance = float(torch.where(mask, part, 1.0 - part).prod())
        if chance > 0.0:
            yield chance, mask


@pytest.mark.parametrize("k", [1, 2, 3])
def test_standard_errors_are_those_of_the_dense_information(k: int) -> None:
    d, n = 8, 1e6
    stream = generator(k)
    noise = 0.3 + torch.rand(d, generator=stream, dtype=torch.float64)
    loadings = FactorModel(noise, normal((d, k), stream), noise).to_canonical_form().loadings
    found = factor_standard_errors(loadings, noise, torch.full_like(noise, n), torch.zeros_like(noise))
    exact = (turned_information(loadings, noise) / n).diagonal().sqrt()
    assert_close(found.loadings.reshape(-1), exact[: d * k], rtol=1e-8, atol=0.0)
    assert_close(found.log_noise, exact[d * k :], rtol=1e-8, atol=0.0)
    assert_close(
        found.mean, ((loadings @ loadings.mT).diagonal() + noise).div(n).sqrt(), rtol=1e-12, atol=0.0
    )


@pytest.mark.parametrize("k", [1, 2])
def test_standard_errors_under_a_prior_of_the_noise(k: int) -> None:
    """An inverse gamma prior of rate b adds b / psi to the information on log-noise."""
    d, n = 8, 200.0
    stream = generator(k)
    noise = 0.3 + torch.rand(d, generator=stream, dtype=torch.float64)
    loadings = FactorModel(noise, normal((d, k), stream), noise).to_canonical_form().loadings
    rate = 30.0 * torch.rand(d, generator=stream, dtype=torch.float64)
    found = factor_standard_errors(loadings, noise, torch.full_like(noise, n), rate)
    exact = (turned_information(loadings, noise, prior=rate / noise / n) / n).diagonal().sqrt()
    assert_close(found.log_noise, exact[d * k :], rtol=1e-8, atol=0.0)
    assert_close(found.loadings.reshape(-1), exact[: d * k], rtol=1e-8, atol=0.0)


@pytest.mark.parametrize(("k", "gone", "error"), [(1, 1.0, 0.05), (2, 0.2, 0.1), (3, 0.1, 0.05)])
def test_standard_errors_where_values_are_missing(k: int, gone: float, error: float) -> None:
    """Close to those of the information averaged over all patterns, where few are missing or there is one factor."""
    d, n = 7, 1e6
    stream = generator(k)
    noise = 0.3 + torch.rand(d, generator=stream, dtype=torch.float64)
    loadings = FactorModel(noise, normal((d, k), stream), noise).to_canonical_form().loadings
    part = 1.0 - gone * torch.tensor([0.0, 0.5, 0.1, 0.0, 0.3, 0.2, 0.4]).double()
    found = factor_standard_errors(loadings, noise, n * part, torch.zeros_like(noise))
    exact = (turned_information(loadings, noise, part) / n).diagonal().sqrt()
    assert_close(found.log_noise, exact[d * k :], rtol=error, atol=0.0)
    assert_close(found.loadings.reshape(-1), exact[: d * k], rtol=error, atol=0.0)


def test_draws_have_the_moments_of_the_distribution() -> None:
    model = make_case(0.3).model
    mean, loadings, noise = model.draw(40_000, generator(0))
    sd = model.standard_deviations()
    for drawn, centre, spread in (
        (mean, model.mean, sd["mean"]),
        (loadings.mT, model.loadings.mT, sd["components"]),
        (noise, model.noise, sd["noise_variance"]),
    ):
        assert float(((drawn.mean(0) - centre) / (spread / 200.0)).abs().max()) < 4.5
        squares = ((drawn - centre) / spread).square()
        assert float(((squares.mean(0) - 1.0) / (squares.std(0) / 200.0)).abs().max()) < 4.5


def test_canonical_changes_names_alone() -> None:
    case = make_case(0.3, k=3)
    other = case.model.to_canonical_form()
    assert bool((other.relevance_rate.diff() <= 0).all())
    assert_close(bound(other, case), bound(case.model, case), rtol=1e-12, atol=0.0)
    assert_close(other.log_prob(case.rows).shape, case.model.log_prob(case.rows).shape)


def test_an_emptied_factor_stays_empty() -> None:
    case = make_case(n=200, k=2)
    model = replace(case.model, total=float(case.weight.sum())).without_factor(1)
    settled, _ = sweeps(replace(case, model=model), 30)
    assert settled.is_used.tolist() == [True, False]
    empty = settled.to_canonical_form()
    assert float(empty.signal_to_noise[1]) < 1e-12
    assert_close(empty.precision[1], model.precision[1], rtol=1e-2, atol=0.0)


def test_a_prior_must_be_proper() -> None:
    with pytest.raises(ValueError, match="noise_shape must be more than 1"):
        RelevancePrior(torch.zeros(2), torch.ones(2), 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        RelevancePrior.from_moments(torch.zeros(2), torch.ones(2), relevance_rate=0.0)


class Sharp(VariationalFactor):
    """The distribution of the factors does not know that loadings are uncertain."""

    def e_step(self) -> FactorEStep:
        return replace(super().e_step(), covariance=torch.zeros_like(self.coefficient_covariance))


class Averaged(VariationalFactor):
    """Averaged statistics are taken for sums."""

    def solve(self, statistics: LinearStatistics) -> Self:
        taken = replace(self, total=float(statistics.latent[-1, -1]))
        return replace(VariationalFactor.solve(taken, statistics), total=self.total)


class AllRows(VariationalFactor):
    """Rows count for columns that they do not have."""

    def solve(self, statistics: LinearStatistics) -> Self:
        return super().solve(replace(statistics, absent=torch.zeros_like(statistics.absent)))


class FreeRelevance(VariationalFactor):
    """The distribution of relevances costs nothing."""

    def divergence(self) -> Tensor:
        distribution, d = self.parameter_prior, len(self.rate)
        relevance = InverseGamma(
            self.relevance_rate.new_full((1,), distribution.shape(d)), self.relevance_rate
        )
        return super().divergence() - relevance.divergence(distribution.relevance_prior()).sum()


class TurnedBack(VariationalFactor):
    """Coefficients turn, their spread does not."""

    def solve(self, statistics: LinearStatistics) -> Self:
        plain = VariationalFactor.solve(replace(self, expand=False), statistics)
        known = statistics * (self.total / statistics.latent[-1, -1])
        turn = best_transformation(
            known.latent, plain.coefficient_moments(), len(self.rate), self.parameter_prior
        )
        return replace(plain, coefficients=plain.coefficients @ turn.forward, expand=True)


@pytest.mark.parametrize(
    ("kind", "gone", "check"),
    [
        (Sharp, 0.0, check_bound),
        (Sharp, 0.3, check_bound),
        (Averaged, 0.0, check_regression),
        (AllRows, 0.3, check_regression),
        (FreeRelevance, 0.0, check_bound),
        (TurnedBack, 0.0, check_monotone),
    ],
)
def test_planted_bugs_are_caught(kind: type, gone: float, check: Callable[[Case], None]) -> None:
    check(make_case(gone))
    with pytest.raises(AssertionError):
        check(make_case(gone, kind=kind))


def test_sources_and_moments_give_one_fit() -> None:
    """d + 1 rows with the moments of the rows, and the rows."""
    from boxloop.data import summarise_moments

    case = make_case(n=60)
    summary = summarise_moments(case.source)
    assert summary is not None
    few = summary.rows()
    assert isinstance(few, ArraySource)
    whole = Case(case.model, few.rows, few.weight)
    near(sweeps(whole, 10)[0], sweeps(case, 10)[0], rtol=1e-9)
