"""Maximum mean discrepancy: against double loops, a closed form, and its own error rates.

Statistical tests compare at 4.5 standard errors (two-sided 7e-6 each) or by a Kolmogorov test at 1e-4. Seeds are
fixed; with fresh ones this file would fail by chance in fewer than 1 run in 1000.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import stats

from boxloop.criticise import median_bandwidth, mmd, pairwise
from boxloop.numeric import generator, normal

METHODS = ["quadratic", "linear", "features"]
Z = 4.5


def two(
    n: int = 12, m: int = 9, d: int = 3, shift: float = 0.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)), rng.normal(size=(m, d)) + shift


def naive(x: np.ndarray, y: np.ndarray, width: float) -> float:
    def k(a, b):
        return math.exp(-sum((p - q) ** 2 for p, q in zip(a, b)) / (2 * width**2))

    n, m = len(x), len(y)
    xx = sum(k(x[i], x[j]) for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
    yy = sum(k(y[i], y[j]) for i in range(m) for j in range(m) if i != j) / (m * (m - 1))
    xy = sum(k(a, b) for a in x for b in y) / (n * m)
    return xx + yy - 2 * xy


def between_gaussians(d: int, shift: float, scale: float, width: float) -> float:
    """Squared discrepancy of N(0, I) from N(shift 1, scale^2 I): Gaussian kernels convolve to Gaussians."""

    def expected(variance: float, distance: float) -> float:
        total = width**2 + variance
        return (width**2 / total) ** (d / 2) * math.exp(-(distance**2) / (2 * total))

    apart = shift * math.sqrt(d)
    return expected(2, 0) + expected(2 * scale**2, 0) - 2 * expected(1 + scale**2, apart)


@pytest.mark.parametrize(("n", "m", "d", "width"), [(12, 9, 3, 1.7), (2, 2, 1, 0.4), (5, 20, 2, 10.0)])
def test_it_is_the_double_loop(n, m, d, width):
    x, y = two(n, m, d)
    assert mmd(x, y, bandwidth=width).value == pytest.approx(naive(x, y, width), rel=1e-10, abs=1e-14)


def test_tiles_change_nothing(monkeypatch):
    x, y = two(40, 30)
    whole = [mmd(x, y, method=m, permutations=49) for m in ("quadratic", "features")]
    monkeypatch.setattr(pairwise, "TILE_PAIRS", 500)
    for before, method in zip(whole, ("quadratic", "features")):
        tiled = mmd(x, y, method=method, permutations=49)
        assert tiled.value == pytest.approx(before.value, rel=1e-10)
        assert tiled.standard_error == pytest.approx(before.standard_error, rel=1e-10)
        assert tiled.p_value == before.p_value


def test_the_permuted_statistics_are_those_of_permuted_rows():
    x, y = two(8, 6)
    found = pairwise.contrast_samples(
        lambda a, b: torch.exp(-0.5 * pairwise.square_distances(a, b)),
        torch.tensor(x),
        torch.tensor(y),
        20,
        3,
    )
    pooled, member = np.concatenate([x, y]), pairwise.draw_permuted_splits(8, 6, 20, 3).numpy().astype(bool)
    assert np.array_equal(member.sum(0), np.full(21, 8))
    expected = [naive(pooled[s], pooled[~s], 1.0) for s in member.T]
    np.testing.assert_allclose(found.values.numpy(), expected, rtol=1e-10)
    share = np.mean(np.array(expected) >= expected[0] - 1e-12)
    assert found.p_value == pytest.approx(share)


def test_the_linear_estimate_averages_over_disjoint_pairs():
    x, y = two(4000, 4001, 2, 0.6)
    result = mmd(x, y, bandwidth=1.5, method="linear")
    assert abs(result.value - between_gaussians(2, 0.6, 1.0, 1.5)) < Z * result.standard_error
    assert result.p_value == pytest.approx(stats.norm.sf(result.value / result.standard_error))
    order = np.argsort(x[:, 0]), np.argsort(y[:, 0])
    sorted_rows = mmd(x[order[0]], y[order[1]], bandwidth=1.5, method="linear")
    assert abs(sorted_rows.value - between_gaussians(2, 0.6, 1.0, 1.5)) < Z * sorted_rows.standard_error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("shift", "scale"), [(0.0, 1.0), (0.5, 1.0), (0.0, 1.6)])
def test_estimates_and_errors_agree_with_the_closed_form(method, shift, scale):
    rng, width, d = np.random.default_rng(3), 1.2, 2
    draws = [
        mmd(
            rng.normal(size=(50, d)),
            scale * rng.normal(size=(70, d)) + shift,
            "gaussian",
            width,
            method,
            50,
            0,
            i,
        )
        for i in range(200)
    ]
    values = np.array([r.value for r in draws])
    truth = between_gaussians(d, shift, scale, width)
    assert abs(values.mean() - truth) < Z * values.std() / math.sqrt(200)
    # 200 repetitions know a standard deviation to 5% or so; the stated error may be larger by the jackknife's root 2.
    stated = math.sqrt(np.mean([r.standard_error**2 for r in draws]))
    assert 0.8 < stated / values.std() < 1.25 * math.sqrt(2)


def test_features_approach_the_kernel():
    x, y = two(60, 50, 2, 0.7)
    exact = mmd(x, y, bandwidth=1.5).value
    drawn = [
        mmd(x, y, bandwidth=1.5, method="features", n_features=400, random_state=i).value for i in range(20)
    ]
    assert abs(np.mean(drawn) - exact) < Z * np.std(drawn) / math.sqrt(19)
    assert np.std(drawn) < 0.1 * exact


def test_the_error_of_features_counts_the_frequencies():
    x, y = two(2000, 2000, 2, 0.5)
    draws = [mmd(x, y, bandwidth=1.5, method="features", n_features=10, random_state=i) for i in range(100)]
    stated = math.sqrt(np.mean([r.standard_error**2 for r in draws]))
    assert 0.8 < stated / np.std([r.value for r in draws]) < 1.6


@pytest.mark.parametrize("method", ["quadratic", "features"])
def test_neither_the_order_of_samples_nor_of_rows_matters(method):
    x, y = two(20, 25)
    result, turned = mmd(x, y, bandwidth=1.3, method=method), mmd(y, x, bandwidth=1.3, method=method)
    shuffled = mmd(x[::-1], y[np.random.default_rng(1).permutation(25)], bandwidth=1.3, method=method)
    for other in (turned, shuffled):
        assert other.value == pytest.approx(result.value, rel=1e-9)
        assert other.standard_error == pytest.approx(result.standard_error, rel=1e-9)


def test_a_common_shift_and_scale_change_nothing():
    x, y = two(20, 25)
    result = mmd(x, y, permutations=19)
    moved = mmd(1e-3 * x + 1e4, 1e-3 * y + 1e4, permutations=19)
    assert moved.value == pytest.approx(result.value, rel=1e-6)
    assert moved.bandwidth == pytest.approx(1e-3 * result.bandwidth)
    assert moved.p_value == result.p_value


@pytest.mark.parametrize("method", METHODS)
def test_gradients(method):
    x, y = (torch.tensor(rows, requires_grad=True) for rows in two(6, 5, 2))
    assert torch.autograd.gradcheck(lambda a, b: mmd(a, b, "gaussian", 1.1, method, 7).value, (x, y))


def test_following_the_gradient_closes_the_gap():
    x = normal((60, 2), generator(0))
    y = (normal((60, 2), generator(1)) + 2.0).requires_grad_()
    start = mmd(x, y, bandwidth=2.0).distance
    for _ in range(60):
        (slope,) = torch.autograd.grad(mmd(x, y, bandwidth=2.0).value, y)
        y = (y - 60.0 * slope).detach().requires_grad_()
    assert mmd(x, y, bandwidth=2.0).distance < 0.2 * start


def test_tensors_stay_tensors_and_arrays_give_floats():
    x, y = two()
    result = mmd(torch.tensor(x), y)
    assert isinstance(result.value, torch.Tensor)
    assert isinstance(mmd(x, y).value, float)
    assert float(result.value) == mmd(x, y).value
    tracked = torch.tensor(x, requires_grad=True)
    assert not mmd(tracked, y, permutations=9).value.requires_grad
    with torch.no_grad():
        assert not mmd(tracked, y).value.requires_grad


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame, np.ndarray.tolist, np.float32, torch.tensor])
def test_any_table_will_do(frame):
    x, y = (np.round(rows, 2) for rows in two())
    assert float(mmd(frame(x), frame(y)).value) == pytest.approx(mmd(x, y).value, rel=1e-5)


def test_another_kernel():
    x, y = two()
    gaussian = mmd(x, y, lambda square: torch.exp(-0.5 * square), bandwidth=1.3)
    assert gaussian.value == pytest.approx(mmd(x, y, bandwidth=1.3).value, rel=1e-12)
    assert mmd(x, y, lambda square: 1 / (1 + square)).value != gaussian.value
    with pytest.raises(ValueError, match="another"):
        mmd(x, y, lambda square: 1 / (1 + square), method="features")


def test_the_median_bandwidth():
    x, y = two(30, 20)
    z = np.concatenate([x, y])
    distances = [np.linalg.norm(z[i] - z[j]) for i in range(50) for j in range(i)]
    assert median_bandwidth(x, y) == pytest.approx(np.median(distances))
    assert mmd(x, y).bandwidth == median_bandwidth(x, y)
    many = np.random.default_rng(0).normal(size=(5000, 1))
    assert median_bandwidth(many) == pytest.approx(math.sqrt(2) * stats.norm.ppf(0.75), rel=0.1)
    assert median_bandwidth(np.r_[np.zeros(90), np.full(10, 3.0)]) == 3.0


def uniform(p_values: list[float], draws: int) -> float:
    """Kolmogorov's p-value of p-values on a grid of 1 / (1 + draws), spread evenly over their step."""
    spread = np.array(p_values) - np.random.default_rng(9).uniform(size=len(p_values)) / (1 + draws)
    return stats.kstest(spread, "uniform").pvalue


