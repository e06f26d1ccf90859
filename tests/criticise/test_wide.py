"""Wide tables: the low-rank form of the second gap is the dense one, and nothing of size d x d is made."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from boxloop.criticise import (
    First,
    MomentPenalty,
    Power,
    Second,
    as_model,
    mega,
    second_gap_norm,
    second_moment,
)
from boxloop.distributions import DiagonalGaussian, FullGaussian, LowRankGaussian, SphericalGaussian
from boxloop.models import FactorModel
from boxloop.numeric import generator, normal

D = 12
DISTRIBUTIONS = {
    "diagonal": DiagonalGaussian(
        normal((3, D), generator(0)), torch.rand(3, D, generator=generator(1)).double()
    ),
    "spherical": SphericalGaussian(
        normal((3, D), generator(0)), torch.rand(3, 1, generator=generator(1)).double()
    ),
    "low rank": LowRankGaussian(
        normal((D,), generator(0)), normal((D, 2), generator(1)), torch.ones(D).double()
    ),
}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
def test_the_low_rank_form_is_the_dense_norm(distribution):
    rows = normal((7, D), generator(2))
    weight = torch.rand(len(distribution.mean), generator=generator(3)).double()
    dense = rows.mT @ rows / 7 - second_moment(distribution, weight)
    assert float(second_gap_norm(rows, distribution, weight)) == pytest.approx(float(dense.norm()), rel=1e-10)


def test_its_gradient():
    rows, weight = normal((4, 6), generator(0)), torch.full((3,), 1 / 3).double()

    def norm(mean, variance):
        return second_gap_norm(rows, DiagonalGaussian(mean, variance), weight)

    inputs = (
        normal((3, 6), generator(1)).requires_grad_(),
        torch.rand(3, 6, generator=generator(2)).double().requires_grad_(),
    )
    assert torch.autograd.gradcheck(norm, inputs)


def test_the_penalty_of_a_wide_decoder():
    loadings, rows = normal((2, 500), generator(0)) / 20, normal((20, 500), generator(1))
    model = as_model(2, lambda z: (z @ loadings, torch.full((len(z), 500), 0.5).double()))
    narrow = MomentPenalty(1.0, nodes=64)(model, rows, generator(2))
    wide = MomentPenalty(1.0, nodes=600)(model, rows, generator(2))
    assert float(narrow) == pytest.approx(float(wide), rel=0.1)


@pytest.mark.slow
def test_ten_thousand_columns():
    """No d x d matrix: 800 MB each. Under a true model within 5 of its errors; a doubled factor is seen."""
    d = 10_000
    model = FactorModel(torch.zeros(d).double(), normal((d, 3), generator(0)), torch.ones(d).double())
    rows = model.sample(200, generator(1))[0]
    functions = [First(), Power(2, projections=100)]
    right = mega(model, rows, functions=functions, draws=19)
    assert right.p_value > 0.05
    wrong = FactorModel(model.mean, model.loadings * torch.tensor([1.0, 1.0, 2.0]).double(), model.noise)
    assert mega(wrong, rows, functions=functions, draws=19).p_value == 0.05
    with pytest.raises(ValueError, match=r"too many pairs: use Power\(2"):
        mega(model, rows, functions=[Second()], draws=0)
    norm = second_gap_norm(rows, model.marginal(), torch.ones(1).double())
    distribution = model.marginal().covariance()
    trace, square = (
        float(distribution.diagonal().sum()),
        float((model.loadings.mT @ model.loadings).square().sum()),
    )
    assert float(norm) == pytest.approx(((trace**2 + square) / 200) ** 0.5, rel=0.2)
    assert np.isfinite(float(norm))


def test_full_covariances_have_no_low_rank_form():
    distribution = FullGaussian(torch.zeros(1, 2).double(), torch.eye(2).double()[None])
    with pytest.raises(ValueError, match="must have diagonal or low-rank covariances"):
        second_gap_norm(torch.zeros(3, 2).double(), distribution, torch.ones(1).double())
