"""The Gibbs kernel of factor analysis: identities, the joint distribution, and bugs that it must show."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.chain import advance
from boxloop.distributions import FactorPrior, InverseGamma, LowRankGaussian, wishart_root
from boxloop.numeric import generator, normal
from boxloop.sample import (
    FactorConditional,
    FactorParameters,
    ScatterStatistics,
    draw_latent_sums,
    factor_conditional,
    make_factor_kernel,
    pack_factors,
    shift_factors,
    start_factors,
    unpack_factors,
)
from contract.scores import assert_scores, mean_scores
from sample.calibrated import joint_scores, ranks, uniform_chances

EXACT = {"rtol": 1e-10, "atol": 1e-10}


def make_prior(k: int = 2, d: int = 4) -> FactorPrior:
    line = torch.linspace(0.5, 1.5, d, dtype=torch.float64)
    noise = InverseGamma(torch.full_like(line, 8.0), 2.0 + line)
    return FactorPrior(line - 1.0, line.flip(0), line, noise, k)


def draw_tables(prior: FactorPrior, c: int, n: int, seed: int = 0) -> tuple[FactorParameters, Tensor]:
    """c models and n rows of each, (c, n, d)."""
    stream = generator(seed)
    values = FactorParameters(*prior.draw(c, stream))
    d, k = values.loadings.shape[1:]
    z, noise = normal((c, n, k), stream), normal((c, n, d), stream)
    return values, values.mean[:, None] + z @ values.loadings.mT + values.noise.sqrt()[:, None] * noise


def looks(rows: Tensor):
    """Parameters, covariances, squares, and their products with moments of the rows."""
    centre, square, d = rows.mean(1), rows.square().mean(1), rows.shape[2]

    def look(position: Tensor) -> Tensor:
        values = unpack_factors(position, d)
        covariance = (values.loadings @ values.loadings.mT).flatten(1)
        wide = [position, position.square(), covariance, covariance * square[:, :1]]
        return torch.cat([*wide, position * centre[:, :1], position[:, :d] * square[:, -1:]], 1)

    return look


def test_positions_come_back() -> None:
    values = FactorParameters(*make_prior().draw(6, generator(0)))
    position = pack_factors(values)
    for a, b in zip(unpack_factors(position, 4), values, strict=True):
        assert_close(a, b)
    assert unpack_factors(position.reshape(3, 2, -1), 4).loadings.shape == (3, 2, 4, 2)


@pytest.mark.parametrize("n", [1, 3, 50])
def test_stored_density_is_that_of_the_parameters(n: int) -> None:
    prior = make_prior()
    _, rows = draw_tables(prior, 1, n)
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows[0]), prior)
    chains = advance(kernel, kernel.init(start_factors(prior, 3, generator(1))), 4, generator(2)).chains
    assert_close(kernel.init(chains.position).log_density, chains.log_density, **EXACT)
    values = unpack_factors(chains.position, 4)
    for i in range(3):
        distribution = LowRankGaussian(values.mean[i], values.loadings[i], values.noise[i])
        assert_close(
            chains.log_density[i] - prior.log_prob(*values)[i],
            distribution.log_prob(rows[0])[0].sum(),
            **EXACT,
        )


def test_rotation_does_not_change_the_density() -> None:
    prior = make_prior()
    values, rows = draw_tables(prior, 1, 20)
    turn = torch.linalg.qr(normal((2, 2), generator(3)))[0]
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows[0]), prior)
    turned = values._replace(loadings=values.loadings @ turn)
    first, second = kernel.init(pack_factors(values)), kernel.init(pack_factors(turned))
    assert_close(first.log_density, second.log_density, **EXACT)


def test_moments_are_as_good_as_rows() -> None:
    prior = make_prior()
    rows = draw_tables(prior, 1, 30)[1][0]
    start = start_factors(prior, 3, generator(4))
    paths = []
    for seen in (
        ScatterStatistics.from_rows(rows),
        ScatterStatistics.from_covariance(rows.mean(0), rows.T.cov(correction=0), 30),
    ):
        kernel = make_factor_kernel(seen, prior)
        paths.append(advance(kernel, kernel.init(start), 3, generator(5)).position)
    assert_close(paths[0], paths[1], rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("n", [2, 4, 6, 30])
def test_sums_of_factors_have_the_distribution_of_the_rows(n: int) -> None:
    """Sums drawn from the scatter alone, beside sums over factors drawn row by row; false alarms as in scores."""
    prior, c = make_prior(), 40_000
    values, rows = draw_tables(prior, 1, n)
    seen = ScatterStatistics.from_rows(rows[0])
    looked, _ = factor_conditional(seen, seen.root.square().sum(-2), values)
    many = FactorConditional(*(leaf.expand(c, *leaf.shape[1:]) for leaf in looked))
    latent = draw_latent_sums(seen, many, generator(6))
    score = (values.loadings[0] / values.noise[0][:, None]).mT
    covariance = torch.linalg.inv(torch.eye(2, dtype=torch.float64) + score @ values.loadings[0])
    centre = (rows[0] - values.mean[0]) @ score.mT @ covariance
    z = centre + normal((c, n, 2), generator(7)) @ torch.linalg.cholesky(covariance).mT
    mean = z.mean(1)
    apart = z - mean[:, None]
    cross = (rows[0] - rows[0].mean(0)).mT @ apart
    direct = torch.cat([mean, (apart.mT @ apart).flatten(1), cross.flatten(1)], 1)
    drawn = torch.cat([latent.mean, latent.inner.flatten(1), latent.cross.flatten(1)], 1)
    for power in (1, 2):
        gap = drawn**power - direct**power  # independent of one another: variances add
        assert_scores(mean_scores(gap, torch.zeros(gap.shape[1], dtype=gap.dtype)))
    # The first of each kind, multiplied: what ties mean, squares and cross products together.
    for i, j in ((0, 2), (2, 6), (2, 5), (6, 7), (0, 6)):
        gap = drawn[:, i] * drawn[:, j] - direct[:, i] * direct[:, j]
        assert_scores(mean_scores(gap[:, None], gap.new_zeros(1)))


@pytest.mark.parametrize(("k", "d", "n"), [(2, 4, 10), (1, 3, 30), (2, 5, 4), (3, 3, 8), (2, 4, 1)])
def test_the_joint_distribution_stays(k: int, d: int, n: int) -> None:
    """Geweke's test over 10,000 pairs; false alarms as in contract.scores."""
    prior = make_prior(k, d)
    values, rows = draw_tables(prior, 10_000, n)
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows), prior)
    assert_scores(joint_scores(kernel, pack_factors(values), looks(rows)))


