"""Conditional expectations: exact where the answer is known, the same however rows are cut, and clear about faults."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from boxloop.data import ArraySource, TiledSource
from boxloop.twoview import ConditionalDistribution, FiniteView, RelevanceModel, ViewPair, density_ratio
from twoview.conditional_cases import POINTS, Powers, everything, fitted, rows_of, theta

TAU, SIGMA = 1.3, 0.8


def table(n: int = 500, seed: int = 0) -> tuple[Tensor, ConditionalDistribution]:
    """Two dependent columns of 4 and 5 values, with weights."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 4, n)
    rows = torch.from_numpy(np.c_[x, (x + rng.integers(0, 3, n)) % 5]).double()
    weight = torch.from_numpy(rng.integers(1, 4, n)).double()
    four, five = FiniteView(torch.arange(4.0).double()), FiniteView(torch.arange(5.0).double())
    source = ArraySource(rows, weight)
    return torch.cat([rows, weight[:, None]], 1), ConditionalDistribution(
        RelevanceModel.solve(ViewPair(four, five), source, 99), source
    )


def functions(x: Tensor) -> Tensor:
    return torch.cat([x, x**2, (x - 1.0).abs()], 1)


def test_finite_alphabets_give_the_contingency_table() -> None:
    rows, conditional = table()
    found = conditional.expect(functions, torch.arange(5.0)[:, None])
    low, tail, covariance = found.quantile(0.43), found.tail(1.0), found.covariance(3).dense().numpy()
    main = found.ambiguity()
    for y in range(5):
        here = rows[rows[:, 1] == y]
        value, share = functions(here[:, :1]).numpy(), (here[:, 2] / here[:, 2].sum()).numpy()
        mean = share @ value
        apart = value - mean
        matrix = (apart * share[:, None]).T @ apart
        np.testing.assert_allclose(found.mean[y], mean, atol=1e-10)
        np.testing.assert_allclose(found.deviation[y], np.sqrt(np.diag(matrix)), atol=1e-10)
        np.testing.assert_allclose(found.standard_error[y], np.sqrt(share**2 @ apart**2), atol=1e-10)
        np.testing.assert_allclose(tail.value[y], share @ (value > 1.0), atol=1e-10)
        np.testing.assert_allclose(covariance[y], matrix, atol=1e-10)
        for j in range(3):
            order = np.argsort(value[:, j])
            at = np.searchsorted(share[order].cumsum(), 0.43)
            np.testing.assert_allclose(low.value[y, j], value[order[at], j], atol=1e-10)
        values, vectors = np.linalg.eigh(matrix)
        size = np.abs(vectors[:, -1])
        top = vectors[:, -1] * np.sign(vectors[np.argmax(size >= (1.0 - 1e-6) * size.max()), -1])
        np.testing.assert_allclose(main.deviation[y], np.sqrt(values[-1]), atol=1e-10)
        np.testing.assert_allclose(main.direction[y], top, atol=1e-8)
        np.testing.assert_allclose(main.high[y], mean + np.sqrt(values[-1]) * top, atol=1e-8)
    assert found.negative_mass.max() < 1e-12
    assert not found.negative_variance.any()


def gaussian_model(degree: int) -> RelevanceModel:
    """The Gaussian channel with population K, L and A: Hermite polynomials, correlations rho^n."""
    rho = TAU / np.hypot(TAU, SIGMA)
    n = torch.arange(1, degree + 1).double()
    unit = torch.diag(torch.exp(-0.5 * torch.lgamma(n + 1.0)))
    start = RelevanceModel.solve(
        ViewPair(Powers(degree, TAU), Powers(degree, float(np.hypot(TAU, SIGMA)))),
        ArraySource(torch.randn(50, 2, generator=torch.Generator().manual_seed(0)).double()),
        degree,
    )
    zero = torch.zeros(degree).double()
    canonical = replace(
        start.canonical, left_mean=zero, right_mean=zero, left=unit, right=unit, correlation=rho**n
    )
    return replace(start, canonical=canonical)


def channel(n: int, seed: int) -> tuple[ArraySource, ViewPair]:
    rng = np.random.default_rng(seed)
    x = TAU * rng.normal(size=n)
    rows = torch.from_numpy(np.c_[x, x + SIGMA * rng.normal(size=n)])
    return ArraySource(rows), ViewPair(Powers(2, TAU), Powers(2, float(np.hypot(TAU, SIGMA))))


