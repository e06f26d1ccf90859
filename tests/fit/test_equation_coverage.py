"""Do the intervals cover? Counts over many samples against the binomial distribution.

A count is held against 4 standard errors, and half a percent for what finite samples cost: a false alarm of one in
15 000 for each of the three tests, 2e-4 for the file.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from boxloop import m_estimate, z_estimate
from boxloop.fit import linear_regression, quantile, quantile_step
from fit.equation_cases import regression_rows

SAMPLES = 200
REACH = 4.0 * (0.95 * 0.05 / SAMPLES) ** 0.5 + 0.005


def share(inside: list[bool]) -> float:
    return sum(inside) / len(inside)


def normal_density(theta: Tensor, rows: Tensor) -> Tensor:
    """Linear regression with a common variance: wrong for rows whose noise grows."""
    residual = rows[:, 2] - theta[0] - rows[:, :2] @ theta[1:3]
    return -theta[3] - 0.5 * residual.square() * (-2.0 * theta[3]).exp()


def test_sandwich_errors_cover_under_a_wrong_model_and_information_errors_do_not() -> None:
    sandwich, information = [], []
    for seed in range(SAMPLES):
        found = m_estimate(normal_density, regression_rows(400, seed), [0.0] * 4, likelihood=True)
        apart = abs(float(found.theta[1]) - 2.0)
        sandwich.append(apart < 1.96 * float(found.standard_errors[1]))
        information.append(apart < 1.96 * float(found.information_errors[1]))
    assert abs(share(sandwich) - 0.95) < REACH
    assert share(information) < 0.95 - REACH


def test_errors_of_groups_cover_and_errors_without_them_do_not() -> None:
    """Ten rows of a group share their noise."""
    grouped, alone = [], []
    for seed in range(SAMPLES):
        rng = np.random.default_rng(seed)
        groups = np.arange(1000) // 10
        x = rng.normal(size=100)[groups] + 0.3 * rng.normal(size=1000)
        y = 1.0 + 2.0 * x + rng.normal(size=100)[groups] + rng.normal(size=1000)
        rows = np.column_stack([x, y])
        for found, inside in (
            (z_estimate(linear_regression(), rows, [0.0, 0.0], groups=groups, correction=True), grouped),
            (z_estimate(linear_regression(), rows, [0.0, 0.0]), alone),
        ):
            low, high = found.interval()
            inside.append(bool(low[1] < 2.0 < high[1]))
    assert abs(share(grouped) - 0.95) < REACH
    assert share(alone) < 0.8


def test_errors_of_a_quantile_cover() -> None:
    inside = []
    for seed in range(SAMPLES):
        x = np.random.default_rng(seed).normal(size=(800, 1))
        step = quantile_step(0.75, 800, float(x.std()))
        low, high = z_estimate(quantile(0.75), x, [0.0], smooth=step).interval()
        inside.append(bool(low < 0.6744897501960817 < high))
    assert abs(share(inside) - 0.95) < REACH


def test_the_tests_can_fail() -> None:
    """Errors a fifth too small cover 88%, beyond what the tests allow."""
    from scipy import stats

    assert abs(2 * stats.norm.cdf(0.8 * 1.96) - 1 - 0.95) > REACH
