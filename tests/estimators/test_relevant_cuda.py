"""Two views on a GPU: the numbers of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from boxloop import RelevantClassifier, RelevantFeatures, RelevantGenerator
from boxloop.twoview import relevance_loss

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def views(n: int = 3000) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4))
    return x, np.column_stack([np.sin(x[:, 0]), x[:, 1] ** 2]) + 0.5 * rng.normal(size=(n, 2))


@pytest.mark.parametrize("kind", ["linear", "fourier"])
def test_exact_fits_agree(kind: str) -> None:
    x, y = views()
    plan = {"x_features": kind, "y_features": kind, "n_fourier": 30, "random_state": 0}
    here = RelevantFeatures(2, **plan).fit(x, y)
    there = RelevantFeatures(2, device="cuda", **plan).fit(x, y)
    np.testing.assert_allclose(here.correlation_, there.correlation_, atol=1e-8)
    np.testing.assert_allclose(here.predict(x), there.predict(x), atol=1e-7)
    one, two = (fit.expect(given=x[:20]) for fit in (here, there))
    for name in ("mean", "standard_error", "deviation"):
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(one.quantile(0.5).value, two.quantile(0.5).value, atol=1e-8)
    np.testing.assert_allclose(one.ambiguity().deviation, two.ambiguity().deviation, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(
        here.significance(permutations=99).correlation,
        there.significance(permutations=99).correlation,
        atol=1e-7,
    )
    np.testing.assert_allclose(
        here.density_ratio(x[:5], y[:5]).standard_error,
        there.density_ratio(x[:5], y[:5]).standard_error,
        rtol=1e-5,
    )


def test_the_loss_and_its_gradient_agree_on_singular_features() -> None:
    stream = torch.Generator().manual_seed(0)
    left, right = torch.randn(2, 200, 5, generator=stream, dtype=torch.float64)
    left[:, 4] = left[:, 3]
    found = []
    for device in ("cpu", "cuda"):
        f, g = (part.to(device).clone().requires_grad_() for part in (left, right))
        loss = relevance_loss(f, g)
        loss.backward()
        assert f.grad is not None
        assert g.grad is not None
        found.append((loss.detach().cpu(), f.grad.cpu(), g.grad.cpu()))
    for here, there in zip(*found, strict=True):
        torch.testing.assert_close(here, there, rtol=1e-9, atol=1e-12)


def test_networks_learn_the_same() -> None:
    """In float64, from the same start and the same batches; the order of sums differs."""
    x, y = views()
    plan = {"hidden": (16,), "max_iter": 3, "patience": None, "random_state": 0, "dtype": "float64"}
    here = RelevantFeatures(2, **plan).fit(x, y)
    there = RelevantFeatures(2, device="cuda", **plan).fit(x, y)
    np.testing.assert_allclose(here.correlation_, there.correlation_, atol=1e-6)
    diagnosis = there.diagnose(n_given=20)
    assert np.isfinite(diagnosis.negative_mass)


def test_a_classifier_and_a_generator_agree() -> None:
    x, y = views(1000)
    label = (y[:, 0] > 0).astype(int) + (y[:, 1] > 1)
    plan = {"hidden": (16,), "max_iter": 3, "patience": None, "random_state": 0, "dtype": "float64"}
    here = RelevantClassifier(**plan).fit(x, label)
    there = RelevantClassifier(device="cuda", **plan).fit(x, label)
    np.testing.assert_allclose(here.predict_proba(x), there.predict_proba(x), atol=1e-5)
    features = RelevantFeatures(2, x_features="linear", y_features="linear", device="cuda").fit(x, y)
    made = RelevantGenerator(
        2, features=features, hidden=(16,), max_iter=3, patience=None, device="cuda", random_state=0
    )
    rows = made.fit(x).sample(5)[0]
    assert rows.shape == (5, 4)
    assert np.isfinite(rows).all()
