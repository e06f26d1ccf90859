"""Probabilistic principal components: the closed form against scikit-learn, and EM at it."""

from __future__ import annotations

import pytest
import torch
from sklearn.decomposition import PCA
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop.data import ArraySource
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import PrincipalModel
from contract.distribution_checks import near, slope
from contract.distributions import uniform

D, N = 6, 200
ONES = torch.ones(N, dtype=torch.float64)


def table() -> Tensor:
    stream = Generator().manual_seed(0)
    mix = uniform(stream, D, D, low=-1, high=1) * torch.arange(1.0, 1 + D).double()
    return torch.randn(N, D, generator=stream, dtype=torch.float64) @ mix + 3.0


def closed(rows: Tensor, k: int) -> PrincipalModel:
    return PrincipalModel.closed_form(rows.mean(0), torch.cov(rows.T, correction=0), k)


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_closed_form_is_scikit_learns(k: int) -> None:
    """scikit-learn divides by n - 1, maximum likelihood by n."""
    rows = table()
    model, peer = closed(rows, k), PCA(k, svd_solver="full").fit(rows.numpy())
    shrink = (N - 1) / N
    assert float(model.noise) == pytest.approx(peer.noise_variance_ * shrink, rel=1e-10)
    dense = torch.from_numpy(peer.get_covariance()) * shrink
    assert_close(model.moments()[1].dense()[0], dense, rtol=1e-10, atol=1e-10)
    axes = torch.from_numpy(peer.components_)
    size = torch.from_numpy(peer.explained_variance_) * shrink - model.noise
    assert_close((axes @ model.loadings).abs(), torch.diag(size.sqrt()), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("expand", [False, True])
def test_em_stands_still_there(expand: bool) -> None:
    rows = table()
    best = closed(rows, 2)
    best = PrincipalModel(best.mean, best.loadings, best.noise, expand=expand)
    moved = best.solve(best.expect(rows, ONES).statistics)
    near(moved.moments()[1].dense(), best.moments()[1].dense())
    score = slope(lambda model: model.log_prob(rows).sum(), best)
    assert float(score.abs().max()) < 1e-9 * N


def test_em_gets_there() -> None:
    rows = table()
    best = closed(rows, 2)
    start = PrincipalModel(rows.mean(0), uniform(Generator().manual_seed(1), D, 2), torch.ones(1).double())
    outcome = run(em(ArraySource(rows)), EMState(start), max_iter=2000, monotone=True)
    assert outcome.trace[-1] == pytest.approx(float(best.log_prob(rows).mean()), rel=1e-9)
    assert_close(outcome.state.model.noise, best.noise, rtol=1e-5, atol=0)


def test_a_floor_above_the_noise_is_respected() -> None:
    rows = table()
    covariance = torch.cov(rows.T, correction=0)
    level = 2.0 * float(closed(rows, 2).noise)
    held = PrincipalModel.closed_form(rows.mean(0), covariance, 2, floor=level)
    assert float(held.noise) == pytest.approx(level)
    moved = held.solve(held.expect(rows, ONES).statistics)
    near(moved.moments()[1].dense(), held.moments()[1].dense(), rtol=1e-9)
    assert bool(held.is_floored().all())


def test_columns_of_different_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="share one scale"):
        closed(table(), 2).affine(torch.zeros(D).double(), torch.arange(1.0, 1 + D).double())
