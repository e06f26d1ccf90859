"""Autoencoders on a GPU, where there is one: the same fit, from one device to the other, without waiting."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from boxloop.estimators import VariationalAutoencoder
from boxloop.fit import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")

QUICK = {
    "hidden": (16,),
    "max_iter": 6,
    "patience": None,
    "score_draws": 16,
    "penalty_nodes": 64,
    "batch_size": 50,
}


def quick(**more) -> VariationalAutoencoder:
    return VariationalAutoencoder(2, **{**QUICK, "random_state": 0, **more})


def rows(n: int = 600, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return 5.0 + rng.normal(size=(n, 1)) * [1.0, 2.0, -1.0, 0.5] + 0.3 * rng.normal(size=(n, 4))


class Stop(Exception):
    """Instead of a kill."""


@pytest.mark.parametrize(("before", "after"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_a_fit_goes_on_on_another_device(tmp_path, monkeypatch, before, after):
    path, plain = tmp_path / "fit.boxloop", Trainer.__call__

    def counted(self, state):
        if state.count >= 30:
            raise Stop
        return plain(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "__call__", counted)
        with pytest.raises(Stop):
            quick(checkpoint=path, device=before).fit(rows())
    fit = quick(checkpoint=path, device=after).fit(rows())
    whole = quick(device=before).fit(rows())
    assert fit.model_.origin.device.type == after
    assert fit.history_["elbo"][:2] == whole.history_["elbo"][:2]
    assert fit.n_iter_ == 6
    assert abs(fit.score(rows()) - whole.score(rows())) < 0.5
    if before == after:
        pairs = zip(fit.model_.trainable(), whole.model_.trainable(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


CASES = [
    {},
    {"variance": "low_rank"},
    {"prior": "mixture"},
    {"alpha": 0.1},
    {"precision": "mixed"},
    {"n_draws": 4},
]


@pytest.mark.parametrize("options", CASES)
def test_graphs_take_the_same_steps(monkeypatch, options):
    """The same random numbers from the same seeds; 70 batches of two sizes, and a block that ends early. A step that
    waits for the device could not be captured, which would be an event."""
    X = rows(630)
    fits = [quick(device="cuda", dtype="float64", **options).fit(X)] if "precision" not in options else []
    if not fits:
        fits = [quick(device="cuda", **options).fit(X)]
    assert not fits[0].events_
    monkeypatch.setattr(Trainer, "is_graphed", False)
    fits.append(fits[0].__class__(**fits[0].get_params()).fit(X))
    close = 1e-2 if "precision" in options else 1e-9
    for name in ("elbo", "divergence", "validation_elbo"):
        np.testing.assert_allclose(fits[0].history_[name], fits[1].history_[name], rtol=close, atol=close)


class Waits(torch.nn.Module):
    """A network that asks the device for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.line = torch.nn.Linear(4, 4)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.line(rows) if float(rows.sum()) < 1e30 else self.line(rows) + 1.0


def test_a_network_that_cannot_be_captured_is_run_as_it_is():
    with pytest.warns(UserWarning, match="captured in a CUDA graph"):
        fit = quick(device="cuda", encoder=Waits()).fit(rows())
    assert np.isfinite(fit.score(rows()))
    assert len([event for event in fit.events_ if "captured" in event]) == 1


@pytest.mark.parametrize("likelihood", ["gaussian", "bernoulli", "poisson", "categorical"])
def test_every_likelihood(likelihood):
    X = rows() if likelihood == "gaussian" else np.random.default_rng(0).integers(2, size=(300, 4)) * 1.0
    fit = quick(likelihood=likelihood, device="cuda").fit(X)
    assert fit.transform(X).shape == (len(X), 2)
    assert fit.reconstruct(X).shape == X.shape
    assert fit.sample(5)[0].shape == (5, 4)
    assert np.isfinite(fit.score(X))
    assert np.isfinite(fit.elbo(X).elbo)


def test_scores_are_those_of_the_cpu():
    X = rows()
    gpu = quick(device="cuda", dtype="float64").fit(X)
    cpu = quick(dtype="float64", max_iter=0).fit(X)
    cpu.model_ = gpu.model_.to("cpu")
    np.testing.assert_allclose(gpu.score_samples(X), cpu.score_samples(X), rtol=1e-8)
    np.testing.assert_allclose(gpu.transform(X), cpu.transform(X), rtol=1e-8, atol=1e-10)
    assert replace(cpu.model_, score_draws=8).is_finite()


def test_images():
    X = np.random.default_rng(0).random((100, 12, 12))
    fit = quick(hidden=None, likelihood="bernoulli", device="cuda", precision="mixed").fit(X)
    assert fit.reconstruct(X).shape == X.shape
