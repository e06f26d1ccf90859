"""Images to classify, and images that belong to no class: digits, MNIST, CIFAR-10."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.data import load_dataset
from papers.dcci_data import decoded

Images = NDArray[Any]

KNOWN = 8
"""Of scikit-learn's digits, those below are learned; the others are unknown."""
FEW, HELD = 100, 500
"""Digits to train on, few enough for mistakes, and to tune with: where none is mistaken the temperature goes to 0."""


@dataclass(frozen=True)
class Scene:
    """Images (n, C, H, W) in standard units of the training pixels, and what they show.

    Args:
        name: of the images.
        x: by part, ``"train"``, ``"valid"`` (to tune with) or ``"test"``.
        y: classes (n,) likewise.
        unknown: images of something else, by what they are.
        classes: how many.
        mirror: whether training images may be mirrored.
    """

    name: str
    x: dict[str, Tensor]
    y: dict[str, Tensor]
    unknown: dict[str, Tensor]
    classes: int
    mirror: bool = False

    def to(self, device: torch.device) -> Scene:
        """On a device."""
        x, y, unknown = (
            {key: value.to(device) for key, value in part.items()} for part in (self.x, self.y, self.unknown)
        )
        return Scene(self.name, x, y, unknown, self.classes, self.mirror)


def digits(seed: int) -> Scene:
    """Eight of scikit-learn's ten digits, 8 x 8; the two that are left out are among the unknown."""
    table = load_dataset("digits")
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(table.rows))
    images, labels = table.rows[order].reshape(-1, 1, 8, 8), table.target[order].astype(int)
    known = labels < KNOWN
    cuts = {"train": slice(0, FEW), "valid": slice(FEW, FEW + HELD), "test": slice(FEW + HELD, None)}
    parts = {part: (images[known][cut], labels[known][cut]) for part, cut in cuts.items()}
    others = {"digits 8 and 9": images[~known], **_spoiled(parts["test"][0], rng)}
    return _scene("digits", parts, others, KNOWN)


def mnist(folder: Path, train: int, valid: int, test: int, few: int, seed: int) -> Scene:
    """MNIST, with photographs in grey among the unknown.

    Args:
        folder: of the data.
        train: images to train on.
        valid: images to tune with, others of the 60000.
        test: images to test with.
        few: images of every unknown kind, at most.
        seed: of the choice.
    """
    rng = np.random.default_rng(seed)
    with np.load(folder / "mnist.npz") as file:
        images, labels = file["train_images"][:, None], file["train_labels"].astype(int)
        held = file["test_images"][:test, None], file["test_labels"][:test].astype(int)
    order = rng.permutation(len(images))
    cuts = {"train": order[:train], "valid": order[len(order) - valid :]}
    parts = {part: (images[rows], labels[rows]) for part, rows in cuts.items()} | {"test": held}
    grey = _photographs(folder, "test")[0][:few].mean(1, keepdims=True)[:, :, 2:30, 2:30]
    others = {"photographs": grey, **_spoiled(held[0][:few], rng)}
    return _scene("MNIST", parts, others, 10)


def photographs(folder: Path, valid: int, few: int, seed: int) -> Scene:
    """The 10000 images of CIFAR-10 that are at hand, with digits among the unknown."""
    rng = np.random.default_rng(seed)
    images, labels = _photographs(folder, "train")
    order = rng.permutation(len(images))
    cuts = {"train": order[valid:], "valid": order[:valid]}
    parts = {part: (images[rows], labels[rows]) for part, rows in cuts.items()}
    held, named = _photographs(folder, "test")
    parts["test"] = held[:few], named[:few]
    with np.load(folder / "mnist.npz") as file:
        shown = np.pad(file["test_images"][:few], ((0, 0), (2, 2), (2, 2)))
    others = {"digits": np.repeat(shown[:, None], 3, 1), **_spoiled(parts["test"][0], rng)}
    return _scene("CIFAR-10", parts, others, 10, mirror=True)


def turned(images: Images) -> Images:
    """By 90 degrees, against the clock."""
    return np.rot90(images, axes=(2, 3))


def shuffled(images: Images, rng: np.random.Generator) -> Images:
    """The pixels of every image in an order of its own, colours of a pixel together."""
    n, c = images.shape[:2]
    flat = images.reshape(n, c, -1)
    order = rng.permuted(np.tile(np.arange(flat.shape[2]), (n, 1)), axis=1)
    return np.take_along_axis(flat, order[:, None], 2).reshape(images.shape)


def _spoiled(images: Images, rng: np.random.Generator) -> dict[str, Images]:
    return {"turned by 90 degrees": turned(images), "pixels shuffled": shuffled(images, rng)}


def _photographs(folder: Path, part: str) -> tuple[Images, Images]:
    with np.load(folder / "cifar10_subset.npz") as file:
        return decoded(file[f"{part}_coded"]), file[f"{part}_labels"].astype(int)


def _scene(
    name: str,
    parts: Mapping[str, tuple[Images, Images]],
    others: dict[str, Images],
    classes: int,
    mirror: bool = False,
) -> Scene:
    """In units of the training pixels of every colour."""
    pixels = parts["train"][0].astype(np.float64)
    middle, spread = (find((0, 2, 3), keepdims=True)[0] for find in (pixels.mean, pixels.std))

    def units(images: Images) -> Tensor:
        return torch.from_numpy(((images - middle) / spread).astype(np.float32))

    return Scene(
        name,
        {part: units(images) for part, (images, _) in parts.items()},
        {part: torch.from_numpy(labels.astype(np.int64)) for part, (_, labels) in parts.items()},
        {kind: units(images) for kind, images in others.items()},
        classes,
        mirror,
    )
