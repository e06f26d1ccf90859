"""The one distribution: low rank plus diagonal."""

import pytest
import torch

from boxloop.networks import WeightDistribution
from networks.trajectories import dense


def distribution(size: int = 6, rank: int = 3) -> WeightDistribution:
    draws = torch.Generator().manual_seed(0)
    mean = torch.randn(size, generator=draws).double()
    loadings = torch.randn(size, rank, generator=draws).double()
    return WeightDistribution(mean, loadings, torch.rand(size, generator=draws).double())


def test_moments_are_those_of_the_dense_covariance() -> None:
    one = distribution()
    torch.testing.assert_close(one.covariance().dense()[0], dense(one), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(one.variance(), dense(one).diagonal(), rtol=1e-12, atol=0.0)
    assert (one.size, one.rank) == (6, 3)


def test_draws_have_mean_and_covariance() -> None:
    """21 covariances and 6 means, each below 5 errors: false alarm 2e-5 were the seed not fixed."""
    one, n = distribution(), 200_000
    rows = one.draw(n, torch.Generator().manual_seed(1))
    right = dense(one)
    z_mean = (rows.mean(0) - one.mean) / (right.diagonal() / n).sqrt()
    assert float(z_mean.abs().max()) < 5.0
    error = ((right.square() + right.diagonal().outer(right.diagonal())) / n).sqrt()
    assert float(((torch.cov(rows.mT) - right) / error).abs().max()) < 5.0


def test_draws_of_a_point_are_the_point() -> None:
    point = WeightDistribution.point(torch.arange(3.0))
    assert point.rank == 0
    assert torch.equal(point.draw(2, torch.Generator()), torch.arange(3.0).expand(2, 3))
    assert not bool(point.variance().any())


def test_scaled_covariances() -> None:
    one = distribution()
    torch.testing.assert_close(dense(one.scale_covariance(0.25)), 0.25 * dense(one), rtol=1e-12, atol=0.0)
    assert not bool(dense(one.scale_covariance(0.0)).any())
    for factor in (-1.0, float("nan")):
        with pytest.raises(ValueError, match="factor must be at least 0"):
            one.scale_covariance(factor)


def test_parts_are_marginals() -> None:
    one = distribution()
    torch.testing.assert_close(dense(one.marginal(slice(1, 4))), dense(one)[1:4, 1:4], rtol=1e-12, atol=0.0)
    place = torch.tensor([5, 0])
    torch.testing.assert_close(dense(one.marginal(place)), dense(one)[place][:, place], rtol=1e-12, atol=0.0)


@pytest.mark.parametrize("rank", [0, 1, 2, 3, 7])
def test_reduced_distributions_keep_variances_and_the_longest_directions(rank: int) -> None:
    one = distribution()
    less = one.reduce_rank(rank)
    assert less.rank == min(rank, 3)
    torch.testing.assert_close(less.variance(), one.variance(), rtol=1e-12, atol=0.0)
    whole = one.loadings @ one.loadings.mT
    values, vectors = torch.linalg.eigh(whole)
    top = values.argsort(descending=True)[:rank]
    best = vectors[:, top] * values[top] @ vectors[:, top].mT
    torch.testing.assert_close(less.loadings @ less.loadings.mT, best, rtol=1e-9, atol=1e-12)


def test_as_a_factor_model() -> None:
    one = distribution()
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)).double()
    right = torch.distributions.MultivariateNormal(one.mean, dense(one)).log_prob(x)
    torch.testing.assert_close(one.to_factor_model().log_prob(x), right, rtol=1e-10, atol=0.0)
