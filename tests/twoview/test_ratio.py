"""The density ratio: a contingency table's, a Gaussian channel's, and its mean."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.data import ArraySource
from boxloop.twoview import ConditionalDistribution, FiniteView, RelevanceModel, ViewPair, density_ratio
from twoview.conditional_cases import POINTS, Powers, fitted, rows_of


def test_contingency_table() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, 300)
    y = (x + rng.integers(0, 2, 300)) % 4
    source = ArraySource(torch.from_numpy(np.c_[x, y]).double())
    pair = ViewPair(FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(4.0).double()))
    conditional = ConditionalDistribution(RelevanceModel.solve(pair, source, 9), source)
    i, j = (part.ravel() for part in np.meshgrid(np.arange(3), np.arange(4), indexing="ij"))
    found = density_ratio(conditional, i[:, None], j[:, None])
    joint = np.array([[((x == a) & (y == b)).mean() for b in range(4)] for a in range(3)])
    px, py = joint.sum(1), joint.sum(0)
    ratio = joint / np.outer(px, py)
    np.testing.assert_allclose(found.value, ratio[i, j], atol=1e-10)
    one = ((x == i[:, None]) & (y == j[:, None])) / np.outer(px, py)[i, j][:, None]
    by_x, by_y = (x == i[:, None]) / px[i][:, None], (y == j[:, None]) / py[j][:, None]
    psi = one - ratio[i, j][:, None] * (by_x + by_y - 1.0)  # the delta method of a ratio of shares
    np.testing.assert_allclose(found.standard_error, np.sqrt((psi**2).sum(1)) / 300, atol=1e-10)


def test_gaussian_channel() -> None:
    """Mehler's sum, cut after four terms, for correlation 0.4; the rest is below 2e-2; z beyond 5 in 4e-6 of runs."""
    rho, rng = 0.4, np.random.default_rng(1)
    x = rng.normal(size=50_000)
    y = rho * x + np.sqrt(1 - rho**2) * rng.normal(size=50_000)
    source = ArraySource(torch.from_numpy(np.c_[x, y]))
    conditional = ConditionalDistribution(
        RelevanceModel.solve(ViewPair(Powers(4), Powers(4)), source, 4), source
    )
    at = np.array([[-1.0, -1.0], [0.0, 0.0], [1.0, -1.0], [0.5, 1.2], [1.5, 1.5], [-0.3, 0.8]])
    found = density_ratio(conditional, at[:, :1], at[:, 1:])
    hermite = np.polynomial.hermite_e.hermeval
    factorial = np.array([1.0, 1.0, 2.0, 6.0, 24.0])
    truth = sum(
        rho**n * hermite(at[:, 0], np.eye(5)[n]) * hermite(at[:, 1], np.eye(5)[n]) / factorial[n]
        for n in range(5)
    )
    exact = np.exp(-(rho**2 * (at**2).sum(1) - 2 * rho * at.prod(1)) / (2 * (1 - rho**2))) / np.sqrt(
        1 - rho**2
    )
    assert np.abs(truth - exact).max() < 0.02
    assert np.abs((found.value - truth) / found.standard_error).max() < 5.0
    assert found.standard_error.max() < 0.1


def test_it_averages_to_one() -> None:
    rows = rows_of(200, 2)
    conditional = fitted(rows, (4, 4, 3))
    found = density_ratio(conditional, rows[:, :1], rows[:1, 1:].expand(200, 1))
    assert abs(found.value.mean() - 1.0) < 1e-10


def test_it_needs_pairs() -> None:
    with pytest.raises(ValueError, match="one y for each x"):
        density_ratio(fitted(rows_of(100, 3), (3, 3, 3)), POINTS, POINTS[:2])
    with pytest.raises(ValueError, match="x must be rows of 1 columns"):
        density_ratio(fitted(rows_of(100, 3), (3, 3, 3)), torch.zeros(3, 2), POINTS)
