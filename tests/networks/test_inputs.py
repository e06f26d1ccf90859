"""Networks that take several tensors: all that is done with one is done with tuples, lists and dictionaries of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from boxloop.networks import (
    WeightPosterior,
    as_inputs,
    as_rows,
    count_rows,
    iterate_tensors,
    map_tensors,
    slice_rows,
)
from networks.small_networks import filled, rows

X, PLACES = rows(60, 3), torch.arange(60) % 4
Y = X[:, :1] + 0.5 * (PLACES[:, None] == 1) + 0.1 * rows(60, 1, seed=9)
HOLD = {
    "tuple": lambda x, places: (x, places),
    "list": lambda x, places: [x, places],
    "dict": lambda x, places: {"x": x, "places": places},
    "nested": lambda x, places: (x, {"places": places}),
}


class Two(nn.Module):
    """Numbers, and places in a table; as one tensor, or as they are held."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2)
        self.norm = nn.BatchNorm1d(5) if norm else nn.Identity()
        self.last = nn.Linear(5, 1)

    def forward(self, given: Any) -> Tensor:
        if isinstance(given, Tensor):
            x, places = given[:, :3], given[:, 3].long()
        else:
            x, places = iterate_tensors(given)
        return self.last(self.norm(torch.cat([x, self.table(places)], 1)))


def trained(norm: bool = False) -> WeightPosterior:
    net = filled(Two(norm)).double()
    posterior = WeightPosterior(net, "swag", rank=2, random_state=0)
    draws = torch.Generator().manual_seed(0)
    batches = DataLoader(TensorDataset(X, PLACES, Y), 10, shuffle=True, generator=draws)
    pairs = [((x, places), y) for x, places, y in batches]
    posterior.fit(pairs, mse_loss, SGD(net.parameters(), lr=0.05), epochs=20, burn_in=5)
    return posterior


@pytest.mark.parametrize("held", HOLD)
def test_several_inputs_are_predicted_as_one_table_is(held: str) -> None:
    one, several = torch.cat([X, PLACES[:, None]], 1), HOLD[held](X, PLACES)
    predictor = trained().predictor("regression", 20, random_state=0)
    found, wanted = (predictor.tune(x, Y) for x in (several, one))
    assert found.scale == pytest.approx(wanted.scale)
    np.testing.assert_allclose(found.predict(several).mean, wanted.predict(one).mean, rtol=1e-12)
    assert found.predict(several).used_vmap


def test_statistics_are_gathered_from_several_inputs() -> None:
    posterior = trained(norm=True)
    one = torch.cat([X, PLACES[:, None]], 1)
    wanted = posterior.predictor("regression", 5, noise=1.0, refresh=one).predict(one)
    for refresh in ([((X, PLACES), Y)], HOLD["dict"](X, PLACES)):
        found = posterior.predictor("regression", 5, noise=1.0, refresh=refresh).predict((X, PLACES))
        np.testing.assert_allclose(found.outputs, wanted.outputs, rtol=1e-10)


@pytest.mark.parametrize(("held", "norm"), [("tuple", False), ("dict", False), ("tuple", True)])
def test_several_inputs_are_audited_as_one_table_is(held: str, norm: bool) -> None:
    one, several = torch.cat([X, PLACES[:, None]], 1), HOLD[held](X, PLACES)
    posterior = trained(norm)
    asked: dict[str, Any] = {
        "kind": "regression",
        "n_draws": 10,
        "chains": 0 if norm else 2,
        "chain_draws": 5,
    }
    found, wanted = (
        posterior.audit(
            slice_rows(x, 0, 40) if x is several else x[:40],
            Y[:40],
            slice_rows(x, 40, 60),
            Y[40:],
            random_state=0,
            **asked,
        )
        for x in (several, one)
    )
    assert found.last_layer is not None
    assert found.table().equals(wanted.table())


def test_what_is_several_and_what_is_a_table() -> None:
    assert as_inputs([[0.0, 1.0], [2.0, 3.0]]).shape == (2, 2)
    assert as_inputs([np.zeros(2), np.ones(2), np.ones(2)]).shape == (3, 2)
    assert [
        len(one) for one in iterate_tensors(as_inputs({"a": np.zeros((5, 2)), "b": [1, 2, 3, 4, 5]}))
    ] == [5, 5]
    held = map_tensors((X, [PLACES], "word"), lambda one: one[:2])
    assert (len(held[0]), len(held[1][0]), held[2]) == (2, 2, "word")
    assert count_rows(slice_rows({"a": X}, 3, 7)) == 4


def test_inputs_that_do_not_fit_are_reported() -> None:
    with pytest.raises(ValueError, match=r"the same number of rows, got \[59, 60\]"):
        as_inputs((X, PLACES[1:]))
    with pytest.raises(ValueError, match="one table of rows here, got a dict of several tensors"):
        as_rows({"x": X})
    predictor = trained().predictor("regression", 3, noise=1.0)
    said = r"Two cannot be evaluated at a tuple of rows of shapes \(3,\) and torch.float64, \(3,\) and torch.float64"
    with pytest.raises(ValueError, match=said):
        predictor.predict((X, X))