def test_gaussian_channel_with_population_moments_is_eq_53() -> None:
    """x is Gauss-Hermite nodes with their weights, y anything uncorrelated: only u(x) is averaged."""
    model = gaussian_model(2)
    node, weight = np.polynomial.hermite_e.hermegauss(12)
    at = [(i, j) for i in range(12) for j in range(12)]
    rho = TAU / np.hypot(TAU, SIGMA)
    joint = torch.tensor([
        [TAU * node[i], np.hypot(TAU, SIGMA) * (rho * node[i] + np.sqrt(1 - rho**2) * node[j])] for i, j in at
    ]).double()  # fmt: skip
    share = torch.tensor([weight[i] * weight[j] for i, j in at]).double()
    given = torch.tensor([[-2.0], [0.0], [1.5]]).double()
    found = ConditionalDistribution(model, ArraySource(joint, share)).expect(
        lambda x: torch.cat([x, x**2], 1), given
    )
    gamma, y = TAU**2 / (TAU**2 + SIGMA**2), given.numpy()[:, 0]
    np.testing.assert_allclose(found.mean[:, 0], gamma * y, atol=1e-10)
    np.testing.assert_allclose(found.mean[:, 1], gamma**2 * y**2 + (1.0 - gamma) * TAU**2, rtol=1e-10)
    np.testing.assert_allclose(found.deviation[:, 0], TAU * np.sqrt(1.0 - gamma), rtol=1e-10)


def test_gaussian_channel_from_rows_is_eq_53_within_its_errors() -> None:
    """Twelve z-scores, four of them of deviations; a normal passes 5 with chance 7e-6 over all."""
    source, pair = channel(40_000, 5)
    given = torch.tensor([[-1.5], [0.0], [0.7], [1.5]]).double()
    found = ConditionalDistribution(RelevanceModel.solve(pair, source, 2), source).expect(
        lambda x: torch.cat([x, x**2], 1), given
    )
    gamma, y = TAU**2 / (TAU**2 + SIGMA**2), given.numpy()[:, 0]
    truth = np.c_[gamma * y, gamma**2 * y**2 + (1.0 - gamma) * TAU**2]
    assert np.abs((found.mean - truth) / found.standard_error).max() < 5.0
    apart = (found.deviation[:, 0] - TAU * np.sqrt(1.0 - gamma)) / found.deviation_error[:, 0]
    assert np.abs(apart).max() < 5.0
    assert found.standard_error.max() < 0.1


@dataclass(frozen=True)
class Cut(TiledSource):
    """The same rows in tiles of another size."""

    source: ArraySource
    size: int

    def __getattr__(self, name: str) -> object:
        return getattr(self.source, name)

    def chunks(self, size: int | None = None) -> object:
        return self.source.chunks(min(size or self.size, self.size))


