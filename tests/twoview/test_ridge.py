"""The ridge that cross-validation chooses, and the score by which it does."""

from __future__ import annotations

import torch
from torch import Tensor

from boxloop.data import ArraySource
from boxloop.twoview import (
    CanonicalVariables,
    FiniteView,
    FourierView,
    LinearView,
    MomentSums,
    ViewPair,
    choose_ridge,
    conditional_distance,
)


def channel(n: int, seed: int) -> Tensor:
    stream = torch.Generator().manual_seed(seed)
    x, noise = torch.randn(2, n, 1, generator=stream, dtype=torch.float64)
    return torch.cat([x, x + 0.5 * noise], 1)


def fourier(n_features: int, seed: int) -> FourierView:
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return FourierView.start(zero, one, n_features, 1.0, torch.Generator().manual_seed(seed))


def test_the_error_of_a_fit_on_its_own_rows_is_minus_its_relevance() -> None:
    rows = channel(500, 0)
    pair = ViewPair(fourier(4, 0), fourier(4, 1))
    products = MomentSums.of(pair, rows, torch.ones(500))
    fitted = CanonicalVariables.solve(products, 4, 4)
    torch.testing.assert_close(
        conditional_distance(fitted, products), -fitted.relevance.sum(), rtol=1e-8, atol=1e-10
    )


def test_the_error_is_the_distance_of_theorem_1_on_a_finite_alphabet() -> None:
    r"""Sum of (q - p)^2 / (p_x p_y) over the table of other rows, whose margins are those of the fit."""
    stream = torch.Generator().manual_seed(0)
    table = torch.rand(3, 4, generator=stream, dtype=torch.float64)
    table = table / table.sum()
    px, py = table.sum(1), table.sum(0)
    bend = torch.tensor([[1.0, -1.0, 0.0, 0.0], [-1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]).double()
    other = table + 0.3 * table.min() * bend  # the same margins
    cells = torch.cartesian_prod(torch.arange(3.0), torch.arange(4.0)).double()
    pair = ViewPair(FiniteView(torch.arange(3.0).double()), FiniteView(torch.arange(4.0).double()))
    here, there = (MomentSums.of(pair, cells, joint.reshape(-1)) for joint in (table, other))
    fitted = CanonicalVariables.solve(here, 3, 1)  # one variable of two: an approximation q
    u = (torch.eye(3).double() - px) @ fitted.left
    v = (torch.eye(4).double() - py) @ fitted.right
    q = px[:, None] * py * (1.0 + (u * fitted.correlation) @ v.mT)
    base = px[:, None] * py
    distance = ((q - other).square() / base).sum()
    chi = ((other - base).square() / base).sum()
    torch.testing.assert_close(conditional_distance(fitted, there), distance - chi, rtol=1e-9, atol=1e-12)


def test_the_chosen_ridge_predicts_new_rows_better_than_none() -> None:
    rows, new = channel(1000, 1), channel(20_000, 2)
    pair = ViewPair(fourier(40, 0), fourier(40, 1))
    chosen = choose_ridge(pair, ArraySource(rows), 10)
    assert chosen > 0.0
    here, there = (MomentSums.of(pair, some, torch.ones(len(some))) for some in (rows, new))
    errors = [
        float(conditional_distance(CanonicalVariables.solve(here, 40, 10, ridge), there))
        for ridge in (0.0, chosen, 1.0)
    ]
    assert errors[1] < errors[0]
    assert errors[1] < errors[2]
    assert errors[1] > -(
        0.8 / (1.0 - 0.8)
    )  # no distribution is nearer than the truth: minus the sum of 0.8^n


def test_plain_columns_of_many_rows_need_none() -> None:
    rows = channel(5000, 3)
    still = LinearView(torch.zeros(1).double(), torch.ones(1).double())
    assert choose_ridge(ViewPair(still, still), ArraySource(rows), 1) <= 1e-3
