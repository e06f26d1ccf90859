"""M-estimation against statsmodels, SciPy and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
import torch
from torch import Tensor

from boxloop import m_estimate, z_estimate
from boxloop.fit import EstimateWarning
from boxloop.loop import run
from fit.equation_cases import chunked, logit_density, logit_rows, logit_score, near, regression_rows

ZERO = [0.0, 0.0, 0.0]


def test_a_likelihood_has_both_errors_of_statsmodels() -> None:
    rows = logit_rows()
    found = m_estimate(logit_density, rows, ZERO, likelihood=True)
    model = sm.Logit(rows[:, 2], sm.add_constant(rows[:, :2]))
    plain = model.fit(disp=0, tol=1e-14, method="newton")
    near(found.theta, plain.params)
    near(found.information, plain.cov_params())
    near(found.covariance, model.fit(disp=0, tol=1e-14, method="newton", cov_type="HC0").cov_params())
    near(found.information_errors, plain.bse)
    assert "information" in repr(found)


def test_the_gradient_of_an_objective_is_its_equation() -> None:
    rows = logit_rows()
    groups = np.arange(len(rows)) // 6
    one = m_estimate(logit_density, rows, ZERO, groups=groups, correction=True)
    other = z_estimate(logit_score, rows, ZERO, groups=groups, correction=True)
    near(one.theta, other.theta, 1e-9)
    near(one.covariance, other.covariance, 1e-9)
    assert one.information is None


def test_chunks_and_weights() -> None:
    rows = logit_rows(200)
    weight = np.random.default_rng(1).integers(0, 4, len(rows))
    one = m_estimate(logit_density, chunked(rows, weight), ZERO, likelihood=True)
    other = m_estimate(logit_density, np.repeat(rows, weight, axis=0), ZERO, likelihood=True)
    near(one.theta, other.theta, 1e-10)
    near(one.covariance, other.covariance, 1e-10)
    near(one.information, other.information, 1e-10)


def test_a_loss_is_minimised() -> None:
    rows = regression_rows()

    def loss(theta: Tensor, x: Tensor) -> Tensor:
        return (x[:, 2] - theta[0] - x[:, :2] @ theta[1:]).square()

    found = m_estimate(loss, rows, ZERO, minimise=True)
    expected = sm.OLS(rows[:, 2], sm.add_constant(rows[:, :2])).fit(cov_type="HC0")
    near(found.theta, expected.params)
    near(found.covariance, expected.cov_params())


def test_distributions_of_torch_are_objectives() -> None:
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(400, 1))

    def density(theta: dict[str, Tensor], rows: Tensor) -> Tensor:
        return torch.distributions.Normal(theta["mean"], theta["log_scale"].exp()).log_prob(rows[:, 0])

    found = m_estimate(density, x, {"mean": -10.0, "log_scale": 4.0}, likelihood=True)
    near(found.theta["mean"], x.mean())
    near(found.theta["log_scale"], np.log(x.std()))
    near(found.information_errors["log_scale"], (1 / 800) ** 0.5)


def test_the_climb_survives_a_start_where_the_curvature_is_wrong() -> None:
    """Cauchy log-density: convex far from the rows, where a plain Newton step runs away."""
    x = np.random.default_rng(0).standard_cauchy(size=(300, 1))

    def density(theta: Tensor, rows: Tensor) -> Tensor:
        return -torch.log1p((rows[:, 0] - theta[0]).square())

    found = m_estimate(density, x, [40.0], likelihood=True)
    assert found.converged
    grid = np.linspace(-1, 1, 20_001)
    best = grid[np.argmax([-np.log1p((x - t) ** 2).sum() for t in grid])]
    assert abs(float(found.theta) - best) < 2e-4


def test_the_highest_of_several_maxima_is_taken() -> None:
    x = np.concatenate([np.full(40, -5.0), np.full(60, 5.0)]) + np.linspace(-1, 1, 100)

    def density(theta: Tensor, rows: Tensor) -> Tensor:
        return -torch.log1p((rows[:, 0] - theta[0]).square())

    with pytest.warns(EstimateWarning, match="2 different maxima"):
        found = m_estimate(density, x[:, None], [-4.0], starts=[[4.0]])
    assert float(found.theta) > 4.0
    assert len(found.roots) == 2


def test_the_objective_rises_in_every_iteration(monkeypatch: pytest.MonkeyPatch) -> None:
    traces = []

    def watched(*arguments, **options):
        outcome = run(*arguments, **options)
        traces.append(outcome.trace)
        return outcome

    monkeypatch.setattr("boxloop.fit.equations.objective.run", watched)
    m_estimate(logit_density, logit_rows(), [3.0, -3.0, 5.0])
    assert len(traces[0]) > 3
    assert all(b >= a - 1e-12 for a, b in zip(traces[0], traces[0][1:]))
