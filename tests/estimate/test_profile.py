"""Noise that vanishes: the search over noise against differences, EM and its own bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad

from boxloop import FactorAnalysis
from boxloop.data import ArraySource
from boxloop.estimate.em import EMState, em
from boxloop.estimate.profile import _objective, climbed
from boxloop.models import FactorModel
from boxloop.numeric import generator, normal
from boxloop.run import run

FLOOR = 1e-6


def heywood(n: int = 400) -> torch.Tensor:
    """Columns 0 to 2 want a communality of 0.9 * 0.9 / 0.7 > 1 for the first; columns 3 to 5 are proper."""
    block = torch.tensor([[1.0, 0.9, 0.9], [0.9, 1.0, 0.7], [0.9, 0.7, 1.0]]).double()
    proper = torch.full((3, 3), 0.6).double() + 0.4 * torch.eye(3).double()
    rows = (
        normal((n, 6), generator(0), torch.float64)
        @ torch.linalg.cholesky(torch.block_diag(block, proper)).mT
    )
    return (rows - rows.mean(0)) / rows.std(0, correction=0)


def start(rows: torch.Tensor, k: int = 2) -> FactorModel:
    d = rows.shape[1]
    loadings = normal((d, k), generator(2), torch.float64)
    return FactorModel(torch.zeros(d).double(), loadings, torch.full((d,), 0.5).double(), FLOOR)


def mean_likelihood(model: FactorModel, rows: torch.Tensor) -> float:
    return float(model.log_prob(rows).mean())


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_gradient_is_that_of_the_objective(k):
    second = np.cov(heywood().numpy().T, bias=True)
    for seed in range(5):
        u = np.random.default_rng(seed).uniform(-4.0, 0.0, size=6)
        error = check_grad(lambda v: _objective(v, second, k)[0], lambda v: _objective(v, second, k)[1], u)
        assert error < 1e-5


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_objective_is_the_likelihood_of_the_model(k):
    rows = heywood()
    covariance = torch.cov(rows.mT, correction=0)
    model = climbed(start(rows, k), rows.mean(0), covariance)
    value, _ = _objective(model.noise.log().numpy(), covariance.numpy(), k)
    assert -0.5 * (value + 6 * np.log(2 * np.pi)) == pytest.approx(mean_likelihood(model, rows), rel=1e-10)


def test_one_search_is_worth_thousands_of_rounds():
    rows = heywood()
    slow = run(em(ArraySource(rows)), EMState(start(rows)), max_rounds=3000).state.model
    quick = climbed(start(rows), rows.mean(0), torch.cov(rows.mT, correction=0))
    assert float(quick.noise.min()) == pytest.approx(FLOOR, rel=1e-6)
    assert float(slow.noise.min()) > 10 * FLOOR
    assert mean_likelihood(quick, rows) > mean_likelihood(slow, rows)


def test_a_fit_does_not_creep():
    rows = heywood().numpy()
    with pytest.warns(UserWarning, match="noise"):
        fit = FactorAnalysis(2, tol=1e-10).fit(rows)
    assert fit.converged_
    assert fit.n_iter_ < 60
    assert np.all(np.diff(fit.lower_bounds_) > -1e-9)
    order = np.random.default_rng(0).permutation(len(rows))
    with pytest.warns(UserWarning, match="noise"):
        again = FactorAnalysis(2, tol=1e-10).fit(rows[order])
    np.testing.assert_allclose(again.transform(rows), fit.transform(rows), rtol=1e-6, atol=1e-7)
