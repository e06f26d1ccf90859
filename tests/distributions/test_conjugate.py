"""Conjugate priors against SciPy, against Bayes' rule and against their own moments."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from boxloop.distributions import (
    DiagonalGaussian,
    Dirichlet,
    FactorPrior,
    FullGaussian,
    InverseGamma,
    MixturePrior,
    NormalInverseGamma,
    NormalInverseWishart,
    draw_log_gamma,
    wishart_root,
)
from boxloop.numeric import generator, normal, pack
from contract.scores import assert_scores, mean_scores, moment_scores

EXACT = {"rtol": 1e-10, "atol": 1e-10}
MANY = 40_000


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def full_prior(m: int = 2, d: int = 3) -> NormalInverseWishart:
    stream = generator(0)
    root = normal((m, d, d), stream)
    scale = root @ root.mT + torch.eye(d, dtype=torch.float64)
    dof = torch.linspace(d + 4.0, d + 7.0, m, dtype=torch.float64)
    return NormalInverseWishart(normal((m, d), stream), torch.linspace(0.5, 2.0, m).double(), dof, scale)


def diagonal_prior(m: int = 2, d: int = 3) -> NormalInverseGamma:
    full = full_prior(m, d)
    scale = full.scale.diagonal(dim1=-2, dim2=-1)
    return NormalInverseGamma(full.mean, full.strength, full.dof + 4.0, scale)


def full_sums(rows: Tensor) -> Tensor:
    second = pack(rows[..., :, None] * rows[..., None, :])
    return torch.cat([torch.ones_like(rows[..., :1]), rows, second], dim=-1).sum(-2)


def diagonal_sums(rows: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(rows[..., :1]), rows, rows.square()], dim=-1).sum(-2)


def test_full_posterior_is_the_direct_formula() -> None:
    prior, rows = full_prior(), normal((2, 7, 3), generator(1)) + 2.0
    distribution = prior.posterior(full_sums(rows))
    for i in range(2):
        x, m, kappa = rows[i].numpy(), prior.mean[i].numpy(), float(prior.strength[i])
        centre = x.mean(0)
        scatter = (x - centre).T @ (x - centre)
        apart = np.outer(centre - m, centre - m)
        scale = prior.scale[i].numpy() + scatter + kappa * 7 / (kappa + 7) * apart
        assert_close(distribution.scale[i], torch.from_numpy(scale), **EXACT)
        assert_close(distribution.mean[i], torch.from_numpy((kappa * m + 7 * centre) / (kappa + 7)), **EXACT)
    assert_close(distribution.dof, prior.dof + 7)
    assert_close(distribution.strength, prior.strength + 7)


@pytest.mark.parametrize("kind", ["full", "diagonal"])
def test_posterior_is_bayes_rule(kind: str) -> None:
    """Prior times likelihood over posterior is the same number at every parameter."""
    rows = normal((2, 5, 3), generator(2))
    prior = full_prior() if kind == "full" else diagonal_prior()
    distribution = prior.posterior(full_sums(rows) if kind == "full" else diagonal_sums(rows))
    evidence = []
    for seed in range(3):
        member = prior.draw(generator(seed))
        likelihood = torch.stack([member.log_prob(rows[i])[i].sum() for i in range(2)])
        evidence.append(prior.log_prob(member) + likelihood - distribution.log_prob(member))
    assert_close(evidence[0], evidence[1], **EXACT)
    assert_close(evidence[0], evidence[2], **EXACT)


@pytest.mark.parametrize("prior", [full_prior(), diagonal_prior()], ids=["full", "diagonal"])
def test_rows_in_two_parts(prior: NormalInverseWishart | NormalInverseGamma) -> None:
    rows = normal((2, 9, 3), generator(3))
    sums = full_sums if isinstance(prior, NormalInverseWishart) else diagonal_sums
    twice = prior.posterior(sums(rows[:, :4])).posterior(sums(rows[:, 4:]))
    once = prior.posterior(sums(rows))
    for (_, a), (_, b) in zip(once.leaves(), twice.leaves(), strict=True):
        assert_close(a, b, **EXACT)


def test_leading_axes_of_sums_are_those_of_the_posterior() -> None:
    prior, rows = full_prior(), normal((4, 2, 6, 3), generator(4))
    distribution = prior.posterior(full_sums(rows))
    assert distribution.mean.shape == (4, 2, 3)
    alone = prior.posterior(full_sums(rows[3]))
    assert_close(distribution.scale[3], alone.scale)
    assert distribution.draw(generator(0)).mean.shape == (8, 3)


def test_full_density_is_scipys() -> None:
    prior = full_prior()
    distribution = prior.draw(generator(0))
    expected = []
    for i in range(2):
        covariance = (distribution.factor[i] @ distribution.factor[i].mT).numpy()
        spread = stats.invwishart(float(prior.dof[i]), prior.scale[i].numpy()).logpdf(covariance)
        centre = stats.multivariate_normal(prior.mean[i].numpy(), covariance / float(prior.strength[i]))
        expected.append(spread + centre.logpdf(distribution.mean[i].numpy()))
    assert_close(prior.log_prob(distribution), tensor(*expected), **EXACT)


def test_one_column_is_the_same_prior_in_both_forms() -> None:
    full, distribution = (
        full_prior(2, 1),
        FullGaussian(tensor(0.3, -0.2)[:, None], tensor(0.7, 1.2)[:, None, None]),
    )
    diagonal = NormalInverseGamma(full.mean, full.strength, full.dof, full.scale[..., 0])
    assert_close(
        full.log_prob(distribution),
        diagonal.log_prob(DiagonalGaussian(distribution.mean, distribution.factor[..., 0].square())),
        **EXACT,
    )


def test_small_densities_are_scipys() -> None:
    a = tensor(0.5, 1.0, 3.0)
    weight = tensor(0.2, 0.3, 0.5)
    assert_close(
        Dirichlet(a).log_prob(weight.log()),
        tensor(stats.dirichlet(a.numpy()).logpdf(weight.numpy()))[0],
        **EXACT,
    )
    variance = tensor(0.1, 1.0, 7.0)
    expected = stats.invgamma(2.5, scale=1.5).logpdf(variance.numpy())
    assert_close(InverseGamma(tensor(2.5), tensor(1.5)).log_prob(variance), tensor(*expected), **EXACT)


def test_a_weight_of_zero_under_a_uniform_prior() -> None:
    assert torch.isfinite(Dirichlet(tensor(1.0, 1.0)).log_prob(tensor(0.0, -torch.inf)))


def test_draws_of_covariances_and_means() -> None:
    """Against E[Sigma], E[Sigma^-1] and the moments of the mean; false alarms as in contract.scores."""
    prior = full_prior(1)
    distribution = prior.map(lambda leaf: leaf.expand(MANY, *leaf.shape[1:])).draw(generator(6))
    d, dof, scale = 3, float(prior.dof), prior.scale[0]
    i, j = torch.triu_indices(d, d)
    covariance = distribution.factor @ distribution.factor.mT
    assert_scores(mean_scores(covariance[:, i, j], (scale / (dof - d - 1))[i, j]))
    precision = distribution.whitener.mT @ distribution.whitener
    assert_scores(mean_scores(precision[:, i, j], (dof * torch.linalg.inv(scale))[i, j]))
    expected = scale / (dof - d - 1) / float(prior.strength)
    assert_scores(moment_scores(distribution.mean, prior.mean[0], expected))
    assert bool((torch.triu(distribution.factor, 1) == 0).all())


def test_draws_of_variances() -> None:
    prior = diagonal_prior(1)
    distribution = prior.map(lambda leaf: leaf.expand(MANY, *leaf.shape[1:])).draw(generator(7))
    dof, scale = float(prior.dof), prior.scale[0]
    assert_scores(mean_scores(distribution.variance, scale / (dof - 2)))
    assert_scores(mean_scores(1.0 / distribution.variance, dof / scale))
    assert_scores(
        moment_scores(distribution.mean, prior.mean[0], torch.diag(scale / (dof - 2) / float(prior.strength)))
    )


def test_draws_of_weights() -> None:
    a = tensor(0.3, 1.0, 2.5)
    draws = Dirichlet(a.expand(MANY, 3)).draw(generator(8)).exp()
    known = stats.dirichlet(a.numpy())
    assert_close(draws.sum(1), torch.ones(MANY, dtype=torch.float64))
    mean, covariance = torch.from_numpy(known.mean()), torch.from_numpy(known.cov())
    assert_scores(moment_scores(draws[:, :2], mean[:2], covariance[:2, :2]))
    small = Dirichlet(torch.full((1000, 4), 1e-3, dtype=torch.float64)).draw(generator(0))
    assert bool(torch.isfinite(small).all())


def test_logs_of_gamma_draws() -> None:
    """Their mean and variance are the digamma and trigamma functions."""
    for shape in (1e-3, 0.2, 1.0, 30.0):
        value = tensor(shape)
        draws = draw_log_gamma(value.expand(MANY), generator(9))[:, None]
        assert_scores(
            moment_scores(draws, torch.digamma(value), torch.polygamma(1, value)[:, None]),
        )


@pytest.mark.parametrize("flipped", [False, True])
def test_wishart_roots(flipped: bool) -> None:
    lower = wishart_root(torch.full((MANY,), 4.5, dtype=torch.float64), 3, generator(10), flipped=flipped)
    product = lower.mT @ lower if flipped else lower @ lower.mT
    i, j = torch.triu_indices(3, 3)
    eye = torch.eye(3, dtype=torch.float64)
    assert_scores(mean_scores(product[:, i, j], 4.5 * eye[i, j]))
    # Var(W_ij) = dof (1 + [i = j]) under the identity.
    square = (product - 4.5 * eye).square()
    assert_scores(mean_scores(square[:, i, j], 4.5 * (1.0 + eye)[i, j]))


def test_draws_come_from_the_stream_alone() -> None:
    prior = full_prior()
    torch.rand(3)
    first = prior.draw(generator(11))
    torch.rand(5)
    assert_close(first.factor, prior.draw(generator(11)).factor, rtol=0, atol=0)


@pytest.mark.parametrize("diagonal", [False, True])
def test_other_units_shift_the_density_by_a_constant(diagonal: bool) -> None:
    mean, covariance = tensor(0.2, -0.1), torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    prior = MixturePrior.from_moments(mean, covariance, 3, diagonal=diagonal)
    origin, scale = tensor(5.0, -3.0), tensor(10.0, 0.01)
    moved = prior.affine(origin, scale)
    log_weight, family = prior.draw(4, generator(0))
    gap = moved.log_prob(log_weight, family.affine(origin, scale)) - prior.log_prob(log_weight, family)
    assert_close(gap, gap[:1].expand(4), **EXACT)
    again = MixturePrior.from_moments(
        origin + scale * mean, scale[:, None] * covariance * scale, 3, diagonal=diagonal
    )
    assert_close(moved.components.scale, again.components.scale, **EXACT)
    assert_close(moved.components.mean, again.components.mean, **EXACT)


def test_prior_of_factors_in_other_units() -> None:
    prior = FactorPrior.from_moments(tensor(0.0, 1.0, 2.0), tensor(1.0, 2.0, 0.5), 2)
    origin, scale = tensor(5.0, -3.0, 0.0), tensor(10.0, 0.01, 1.0)
    mean, loadings, noise = prior.draw(4, generator(0))
    there = prior.affine(origin, scale).log_prob(
        origin + scale * mean, scale[:, None] * loadings, scale.square() * noise
    )
    gap = there - prior.log_prob(mean, loadings, noise)
    assert_close(gap, gap[:1].expand(4), **EXACT)


def test_default_prior_expects_a_share_of_the_volume() -> None:
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    components = MixturePrior.from_moments(tensor(0.0, 0.0), covariance, 4).components
    expected = components.scale[0] / (components.dof[0] - 3)
    assert_close(expected.diagonal(), covariance.diagonal() / 4)
    collinear = torch.ones(2, 2, dtype=torch.float64)
    singular = MixturePrior.from_moments(tensor(0.0, 0.0), collinear, 4)
    assert bool(torch.isfinite(singular.components.draw(generator(0)).factor).all())
