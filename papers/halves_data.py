"""Images of digits cut in two, turned and shifted a little at random."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.nn import functional

from boxloop.data import load_dataset
from boxloop.numeric import generator

Images = NDArray[np.float32]


@dataclass(frozen=True)
class Halves:
    """Images (n, H, W) with pixels between 0 and 1, whose left half is to be inferred from the right one.

    Args:
        name: what they are.
        train: to learn from.
        test: others, of the same law.
    """

    name: str
    train: Images
    test: Images

    @property
    def half(self) -> tuple[int, int]:
        """Height and width of a half."""
        return self.train.shape[1], self.train.shape[2] // 2


def left(images: Images) -> Images:
    """Left halves, (n, H, W / 2)."""
    return np.ascontiguousarray(images[:, :, : images.shape[2] // 2])


def right(images: Images) -> Images:
    """Right halves, (n, H, W / 2)."""
    return np.ascontiguousarray(images[:, :, images.shape[2] // 2 :])


def flat(images: Images) -> NDArray[Any]:
    """Rows of pixels."""
    return images.reshape(len(images), -1)


def disturbed(images: Tensor, degrees: float, pixels: float, stream: Generator) -> Tensor:
    """Each image turned about its middle and shifted, by independent uniform chances; what enters is black.

    One copy of an image, not many: rows then stay independent, as error bars and rows held out need them to be.

    Args:
        images: (n, H, W).
        degrees: largest angle, either way.
        pixels: largest shift, either way along each axis.
        stream: on the device of the images.
    """
    n, height, width = images.shape
    chance = 2.0 * torch.rand((n, 3), generator=stream, device=images.device, dtype=images.dtype) - 1.0
    angle = chance[:, 0] * math.radians(degrees)
    cos, sin, squeeze = angle.cos(), angle.sin(), height / width
    move = chance[:, 1:] * pixels * 2.0 / torch.tensor([width, height]).to(images)
    turn = torch.stack([cos, -sin * squeeze, move[:, 0], sin / squeeze, cos, move[:, 1]], 1).reshape(n, 2, 3)
    places = functional.affine_grid(turn, [n, 1, height, width], align_corners=False)
    return functional.grid_sample(images[:, None], places, align_corners=False)[:, 0]


def digits(folder: Path | None, rows: int | None, seed: int) -> tuple[Halves, Halves]:
    """MNIST, else the small digits of scikit-learn: each image turned and shifted by its own chance, and as it is.

    Args:
        folder: where ``mnist.npz`` is.
        rows: of training, at most.
        seed: of the turns, and of the split of the small digits.
    """
    if folder is not None and (folder / "mnist.npz").exists():
        with np.load(folder / "mnist.npz") as file:
            train, test = file["train_images"][:rows] / 255.0, file["test_images"] / 255.0
        return _made("MNIST", train, test, 10.0, 2.0, seed)
    images = load_dataset("digits").rows.reshape(-1, 8, 8) / 16.0
    order = np.random.default_rng(seed).permutation(len(images))
    cut = 1400
    name = "scikit-learn's digits, 8 x 8"
    return _made(name, images[order[:cut]][:rows], images[order[cut:]], 5.0, 0.5, seed)


def _made(
    name: str, train: Any, test: Any, degrees: float, pixels: float, seed: int
) -> tuple[Halves, Halves]:
    stream = generator(seed)
    plain = [torch.from_numpy(part.astype(np.float32)) for part in (train, test)]
    moved = [disturbed(part, degrees, pixels, stream).numpy() for part in plain]
    told = f"{name}, turned up to {degrees:g} degrees, shifted up to {pixels:g} pixels"
    return Halves(told, moved[0], moved[1]), Halves(
        f"{name}, as they are", plain[0].numpy(), plain[1].numpy()
    )
