"""Problems with a known answer: do the rows follow the stated distribution?"""

import math

import pytest
import torch

from boxloop.data import DiskAndRing, FactorProblem, load_dataset
from boxloop.numeric import generator

SHAPES = [DiskAndRing(0.42, 0.78, 1.22), DiskAndRing(0.5, 0.5, 1.0, 1.0)]


@pytest.mark.parametrize("shape", SHAPES, ids=["whole", "gap"])
def test_points_of_a_disk_and_ring_lie_in_it_and_fill_it_evenly(shape):
    """Shares of areas known in closed form; 5 z-scores under 4.5, false alarm 4e-5."""
    n = 20_000
    rows = shape.rows(n, generator(0))
    assert bool(shape.contains(rows).all())
    radius, angle = rows.norm(dim=1), torch.atan2(rows[:, 1], rows[:, 0])
    ring, p = radius > shape.disk, shape.ring_share
    middle = (0.5 * (shape.inner**2 + shape.outer**2)) ** 0.5
    half = math.pi - shape.gap / 2
    for share, known in (
        (ring, p),
        (ring & (radius < middle), p / 2),
        (ring & (angle < half / 3), p * 2 / 3),
        (radius < shape.disk / 2, (1 - p) / 4),
        (~ring & (angle > math.pi / 2), (1 - p) / 4),
    ):
        z = (share.double().mean() - known) / (known * (1 - known) / n) ** 0.5
        assert abs(float(z)) < 4.5


def test_areas_agree_with_a_grid():
    shape = SHAPES[1]
    side = torch.linspace(-1.0, 1.0, 801, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    inside = shape.contains(grid)
    ring = inside & (grid.norm(dim=1) > shape.disk)
    assert float(ring.sum() / inside.sum()) == pytest.approx(shape.ring_share, abs=2e-3)


@pytest.mark.parametrize("wrong", [(0.8, 0.5, 1.0, 0.0), (0.2, 1.0, 1.0, 0.0), (0.2, 0.5, 1.0, 7.0)])
def test_a_ring_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="a ring lies around its disk"):
        DiskAndRing(*wrong)


def test_rows_of_a_factor_problem_have_its_mean_and_covariance():
    """Whitened by the truth they are standard normal; 14 z-scores under 4.5, false alarm 1e-4."""
    n = 20_000
    mean = torch.tensor([1.0, -2.0, 0.5, 30.0]).double()
    loadings = torch.tensor([[2.0, 0.0], [1.0, 1.0], [0.0, -3.0], [0.5, 0.5]]).double()
    problem = FactorProblem(mean, loadings, torch.tensor([0.04, 9.0, 1.0, 0.25]).double())
    assert torch.allclose(problem.covariance.diagonal(), torch.tensor([4.04, 11.0, 10.0, 0.75]).double())
    rows = problem.rows(n, generator(0)) - mean
    white = torch.linalg.solve_triangular(torch.linalg.cholesky(problem.covariance), rows.mT, upper=False)
    apart = white @ white.mT / n - torch.eye(4)
    error = (torch.ones(4, 4) + torch.eye(4)).sqrt() / n**0.5  # of products of two columns, and of squares
    assert float((apart / error).abs().max()) < 4.5
    assert float(white.mean(1).abs().max()) * n**0.5 < 4.5


def test_values_of_an_ordinary_row_differ_by_noise_alone():
    """Deviation 0.3: the mean of n (d - 1) squares is within 5 errors, false alarm 1e-6 for another seed."""
    data = load_dataset("planted_outliers")
    rows = data.rows[data.target == 0]
    apart = rows - rows.mean(1, keepdims=True)
    n = len(rows) * (rows.shape[1] - 1)
    assert len(data.rows) - len(rows) == 10
    assert (apart**2).sum() / n == pytest.approx(0.09, rel=5 * (2 / n) ** 0.5)
