"""Features of one view: their values, their shapes, and what of them can be learned."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from boxloop.models import ModuleNetwork, Part
from boxloop.numeric import generator
from boxloop.twoview import FiniteView, FourierView, LinearView, NetworkView, View, ViewPair


def rows(n: int = 40, d: int = 3) -> Tensor:
    return torch.randn(n, d, generator=generator(0), dtype=torch.float64)


def frame(d: int = 3) -> tuple[Tensor, Tensor]:
    return torch.arange(d).double(), torch.arange(1, d + 1).double()


def network(d: int = 3, k: int = 2, bounded: bool = True) -> NetworkView:
    torch_module = nn.Sequential(nn.Linear(d, 5), nn.Tanh(), nn.Linear(5, k)).double()
    with torch.no_grad():
        for place, value in enumerate(torch_module.parameters()):
            value.copy_(torch.randn(value.shape, generator=generator(place), dtype=torch.float64))
    made = ModuleNetwork.from_module(torch_module, torch.float64, torch.device("cpu"))
    return NetworkView(*frame(d), Part(*made), k, bounded)


def every() -> list[View]:
    origin, scale = frame()
    return [LinearView(origin, scale), FourierView.start(origin, scale, 7, 1.5, generator(3)), network()]


@pytest.mark.parametrize("view", every(), ids=lambda view: type(view).__name__)
def test_shapes_and_rows_one_by_one(view: View) -> None:
    found = view(rows())
    assert found.shape == (40, view.n_features)
    assert view.n_columns == 3
    one = torch.cat([view(row[None]) for row in rows()])
    torch.testing.assert_close(found, one, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("view", every(), ids=lambda view: type(view).__name__)
def test_precision_follows_the_view(view: View) -> None:
    low = view.to(dtype=torch.float32)
    assert low(rows().float()).dtype == torch.float32
    torch.testing.assert_close(low(rows().float()).double(), view(rows()), rtol=1e-4, atol=1e-5)


def test_linear_features_are_standard_columns() -> None:
    origin, scale = frame()
    torch.testing.assert_close(LinearView(origin, scale)(rows()), (rows() - origin) / scale)


def test_fourier_features_average_to_the_gaussian_kernel() -> None:
    """Mean over frequencies of z z' is exp(-|x - y|^2 / 2 l^2); 5 standard errors, false alarm 3e-5."""
    origin, scale, k, length = torch.zeros(2).double(), torch.ones(2).double(), 40_000, 1.3
    x = rows(10, 2)
    found = FourierView.start(origin, scale, k, length, generator(1))(x)
    each = found[:, None] * found * k  # one value a frequency
    kernel = (-torch.cdist(x, x).square() / (2 * length**2)).exp()
    error = each.std(2) / math.sqrt(k)
    assert float(((each.mean(2) - kernel).abs() / error).max()) < 5.0


def test_fourier_features_repeat() -> None:
    origin, scale = frame()
    first, again, other = (FourierView.start(origin, scale, 7, 1.5, generator(s)) for s in (3, 3, 4))
    assert torch.equal(first(rows()), again(rows()))
    assert not torch.equal(first(rows()), other(rows()))


def test_finite_features_are_indicators() -> None:
    codes = torch.tensor([2.0, 5.0, 9.0]).double()
    column = torch.tensor([[5.0], [2.0], [7.0], [9.0]]).double()
    assert FiniteView(codes)(column).tolist() == [[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert (FiniteView(codes).n_columns, FiniteView(codes).n_features) == (1, 3)


def test_a_network_is_bounded_unless_it_is_the_users_own() -> None:
    inner, outer = network(bounded=False)(rows()), network()(rows())
    torch.testing.assert_close(outer, inner.tanh())
    assert float(inner.abs().max()) > 1.0 > float(outer.abs().max())


def test_only_networks_are_learned_and_parameters_go_where_they_came_from() -> None:
    linear, _, learned = every()
    assert linear.trainable() == ()
    pair = ViewPair(learned, network(k=4))
    assert len(pair.trainable()) == 8
    doubled = pair.with_trainable(tuple(2.0 * value for value in pair.trainable()))
    both = torch.cat([rows(), rows()], 1)
    assert not torch.equal(doubled(both)[0], pair(both)[0])
    back = doubled.with_trainable(tuple(0.5 * value for value in doubled.trainable()))
    for a, b in zip(back(both), pair(both), strict=True):
        assert torch.equal(a, b)
    assert ViewPair(linear, linear).trainable() == ()


def test_gradients_reach_the_network() -> None:
    view = network()
    values = tuple(value.clone().requires_grad_() for value in view.trainable())
    loss = view.with_trainable(values)(rows()).square().sum()
    assert all(float(g.abs().sum()) > 0.0 for g in torch.autograd.grad(loss, values))


def test_a_pair_cuts_rows_at_the_right_column() -> None:
    origin, scale = frame()
    pair = ViewPair(LinearView(origin, scale), FiniteView(torch.tensor([0.0, 1.0]).double()))
    both = torch.cat([rows(), torch.ones(40, 1).double()], 1)
    x, y = pair.split_rows(both)
    assert torch.equal(x, rows())
    assert y.shape == (40, 1)
    left, right = pair(both)
    assert torch.equal(left, pair.left(x))
    assert torch.equal(right, pair.right(y))
