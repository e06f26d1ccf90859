"""Factor analysis against the equations of Brownlie (2021), its own moments, and itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.decomposition import FactorAnalysis
from torch import Generator, Tensor
from torch.testing import assert_close

from boxloop.data import ArraySource, moment_source, summarise_moments
from boxloop.fit import EMState, em
from boxloop.loop import run
from boxloop.models import FactorModel
from contract.distribution_checks import near, with_missing
from contract.distributions import uniform

D, K, N = 6, 2, 300


def truth() -> FactorModel:
    stream = Generator().manual_seed(0)
    return FactorModel(
        uniform(stream, D, low=-3, high=3),
        uniform(stream, D, K, low=-2, high=2),
        uniform(stream, D, low=0.3, high=1.5),
    )


def table() -> Tensor:
    return truth().sample(N, Generator().manual_seed(1))[0]


def start(rows: Tensor, expand: bool) -> FactorModel:
    loadings = uniform(Generator().manual_seed(2), D, K, low=-1, high=1)
    return FactorModel(rows.mean(0), loadings, rows.var(0), expand=expand)


def batch_step(
    mean: np.ndarray, F: np.ndarray, psi: np.ndarray, theta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Brownlie (2021), eq. 4.23 and 4.29 to 4.31, letter for letter, with explicit inverses."""
    T = len(theta)
    d = theta - mean
    Sigma = np.linalg.inv(np.eye(F.shape[1]) + F.T @ np.diag(1 / psi) @ F)
    m = [Sigma @ F.T @ np.diag(1 / psi) @ d_t for d_t in d]
    A = sum(np.outer(d_t, m_t) for d_t, m_t in zip(d, m, strict=True)) / T
    H = Sigma + sum(np.outer(m_t, m_t) for m_t in m) / T
    F = A @ np.linalg.inv(H)
    Psi = np.diag(np.diag(sum(np.outer(d_t, d_t) for d_t in d) / T - 2 * F @ A.T + F @ H @ F.T))
    return F, np.diag(Psi).copy()


def test_the_plain_step_is_document_004s() -> None:
    """At the sample mean the paper keeps the mean fixed, and so does our step."""
    rows = table()
    model = start(rows, expand=False)
    loadings, noise = model.loadings.numpy(), model.noise.numpy()
    for _ in range(5):
        loadings, noise = batch_step(rows.mean(0).numpy(), loadings, noise, rows.numpy())
        model = model.solve(model.expect(rows, torch.ones(N).double()).statistics)
        assert_close(model.loadings, torch.from_numpy(loadings), rtol=1e-10, atol=1e-10)
        assert_close(model.noise, torch.from_numpy(noise), rtol=1e-10, atol=1e-10)
        assert_close(model.mean, rows.mean(0), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("given", ["summarised", "moments"])
def test_moments_are_as_good_as_rows(expand: bool, given: str) -> None:
    rows = table()
    weight = uniform(Generator().manual_seed(3), N, low=0.5, high=2.0)
    source = ArraySource(rows, weight)
    if given == "summarised":
        summary = summarise_moments(source)
        assert summary is not None
        short = summary.rows()
    else:
        mean = weight @ rows / weight.sum()
        short = moment_source(mean, torch.cov(rows.T, correction=0, aweights=weight), float(weight.sum()))
    assert short.n_rows == D + 1
    by_rows, by_moments = (
        run(em(s), EMState(start(rows, expand)), max_iter=50, monotone=True) for s in (source, short)
    )
    assert by_moments.trace == pytest.approx(by_rows.trace, rel=1e-10)
    near(by_moments.state.model, by_rows.state.model)


@pytest.mark.parametrize("gaps", [False, True])
def test_the_expanded_step_climbs_faster(gaps: bool) -> None:
    rows = with_missing(table(), rate=0.2) if gaps else table()
    plain = start(table(), expand=False)
    traces = [
        run(em(ArraySource(rows)), EMState(model), max_iter=15, monotone=True).trace
        for model in (plain, replace(plain, expand=True))
    ]
    assert traces[0][0] == traces[1][0]
    assert traces[1][-1] > traces[0][-1]
    one = plain.expect(rows, torch.ones(N).double())
    risen = replace(plain, expand=True).solve(one.statistics).log_prob(rows).sum()
    assert float(risen) > float(one.log_likelihood)


def test_the_maximum_is_scikit_learns() -> None:
    rows = table()
    ours = run(em(ArraySource(rows)), EMState(start(rows, True)), max_iter=3000, monotone=True).state.model
    theirs = FactorAnalysis(K, tol=1e-12, max_iter=20_000, svd_method="lapack").fit(rows.numpy())
    assert float(ours.log_prob(rows).mean()) == pytest.approx(theirs.score(rows.numpy()), rel=1e-8)
    assert_close(
        ours.moments()[1].dense()[0], torch.from_numpy(theirs.get_covariance()), rtol=1e-4, atol=1e-4
    )


def test_the_canonical_form_is_the_same_distribution() -> None:
    model = truth()
    canonical = model.to_canonical_form()
    assert_close(canonical.moments()[1].dense(), model.moments()[1].dense(), rtol=1e-12, atol=1e-12)
    assert float(canonical.identification_constraints().abs().max()) < 1e-12
    assert_close(canonical.to_canonical_form().loadings, canonical.loadings, rtol=1e-10, atol=1e-10)
    inner = canonical.loadings.mT @ (canonical.loadings / canonical.noise[:, None])
    assert bool((inner.diagonal().diff() <= 0).all())
    turn = torch.linalg.qr(uniform(Generator().manual_seed(4), K, K))[0]
    turned = replace(model, loadings=model.loadings @ turn).to_canonical_form()
    assert_close(turned.loadings, canonical.loadings, rtol=1e-10, atol=1e-10)


def test_a_heywood_case_stops_at_the_floor_and_is_named() -> None:
    rows = table()
    rows[:, 1] = 2.0 * rows[:, 0]
    model = replace(start(rows, True), floor=1e-3)
    fitted = run(em(ArraySource(rows)), EMState(model), max_iter=300, monotone=True).state.model
    assert fitted.is_floored()[:2].any()
    assert float(fitted.noise.min()) == pytest.approx(1e-3)
    assert not bool(fitted.is_floored()[2:].any())


def test_float32_tiles_agree_with_float64() -> None:
    model, rows = truth(), table().float()
    weight = torch.ones(N).double()
    low, high = model.expect(rows, weight), model.expect(rows.double(), weight)
    assert_close(low.log_likelihood, high.log_likelihood, rtol=1e-6, atol=0)
    near(low.statistics, high.statistics, rtol=1e-6)
    gappy = with_missing(rows)
    near(model.expect(gappy, weight), model.expect(gappy.double(), weight))


def test_a_factor_that_only_rounding_loads_has_no_loadings():
    """Where the noise is small, loadings of 1e-17 would give scores of 1e-9."""
    generator = torch.Generator().manual_seed(0)
    loadings = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    loadings[:, 2] = loadings[:, 0] + 1e-16 * loadings[:, 1]
    model = FactorModel(
        torch.zeros(6).double(), loadings, torch.full((6,), 1e-8).double()
    ).to_canonical_form()
    assert (model.loadings[:, 3] == 0.0).all()
    assert (model.loadings[:, :3].square().sum(0) > 0.1).all()
    torch.testing.assert_close(
        model.loadings @ model.loadings.mT, loadings @ loadings.mT, rtol=1e-12, atol=1e-12
    )
