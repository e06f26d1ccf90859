"""Noise that vanishes: the search over noise against differences, EM and its own bounds."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris, load_wine
from sklearn.decomposition import FactorAnalysis as Peer

from boxloop import FactorAnalysis
from boxloop.data import ArraySource
from boxloop.fit import NOISE_RACE_ITERATIONS, EMState, NoiseProfile, em, make_profile_step
from boxloop.loop import run
from boxloop.models import FactorModel
from boxloop.numeric import generator, normal

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


def climb(model: FactorModel, rows: torch.Tensor, iterations: int = 50) -> FactorModel:
    covariance = torch.cov(rows.mT, correction=0)
    step = make_profile_step(em(ArraySource(rows)), rows.mean(0), covariance)
    return run(step, EMState(model), max_iter=iterations, tol=0.0, monotone=True).state.model


@pytest.mark.parametrize("k", [1, 2, 4])
def test_the_derivatives_are_those_of_the_value(k):
    second = np.cov(heywood().numpy().T, bias=True)
    for seed in range(5):
        u = np.random.default_rng(seed).uniform(-4.0, 0.0, size=6)
        step = 1e-5 * np.eye(6)
        up, down = ([NoiseProfile.at_noise(np.exp(u + s * e), second, k) for e in step] for s in (1, -1))
        here = NoiseProfile.at_noise(np.exp(u), second, k)
        slope = [(a.value - b.value) / 2e-5 for a, b in zip(up, down, strict=True)]
        bend = [(a.gradient() - b.gradient()) / 2e-5 for a, b in zip(up, down, strict=True)]
        np.testing.assert_allclose(here.gradient(), slope, rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(here.hessian(), bend, rtol=1e-5, atol=1e-6)


def test_blocks_of_the_second_derivatives_add_up(monkeypatch):
    second = np.cov(heywood().numpy().T, bias=True)
    here = NoiseProfile.at_noise(np.full(6, 0.3), second, 3)
    whole = here.hessian()
    monkeypatch.setattr("boxloop.fit.linear.BLOCK_VALUES", 1)
    np.testing.assert_allclose(here.hessian(), whole, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_value_is_the_likelihood_of_the_model(k):
    rows = heywood()
    model = climb(start(rows, k), rows)
    here = NoiseProfile.at_noise(model.noise.numpy(), np.cov(rows.numpy().T, bias=True), k)
    assert -0.5 * here.value == pytest.approx(mean_likelihood(model, rows), rel=1e-10)


@pytest.fixture(scope="module")
def ended():
    """Rows without a Heywood case, and where thousands of iterations of EM end on them."""
    rows = heywood()[:, 3:]
    rows = torch.cat([rows, rows + normal(rows.shape, generator(3), torch.float64)], dim=1)
    rows = (rows - rows.mean(0)) / rows.std(0, correction=0)
    return rows, run(em(ArraySource(rows)), EMState(start(rows, 1)), max_iter=5000).state.model


@pytest.mark.parametrize("exact", [True, False])
def test_a_proper_fit_is_where_em_ends(exact, ended, monkeypatch):
    monkeypatch.setattr("boxloop.fit.linear.CLOSE", 0.0 if exact else np.inf)
    rows, slow = ended
    quick = climb(start(rows, 1), rows)
    assert float(quick.noise.min()) > 0.05
    torch.testing.assert_close(quick.noise, slow.noise, rtol=1e-6, atol=1e-8)


def test_a_few_steps_are_worth_thousands_of_iterations():
    rows = heywood()
    slow = run(em(ArraySource(rows)), EMState(start(rows)), max_iter=3000).state.model
    quick = climb(start(rows), rows, iterations=20)
    assert float(quick.noise.min()) == pytest.approx(FLOOR, rel=1e-6)
    assert float(slow.noise.min()) > 10 * FLOOR
    assert mean_likelihood(quick, rows) > mean_likelihood(slow, rows)


def test_wide_tables_start_with_em_and_end_here(monkeypatch):
    rows = heywood()
    taken = []

    def counted(state):
        taken.append(state)
        return em(ArraySource(rows))(state)

    monkeypatch.setattr("boxloop.fit.linear.QUICK_COLUMNS", 2)
    step = make_profile_step(counted, rows.mean(0), torch.cov(rows.mT, correction=0))
    model = run(step, EMState(start(rows)), max_iter=2000, monotone=True).state.model
    assert 1 < len(taken) < 1000
    assert float(model.noise.min()) == pytest.approx(FLOOR, rel=1e-6)


def test_factors_that_explain_nothing_are_zero():
    rows = normal((50, 3), generator(5), torch.float64)
    here = NoiseProfile.at_noise(np.full(3, 5.0), np.cov(rows.numpy().T, bias=True), 2)
    assert here.used == 0
    assert not here.loadings.any()


@pytest.mark.parametrize("k", [3, 5])
def test_a_higher_maximum_than_scikit_learn(k):
    """Wine with five factors has two maxima; the peer's iterations, however many, end in the lower one."""
    rows = load_wine().data
    rows = (rows - rows.mean(0)) / rows.std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # noise at its floor
        peer = Peer(k, svd_method="lapack", tol=1e-10, max_iter=5_000).fit(rows)
        ours = FactorAnalysis(k).fit(rows)
    assert ours.n_iter_ < 30
    assert ours.score(rows) > peer.score(rows) - 1e-7 + (0.05 if k == 5 else 0.0)


def test_the_better_of_two_starts():
    """Iris with two factors: what columns share starts towards the lower of two maxima, 0.005 per row."""
    rows = load_iris().data
    rows = (rows - rows.mean(0)) / rows.std(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = FactorAnalysis(2).fit(rows)
    scores = []
    for seed in range(8):
        noise = torch.rand(4, generator=generator(seed), dtype=torch.float64)
        other = replace(start(torch.from_numpy(rows)), noise=noise)
        scores.append(mean_likelihood(climb(other, torch.from_numpy(rows)), torch.from_numpy(rows)))
    assert found.score(rows) > max(scores) - 1e-6
    assert found.score(rows) > min(scores) + 1e-3


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


def test_ctrl_c_in_the_race_of_starts_ends_the_fit(monkeypatch):
    climbed, calls = NoiseProfile.take_step, []

    def interrupted(self, floor):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return climbed(self, floor)

    monkeypatch.setattr(NoiseProfile, "take_step", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        fit = FactorAnalysis(2).fit(heywood().numpy())
    assert fit.interrupted_
    assert (
        len(calls) <= 3 + NOISE_RACE_ITERATIONS
    )  # the other start runs its heat; the fit itself does not begin
    assert np.isfinite(fit.score(heywood().numpy()))
