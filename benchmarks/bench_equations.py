"""Sandwich errors of a logistic regression: a user's own equations, against delicatessen and statsmodels.

delicatessen solves any equations, as z_estimate does; statsmodels has this one model written out, so its time is what a
special case can reach. Estimates and covariances are compared first.

    python benchmarks/bench_equations.py [--quick]
"""

from __future__ import annotations

import argparse

import numpy as np
import statsmodels.api as sm
import torch
from delicatessen import MEstimator
from delicatessen.estimating_equations import ee_regression

from boxloop import m_estimate, z_estimate
from common import interleave, report


def logit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """An intercept, d - 1 columns, and a zero or one."""
    rng = np.random.default_rng(seed)
    x = np.column_stack([np.ones(n), rng.normal(size=(n, d - 1))])
    y = rng.random(n) < 1.0 / (1.0 + np.exp(-x @ rng.normal(size=d)))
    return np.column_stack([x, y])


def score(theta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    x, y = rows[:, :-1], rows[:, -1]
    return x * (y - torch.sigmoid(x @ theta))[:, None]


def density(theta: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    value = rows[:, :-1] @ theta
    return rows[:, -1] * value - torch.nn.functional.softplus(value)


def one_case(n: int, d: int, repeats: int) -> list[dict]:
    rows = logit_rows(n, d)
    x, y, zero = rows[:, :-1], rows[:, -1], [0.0] * d

    def by_equations():
        peer = MEstimator(lambda theta: ee_regression(theta, x, y, model="logistic"), init=zero)
        peer.estimate(solver="lm", tolerance=1e-12, deriv_method="exact")
        return peer.theta, peer.variance

    def by_model():
        peer = sm.Logit(y, x).fit(disp=0, method="newton", tol=1e-12, cov_type="HC0")
        return peer.params, peer.cov_params()

    def ours():
        found = z_estimate(score, rows, zero)
        return found.theta.numpy(), found.covariance.numpy()

    def ours_by_likelihood():
        found = m_estimate(density, rows, zero, likelihood=True)
        return found.theta.numpy(), found.covariance.numpy()

    mine = ours()
    for other in (by_equations, by_model, ours_by_likelihood):
        for one, two in zip(mine, other(), strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-7, atol=1e-10)
    jobs = {"delicatessen": by_equations, "statsmodels": by_model, "z": ours, "m": ours_by_likelihood}
    times = interleave(jobs, repeats)
    floor = n * d * 8 / 20e9  # one read of the rows at 20 GB/s
    return [
        {
            "case": f"logistic regression, n={n} d={d}, {name}_estimate",
            "peer": peer,
            "peer_ms": 1e3 * times[peer],
            "ours_ms": 1e3 * times[name],
            "ratio": times[peer] / times[name],
            "floor_ms": 1e3 * floor,
        }
        for name in ("z", "m")
        for peer in ("delicatessen", "statsmodels")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    sizes = [(500, 3)] if parser.parse_args().quick else [(2_000, 5), (200_000, 5), (50_000, 20)]
    report("equations", [row for size in sizes for row in one_case(*size, 3)])


if __name__ == "__main__":
    main()
