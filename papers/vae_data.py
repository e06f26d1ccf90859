"""Images and rows for the autoencoders, and a small network whose features stand in for Inception's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from torch import Tensor

from boxloop.data import load_dataset
from boxloop.numeric import generator, normal

Rows = NDArray[np.float64]
Features = Callable[[Tensor], Tensor]

PIECES = 32
"""Features of an image: units of the last hidden layer of the network that names its digit."""


@dataclass(frozen=True)
class Problem:
    """Rows to fit and to judge by.

    Args:
        name: what they are.
        train: (n, d).
        held: rows that no fit sees.
        side: pixels on a side of an image, None for plain rows.
        features: rows to features for the Fréchet distance; None takes the rows.
    """

    name: str
    train: Rows
    held: Rows
    side: int | None = None
    features: Features | None = None

    def shaped(self, rows: Rows) -> Rows:
        """Images as such, (n, side, side); rows as they are."""
        return rows if self.side is None else rows.reshape(-1, self.side, self.side)


def fours(folder: Path | None, seed: int) -> tuple[Problem, bool]:
    """The digit 4 of MNIST, pixels in [0, 1], and whether it is that; else all small digits of scikit-learn."""
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            images, labels = file["train_images"].reshape(-1, 784) / 255.0, file["train_labels"]
            held = file["test_images"][file["test_labels"] == 4].reshape(-1, 784) / 255.0
        some = np.random.default_rng(seed).permutation(len(images))[:10_000]
        features = digit_features(images[some], labels[some], seed)
        return Problem("the digit 4 of MNIST", images[labels == 4], held, 28, features), True
    table = load_dataset("digits")
    order = np.random.default_rng(seed).permutation(len(table.rows))
    rows, labels = table.rows[order] / 16.0, table.target[order]
    features = digit_features(rows[:1300], labels[:1300], seed)
    return Problem("scikit-learn's digits, 8 x 8", rows[:1300], rows[1300:], 8, features), False


def digit_features(images: Rows, labels: NDArray[Any], seed: int) -> Features:
    """Train a small network to name digits; its last hidden layer is what the Fréchet distance compares.

    Deviation: document 000 uses an Inception network, whose weights are not at hand, and which saw photographs.
    """
    network = MLPClassifier((128, PIECES), alpha=1e-3, max_iter=30, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # features need not be the best
        network.fit(images, labels)
    return Hidden(
        tuple(torch.from_numpy(np.asarray(slope)) for slope in network.coefs_[:-1]),
        tuple(torch.from_numpy(np.asarray(shift)) for shift in network.intercepts_[:-1]),
    )


@dataclass(frozen=True)
class Hidden:
    """The hidden layers of a network, as a function of rows."""

    slopes: tuple[Tensor, ...]
    shifts: tuple[Tensor, ...]

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, d) -> (n, units of the last)."""
        for slope, shift in zip(self.slopes, self.shifts):
            rows = torch.relu(rows.double() @ slope + shift)
        return rows


def clusters(n: int, seed: int) -> Problem:
    """Three round clusters in the plane, of equal weight."""
    stream = generator(seed)
    centres = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]]).double()
    which = torch.randint(3, (2 * n,), generator=stream)
    rows = (centres[which] + 0.7 * normal((2 * n, 2), stream)).numpy()
    return Problem("three clusters in the plane", rows[:n], rows[n:])


def cells(seed: int) -> Problem:
    """Measurements of cell nuclei, 30 columns, bundled with scikit-learn, each in units of its own spread."""
    rows = load_dataset("breast_cancer").rows
    rows = (rows - rows.mean(0)) / rows.std(0)
    order = np.random.default_rng(seed).permutation(len(rows))
    return Problem("cell nuclei (breast cancer), 30 columns", rows[order[:400]], rows[order[400:]])
