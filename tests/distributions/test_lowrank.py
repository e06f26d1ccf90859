"""The low-rank Gaussian against SciPy's dense one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Generator
from torch.testing import assert_close

from boxloop.distributions import LowRankGaussian
from contract.distribution_checks import with_missing
from contract.distributions import uniform
from contract.scores import assert_scores, moment_scores

EXACT = {"rtol": 1e-11, "atol": 1e-11}


def make(d: int = 6, k: int = 2) -> LowRankGaussian:
    stream = Generator().manual_seed(0)
    return LowRankGaussian(
        uniform(stream, d, low=-2, high=2),
        uniform(stream, d, k, low=-1, high=1),
        uniform(stream, d, low=0.2, high=1),
    )


@pytest.mark.parametrize(("d", "k"), [(6, 2), (3, 3), (2, 4), (5, 0)])
def test_density_is_the_dense_one(d: int, k: int) -> None:
    distribution = make(d, k)
    rows = distribution.draw(20, Generator().manual_seed(1))[0]
    dense = stats.multivariate_normal(
        distribution.centre.numpy(), distribution.covariance().dense()[0].numpy()
    )
    assert_close(distribution.log_prob(rows)[0], torch.from_numpy(dense.logpdf(rows.numpy())), **EXACT)


def test_missing_values_leave_the_marginal_density() -> None:
    distribution = make()
    rows = with_missing(distribution.draw(20, Generator().manual_seed(1))[0])
    covariance = distribution.covariance().dense()[0].numpy()
    expected = []
    for row in rows.numpy():
        seen = ~np.isnan(row)
        block = covariance[np.ix_(seen, seen)]
        mean = distribution.centre.numpy()[seen]
        expected.append(stats.multivariate_normal(mean, block).logpdf(row[seen]) if seen.any() else 0.0)
    assert_close(distribution.log_prob(rows)[0], torch.tensor(expected, dtype=torch.float64), **EXACT)


def test_gradients_do_not_meet_the_gaps() -> None:
    distribution = make()
    rows = with_missing(distribution.draw(20, Generator().manual_seed(1))[0])
    parameters = [distribution.centre.clone(), distribution.loadings.clone(), distribution.noise.clone()]
    for parameter in parameters:
        parameter.requires_grad_()
    LowRankGaussian(*parameters).log_prob(rows).sum().backward()
    assert all(bool(torch.isfinite(parameter.grad).all()) for parameter in parameters)


def test_draws_in_many_columns() -> None:
    distribution = make(12, 3)
    draws = distribution.draw(20_000, Generator().manual_seed(2))[0]
    assert_scores(moment_scores(draws, distribution.centre, distribution.covariance().dense()[0]))
