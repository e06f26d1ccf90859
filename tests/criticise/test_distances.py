"""Distances: against SciPy, double loops and closed forms.

Statistical tests compare at 4.5 standard errors (two-sided 7e-6 each) or by a Kolmogorov test at 1e-4. Seeds are
fixed; with fresh ones this file would fail by chance in fewer than 1 run in 1000.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import linalg, stats

from boxloop.criticise import (
    energy_distance,
    frechet_distance,
    gaussian_wasserstein,
    pairwise,
    relative_covariance_error,
    sliced_wasserstein,
)

Z = 4.5


def two(
    n: int = 12, m: int = 9, d: int = 3, shift: float = 0.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + shift


def covariance(seed: int, d: int = 4) -> np.ndarray:
    root = np.random.default_rng(seed).normal(size=(d, d))
    return root @ root.T + 0.1 * np.eye(d)


def mean_distance(a: np.ndarray, b: np.ndarray, pairs: int) -> float:
    return sum(np.linalg.norm(p - q) for p in a for q in b) / pairs


def test_energy_is_the_double_loop():
    x, y = two()
    within = mean_distance(x, x, 12 * 11) + mean_distance(y, y, 9 * 8)
    assert energy_distance(x, y).value == pytest.approx(2 * mean_distance(x, y, 108) - within, rel=1e-10)


@pytest.mark.parametrize(("n", "m", "shift"), [(30, 30, 1.0), (7, 40, 0.2), (2, 3, 5.0)])
def test_energy_is_scipys_in_one_dimension(n, m, shift):
    x, y = two(n, m, 1, shift)
    expected = stats.energy_distance(x[:, 0], y[:, 0])
    assert energy_distance(x[:, 0], y[:, 0]).distance == pytest.approx(expected, rel=1e-9)


def test_energy_between_gaussians_has_a_closed_form():
    rng = np.random.default_rng(1)
    draws = [energy_distance(rng.normal(size=40), 1 + 2 * rng.normal(size=60)) for _ in range(200)]
    values = np.array([r.value for r in draws])
    folded = stats.foldnorm(1 / math.sqrt(5), scale=math.sqrt(5)).mean()
    truth = 2 * folded - 2 / math.sqrt(math.pi) - 4 / math.sqrt(math.pi)
    assert abs(values.mean() - truth) < Z * values.std() / math.sqrt(200)
    stated = math.sqrt(np.mean([r.standard_error**2 for r in draws]))
    assert 0.8 < stated / values.std() < 1.25


def test_energy_of_one_distribution_is_zero_on_average():
    rng = np.random.default_rng(2)
    draws = [energy_distance(rng.normal(size=(20, 2)), rng.normal(size=(30, 2)), 39, i) for i in range(200)]
    values = np.array([r.value for r in draws])
    assert abs(values.mean()) < Z * values.std() / math.sqrt(200)
    spread = np.array([r.p_value for r in draws]) - rng.uniform(size=200) / 40
    assert stats.kstest(spread, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("shift", "scale"), [(0.6, 1.0), (0.0, 2.0)])
def test_energy_tells_other_distributions_apart(shift, scale):
    rng = np.random.default_rng(3)
    rejected = [
        energy_distance(rng.normal(size=(100, 2)), scale * rng.normal(size=(100, 2)) + shift, 99, i).p_value == 0.01
        for i in range(20)
    ]  # fmt: skip
    assert sum(rejected) >= 16


def test_energy_ignores_order_and_follows_scale(monkeypatch):
    x, y = two(40, 30)
    result = energy_distance(x, y, 49)
    turned, shuffled = energy_distance(y, x), energy_distance(x[::-1], y[::-1])
    assert turned.value == pytest.approx(result.value, rel=1e-10)
    assert shuffled.value == pytest.approx(result.value, rel=1e-10)
    moved = energy_distance(1e3 * x + 1e6, 1e3 * y + 1e6)
    assert moved.value == pytest.approx(1e3 * result.value, rel=1e-6)
    monkeypatch.setattr(pairwise, "TILE_PAIRS", 500)
    assert energy_distance(x, y, 49).value == pytest.approx(result.value, rel=1e-10)
    assert energy_distance(x, y, 49).p_value == result.p_value


def test_gradients():
    x, y = (torch.tensor(rows, requires_grad=True) for rows in two(5, 4, 2))
    assert torch.autograd.gradcheck(lambda a, b: energy_distance(a, b).value, (x, y))
    for order in (1, 2, 3):
        assert torch.autograd.gradcheck(lambda a, b, p=order: sliced_wasserstein(a, b, 5, p).value, (x, y))
    same = energy_distance(x, x.detach().clone())
    (slope,) = torch.autograd.grad(same.value, x)
    assert bool(torch.isfinite(slope).all()), "rows that coincide give no NaN"
    (slope,) = torch.autograd.grad(sliced_wasserstein(x, x.detach().clone()).value, x)
    assert bool(torch.isfinite(slope).all())


@pytest.mark.parametrize(("n", "m"), [(30, 30), (7, 40), (12, 9), (2, 3)])
def test_slices_are_scipys_in_one_dimension(n, m):
    x, y = two(n, m, 1)
    result = sliced_wasserstein(x, y, 4, 1)
    assert result.value == pytest.approx(stats.wasserstein_distance(x[:, 0], y[:, 0]), rel=1e-10)
    assert result.standard_error < 1e-12


@pytest.mark.parametrize("order", [1, 2, 3.5])
def test_unequal_sizes_are_repeated_rows(order):
    x, y = two(6, 4)
    unequal = sliced_wasserstein(x, y, 20, order)
    equal = sliced_wasserstein(np.repeat(x, 2, 0), np.repeat(y, 3, 0), 20, order)
    assert unequal.value == pytest.approx(equal.value, rel=1e-10)
    assert unequal.standard_error == pytest.approx(equal.standard_error, rel=1e-9)


def test_slices_of_a_shift_have_a_closed_form():
    x, _ = two(50, 2, 3)
    shift = np.array([1.0, -2.0, 2.0])
    result = sliced_wasserstein(x, x + shift, 2000)  # E (theta . shift)^2 = |shift|^2 / d
    assert abs(result.value - math.sqrt(3.0)) < Z * result.standard_error
    assert result.standard_error < 0.03
    drawn = [sliced_wasserstein(x, x + shift, 50, random_state=i) for i in range(100)]
    stated = math.sqrt(np.mean([r.standard_error**2 for r in drawn]))
    assert 0.7 < stated / np.std([r.value for r in drawn]) < 1.4


def test_slices_are_symmetric_and_come_in_parts(monkeypatch):
    x, y = two(40, 30)
    result = sliced_wasserstein(x, y)
    assert sliced_wasserstein(y[::-1], x).value == pytest.approx(result.value, rel=1e-12)
    assert sliced_wasserstein(x, x[::-1]).value == 0.0
    monkeypatch.setattr(pairwise, "TILE_PAIRS", 500)
    assert sliced_wasserstein(x, y).value == pytest.approx(result.value, rel=1e-12)


def test_gaussian_wasserstein_against_matrix_roots():
    a, b, mean, other = covariance(0), covariance(1), np.arange(4.0), np.ones(4)
    half = linalg.sqrtm(a)
    square = np.sum((mean - other) ** 2) + np.trace(a + b - 2 * linalg.sqrtm(half @ b @ half).real)
    assert gaussian_wasserstein(mean, a, other, b) == pytest.approx(math.sqrt(square), rel=1e-9)
    assert gaussian_wasserstein(other, b, mean, a) == pytest.approx(math.sqrt(square), rel=1e-9)
    assert gaussian_wasserstein(mean, a, mean, a) == pytest.approx(0.0, abs=1e-6)
    assert gaussian_wasserstein(mean, 4 * np.eye(4), other, np.eye(4)) ** 2 == pytest.approx(6 + 4)


def test_relative_covariance_error():
    a, b = covariance(0), covariance(1)
    expected = np.linalg.norm(a - b) / np.linalg.norm(b)
    assert relative_covariance_error(a, torch.tensor(b)) == pytest.approx(expected)
    assert relative_covariance_error(a, b) != pytest.approx(relative_covariance_error(b, a))


def test_frechet_is_the_square_of_the_gaussian_distance():
    x, y = two(40, 50)
    expected = gaussian_wasserstein(x.mean(0), np.cov(x.T), y.mean(0), np.cov(y.T)) ** 2
    assert frechet_distance(x, y).value == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(y, x).value == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(y, x).standard_error == pytest.approx(frechet_distance(x, y).standard_error)
    assert frechet_distance(x, x).value == pytest.approx(0.0, abs=1e-9)


def test_frechet_takes_features():
    x, y = two(40, 50)
    weight = torch.tensor(np.random.default_rng(0).normal(size=(3, 2)))
    expected = frechet_distance(np.tanh(x @ weight.numpy()), np.tanh(y @ weight.numpy()))
    found = frechet_distance(pd.DataFrame(x), torch.tensor(y), lambda rows: torch.tanh(rows @ weight))
    assert found.value == pytest.approx(expected.value)
    assert frechet_distance(x, y, lambda rows: rows.numpy()[:, 0] ** 2).value > 0


@pytest.mark.parametrize(("shift", "scale"), [(1.0, 1.0), (0.0, 2.0), (0.5, 1.5)])
def test_the_frechet_error_is_that_of_repetition(shift, scale):
    rng = np.random.default_rng(4)
    draws = [
        frechet_distance(rng.normal(size=(200, 3)), scale * rng.normal(size=(300, 3)) + shift)
        for _ in range(200)
    ]
    # 200 repetitions know a standard deviation to 5%; the error is of first order.
    stated = math.sqrt(np.mean([r.standard_error**2 for r in draws]))
    assert 0.78 < stated / np.std([r.value for r in draws]) < 1.25


def test_frechet_with_fewer_rows_than_columns():
    x, y = two(4, 5, 9)
    result = frechet_distance(x, y)
    assert result.value > 0
    assert math.isfinite(result.standard_error)
    assert frechet_distance(np.ones((3, 2)), np.zeros((4, 2))).value == pytest.approx(2.0)


@pytest.mark.parametrize("function", [energy_distance, sliced_wasserstein, frechet_distance])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros((5, 2))}, "x has 3 columns and y has 2"),
        ({"x": np.ones((1, 3))}, "x must have at least 2 rows, not 1"),
        ({"x": np.array([[0.0, 1, 2], [3, np.nan, 4]])}, "x: column 1 holds nan at row 1"),
        ({"y": np.array([[0.0, 1, 2], [3, 5, np.inf]])}, "y: column 2 holds inf at row 1"),
        ({"x": "rows"}, "x must be a table of numbers"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(function, change, message):
    x, y = two()
    with pytest.raises(ValueError, match=message):
        function(**({"x": x, "y": y} | change))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, y: energy_distance(x, y, -1), "permutations must be"),
        (lambda x, y: sliced_wasserstein(x, y, 1), "n_projections must be at least 2"),
        (lambda x, y: sliced_wasserstein(x, y, order=0.5), "order must be at least 1"),
        (lambda x, y: sliced_wasserstein(x, y, order=math.nan), "order must be at least 1"),
        (lambda x, y: frechet_distance(x, y, lambda rows: rows * torch.nan), "column 0 holds nan"),
        (lambda x, y: gaussian_wasserstein([0, 0], np.eye(3), [0, 0, 0], np.eye(3)), "2, 3, 3 and 3"),
        (lambda x, y: gaussian_wasserstein([0, 0], np.ones((2, 3)), [0, 0], np.eye(2)), "cov_a must be square"),
        (lambda x, y: gaussian_wasserstein([0, 0], np.eye(2), [0, 0], [[1, 1], [0, 1]]), "cov_b must be symmetric"),
        (lambda x, y: gaussian_wasserstein([0, 0], -np.eye(2), [0, 0], np.eye(2)), "negative eigenvalue"),
        (lambda x, y: gaussian_wasserstein([0, np.nan], np.eye(2), [0, 0], np.eye(2)), "mean_a.* nan"),
        (lambda x, y: relative_covariance_error(np.eye(2), np.eye(3)), "2 columns and truth has 3"),
        (lambda x, y: relative_covariance_error(np.eye(2), np.zeros((2, 2))), "truth must not be zero"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(*two())
