"""Kernel Stein discrepancy: against derivatives by automatic differentiation, and its own error rates.

Statistical tests compare at 4.5 standard errors (two-sided 7e-6 each) or by a Kolmogorov test at 1e-4. Seeds are
fixed; with fresh ones this file would fail by chance in fewer than 1 run in 1000.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import MultivariateNormal

from boxloop import FactorAnalysis, GaussianMixture
from boxloop.criticise import kernel_stein, median_bandwidth, pairwise, score_of
from boxloop.distributions import DiagonalGaussian, FullGaussian, Poisson, SphericalGaussian, TiedGaussian
from boxloop.models import Mixture
from boxloop.numeric import generator, normal

Z = 4.5


def standard(rows: Tensor) -> Tensor:
    return -rows


def stein_pair(x: Tensor, y: Tensor, score, width: float) -> float:
    """u(x, y), its derivatives by automatic differentiation."""

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return (1 + (a - b).square().sum() / width**2) ** -0.5

    along_x, along_y = torch.autograd.functional.jacobian(kernel, (x, y))
    ((_, mixed), _) = torch.autograd.functional.hessian(kernel, (x, y))
    sx, sy = score(x[None])[0], score(y[None])[0]
    return float(sx @ sy * kernel(x, y) + sx @ along_y + sy @ along_x + mixed.trace())


@pytest.mark.parametrize(("n", "d", "width"), [(6, 3, 1.3), (5, 1, 0.4), (2, 2, 7.0)])
def test_it_is_the_double_loop(n, d, width):
    rows = normal((n, d), generator(0)) + 0.5

    def cubic(x: Tensor) -> Tensor:
        return -(x**3) + 0.3

    pairs_of = [(i, j) for i in range(n) for j in range(n) if i != j]
    expected = np.mean([stein_pair(rows[i], rows[j], cubic, width) for i, j in pairs_of])
    assert kernel_stein(rows.numpy(), cubic, width, 0).value == pytest.approx(expected, rel=1e-9)


def test_the_bootstrap_is_a_sum_over_signs(monkeypatch):
    rows = (normal((30, 2), generator(1)) + 0.1).numpy()
    whole = kernel_stein(rows, standard, 1.0, 200)
    monkeypatch.setattr(pairwise, "TILE_PAIRS", 100)
    tiled = kernel_stein(rows, standard, 1.0, 200)
    assert tiled.p_value == whole.p_value
    assert tiled.value == pytest.approx(whole.value, rel=1e-10)
    assert tiled.standard_error == pytest.approx(whole.standard_error, rel=1e-10)


@pytest.mark.parametrize("d", [1, 4])
def test_it_is_zero_on_average_under_the_truth(d):
    rng = np.random.default_rng(2)
    draws = [kernel_stein(rng.normal(size=(40, d)), standard, 1.5, 99, i) for i in range(200)]
    values = np.array([r.value for r in draws])
    assert abs(values.mean()) < Z * values.std() / math.sqrt(200)
    spread = np.array([r.p_value for r in draws]) - rng.uniform(size=200) / 100
    assert stats.kstest(spread, "uniform").pvalue > 1e-4


def test_the_error_is_that_of_repetition():
    rng = np.random.default_rng(3)
    draws = [kernel_stein(rng.normal(size=(60, 2)) + 0.4, standard, 1.5, 0) for _ in range(200)]
    # 200 repetitions know a standard deviation to 5% or so.
    stated = math.sqrt(np.mean([r.standard_error**2 for r in draws]))
    assert 0.78 < stated / np.std([r.value for r in draws]) < 1.3
    assert draws[0].p_value is None


@pytest.mark.parametrize(("shift", "scale"), [(0.5, 1.0), (0.0, 2.0), (0.0, 0.5)])
def test_a_wrong_model_is_seen(shift, scale):
    rng = np.random.default_rng(4)
    rejected = [
        kernel_stein(scale * rng.normal(size=(100, 2)) + shift, standard, None, 199, i).p_value <= 0.01
        for i in range(20)
    ]
    assert sum(rejected) >= 16


def test_units_and_order_do_not_matter():
    rows = normal((30, 2), generator(3)).numpy() + 0.3
    result = kernel_stein(rows, standard)
    assert result.bandwidth == median_bandwidth(rows)
    scaled = kernel_stein(100.0 * rows + 1e5, lambda x: -(x - 1e5) / 1e4)
    assert scaled.value == pytest.approx(result.value / 1e4, rel=1e-6)
    assert scaled.p_value == result.p_value
    assert kernel_stein(rows[::-1], standard).value == pytest.approx(result.value, rel=1e-10)


def test_gradients():
    rows = normal((5, 2), generator(4)).requires_grad_()
    distribution = MultivariateNormal(
        torch.zeros(2).double(), torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    )
    mixture = blend(FullGaussian)
    for score in (standard, score_of(distribution), score_of(mixture)):
        assert torch.autograd.gradcheck(lambda x, s=score: kernel_stein(x, s, 1.2, 0).value, (rows,))
    with torch.no_grad():
        assert not kernel_stein(rows, score_of(mixture), 1.2, 0).value.requires_grad
    assert not kernel_stein(rows, score_of(mixture), 1.2, 9).value.requires_grad


def blend(kind: type) -> Mixture:
    mean = torch.tensor([[0.0, 1.0], [2.0, -1.0], [-1.0, 0.5]]).double()
    factor = torch.tensor([[[1.0, 0.0], [0.7, 0.5]], [[0.3, 0.0], [0.1, 2.0]], [[1.5, 0.0], [-1.0, 0.8]]])
    family = {
        FullGaussian: lambda: FullGaussian(mean, factor.double()),
        DiagonalGaussian: lambda: DiagonalGaussian(mean, torch.tensor([[1.0, 2], [0.5, 1], [3, 0.2]]).double()),
        SphericalGaussian: lambda: SphericalGaussian(mean, torch.tensor([[1.0], [0.5], [2]]).double()),
        TiedGaussian: lambda: TiedGaussian(mean, factor[0].double()),
    }[kind]()  # fmt: skip
    return Mixture(torch.tensor([0.5, 0.2, 0.3]).double().log(), family)


@pytest.mark.parametrize("kind", [FullGaussian, DiagonalGaussian, SphericalGaussian, TiedGaussian])
def test_the_score_of_a_mixture_is_the_slope_of_its_density(kind):
    model, rows, step = blend(kind), 2 * normal((20, 2), generator(5)), 1e-5
    slopes = [
        (model.log_prob(rows + move) - model.log_prob(rows - move)) / (2 * step)
        for move in step * torch.eye(2).double()
    ]
    np.testing.assert_allclose(score_of(model)(rows), torch.stack(slopes, 1), rtol=1e-6, atol=1e-7)
    assert score_of(model)(rows.float()).shape == (20, 2)


def test_the_score_of_a_distribution_is_linear():
    covariance = torch.tensor([[2.0, 0.5], [0.5, 1.0]]).double()
    distribution, rows = MultivariateNormal(torch.ones(2).double(), covariance), normal((9, 2), generator(6))
    expected = -torch.linalg.solve(covariance, (rows - 1).mT).mT
    np.testing.assert_allclose(score_of(distribution)(rows), expected, rtol=1e-10)
    single = MultivariateNormal(torch.zeros(2), torch.eye(2))
    assert kernel_stein(rows.float(), score_of(single)).value.dtype == torch.float64


@pytest.mark.parametrize(
    "estimator", [GaussianMixture(2), GaussianMixture(2, covariance_type="diag"), FactorAnalysis(1)]
)
def test_fitted_models_are_judged(estimator):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(2200, 1)) * np.array([1.0, 1.0, 0.5]) + rng.normal(size=(2200, 3)) * [
        0.5,
        1.0,
        1.0,
    ]
    score = score_of(estimator.fit(rows[:2000]).model_)
    assert kernel_stein(pd.DataFrame(rows[2000:]), score, bootstrap=9999).p_value > 1e-4
    assert kernel_stein(rows[2000:] + np.array([0.0, 0.0, 1.0]), score, bootstrap=999).p_value == 1e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": np.ones((1, 2))}, "rows must have at least 2 rows"),
        ({"rows": np.array([[0.0, 1], [np.nan, 3]])}, "rows: column 0 holds nan at row 1"),
        ({"rows": np.array([[0.0, np.inf], [1, 3]])}, "rows: column 1 holds inf at row 0"),
        ({"rows": np.ones((5, 2))}, "all rows are identical"),
        ({"bandwidth": 0.0}, "bandwidth must be positive"),
        ({"bootstrap": -3}, "bootstrap must be"),
        ({"score": lambda x: -x[:, :1]}, r"score must give shape \(4, 2\)"),
        ({"score": lambda x: x.log()}, r"score\(rows\): column 0 holds nan"),
    ],
)  # fmt: skip
def test_bad_input_is_named(change, message):
    rows = -1 - torch.arange(8.0).reshape(4, 2).double().numpy()
    with pytest.raises(ValueError, match=message):
        kernel_stein(**({"rows": rows, "score": standard} | change))


def test_models_without_a_score_are_refused():
    counts = Mixture(torch.zeros(1).double(), Poisson(torch.ones(1, 2).double()))
    with pytest.raises(ValueError, match="counts has no score"):
        score_of(counts)
    distribution = DiagonalGaussian(torch.zeros(1, 2).double(), torch.ones(1, 2).double())
    with pytest.raises(ValueError, match="one value per row"):
        score_of(TiedGaussian(distribution.mean, torch.eye(2).double()))(torch.zeros(3, 2).double())