def test_a_flat_prior_of_means() -> None:
    """The mean given all else is centred at that of the rows."""
    prior = make_prior()
    flat = FactorPrior(
        prior.centre, torch.full_like(prior.mean_variance, torch.inf), prior.loading, prior.noise, 2
    )
    rows = draw_tables(prior, 1, 40)[1][0]
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows), flat)
    chains = advance(kernel, kernel.init(start_factors(flat, 4000, generator(8))), 40, generator(9)).chains
    mean = unpack_factors(chains.position, 4).mean
    assert_scores(mean_scores(mean, rows.mean(0)))


def wishart_of_all_rows(dof: Tensor, d: int, stream: torch.Generator) -> Tensor:
    """Planted: scales are proposed with the degrees of freedom of all rows, the Jacobian of the loadings dropped."""
    return REAL_ROOT(dof + 4.0, d, stream)


REAL_ROOT = wishart_root


def shifted_without_prior(n, prior, values, latent, stream):
    """Planted: the move of means forgets their prior."""
    flat = FactorPrior(
        prior.centre, torch.full_like(prior.mean_variance, torch.inf), prior.loading, prior.noise, 2
    )
    return REAL_SHIFT(n, flat, values, latent, stream)


REAL_SHIFT = shift_factors


class OneColumnMore(InverseGamma):
    """Planted: the noise has seen one row more than there are."""

    def posterior(self, count: Tensor | float, square: Tensor) -> InverseGamma:
        return InverseGamma.posterior(InverseGamma(self.shape, self.rate), count + 1.0, square)


@pytest.mark.parametrize("bug", ["scale", "shift", "noise", "loadings"])
def test_planted_bugs_break_the_joint_distribution(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prior = make_prior()
    values, rows = draw_tables(prior, 20_000, 10)
    if bug == "scale":
        monkeypatch.setattr(
            sys.modules["boxloop.sample.kernels.factor_gibbs"], "wishart_root", wishart_of_all_rows
        )
    if bug == "shift":
        monkeypatch.setattr(
            sys.modules["boxloop.sample.kernels.factor_gibbs"], "shift_factors", shifted_without_prior
        )
    noise = OneColumnMore(prior.noise.shape, prior.noise.rate) if bug == "noise" else prior.noise
    loading = prior.loading * 1.3 if bug == "loadings" else prior.loading
    wrong = FactorPrior(prior.centre, prior.mean_variance, loading, noise, 2)
    scores = joint_scores(
        make_factor_kernel(ScatterStatistics.from_rows(rows), wrong), pack_factors(values), looks(rows)
    )
    with pytest.raises(AssertionError, match="z-score"):
        assert_scores(scores)


def label_free(position: Tensor) -> Tensor:
    """Mean and noise of a column, a covariance, and the whole communality."""
    values = unpack_factors(position, 4)
    common = values.loadings @ values.loadings.mT
    whole = common.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.stack([values.mean[:, 0], values.noise[:, 1], common[:, 0, 3], whole], 1)


@pytest.mark.parametrize("simulations", [500, pytest.param(4000, marks=pytest.mark.slow)])
def test_ranks_are_uniform(simulations: int) -> None:
    """Simulation-based calibration. Four p-values: one below 1e-5 in 1 run of 25,000."""
    prior = make_prior()
    values, rows = draw_tables(prior, simulations, 25, seed=1)
    start = pack_factors(FactorParameters(*prior.draw(simulations, generator(2))))
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows), prior)
    rank = ranks(kernel, pack_factors(values), start, label_free, draws=31, thin=8, burn=100)
    assert min(uniform_chances(rank, 31)) > 1e-5


def test_ranks_show_a_wrong_posterior() -> None:
    prior = make_prior()
    values, rows = draw_tables(prior, 500, 25, seed=1)
    noise = InverseGamma(prior.noise.shape + 6.0, prior.noise.rate)
    wrong = FactorPrior(prior.centre, prior.mean_variance, prior.loading, noise, 2)
    kernel = make_factor_kernel(ScatterStatistics.from_rows(rows), wrong)
    position = pack_factors(values)
    rank = ranks(kernel, position, position, label_free, draws=31, thin=8, burn=100)
    assert min(uniform_chances(rank, 31)) < 1e-5
