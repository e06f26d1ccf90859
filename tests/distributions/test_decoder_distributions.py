"""The distributions that decoders make: densities, moments, draws, and digits kept where logits or counts are large."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions
from torch.testing import assert_close

from boxloop.distributions import (
    CategoricalColumns,
    DiagonalGaussian,
    FullGaussian,
    LogitBernoulli,
    LogPoisson,
    LowRankGaussian,
    NormalMixture,
    SphericalGaussian,
    TiedLowRankGaussian,
)
from boxloop.numeric import generator, normal
from contract.scores import assert_scores, mean_scores, moment_scores

NAN = math.nan
SIZES = [2, 3, 1, 4]


def bernoulli(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    logits = normal((m, 3), generator(0))
    other = distributions.Bernoulli(logits=logits)
    distribution = LogitBernoulli(logits)
    return distribution, distribution.draw(1, generator(1))[:, 0], lambda rows: other.log_prob(rows).sum(1)


def poisson(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    log_rate = normal((m, 3), generator(0))
    other = distributions.Poisson(log_rate.exp())
    distribution = LogPoisson(log_rate)
    return distribution, distribution.draw(1, generator(1))[:, 0], lambda rows: other.log_prob(rows).sum(1)


def categories(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    logits = 2.0 * normal((m, sum(SIZES)), generator(0))
    distribution = CategoricalColumns(logits, torch.tensor(SIZES))
    others = [distributions.Categorical(logits=part) for part in logits.split(SIZES, 1)]

    def density(rows: Tensor) -> Tensor:
        return sum(other.log_prob(rows[:, j]) for j, other in enumerate(others))

    return distribution, distribution.draw(1, generator(1))[:, 0], density


def low_rank(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    mean, loadings = normal((m, 5), generator(0)), normal((5, 2), generator(1))
    noise = 0.1 + torch.rand(5, generator=generator(2), dtype=torch.float64)
    distribution = TiedLowRankGaussian(mean, loadings, noise)
    other = distributions.MultivariateNormal(mean, loadings @ loadings.mT + torch.diag(noise))
    return distribution, distribution.draw(1, generator(3))[:, 0], other.log_prob


def diagonal(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    mean, variance = normal((m, 5), generator(0)), normal((m, 5), generator(1)).exp()
    distribution = DiagonalGaussian(mean, variance)
    return (
        distribution,
        normal((m, 5), generator(2)),
        lambda x: distributions.Normal(mean, variance.sqrt()).log_prob(x).sum(1),
    )


def spherical(m: int = 4) -> tuple[Any, Tensor, Callable[[Tensor], Tensor]]:
    mean, variance = normal((m, 5), generator(0)), normal((m, 1), generator(1)).exp()
    distribution = SphericalGaussian(mean, variance)
    return (
        distribution,
        normal((m, 5), generator(2)),
        lambda x: distributions.Normal(mean, variance.sqrt()).log_prob(x).sum(1),
    )


DISTRIBUTIONS = {f.__name__: f for f in (bernoulli, poisson, categories, low_rank, diagonal, spherical)}
NEW = [name for name in DISTRIBUTIONS if name not in ("diagonal", "spherical")]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_row_meets_its_member(name: str) -> None:
    distribution, rows, density = DISTRIBUTIONS[name]()
    assert_close(distribution.paired_log_prob(rows), density(rows), rtol=1e-12, atol=1e-12)
    assert_close(
        distribution.log_prob(rows).diagonal(), distribution.paired_log_prob(rows), rtol=1e-10, atol=1e-12
    )
    rows[1, 0] = NAN
    assert torch.isnan(distribution.paired_log_prob(rows)).tolist() == [False, True, False, False]


@pytest.mark.parametrize("name", NEW)
def test_every_row_meets_every_member(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution, rows, _ = DISTRIBUTIONS[name]()
    whole = distribution.log_prob(rows)
    for i in range(4):
        alone = distribution.map(
            lambda leaf, i=i: leaf[i : i + 1].repeat(4, 1) if leaf.shape[0] == 4 else leaf
        )
        if name == "categories":
            alone = CategoricalColumns(distribution.logits[i : i + 1].repeat(4, 1), distribution.sizes)
        assert_close(whole[i], alone.paired_log_prob(rows), rtol=1e-12, atol=1e-12)
    for room in ("family", "categorical", "gaussian_lowrank"):
        monkeypatch.setattr(f"boxloop.distributions.{room}.TILE", 1)
    assert_close(distribution.log_prob(rows), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", NEW)
def test_missing_values_are_left_out_of_a_density(name: str) -> None:
    distribution, rows, _ = DISTRIBUTIONS[name]()
    gappy = rows.clone()
    gappy[:, 1:] = NAN
    if name == "low_rank":
        expected = DiagonalGaussian(
            distribution.mean[:, :1], distribution.covariance().diagonal()[:, :1]
        ).log_prob(rows[:, :1])
    elif name == "categories":
        expected = CategoricalColumns(distribution.logits[:, :2], distribution.sizes[:1]).log_prob(
            rows[:, :1]
        )
    else:
        expected = distribution.map(lambda leaf: leaf[:, :1]).log_prob(rows[:, :1])
    assert_close(distribution.log_prob(gappy), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NEW)
def test_moments_are_those_of_draws(name: str) -> None:
    distribution, rows, _ = DISTRIBUTIONS[name](2)
    draws = distribution.draw(40_000, generator(7))
    assert draws.shape == (2, 40_000, rows.shape[1])
    varied = distribution.covariance().diagonal() > 0
    for i in range(2):
        seen = draws[i][:, varied[i]]
        covariance = distribution.covariance().dense()[i][varied[i]][:, varied[i]]
        assert_scores(moment_scores(seen, distribution.mean[i][varied[i]], covariance))
    assert_close(
        draws[~varied[:, None].expand_as(draws)].unique(), torch.zeros(int((~varied).any())).double()
    )


@pytest.mark.parametrize(("name", "values"), [("bernoulli", 2), ("poisson", 400)])
def test_probabilities_add_up_to_one(name: str, values: int) -> None:
    distribution, _, _ = DISTRIBUTIONS[name]()
    one = distribution.map(lambda leaf: leaf[:, :1].clamp(-5.0, 4.0))
    total = one.log_prob(torch.arange(values, dtype=torch.float64)[:, None]).logsumexp(1)
    assert_close(total, torch.zeros(4).double(), rtol=0, atol=1e-12)


def test_categories_add_up_to_one_and_other_values_have_none() -> None:
    distribution, _, _ = categories()
    every = torch.cartesian_prod(*[torch.arange(size, dtype=torch.float64) for size in SIZES])
    assert_close(distribution.log_prob(every).logsumexp(1), torch.zeros(4).double(), rtol=0, atol=1e-12)
    assert_close(distribution.probabilities().sum(1), torch.full((4,), 4.0).double())
    for bad in (-1.0, 2.0, 0.5, 1e30, math.inf):
        row = torch.tensor([[bad, 0.0, 0.0, 0.0]]).double()
        assert distribution.log_prob(row).isneginf().all()
        assert distribution.paired_log_prob(row.repeat(4, 1)).isneginf().all()
    shifted = CategoricalColumns(distribution.logits + 1e3, distribution.sizes)
    assert_close(shifted.log_prob(every), distribution.log_prob(every), rtol=1e-9, atol=1e-9)


def test_log_odds_keep_their_digits_in_float32() -> None:
    distribution = LogitBernoulli(torch.tensor([[25.0, -25.0, 80.0, -200.0]]))
    exact = torch.tensor([[-25.0, -25.0, -80.0, -200.0]])
    for j in range(4):
        wrong = (distribution.logits < 0).float()
        entry = LogitBernoulli(distribution.logits[:, [j]]).paired_log_prob(wrong[:, [j]])
        assert_close(entry, exact[:, j], rtol=1e-6, atol=0)
        right = LogitBernoulli(distribution.logits[:, [j]]).paired_log_prob(1.0 - wrong[:, [j]])
        assert_close(
            right.double(), -torch.exp(-distribution.logits[:, j].abs().double()), rtol=1e-6, atol=1e-44
        )
    assert (distribution.covariance().diagonal()[0, :3] > 0).all()


@pytest.mark.parametrize("rate", [1e2, 1e4, 1e6])
def test_large_counts_keep_their_digits_in_float32(rate: float) -> None:
    counts = (rate + math.sqrt(rate) * torch.linspace(-3, 3, 13).double()).round()[:, None]
    log_rate = torch.full((13, 1), math.log(rate)).float()
    exact = distributions.Poisson(log_rate.double().exp()).log_prob(counts)[:, 0]
    found = LogPoisson(log_rate).paired_log_prob(counts.float())
    assert_close(found.double(), exact, rtol=0, atol=3e-3)
    assert_close(LogPoisson(log_rate.double()).paired_log_prob(counts), exact, rtol=1e-9, atol=1e-8)


def test_the_slope_of_counts_is_count_less_rate() -> None:
    log_rate = torch.tensor([[-3.0, 0.0, 5.0, 90.0]], dtype=torch.float64, requires_grad=True)
    rows = torch.tensor([[0.0, 4.0, 0.0, 0.0]], dtype=torch.float64)
    (slope,) = torch.autograd.grad(LogPoisson(log_rate).paired_log_prob(rows).sum(), log_rate)
    assert_close(slope, rows - log_rate.detach().exp())
    wild = torch.tensor([[900.0]], dtype=torch.float64, requires_grad=True)
    assert LogPoisson(wild).paired_log_prob(torch.ones(1, 1).double()).isneginf().all()


def test_small_noise_under_large_loadings_keeps_its_digits_in_float32() -> None:
    loadings, noise = 30.0 * normal((50, 3), generator(0)), torch.full((50,), 1e-4).double()
    distribution = TiedLowRankGaussian(normal((20, 50), generator(1)), loadings, noise)
    rows = distribution.draw(1, generator(2))[:, 0]
    exact = distribution.paired_log_prob(rows)
    low = TiedLowRankGaussian(distribution.mean.float(), loadings.float(), noise.float())
    rounding = (
        (low.paired_log_prob((rows - distribution.mean).float() + distribution.mean.float()) - exact)
        .abs()
        .max()
    )
    plain = LowRankGaussian(torch.zeros(50), loadings.float(), noise.float())
    cancelled = (plain.log_prob((rows - distribution.mean).float())[0] - exact).abs().max()
    assert float(rounding) < 0.05 * float(cancelled)
    assert float(rounding / exact.abs().max()) < 0.05


def test_a_tied_distribution_moves_with_its_units() -> None:
    distribution, rows, _ = low_rank()
    origin, scale = torch.arange(5.0).double() * 1e3, torch.tensor([1e-3, 1.0, 7.0, 1e4, 0.2]).double()
    moved = distribution.affine(origin, scale)
    assert_close(
        moved.paired_log_prob(origin + scale * rows),
        distribution.paired_log_prob(rows) - scale.log().sum(),
        rtol=1e-8,
        atol=0,
    )


def mixture(free: bool = False) -> NormalMixture:
    level = torch.tensor([0.2, 0.5, 0.3]).double().log()
    mean = torch.tensor([[-2.0, 1.0], [0.5, 0.0], [1.5, -1.0]]).double()
    variance = torch.tensor([[0.3, 1.0], [0.6, 0.2], [1.1, 0.5]]).double()
    leaves = [leaf.requires_grad_(free) for leaf in (level, mean, variance)]
    return NormalMixture(leaves[0], DiagonalGaussian(leaves[1], leaves[2]))


def test_a_mixture_of_normals_is_one_distribution() -> None:
    distribution, rows = mixture(), normal((20, 2), generator(0))
    full = FullGaussian.from_covariance(
        distribution.members.mean, torch.diag_embed(distribution.members.variance)
    )
    expected = (full.log_prob(rows) + distribution.log_weight[:, None]).logsumexp(0, keepdim=True)
    assert_close(distribution.log_prob(rows), expected, rtol=1e-12, atol=1e-12)
    gappy = torch.cat([rows[:, :1], torch.full_like(rows[:, :1], NAN)], 1)
    one = NormalMixture(distribution.log_weight, distribution.members.map(lambda leaf: leaf[:, :1]))
    assert_close(distribution.log_prob(gappy), one.log_prob(rows[:, :1]), rtol=1e-12, atol=1e-12)
    draws = distribution.draw(40_000, generator(1))[0]
    assert_scores(moment_scores(draws, distribution.mean[0], distribution.covariance().dense()[0]))


def test_draws_of_a_mixture_carry_the_gradient_of_weights_means_and_variances() -> None:
    """E[g(z)] has a known slope; that of the draws' mean of g must agree within its own error, entry by entry."""
    distribution = mixture(free=True)
    leaves = (distribution.log_weight, distribution.members.mean, distribution.members.variance)
    still = mixture().draw(64, generator(3))
    assert_close(distribution.draw(64, generator(3)), still, rtol=0, atol=0)

    def exact(level: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """E[z1^2 + z1 z2^2], for weights that are normalised."""
        second = mean.square() + variance
        return level.softmax(0) @ (second[:, 0] + mean[:, 0] * second[:, 1])

    truth = torch.autograd.grad(exact(*leaves), leaves)
    found = []
    for seed in range(200):
        level = distribution.log_weight.log_softmax(0)
        z = NormalMixture(level, distribution.members).draw(200, generator(seed))[0]
        slopes = torch.autograd.grad((z[:, 0].square() + z[:, 0] * z[:, 1].square()).mean(), leaves)
        found.append(torch.cat([slope.flatten() for slope in slopes]))
    assert_scores(mean_scores(torch.stack(found), torch.cat([slope.flatten() for slope in truth])))
