"""Images to classify: MNIST and CIFAR-10 where they are at hand, else the small digits of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop.data import load_dataset

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Images:
    """Images as rows, pixels in standard units, the number of the class in the last column.

    Args:
        name: what they are.
        train: (n, C * H * W + 1).
        test: images that no fit sees.
        shape: of one, (C, H, W).
        classes: how many.
    """

    name: str
    train: Rows
    test: Rows
    shape: tuple[int, int, int]
    classes: int = 10


def digits(folder: Path | None, n_train: int, n_test: int, seed: int) -> Images:
    """Some of MNIST, else of scikit-learn's digits."""
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            sets = [(file[f"{part}_images"], file[f"{part}_labels"]) for part in ("train", "test")]
        rng = np.random.default_rng(seed)
        some = [_some(images, labels, n, rng) for (images, labels), n in zip(sets, (n_train, n_test))]
        return _images(f"MNIST, {n_train} of 60000 images", some, (1, 28, 28))
    table = load_dataset("digits")
    order = np.random.default_rng(seed).permutation(len(table.rows))
    images, labels = table.rows[order].reshape(-1, 8, 8), table.target[order]
    parts = [(images[:1200], labels[:1200]), (images[1200:], labels[1200:])]
    return _images("scikit-learn's digits, 8 x 8, 1200 images", parts, (1, 8, 8))


def photographs(folder: Path | None) -> Images | None:
    """The first 10000 images of CIFAR-10, each with its mirror image, and 2000 to test; None where they are not."""
    if folder is None or not (folder / "cifar10_subset.npz").exists():
        return None
    with np.load(folder / "cifar10_subset.npz") as file:
        train, test = decoded(file["train_coded"]), decoded(file["test_coded"])
        labels, held = file["train_labels"], file["test_labels"]
    both = np.concatenate([train, train[..., ::-1]]), np.concatenate([labels, labels])
    return _images("CIFAR-10, 10000 images and their mirror images", [both, (test, held)], (3, 32, 32))


def decoded(coded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (n, 3, 32, 32) from differences along both sides, and of red and blue from green, modulo 256."""
    found: NDArray[np.uint8] = np.cumsum(np.cumsum(coded, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    found[:, 0] += found[:, 1]
    found[:, 2] += found[:, 1]
    return found


def _some(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], n: int, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    chosen = rng.permutation(len(images))[:n]
    return images[chosen], labels[chosen]


def _images(
    name: str, parts: Sequence[tuple[NDArray[Any], NDArray[Any]]], shape: tuple[int, int, int]
) -> Images:
    """Pixels less their mean over their standard deviation, both of all training pixels."""
    first = parts[0][0].astype(np.float64)
    middle, spread = first.mean(), first.std()
    rows = [
        np.concatenate(
            [
                ((images.astype(np.float64) - middle) / spread).reshape(len(images), -1),
                labels.astype(np.float64)[:, None],
            ],
            1,
        ).astype(np.float32)
        for images, labels in parts
    ]
    return Images(name, rows[0], rows[1], shape)
