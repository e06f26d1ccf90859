"""The same estimates and sandwich errors as delicatessen, where it is installed."""

from __future__ import annotations

import numpy as np
import pytest

from boxloop import z_estimate
from boxloop.fit import huber, linear_regression
from fit.equation_cases import logit_rows, logit_score, near, regression_rows

delicatessen = pytest.importorskip("delicatessen", reason="pip install -c constraints.txt '.[bench]'")
ZERO = [0.0, 0.0, 0.0]


def solved(stack, n_parameters: int = 3):
    """Estimates and covariance by delicatessen, its slope by its own automatic derivatives."""
    peer = delicatessen.MEstimator(stack, init=[0.0] * n_parameters)
    peer.estimate(solver="lm", tolerance=1e-13, deriv_method="exact")
    return peer


@pytest.mark.parametrize("kind", ["linear", "logistic", "huber"])
def test_regressions(kind: str) -> None:
    from delicatessen.estimating_equations import ee_regression, ee_robust_regression

    rows = logit_rows() if kind == "logistic" else regression_rows()
    design, y = np.column_stack([np.ones(len(rows)), rows[:, :2]]), rows[:, 2]
    if kind == "huber":
        psi = huber(1.345)
        peer = solved(lambda theta: ee_robust_regression(theta, design, y, model="linear", k=1.345))
    else:
        psi = linear_regression() if kind == "linear" else logit_score
        peer = solved(lambda theta: ee_regression(theta, design, y, model=kind))
    found = z_estimate(psi, rows, ZERO)
    near(found.theta, peer.theta)
    near(found.covariance, peer.variance)


def test_a_stack_of_equations() -> None:
    """Mean, variance and their ratio, each from its own equation."""
    rows = np.random.default_rng(0).gamma(2.0, size=(400, 1))

    def ours(theta, x):
        import torch

        gap = x[:, 0] - theta[0]
        ratio = theta[1] - theta[2] * theta[0]
        return torch.stack([gap, gap.square() - theta[1], ratio.expand(len(x))], dim=1)

    def theirs(theta):
        x = rows[:, 0]
        gap = x - theta[0]
        return np.vstack([gap, gap**2 - theta[1], np.ones(len(x)) * (theta[1] - theta[2] * theta[0])])

    peer = delicatessen.MEstimator(theirs, init=[1.0, 1.0, 1.0])
    peer.estimate(solver="lm", tolerance=1e-13, deriv_method="exact")
    found = z_estimate(ours, rows, [1.0, 1.0, 1.0])
    near(found.theta, peer.theta)
    near(found.covariance, peer.variance)
