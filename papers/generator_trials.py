"""Generators on relevant variables of digits, at many latent dimensions, and what their samples look like."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from boxloop.criticise import MomentPenalty
from boxloop.data import load_dataset
from boxloop.estimators import (
    DimensionCurve,
    FitWarning,
    RelevantFeatures,
    RelevantGenerator,
    latent_dimension_curve,
    pick_device,
)
from boxloop.numeric import generator
from boxloop.twoview import PixelShuffle
from papers.experiment import Options

SURE = 0.9
"""Probability of a digit from which an image is called recognised."""

NOISE = 0.1
"""Of the pixels, which lie in [0, 1]; the document does not say its own."""


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1], (n, side, side), with their digits.

    Args:
        name: what they are.
        train: images that are fitted.
        held: images that no fit sees.
        labels: of the first.
        real: whether they are the document's.
    """

    name: str
    train: Tensor
    held: Tensor
    labels: NDArray[Any]
    real: bool

    @property
    def side(self) -> int:
        """Pixels on a side."""
        return self.train.shape[1]


@dataclass(frozen=True)
class Setting:
    """How much is trained.

    Args:
        learned: variables that the convolutions learn.
        kept: the most relevant of them, which the generator sees.
        channels: of the convolutions.
        feature_passes: over the images, for the variables.
        hidden: of the generator.
        batch: images of its mini-batches.
        passes: over the images, for each generator.
        dimensions: of the code.
        seeds: generators of each dimension.
        shown: dimensions whose samples are drawn, beside that of the change of slope.
        rows: most images.
        rate: of the generators; the document's is 0.001.
    """

    learned: int
    kept: int
    channels: tuple[int, ...]
    feature_passes: int
    hidden: tuple[int, ...]
    batch: int
    passes: int
    dimensions: tuple[int, ...]
    seeds: int
    shown: tuple[int, ...] = (2, 8)
    rows: int = 60_000
    rate: float = 1e-3


def digits(options: Options, rows: int) -> Digits:
    """MNIST where it is, else the small digits of scikit-learn; on a GPU where there is one."""
    device, folder = pick_device("auto"), options.data
    order = np.random.default_rng(options.seed)
    if folder is not None and (Path(folder) / "mnist.npz").exists():
        with np.load(Path(folder) / "mnist.npz") as file:
            train, labels, held = file["train_images"], file["train_labels"], file["test_images"]
        some = order.permutation(len(train))[:rows]
        parts = [
            train[some].reshape(-1, 28, 28) / 255.0,
            held[: max(rows // 5, 1)].reshape(-1, 28, 28) / 255.0,
        ]
        name, labels, real = "MNIST", labels[some], True
    else:
        table = load_dataset("digits")
        some = order.permutation(len(table.rows))
        images = table.rows[some].reshape(-1, 8, 8) / 16.0
        parts, labels = [images[:1300], images[1300:]], table.target[some[:1300]]
        name, real = "scikit-learn's digits, 8 x 8", False
    first, second = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in parts)
    return Digits(name, first, second, labels, real)


def features_of(images: Digits, setting: Setting, seed: int, kind: str) -> RelevantFeatures:
    """Variables of clean images that survive displaced pixels and noise: learned, or linear in the pixels."""
    network = kind == "network"
    estimator = RelevantFeatures(
        setting.learned if network else setting.kept,
        x_features=kind,
        y_features=kind,
        hidden=setting.channels,
        channel=PixelShuffle((images.side, images.side), displacement=1.0, noise=NOISE),
        max_iter=setting.feature_passes,
        patience=None,
        ridge=0.0 if network else 1e-6,
        random_state=seed,
        device="auto",
    )
    return _quietly(lambda: estimator.fit(images.train))


def curve_of(
    images: Digits, features: RelevantFeatures, setting: Setting, seed: int, n_seeds: int, progress: Any
) -> DimensionCurve:
    """Generators at every dimension, judged on images that no fit has seen."""
    start = generator_of(features, setting, seed)
    return _quietly(
        lambda: latent_dimension_curve(
            start,
            images.train,
            [k for k in setting.dimensions if k <= setting.kept],
            held_out=images.held,
            n_seeds=n_seeds,
            progress=progress,
        )
    )


def generator_of(features: RelevantFeatures, setting: Setting, seed: int, **more: Any) -> RelevantGenerator:
    """A generator before training."""
    return RelevantGenerator(
        features=features,
        n_relevant=setting.kept,
        hidden=setting.hidden,
        batch_size=setting.batch,
        max_iter=setting.passes,
        learning_rate=setting.rate,
        schedule="cosine",
        patience=None,
        random_state=seed,
        device="auto",
        **more,
    )


def _quietly(work: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # pixels at the edge are constant
        warnings.simplefilter("ignore", ConvergenceWarning)  # as many passes as were asked for
        return work()


@dataclass(frozen=True)
class Sampled:
    """Samples at one dimension, and what they are worth.

    Args:
        images: (64, side, side), means of the emission, as the document shows.
        recognised: share of samples that a network names with probability 0.9 or more.
        gap: moment gap of the model on images held out.
        mixture_gap: the same with a mixture as the law of codes.
    """

    images: NDArray[np.float64]
    recognised: float
    gap: float
    mixture_gap: float


def namer(images: Digits, seed: int) -> MLPClassifier:
    """A small network that names digits."""
    some = slice(0, 20_000)
    pixels = images.train[some].reshape(-1, images.side**2).cpu().numpy()
    network = MLPClassifier((128,), alpha=1e-3, max_iter=30, random_state=seed)
    return _quietly(lambda: network.fit(pixels, images.labels[some]))


def recognised(network: MLPClassifier, images: NDArray[np.float64]) -> float:
    """Share of images named with confidence."""
    chance = network.predict_proba(images.reshape(len(images), -1))
    return float((chance.max(1) >= SURE).mean())


def sampled(fit: RelevantGenerator, images: Digits, network: MLPClassifier, seed: int, draws: int) -> Sampled:
    """Draw from a generator, let a network name what it draws, and compare moments.

    Args:
        fit: a generator with a Gaussian law of codes.
        images: on which it was fitted.
        network: names digits.
        seed: of the draws.
        draws: images drawn.
    """
    _, codes = fit.sample(draws)
    made = fit.inverse_transform(codes)
    held = images.held.reshape(len(images.held), -1)
    params = {**fit.get_params(deep=False), "features": fit.features_, "prior": "mixture"}
    mixed = _quietly(lambda: RelevantGenerator(**params).fit(images.train))
    gaps = []
    for model in (fit.model_, mixed.model_):
        with torch.no_grad():
            stream = generator(seed, held.device)
            gaps.append(float(MomentPenalty(1.0, 1 << 13, "monte_carlo").gap(model, held, stream)))
    return Sampled(made[:64], recognised(network, made), *gaps)
