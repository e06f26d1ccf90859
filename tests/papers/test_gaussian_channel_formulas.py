"""The Gaussian channel against quadrature, SciPy, the matrices of appendix C, and its own draws."""

import math
from itertools import product as product_of

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats

from boxloop.data import ArraySource
from boxloop.numeric import ConditionError, generator
from boxloop.twoview import LinearView, RelevanceModel, ViewPair
from papers.gaussian_channel import GaussianChannel, hermite, joint_moment, normal_moment

TAU, SIGMA = 1.3, 0.8
GAMMA = TAU**2 / (TAU**2 + SIGMA**2)


def several(d=3, e=2, seed=0):
    """Covariances of d + e columns that are all related."""
    root = torch.randn(d + e, d + e + 2, generator=generator(seed), dtype=torch.float64)
    whole = root @ root.mT
    return GaussianChannel(whole[:d, :d], whole[d:, d:], whole[:d, d:])


def nodes(degree=40):
    """Gauss-Hermite nodes of a standard normal."""
    x, w = special.roots_hermitenorm(degree)
    return torch.from_numpy(x), torch.from_numpy(w / w.sum())


# Appendix C


def test_matrices_of_the_document():
    t, s = TAU**2, SIGMA**2
    inner, outer, cross = GaussianChannel.noisy(TAU, SIGMA).monomials(3)
    close = {"rtol": 1e-12, "atol": 1e-12}
    known = torch.tensor([[1, 0, t], [0, t, 0], [t, 0, 3 * t**2]], dtype=torch.float64)
    torch.testing.assert_close(inner, known, **close)
    known = torch.tensor([[1, 0, t + s], [0, t + s, 0], [t + s, 0, 3 * (t + s) ** 2]], dtype=torch.float64)
    torch.testing.assert_close(outer, known, **close)
    known = torch.tensor([[1, 0, t], [0, t, 0], [t + s, 0, t * (s + 3 * t)]], dtype=torch.float64)
    torch.testing.assert_close(cross, known, **close)
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    known = torch.tensor([[1, 0, t * (1 - GAMMA**2)], [0, GAMMA, 0], [0, 0, GAMMA**2]], dtype=torch.float64)
    torch.testing.assert_close(whole, known, **close)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_eigenvalues_are_powers_of_gamma(size):
    inner, outer, cross = GaussianChannel.noisy(TAU, SIGMA).monomials(size)
    whole = torch.linalg.solve(inner, cross.mT @ torch.linalg.solve(outer, cross))
    found = torch.linalg.eigvals(whole).real.sort(descending=True).values
    np.testing.assert_allclose(found, GAMMA ** np.arange(size), rtol=1e-8)
    np.testing.assert_allclose(
        GaussianChannel.noisy(TAU, SIGMA).relevance(size), GAMMA ** np.arange(1, size + 1)
    )


def test_moments_below_the_number_of_variables_are_exact_and_the_next_is_not():
    channel, y = GaussianChannel.noisy(TAU, SIGMA), torch.linspace(-3, 3, 7, dtype=torch.float64)
    for size, order in product_of(range(1, 8), range(8)):
        found = channel.inferred_moment(order, y, size)
        known = channel.conditional_moment(order, y[:, None])[:, 0]
        if order < size:
            torch.testing.assert_close(found, known, rtol=1e-9, atol=1e-9)
        else:
            assert float((found - known).abs().max()) > 0.1


def test_conditional_moments_are_those_of_the_document_and_of_scipy():
    channel, y = GaussianChannel.noisy(TAU, SIGMA), torch.tensor([[1.7]], dtype=torch.float64)
    assert float(channel.conditional_moment(1, y)) == pytest.approx(GAMMA * 1.7, rel=1e-12)
    assert float(channel.conditional_moment(2, y)) == pytest.approx(
        (GAMMA * 1.7) ** 2 + (1 - GAMMA) * TAU**2, rel=1e-12
    )
    distribution = stats.norm(GAMMA * 1.7, TAU * math.sqrt(1 - GAMMA))
    for order in range(7):
        assert float(channel.conditional_moment(order, y)) == pytest.approx(
            distribution.moment(order), rel=1e-10
        )


@pytest.mark.parametrize(("i", "j"), [(0, 0), (1, 1), (2, 4), (3, 1), (5, 3), (2, 1), (4, 4)])
def test_joint_moments_by_quadrature(i, j):
    xx, yy, xy = 1.7, 0.6, -0.5
    distribution = stats.multivariate_normal([0, 0], [[xx, xy], [xy, yy]])
    known, _ = integrate.dblquad(
        lambda y, x: distribution.pdf([x, y]) * y**i * x**j, -13, 13, -8, 8, epsabs=1e-9
    )
    assert joint_moment(i, j, xx, yy, xy) == pytest.approx(known, rel=1e-6, abs=1e-6)


# Hermite functions


def test_hermite_polynomials_are_scipys_and_orthonormal():
    x, w = nodes()
    found = hermite(x, 9)
    for n in range(10):
        np.testing.assert_allclose(
            found[n], special.eval_hermitenorm(n, x.numpy()) / math.sqrt(math.factorial(n)), rtol=1e-9
        )
    torch.testing.assert_close((found * w) @ found.mT, torch.eye(10).double(), rtol=0, atol=1e-9)
    assert hermite(x, 0).shape == (1, 40)