@pytest.mark.parametrize("shape", [(4, 4, 4), (3, 5, 3), (5, 3, 3), (6, 6, 2)])
@pytest.mark.parametrize("ridge", [0.0, 0.05])
def test_chunked_is_whole_and_order_is_nothing(shape: tuple[int, int, int], ridge: float) -> None:
    rows = rows_of(300, 1)
    weight = torch.from_numpy(np.random.default_rng(2).uniform(0.5, 2.0, 300))
    whole = everything(fitted(rows, shape, weight, ridge))
    one = fitted(rows, shape, weight, ridge)
    cut = everything(ConditionalDistribution(one.model, Cut(ArraySource(rows, weight), 37), ridge))
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    mixed = everything(fitted(rows[order], shape, weight[order], ridge))
    for name, (value, error) in whole.items():
        for other in (cut, mixed):
            np.testing.assert_allclose(other[name][0], value, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(other[name][1], error, rtol=1e-7, atol=1e-9)


def test_weights_are_repetition_but_one_observation() -> None:
    rows = rows_of(200, 3)
    twice = everything(fitted(torch.cat([rows, rows]), (5, 4, 3)))
    heavy = everything(fitted(rows, (5, 4, 3), torch.full((200,), 2.0).double()))
    count = torch.from_numpy(np.random.default_rng(0).integers(1, 4, 200))
    again = everything(fitted(rows.repeat_interleave(count, 0), (5, 4, 3)))
    weighed = everything(fitted(rows, (5, 4, 3), count.double()))
    for name, (value, error) in twice.items():
        np.testing.assert_allclose(heavy[name][0], value, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(weighed[name][0], again[name][0], rtol=1e-8, atol=1e-10)
        if name != "quantile":
            plain = (
                heavy[name][1] < 2.0 * np.abs(value) if name in ("deviation", "ambiguity") else value == value
            )
            assert plain.any()
            np.testing.assert_allclose(heavy[name][1][plain], (error * np.sqrt(2.0))[plain], rtol=1e-7)


def test_large_origin_loses_nothing() -> None:
    rows = rows_of(300, 4)
    conditional = fitted(rows, (4, 4, 4))
    near = conditional.expect(None, POINTS)
    far = conditional.expect(lambda x: x + 1e7, POINTS)
    np.testing.assert_allclose(far.mean - 1e7, near.mean, atol=1e-7)
    np.testing.assert_allclose(far.deviation, near.deviation, rtol=1e-6)
    np.testing.assert_allclose(far.standard_error, near.standard_error, rtol=1e-6)
    np.testing.assert_allclose(far.deviation_error, near.deviation_error, rtol=1e-6)


def test_constant_function_is_known() -> None:
    found = fitted(rows_of(200, 5), (4, 4, 4)).expect(lambda x: torch.full_like(x, 3.7), POINTS)
    np.testing.assert_allclose(found.mean, 3.7, rtol=1e-12)
    assert not found.negative_variance.any()
    np.testing.assert_allclose(found.deviation, 0.0, atol=1e-9)
    np.testing.assert_allclose(found.standard_error, 0.0, atol=1e-12)
    np.testing.assert_allclose(found.quantile(0.5).value, 3.7, rtol=1e-12)


def test_negative_variances_are_counted_and_clamped() -> None:
    found = fitted(rows_of(60, 6), (8, 8, 8)).expect(
        lambda x: (x > 1.8).double(), torch.linspace(-3.0, 3.0, 40).double()[:, None]
    )
    assert found.negative_variance.any()
    assert (found.deviation[found.negative_variance] == 0.0).all()
    assert (found.deviation_error[found.negative_variance] > 0.0).all()
    weight = np.abs(found.negative_mass)
    assert weight.max() > 0.0
    assert "negative" in str(found)


def test_mean_alone_is_the_mean() -> None:
    conditional = fitted(rows_of(200, 7), (4, 5, 3))
    full = conditional.expect(theta, POINTS).mean
    np.testing.assert_allclose(conditional.mean(theta, POINTS), full, rtol=1e-12)
    known = conditional.function_moments(theta)
    np.testing.assert_allclose(conditional.mean(theta, POINTS, known), full, rtol=1e-12)


def test_the_other_direction() -> None:
    rows = rows_of(300, 8)
    forward = fitted(rows, (4, 4, 4))
    back = ConditionalDistribution(forward.model.swap_views(), ArraySource(rows.flip(1)))
    one = density_ratio(forward, POINTS, POINTS.flip(0))
    two = density_ratio(back, POINTS.flip(0), POINTS)
    np.testing.assert_allclose(one.value, two.value, rtol=1e-10)
    np.testing.assert_allclose(one.standard_error, two.standard_error, rtol=1e-10)
    assert back.expect(None, POINTS).names == ("x0",)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.zeros(3, 2), "1 columns"),
        (torch.zeros(3), "1 columns"),
        (torch.zeros(0, 1), "1 columns"),
        (torch.tensor([[float("nan")]]), "missing"),
    ],
)
def test_bad_points(given: Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(rows_of(100, 9), (3, 3, 3)).expect(None, given)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda x: x[:5], "theta must give"),
        (lambda x: x.sum(), "theta must give"),
        (lambda x: x[:, :, None], "theta must give"),
        (lambda x: torch.where(x > 0.0, x, torch.nan), "missing"),
    ],
)
def test_bad_functions(function: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fitted(rows_of(100, 9), (3, 3, 3)).expect(function, POINTS)


def test_other_rows_or_ridge_are_refused() -> None:
    one = fitted(rows_of(300, 10), (3, 3, 3), ridge=0.1)
    with pytest.raises(ValueError, match="not solved on these rows"):
        ConditionalDistribution(one.model, ArraySource(rows_of(300, 11)), 0.1).expect(None, POINTS)
    with pytest.raises(ValueError, match="not solved on these rows"):
        ConditionalDistribution(one.model, one.source).expect(None, POINTS)
    with pytest.raises(ValueError, match="columns"):
        ConditionalDistribution(one.model, ArraySource(torch.zeros(5, 3).double())).expect(None, POINTS)


def test_bad_questions() -> None:
    found = fitted(rows_of(100, 9), (3, 3, 3)).expect(theta, POINTS)
    with pytest.raises(ValueError, match="between 0 and 1"):
        found.quantile(1.0)
    with pytest.raises(ValueError, match="threshold"):
        found.tail(np.zeros(2))
    with pytest.raises(ValueError, match="rank"):
        found.covariance(4)
