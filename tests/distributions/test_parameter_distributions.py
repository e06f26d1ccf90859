"""Conjugate distributions as factors of a mean field: expected log-densities, divergences and predictives.

Oracles: quadrature where the parameter space is small, Monte Carlo with errors elsewhere, SciPy's densities, and Bayes'
rule. False alarms as in contract.scores.
"""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import Tensor
from torch.testing import assert_close

from boxloop.distributions import (
    Dirichlet,
    FullGaussian,
    InverseGamma,
    MixturePrior,
    NormalInverseGamma,
    NormalInverseWishart,
    PooledSums,
    SphericalNormalInverseGamma,
    StickBreaking,
    Sums,
    TiedInverseWishart,
    WordDirichlet,
)
from boxloop.models import Mixture
from boxloop.numeric import generator, normal, pack
from contract.distribution_checks import with_missing
from contract.scores import assert_scores, mean_scores, moment_scores

EXACT = {"rtol": 1e-10, "atol": 1e-10}
K, D, MANY = 3, 2, 20_000
FEW = 2000
"""Draws of whole families, which are made one by one."""
KINDS = ("full", "tied", "diag", "spherical", "words")
GAUSSIAN = KINDS[:-1]


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def distribution_of(kind: str, seed: int = 0, k: int = K, d: int = D) -> Any:
    """A random distribution of each kind, with enough degrees of freedom for second moments."""
    stream = generator(seed)
    root = normal((k, d, d), stream)
    scale = root @ root.mT + torch.eye(d, dtype=torch.float64)
    mean, strength = normal((k, d), stream), torch.linspace(0.5, 3.0, k, dtype=torch.float64)
    dof = torch.linspace(d + 6.0, d + 9.0, k, dtype=torch.float64) + seed
    spread = scale.diagonal(dim1=-2, dim2=-1)
    match kind:
        case "full":
            return NormalInverseWishart(mean, strength, dof, scale)
        case "tied":
            return TiedInverseWishart(mean, strength, dof[0], scale[0])
        case "diag":
            return NormalInverseGamma(mean, strength, dof, spread)
        case "spherical":
            return SphericalNormalInverseGamma(mean, strength, dof, spread[:, :1])
        case _:
            return WordDirichlet(0.3 + torch.rand(k, d, generator=stream, dtype=torch.float64) * 3, total=4)


def rows_of(kind: str, n: int = 6) -> Tensor:
    if kind == "words":
        return torch.randint(1, 4, (n, D), generator=generator(3)).double()
    return normal((n, D), generator(3)) * 1.5


