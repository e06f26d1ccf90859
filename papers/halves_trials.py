"""Left halves inferred from right ones: fits at every cutoff, errors of others, and two batches that are too small."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV

from boxloop.estimators import FitWarning, RelevantFeatures, pick_device
from boxloop.numeric import generator
from boxloop.twoview import relevance_loss
from papers.halves_data import Halves, Images, flat, left, right
from papers.halves_network import FourConvolutions, Regression
from papers.words import standard_error

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Setting:
    """How features are learned.

    Args:
        channels: of the first convolutions.
        passes: over the rows.
        rate: of Adam.
        batch: rows of a mini-batch; None is 30 for each variable, and at least 256.
        device: where.
    """

    channels: int
    passes: int
    rate: float = 1e-3
    batch: int | None = None
    device: str = "auto"


def fit(images: Images, cutoff: int, seed: int, setting: Setting) -> RelevantFeatures:
    """Variables of right (X) and left halves (Y); the document's k0 counts the constant, ours do not."""
    half = images.shape[1], images.shape[2] // 2
    nets = [
        FourConvolutions(half, cutoff - 1, setting.channels, generator(2 * seed + side)) for side in (0, 1)
    ]
    learner = RelevantFeatures(
        cutoff - 1,
        x_features=nets[0],
        y_features=nets[1],
        learning_rate=setting.rate,
        schedule="cosine",
        batch_size=setting.batch,
        max_iter=setting.passes,
        patience=None,
        random_state=seed,
        device=setting.device,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a small batch is what one of the experiments shows
        return learner.fit(right(images), left(images))


def squared_error(truth: Images, inferred: Any) -> dict[str, float]:
    """Mean over images and pixels, with its standard error over images."""
    each = ((flat(truth) - inferred.reshape(len(truth), -1)) ** 2).mean(1, dtype=np.float64)
    return {"mse": float(each.mean()), "error": standard_error(each)}


def judged(found: RelevantFeatures, data: Halves) -> dict[str, Any]:
    """What a fit is worth on test images: errors, relevances there and on the rows of the fit, loss a pass."""
    there = found.significance(right(data.test), left(data.test), permutations=99)
    history = {
        name: values for name, values in found.history_.items() if "loss" in name or "relevance" in name
    }
    return {
        **squared_error(left(data.test), found.predict(right(data.test))),
        "correlation": found.correlation_.tolist(),
        "held out": there.correlation.tolist(),
        "held out error": there.error.tolist(),
        "significant": there.n_significant,
        "history": history,
        "loss": found.loss_,
        "batch": found.batch_size_,
    }


def simple(data: Halves) -> dict[str, dict[str, float]]:
    """Errors of column means, and of ridge regression with a penalty by cross-validation."""
    known, wanted = (flat(part(data.train)).astype(float) for part in (right, left))
    truth, new = left(data.test), flat(right(data.test)).astype(float)
    ridge = RidgeCV(np.geomspace(1e-2, 1e3, 11)).fit(known, wanted)
    means = np.broadcast_to(wanted.mean(0), (len(truth), wanted.shape[1]))
    return {"column means": squared_error(truth, means), "ridge": squared_error(truth, ridge.predict(new))}


def rivals(
    data: Halves, setting: Setting, forest_rows: int, trees: int, seed: int
) -> dict[str, dict[str, float]]:
    """Errors of a forest, and of the same network with one output a pixel and least squares.

    Args:
        data: the images.
        setting: of the network, which is given half the passes by batches of a quarter of the rows.
        forest_rows: that the forest sees, the first ones.
        trees: of the forest.
        seed: of chances.
    """
    known, wanted = flat(right(data.train)), flat(left(data.train))
    truth, new = left(data.test), flat(right(data.test))
    forest = RandomForestRegressor(
        trees, max_features="sqrt", min_samples_leaf=2, n_jobs=-1, random_state=seed
    )
    forest.fit(known[:forest_rows], wanted[:forest_rows])
    batch = max(64, (setting.batch or 256) // 4)
    passes = max(setting.passes // 2, 1)
    network = Regression(setting.channels, passes, batch, setting.rate, pick_device(setting.device))
    guess = network.predicted(known, wanted, new, data.half, seed)
    return {
        "random forest": squared_error(truth, forest.predict(new)),
        "network": squared_error(truth, guess),
    }


def small_batches(data: Halves, cutoff: int, seed: int, setting: Setting) -> dict[str, Any]:
    """What batches of two rows a variable, and of fewer rows than variables, do to the loss and its gradient.

    All losses are k0 - 1, the variables asked for, less the relevance found: features that became constant in training
    have no variable left, and count in full.
    """
    small = Setting(setting.channels, setting.passes, setting.rate, 2 * cutoff, setting.device)
    found = fit(data.train, cutoff, seed, small)
    kept = len(found.correlation_)
    in_batch = found.diagnose(n_given=20).batch_loss if kept else 0.0
    assert in_batch is not None
    stream = generator(seed)
    size = {"enough": 10 * cutoff, "too few": 4 * cutoff // 5}
    slopes = {}
    for name, n in size.items():
        features = [
            torch.randn((n, cutoff - 1), generator=stream, dtype=torch.float64, requires_grad=True)
            for _ in "fg"
        ]
        relevance_loss(*features).backward()
        assert features[0].grad is not None
        slopes[name] = float(features[0].grad.norm())
    return {
        "batch": found.batch_size_,
        "batch loss": in_batch + cutoff - 1 - kept,
        "losses in training": found.history_["loss"],
        "loss": found.loss_,
        "variables": kept,
        "gradient": slopes,
        "rows": size,
    }