@pytest.mark.parametrize("method", ["quadratic", "features"])
def test_p_values_are_uniform_under_one_distribution(method):
    rng = np.random.default_rng(5)
    p_values = [
        mmd(rng.normal(size=(15, 2)), rng.normal(size=(25, 2)), method=method, n_features=20, permutations=39,
            random_state=i).p_value
        for i in range(200)
    ]  # fmt: skip
    assert uniform(p_values, 39) > 1e-4


def test_linear_p_values_are_uniform_under_one_distribution():
    rng = np.random.default_rng(6)
    p_values = [mmd(*rng.normal(size=(2, 400, 2)), "gaussian", 1.5, "linear").p_value for _ in range(200)]
    assert stats.kstest(p_values, "uniform").pvalue > 1e-4


@pytest.mark.parametrize(("shift", "scale"), [(0.6, 1.0), (0.0, 1.8)])
@pytest.mark.parametrize("method", ["quadratic", "features"])
def test_other_distributions_are_distinguished(method, shift, scale):
    rng = np.random.default_rng(7)
    rejected = [
        mmd(rng.normal(size=(100, 2)), scale * rng.normal(size=(100, 2)) + shift, method=method, n_features=50,
            permutations=99, random_state=i).p_value == 0.01
        for i in range(20)
    ]  # fmt: skip
    assert sum(rejected) >= 16