def sums_of(kind: str, rows: Tensor, share: Tensor) -> Sums | PooledSums:
    """Summed statistics of rows by shares (k, n), the slow way."""
    first = torch.cat([share.sum(1, keepdim=True), share @ rows], 1)
    second = torch.einsum("kn,ni,nj->kij", share, rows, rows)
    if kind == "tied":
        return PooledSums(first, second.sum(0))
    if kind == "words":
        return Sums(first)
    packed = pack(second) if kind == "full" else second.diagonal(dim1=-2, dim2=-1)
    return Sums(torch.cat([first, packed], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_the_plug_in_is_the_expected_log_density(kind: str) -> None:
    distribution, rows = distribution_of(kind), rows_of(kind)
    family, offset = distribution.plug_in()
    expected = family.view(rows).log_joint(offset)
    drawn = torch.stack(
        [
            f.view(rows).log_joint(torch.zeros(K).double())
            for f in distribution.draw_families(FEW, generator(1))
        ]
    )
    assert_scores(mean_scores(drawn.reshape(FEW, -1), expected.reshape(-1)))


def test_the_plug_in_of_one_column_by_quadrature() -> None:
    m, kappa, nu, psi, x = 0.3, 1.7, 4.2, 2.1, 1.1
    one = torch.ones(1, dtype=torch.float64)

    def integrand(log_v: float) -> float:
        v = np.exp(log_v)
        density = stats.invgamma(nu / 2, scale=psi / 2).pdf(v) * v
        return float(density * (stats.norm(m, np.sqrt(v)).logpdf(x) - 0.5 / kappa))

    exact, _ = integrate.quad(integrand, -7.0, 25.0, epsabs=1e-10)
    for kind in (NormalInverseGamma, SphericalNormalInverseGamma):
        family, offset = kind(m * one[:, None], kappa * one, nu * one, psi * one[:, None]).plug_in()
        assert float(family.log_prob(tensor(x)[:, None]) + offset) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_is_nothing_from_itself_and_positive_from_others(kind: str) -> None:
    distribution, other = distribution_of(kind), distribution_of(kind, seed=1)
    assert_close(distribution.divergence(distribution), torch.zeros(K, dtype=torch.float64), **EXACT)
    assert bool((distribution.divergence(other) > 0).all())


@pytest.mark.parametrize("kind", ["full", "diag"])
def test_divergence_is_the_mean_of_log_ratios(kind: str) -> None:
    distribution, prior = distribution_of(kind), distribution_of(kind, seed=1)
    many = distribution.map(lambda leaf: leaf.expand(MANY, *leaf.shape)).draw(generator(2))
    ratio = (distribution.log_prob(many) - prior.log_prob(many)).reshape(MANY, K)
    assert_scores(mean_scores(ratio, distribution.divergence(prior)))
    one = prior.select(torch.tensor([0]))
    assert_close(distribution.divergence(one), distribution.divergence(one.expand_members(K)), **EXACT)


def test_divergence_of_a_spherical_distribution_is_the_mean_of_log_ratios() -> None:
    distribution, prior = distribution_of("spherical"), distribution_of("spherical", seed=1)

    def density(of: SphericalNormalInverseGamma, mean: Tensor, variance: Tensor) -> Tensor:
        spread = stats.invgamma(0.5 * of.dof.numpy(), scale=0.5 * of.scale[:, 0].numpy()).logpdf(variance)
        deviation = np.sqrt(variance / of.strength.numpy())[..., None]
        return torch.from_numpy(spread + stats.norm(of.mean.numpy(), deviation).logpdf(mean).sum(-1))

    drawn = distribution.draw_families(FEW, generator(2))
    mean = torch.stack([f.mean for f in drawn]).numpy()
    variance = torch.stack([f.variance[:, 0] for f in drawn]).numpy()
    ratio = density(distribution, mean, variance) - density(prior, mean, variance)
    assert_scores(mean_scores(ratio, distribution.divergence(prior)))


def test_divergence_of_a_tied_distribution() -> None:
    """With one member it is that of the full distribution; with more, the means add theirs."""
    full, tied = distribution_of("full", k=1), distribution_of("tied", k=1)
    other_full, other_tied = distribution_of("full", 1, k=1), distribution_of("tied", 1, k=1)
    assert_close(tied.divergence(other_tied), full.divergence(other_full), **EXACT)
    distribution, prior = distribution_of("tied"), distribution_of("tied", seed=1)
    drawn = distribution.draw_families(FEW, generator(2))
    factor, mean = torch.stack([f.factor for f in drawn]), torch.stack([f.mean for f in drawn])

    def density(of: TiedInverseWishart) -> Tensor:
        iw = stats.invwishart(float(of.dof), of.scale.numpy())
        spread = torch.from_numpy(np.array(iw.logpdf(np.moveaxis((factor @ factor.mT).numpy(), 0, -1))))
        apart = torch.linalg.solve_triangular(factor, (mean - of.mean).mT, upper=False).square().sum(1)
        log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        centre = -0.5 * (of.strength * apart + log_det[:, None] - D * (of.strength / (2 * np.pi)).log())
        return spread + centre.sum(1)

    assert_scores(
        mean_scores(
            (density(distribution) - density(prior))[:, None], distribution.divergence(prior).sum()[None]
        )
    )


@pytest.mark.parametrize(("counts", "prior"), [((1001.0, 1200.0), (1.0, 1.0)), ((1500.0, 2.0), (3.0, 3.0))])
def test_divergence_of_dirichlets_where_stirlings_series_begins(
    counts: tuple[float, ...], prior: tuple[float, ...]
) -> None:
    def log_beta(values: tuple[float, ...]) -> mpmath.mpf:
        return sum(map(mpmath.loggamma, values)) - mpmath.loggamma(sum(values))

    with mpmath.workdps(50):
        logs = [mpmath.digamma(a) - mpmath.digamma(sum(counts)) for a in counts]
        exact = log_beta(prior) - log_beta(counts)
        exact += sum((a - b) * log for a, b, log in zip(counts, prior, logs, strict=True))
    found = Dirichlet(tensor(*counts)).divergence(Dirichlet(tensor(*prior)))
    assert float(found) == pytest.approx(float(exact), rel=1e-12)


def test_divergence_of_variances_and_weights_by_quadrature() -> None:
    distribution, prior = InverseGamma(tensor(2.5), tensor(1.5)), InverseGamma(tensor(0.7), tensor(4.0))
    p, q = stats.invgamma(2.5, scale=1.5), stats.invgamma(0.7, scale=4.0)
    exact, _ = integrate.quad(
        lambda u: p.pdf(np.exp(u)) * (p.logpdf(np.exp(u)) - q.logpdf(np.exp(u))) * np.exp(u), -8, 30
    )
    assert float(distribution.divergence(prior)) == pytest.approx(exact, rel=1e-7)
    a, b = Dirichlet(tensor(2.0, 3.5)), Dirichlet(tensor(0.6, 1.2))
    beta, other = stats.beta(2.0, 3.5), stats.beta(0.6, 1.2)
    exact, _ = integrate.quad(lambda v: beta.pdf(v) * (beta.logpdf(v) - other.logpdf(v)), 0, 1)
    assert float(a.divergence(b)) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_predictive_is_the_ratio_of_evidences(kind: str) -> None:
    """p(x) = E[p(x | theta)], by draws; and by Bayes: the evidence of a row is its predictive density."""
    distribution, rows = distribution_of(kind), rows_of(kind)
    predicted = distribution.predictive().log_prob(rows)
    drawn = torch.stack([f.log_prob(rows) for f in distribution.draw_families(FEW, generator(4))]).exp()
    assert_scores(mean_scores(drawn.reshape(FEW, -1), predicted.exp().reshape(-1)))


@pytest.mark.parametrize("kind", KINDS)
def test_predictive_from_the_divergence(kind: str) -> None:
    """Of one row and one component the bound is exact: E_q[log p(x)] - KL(posterior || prior) = log p(x)."""
    prior = distribution_of(kind, k=1)
    for row in rows_of(kind):
        found = prior.update(sums_of(kind, row[None], torch.ones(1, 1).double()))
        family, offset = found.plug_in()
        bound = family.view(row[None]).log_joint(offset)[0, 0] - found.divergence(prior).sum()
        base = family.log_base(row[None])
        bound = bound if base is None else bound + base[0]
        assert_close(bound, prior.predictive().log_prob(row[None])[0, 0], **EXACT)


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_predictive_integrates_to_one(kind: str) -> None:
    """On a grid in u with x = sinh(u), which reaches far enough for heavy tails."""
    distribution = distribution_of(kind).predictive()
    u = torch.linspace(-7.5, 7.5, 901, dtype=torch.float64)
    x, width = torch.sinh(u), torch.cosh(u) * (u[1] - u[0])
    grid = torch.cartesian_prod(x, x)
    cell = torch.cartesian_prod(width, width).prod(1)
    mass = distribution.log_prob(grid).exp()
    assert_close(mass @ cell, torch.ones(K, dtype=torch.float64), rtol=1e-6, atol=1e-6)
    assert_close((mass * cell) @ grid, distribution.mean, rtol=1e-4, atol=1e-4)
    one = torch.stack([x, torch.full_like(x, torch.nan)], 1)
    assert_close(
        distribution.log_prob(one).exp() @ width, torch.ones(K, dtype=torch.float64), rtol=1e-8, atol=1e-8
    )


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_predicted_documents_sum_to_one() -> None:
    distribution = distribution_of("words", d=3).predictive()
    every = torch.cartesian_prod(*[torch.arange(5.0).double()] * 3)
    every = every[every.sum(1) == 4]
    mass = distribution.log_prob(every).exp()
    assert_close(mass.sum(1), torch.ones(K, dtype=torch.float64), **EXACT)
    assert_close(mass @ every, distribution.mean, **EXACT)
    apart = every - distribution.mean[:, None]
    assert_close((apart * mass[..., None]).mT @ apart, distribution.covariance().dense(), **EXACT)
    assert_close(distribution.log_prob(every.to_sparse_csr()), distribution.log_prob(every), **EXACT)
    known = stats.dirichlet_multinomial(distribution.concentration[0].numpy(), 4).logpmf(every.numpy())
    assert_close(distribution.log_prob(every)[0], torch.from_numpy(known), **EXACT)


def test_words_that_are_not_known_are_left_out() -> None:
    distribution = distribution_of("words", d=3).predictive()
    fewer = type(distribution)(distribution.concentration[:, [0, 2]], 4)
    row = tensor(2.0, np.nan, 3.0)[None]
    assert_close(distribution.log_prob(row), fewer.log_prob(tensor(2.0, 3.0)[None]), **EXACT)
    blank = torch.full((1, 3), torch.nan, dtype=torch.float64)
    assert_close(distribution.log_prob(blank), torch.zeros(K, 1, dtype=torch.float64), **EXACT)


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_student_distributions_are_scipys(kind: str) -> None:
    distribution, rows = distribution_of(kind).predictive(), rows_of(kind)
    for k in range(K):
        if kind == "diag":
            each = stats.t(
                float(distribution.dof[k]), distribution.mean[k].numpy(), distribution.scale[k].sqrt().numpy()
            )
            expected = each.logpdf(rows.numpy()).sum(1)
        else:
            if kind == "spherical":
                shape = float(distribution.scale[k]) * np.eye(D)
            else:
                shape = (distribution.factor[k] @ distribution.factor[k].mT).numpy()
            expected = stats.multivariate_t(
                distribution.mean[k].numpy(), shape, float(distribution.dof[k])
            ).logpdf(rows.numpy())
        assert_close(distribution.log_prob(rows)[k], torch.from_numpy(expected), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_predictive_draws_and_units(kind: str) -> None:
    distribution = distribution_of(kind).predictive()
    draws = distribution.draw(MANY, generator(5))
    spread = distribution.covariance().dense()
    assert_close(distribution.covariance().diagonal(), spread.diagonal(dim1=-2, dim2=-1), **EXACT)
    # Squares of t draws with 7 degrees of freedom have a finite variance, so that their scores are normal enough.
    assert_scores(torch.cat([moment_scores(draws[k], distribution.mean[k], spread[k]) for k in range(K)]))
    picked = distribution.select(torch.tensor([2, 0]))
    assert_close(picked.log_prob(rows_of(kind)), distribution.log_prob(rows_of(kind))[[2, 0]])
    origin, scale = tensor(3.0, -1.0), tensor(0.2, 0.2) if kind == "spherical" else tensor(0.2, 30.0)
    if kind == "words":
        with pytest.raises(ValueError, match="affine"):
            distribution.affine(origin, scale)
        return
    rows = with_missing(rows_of(kind))
    jacobian = (~torch.isnan(rows)).double() @ scale.log()
    assert_close(
        distribution.affine(origin, scale).log_prob(origin + scale * rows),
        distribution.log_prob(rows) - jacobian,
        **EXACT,
    )


def test_a_spherical_distribution_refuses_unlike_scales() -> None:
    for distribution in (distribution_of("spherical"), distribution_of("spherical").predictive()):
        with pytest.raises(ValueError, match="spherical"):
            distribution.affine(tensor(0.0, 0.0), tensor(1.0, 2.0))


def test_few_degrees_of_freedom_have_no_variance() -> None:
    distribution = NormalInverseWishart(
        torch.zeros(1, 2).double(), tensor(1.0), tensor(2.5), torch.eye(2).double()[None]
    )
    assert bool(torch.isinf(distribution.predictive().covariance().diagonal()).all())
    assert bool(torch.isfinite(distribution.predictive().log_prob(torch.zeros(1, 2).double())).all())


@pytest.mark.parametrize("kind", KINDS)
def test_units_of_distributions(kind: str) -> None:
    """A change of units moves the expected log-density by its Jacobian and no divergence."""
    distribution, prior = distribution_of(kind), distribution_of(kind, seed=1)
    origin, scale = tensor(3.0, -1.0), tensor(0.2, 0.2) if kind == "spherical" else tensor(0.2, 30.0)
    if kind == "words":
        with pytest.raises(ValueError, match="affine"):
            distribution.affine(origin, scale)
        return
    moved = distribution.affine(origin, scale)
    assert_close(moved.divergence(prior.affine(origin, scale)), distribution.divergence(prior), **EXACT)
    rows = rows_of(kind)
    there, here = (
        of.plug_in()[0].view(x).log_joint(of.plug_in()[1])
        for of, x in ((moved, origin + scale * rows), (distribution, rows))
    )
    assert_close(there, here - scale.log().sum(), **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_two_parts_and_one_prior_for_all(kind: str) -> None:
    rows, stream = rows_of(kind, 9), generator(6)
    share = torch.rand(K, 9, generator=stream, dtype=torch.float64)
    prior = distribution_of(kind).select(torch.tensor([0]))
    once = prior.update(sums_of(kind, rows, share))
    each = prior.expand_members(K).update(sums_of(kind, rows, share))
    twice = each.update(sums_of(kind, rows, 2 * share))
    for (_, a), (_, b) in zip(once.leaves(), each.leaves(), strict=True):
        assert_close(a, b, **EXACT)
    whole = prior.update(sums_of(kind, rows, 3 * share))
    for (_, a), (_, b) in zip(twice.leaves(), whole.leaves(), strict=True):
        assert_close(a, b, **EXACT)
    assert whole.is_proper()
    assert not prior.expand_members(K).update(sums_of(kind, rows, -20 * share)).is_proper()


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_marginals_of_single_columns(kind: str) -> None:
    distribution = distribution_of(kind)
    dof, scale = distribution.column_marginals()
    drawn = distribution.draw_families(FEW, generator(7))
    variance = torch.stack([f.covariance().diagonal() for f in drawn]).reshape(FEW, -1)
    mean = torch.stack([f.mean for f in drawn]).reshape(FEW, -1)
    expected = scale / (dof - 2.0)[:, None]
    assert_scores(mean_scores(variance, expected.reshape(-1)))
    assert_scores(mean_scores(1.0 / variance, (dof[:, None] / scale).reshape(-1)))
    assert_scores(
        mean_scores(
            (mean - distribution.mean.reshape(-1)).square(),
            (expected / distribution.strength[:, None]).reshape(-1),
        )
    )


def sticks(k: int = 4) -> StickBreaking:
    return StickBreaking(torch.linspace(1.0, 3.0, k - 1).double(), torch.linspace(2.5, 0.8, k - 1).double())


@pytest.mark.parametrize(
    "distribution", [sticks(), Dirichlet(tensor(0.8, 2.0, 3.0, 0.5))], ids=["sticks", "dirichlet"]
)
def test_distributions_of_weights(distribution: StickBreaking | Dirichlet) -> None:
    drawn = distribution.map(lambda leaf: leaf.expand(MANY, *leaf.shape)).draw(generator(8))
    assert_close(drawn.exp().sum(1), torch.ones(MANY, dtype=torch.float64))
    assert_scores(mean_scores(drawn.exp(), distribution.mean()))
    assert_scores(mean_scores(drawn, distribution.expected_log()))
    assert_scores(mean_scores((drawn.exp() - distribution.mean()).square(), distribution.variance()))
    count = tensor(5.0, 0.0, 2.5, 1.0)
    after = distribution.posterior(count)
    assert_close(after.counts_since(distribution), count, **EXACT)
    ratio = after.log_prob(drawn) - distribution.log_prob(drawn) - drawn @ count
    assert_close(ratio, ratio[:1].expand(MANY), rtol=1e-8, atol=1e-8)  # Bayes' rule
    many = after.map(lambda leaf: leaf.expand(MANY, *leaf.shape)).draw(generator(9))
    assert_scores(
        mean_scores(
            (after.log_prob(many) - distribution.log_prob(many))[:, None],
            after.divergence(distribution)[None],
        )
    )


def test_density_of_sticks_integrates_to_one() -> None:
    distribution = StickBreaking(tensor(2.0, 3.0), tensor(2.5, 2.0))
    p = torch.linspace(0, 1, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(p, p)
    grid = grid[(grid.sum(1) < 1 - 1e-9) & (grid > 0).all(1)]
    weight = torch.cat([grid, 1 - grid.sum(1, keepdim=True)], 1)
    assert float(distribution.log_prob(weight.log()).exp().sum() * p[1] ** 2) == pytest.approx(1.0, abs=1e-4)


def test_sticks_of_a_process() -> None:
    distribution = StickBreaking.dirichlet_process(3, tensor(2.0)[0])
    assert_close(distribution.mean(), tensor(1 / 3, 2 / 9, 4 / 9), **EXACT)
    count = tensor(3.0, 1.0, 2.0)
    exact = special.betaln(1 + 3, 2 + 3) + special.betaln(1 + 1, 2 + 2) - 2 * special.betaln(1, 2)
    assert float(distribution.log_evidence(count)) == pytest.approx(exact, rel=1e-12)
    one = StickBreaking.dirichlet_process(1, tensor(2.0)[0])
    assert one.n_components == 1
    assert_close(one.posterior(tensor(5.0)).mean(), tensor(1.0))
    assert_close(one.expected_log(), tensor(0.0))
    assert float(one.posterior(tensor(5.0)).divergence(one)) == 0.0


def test_small_concentrations_of_words_do_not_underflow() -> None:
    """exp(E[log p]) of a word never seen is zero in floating point, and its log is not."""
    distribution = WordDirichlet(tensor(1e-4, 5.0)[None])
    family, offset = distribution.plug_in()
    joint = family.view(tensor(0.0, 3.0)[None]).log_joint(offset)
    assert_close(joint[0, 0], 3 * (torch.digamma(tensor(5.0)) - torch.digamma(tensor(5.0001)))[0], **EXACT)


def test_missing_counts_under_expected_probabilities() -> None:
    r"""The sum over all values x of the missing word of coefficient * p~^x, done term by term."""
    distribution = distribution_of("words", k=1, d=3)
    family, _ = distribution.plug_in()
    logs = family.log_probability[0].numpy()
    row = tensor(2.0, np.nan, 3.0)
    x = np.arange(4000)
    series = special.gammaln(5 + x) - special.gammaln(5) - special.gammaln(x + 1) + x * logs[1]
    exact = 2 * logs[0] + 3 * logs[2] + special.logsumexp(series)
    view = family.view(row[None])
    assert float(view.log_joint(torch.zeros(1).double())) == pytest.approx(exact, rel=1e-10)
    expected = float(np.exp(series - special.logsumexp(series)) @ x)
    assert view.summarise(torch.ones(1, 1).double()).features[0].tolist() == pytest.approx(
        [1, 2, expected, 3], rel=1e-9
    )


def test_whole_priors() -> None:
    prior = MixturePrior(sticks(K), distribution_of("full"))
    found = prior.update(sums_of("full", rows_of("full"), torch.rand(K, 6, generator=generator(0)).double()))
    parts = found.components.divergence(prior.components).sum() + found.weights.divergence(prior.weights)
    assert_close(found.divergence(prior), parts)
    assert prior.n_components == K
    mixture = Mixture(found.weights.mean().log(), found.components.plug_in()[0])
    assert isinstance(mixture.family, FullGaussian)
