"""Row 34 of the faults: BatchNorm under drawn weights, frozen and tied parameters in prediction."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from boxloop.networks import Predictor
from networks.small_networks import filled, part_of, rows, with_batch_norm

X, BATCHES = rows(6, 1, 6, 6), [rows(9, 1, 6, 6, seed=n) for n in range(3)]


def test_batch_norm_without_inputs_is_refused_with_advice() -> None:
    predictor = Predictor((part_of(with_batch_norm()),), "regression", 4)
    with pytest.raises(ValueError, match=r"training inputs as refresh= .* or refresh='net'"):
        predictor.predict(X)


def test_statistics_are_recomputed_for_every_draw() -> None:
    net = with_batch_norm()
    part = part_of(net, 0.3)
    predictor = Predictor((part,), "regression", 4, seed=2).refresh_batch_norm(BATCHES)
    found = predictor.predict(X)
    for i, vector in enumerate(torch.cat(list(predictor.draws.draw_chunks(0, 4)))):
        own = copy.deepcopy(net)
        part.layout.write(own, vector)
        update_bn(BATCHES, own)
        np.testing.assert_allclose(found.outputs[i], own.eval()(X).detach().numpy(), rtol=1e-10, atol=1e-12)
    stale = Predictor((part,), "regression", 4, seed=2).refresh_batch_norm("net").predict(X)
    assert np.abs(stale.outputs - found.outputs).max() > 0.1  # the net's own statistics are of other weights


def test_statistics_follow_the_scale() -> None:
    part = part_of(with_batch_norm(), 0.3)
    there = Predictor((part,), "regression", 4, scale=0.25, seed=2).refresh_batch_norm(BATCHES).predict(X)
    moved = (
        Predictor((part,), "regression", 4, seed=2).refresh_batch_norm(BATCHES).with_scale(0.25).predict(X)
    )
    np.testing.assert_array_equal(there.outputs, moved.outputs)


def test_the_statistics_of_the_net_are_right_where_nothing_before_them_varies() -> None:
    net = with_batch_norm()
    update_bn(BATCHES, net)
    part = part_of(net, which="last")
    kept = Predictor((part,), "regression", 4).refresh_batch_norm("net").predict(X)
    again = Predictor((part,), "regression", 4).refresh_batch_norm(BATCHES).predict(X)
    np.testing.assert_allclose(kept.outputs, again.outputs, rtol=1e-10)
    with pytest.raises(ValueError, match="inputs or 'net', got 'other'"):
        Predictor((part,), "regression", 4).refresh_batch_norm("other")


def test_frozen_and_tied_parameters_vary_as_they_should() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down, self.out = (nn.Linear(3, 3, bias=False) for _ in range(3))
            self.down.weight = self.up.weight
            self.out.weight.requires_grad_(False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(self.down(self.up(x)))

    net = filled(Tied()).double()
    part, x = part_of(net), rows(5, 3)
    assert part.layout.size == 9
    predictor = Predictor((part,), "regression", 3)
    outputs = predictor.predict(x).outputs
    for vector, found in zip(torch.cat(list(predictor.draws.draw_chunks(0, 3))), outputs, strict=True):
        own = vector.reshape(3, 3).mT
        np.testing.assert_allclose(found, (x @ own @ own @ net.out.weight.mT).detach().numpy(), rtol=1e-10)