@pytest.mark.parametrize(("shift", "scale"), [(0.5, 1.0), (0.0, 1.8)])
def test_the_linear_test_tells_large_samples_apart(shift, scale):
    rng = np.random.default_rng(8)
    x, y = rng.normal(size=(5000, 2)), scale * rng.normal(size=(5000, 2)) + shift
    assert mmd(x, y, method="linear").p_value < 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": np.zeros((5, 2))}, "x has 3 columns and y has 2"),
        ({"x": np.ones((1, 3))}, "x must have at least 2 rows, not 1"),
        ({"x": np.ones((3, 3)), "method": "linear"}, "at least 4 rows"),
        ({"x": np.array([[0.0, 1, 2], [3, np.nan, 4]])}, "x: column 1 holds nan at row 1"),
        ({"y": np.array([[0.0, 1, 2], [3, 5, -np.inf]])}, "y: column 2 holds -inf at row 1"),
        ({"bandwidth": 0.0}, "bandwidth must be positive"),
        ({"bandwidth": -1.0}, "bandwidth must be positive"),
        ({"bandwidth": math.nan}, "bandwidth must be positive"),
        ({"x": np.ones((4, 3)), "y": np.ones((5, 3))}, "all rows are identical"),
        ({"x": np.full((40, 3), 1e7 + 0.1), "y": np.full((5, 3), 1e7 + 0.1)}, "all rows are identical"),
        ({"x": np.zeros((3, 3, 3))}, "x must have rows and columns"),
        ({"x": np.zeros((3, 0))}, "x must have rows and columns"),
        ({"x": [["a", "b", "c"]] * 3}, "x must be a table of numbers"),
        ({"x": torch.zeros(3, 3, dtype=torch.complex128)}, "real numbers"),
        ({"kernel": "cosine"}, "kernel must be"),
        ({"method": "cubic"}, "method must be"),
        ({"method": "features", "n_features": 1}, "n_features must be"),
        ({"method": "linear", "permutations": 9}, "permutations must be 0"),
        ({"permutations": -1}, "permutations must be"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, message):
    x, y = two()
    with pytest.raises(ValueError, match=message):
        mmd(**({"x": x, "y": y} | change))


def test_a_fraction_is_no_number_of_permutations():
    x, y = two()
    with pytest.raises(TypeError, match="permutations must be"):
        mmd(x, y, permutations=2.5)