@pytest.mark.parametrize("swap", [False, True])
def test_canonical_functions_by_quadrature_over_the_joint_distribution(swap):
    """Means of products of all functions under p(x, y), in two columns each: orthonormal, related pairwise by eta."""
    channel = several(2, 2)
    if swap:
        channel = GaussianChannel(channel.cov_y, channel.cov_x, channel.cov_xy.mT)
    x, w = nodes(14)
    grid = torch.stack(torch.meshgrid(x, x, x, x, indexing="ij"), -1).reshape(-1, 4)
    mass = torch.stack(torch.meshgrid(w, w, w, w, indexing="ij"), -1).reshape(-1, 4).prod(1)
    whole = torch.cat(
        [torch.cat([channel.cov_x, channel.cov_xy], 1), torch.cat([channel.cov_xy.mT, channel.cov_y], 1)]
    )
    rows = grid @ torch.linalg.cholesky(whole).mT
    u, v = channel.left(rows[:, :2], 9), channel.right(rows[:, 2:], 9)
    eye = torch.eye(9).double()
    torch.testing.assert_close((u * mass[:, None]).mT @ u, eye, rtol=0, atol=1e-9)
    torch.testing.assert_close((v * mass[:, None]).mT @ v, eye, rtol=0, atol=1e-9)
    known = channel.relevance(9).sqrt().diag()
    torch.testing.assert_close((u * mass[:, None]).mT @ v, known, rtol=0, atol=1e-9)
    assert float((mass @ u).abs().max()) < 1e-10


def test_relevances_are_all_products_in_order():
    channel = several(3, 3, 1)
    rho = channel.correlation.numpy()
    every = sorted(
        (
            (math.prod(rho ** (2 * np.array(n))), n)
            for n in product_of(range(60), repeat=3)
            if 0 < sum(n) < 60
        ),
        reverse=True,
    )[:40]
    np.testing.assert_allclose(channel.relevance(40), [value for value, _ in every], rtol=1e-10)
    assert len({tuple(n) for n in channel.powers(40).tolist()}) == 40
    total = float((1 / (1 - channel.correlation.square())).prod() - 1)
    assert float(channel.relevance(3000).sum()) == pytest.approx(total, rel=1e-3)


def test_ties_come_by_degree():
    rho = torch.tensor([0.9, 0.81], dtype=torch.float64)
    channel = GaussianChannel(torch.eye(2).double(), torch.eye(2).double(), rho.diag())
    assert channel.powers(4).tolist() == [[1, 0], [0, 1], [2, 0], [1, 1]]


# Draws and the linear solution


def test_draws_have_the_covariances_and_the_linear_solution_is_theirs():
    """30 covariances and z-scores below 5, one run in 50,000; canonical correlations within 5 errors."""
    channel = several(3, 2, 4)
    n = 40_000
    x, y = channel.draw(n, generator(1))
    rows = torch.cat([x, y], 1)
    whole = torch.cat(
        [torch.cat([channel.cov_x, channel.cov_xy], 1), torch.cat([channel.cov_xy.mT, channel.cov_y], 1)]
    )
    error = ((whole.diagonal()[:, None] * whole.diagonal() + whole**2) / n).sqrt()
    assert float(((rows.mT @ rows / n - whole) / error).abs().max()) < 5
    assert float((rows.mean(0) / (whole.diagonal() / n).sqrt()).abs().max()) < 5
    views = [LinearView(torch.zeros(k).double(), torch.ones(k).double()) for k in (3, 2)]
    model = RelevanceModel.solve(ViewPair(*views), ArraySource(rows), 2)
    gap = (model.canonical.correlation - channel.correlation) / ((1 - channel.correlation**2) / n**0.5)
    assert float(gap.abs().max()) < 5


def test_conditional_distribution_is_that_of_regression():
    channel = several(2, 3, 5)
    y = torch.randn(4, 3, generator=generator(0), dtype=torch.float64)
    mean, spread = channel.conditional(y)
    slope = channel.cov_xy @ torch.linalg.inv(channel.cov_y)
    torch.testing.assert_close(mean, y @ slope.mT, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(spread, channel.cov_x - slope @ channel.cov_xy.mT, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(
        channel.conditional_moment(3, y), normal_moment(3, mean, spread.diagonal()), rtol=1e-12, atol=0
    )


# Bad input and edges


def test_impossible_covariances_are_refused():
    eye = torch.eye(2).double()
    with pytest.raises(ValueError, match="no rows have these covariances"):
        GaussianChannel(eye, eye, 1.1 * eye)
    with pytest.raises(ValueError, match="covariances must be"):
        GaussianChannel(eye, eye, torch.ones(2, 3).double())
    with pytest.raises(ConditionError):
        GaussianChannel(-eye, eye, 0.1 * eye)
    with pytest.raises(ValueError, match="the views are independent"):
        GaussianChannel(eye, eye, 0.0 * eye).relevance(3)
    with pytest.raises(ValueError, match="powers are of one column"):
        several().monomials(3)


def test_a_view_that_is_a_function_of_the_other():
    one = torch.ones(1, 1).double()
    channel = GaussianChannel(one, 4 * one, 2 * one)
    assert channel.relevance(3).tolist() == [1.0, 1.0, 1.0]
    x, y = channel.draw(10, generator(0))
    torch.testing.assert_close(y, 2 * x, rtol=1e-7, atol=1e-7)
