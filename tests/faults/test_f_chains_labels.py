"""Fault 31: components that change places, and factors that turn, along chains and between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from boxloop.numeric import generator, normal
from boxloop.sample import MixturePosterior, pack_mixture, sample_factors, sample_mixture, unpack_mixture

FREE = ["mean", "sd", "low", "high"]


def rows() -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.concatenate([rng.normal(-5.0, 1.0, (60, 2)), rng.normal(5.0, 1.0, (30, 2))])


def switched(posterior: MixturePosterior, order: Tensor) -> MixturePosterior:
    """The same draws with their components in another order each, (n c, k)."""
    k, positions = posterior.n_components, posterior.draws.positions
    log_weight, family = unpack_mixture(positions.flatten(0, 1), k, len(posterior.names), diagonal=False)
    member = (k * torch.arange(len(order))[:, None] + order).flatten()
    moved = pack_mixture(log_weight.gather(1, order), family.select(member)).reshape(positions.shape)
    return replace(posterior, draws=replace(posterior.draws, positions=moved))


def test_f31_label_switching() -> None:
    steady = sample_mixture(rows(), 2, draws=150, warmup=100, random_state=0)
    order = torch.rand(600, 2, generator=generator(1)).argsort(1)
    loose = switched(steady, order)
    # Averages of draws as they are meet in the middle of two components that lie ten apart; the result says so.
    raw = loose.means.mean((0, 1))
    assert float((raw[0] - raw[1]).abs().max()) < 2.0
    assert loose.labels.has_switched
    assert loose.labels.switched_share > 0.3
    assert int(loose.labels.switches.min()) > 30
    assert "averages before relabelling mix components" in repr(loose)
    # Relabelled, they are where the rows are.
    means = loose.relabelled(loose.means).mean((0, 1)).sort(0).values
    assert_close(means, torch.tensor([[-5.0, -5.0], [5.0, 5.0]]).double(), rtol=0, atol=1.0)
    # Label-invariant quantities do not change, and each line says what it is.
    before, after = steady.summary(), loose.summary()
    free = before.index[before["identification"].str.endswith("-invariant")]
    np.testing.assert_allclose(after.loc[free, FREE], before.loc[free, FREE], rtol=1e-9)
    assert (after.loc[[i for i in after.index if i not in free], "identification"] == "relabelled").all()
    assert_close(loose.similarity(), steady.similarity(), rtol=1e-9, atol=1e-9)
    there = torch.from_numpy(rows())
    assert_close(
        loose.predictive().log_prob(there), steady.predictive().log_prob(there), rtol=1e-9, atol=1e-9
    )
    assert loose.concerns == steady.concerns


def test_f31_rotated_factors() -> None:
    stream = generator(2)
    loadings = torch.tensor([[1.0, 0.0], [0.9, 0.0], [0.8, 0.1], [0.0, 1.0], [0.1, 0.7]]).double()
    X = normal((300, 2), stream) @ loadings.mT + 0.5 * normal((300, 5), stream)
    steady = sample_factors(X, 2, draws=100, warmup=100, random_state=0)
    turn = torch.linalg.qr(normal((100, 4, 2, 2), stream))[0]
    positions = steady.draws.positions.clone()
    positions[..., 5:15] = (positions[..., 5:15].reshape(100, 4, 5, 2) @ turn).flatten(2)
    loose = replace(steady, draws=replace(steady.draws, positions=positions))
    assert float(loose.draws["loadings"].mean((0, 1)).square().sum()) < 0.2
    assert loose.alignment.agreement_before < 0.1 < 0.9 < loose.alignment.agreement
    assert_close(loose.loadings.mean((0, 1)), steady.loadings.mean((0, 1)), rtol=0, atol=1e-3)
    before, after = steady.summary(), loose.summary()
    free = before.index[before["identification"].str.endswith("-invariant")]
    np.testing.assert_allclose(after.loc[free, FREE], before.loc[free, FREE], rtol=1e-9)
    assert (after.loc[[i for i in after.index if i not in free], "identification"] == "aligned").all()
    assert_close(loose.covariance, steady.covariance, rtol=1e-9, atol=1e-9)
