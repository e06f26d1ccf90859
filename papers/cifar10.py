"""CIFAR-10 as the data folder holds it: differences between pixels, which compress better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def decode_images(coded: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Images (n, 3, 32, 32) from differences along both sides, and of red and blue from green, modulo 256."""
    images: NDArray[np.uint8] = np.cumsum(np.cumsum(coded, axis=2, dtype=np.uint8), axis=3, dtype=np.uint8)
    images[:, 0] += images[:, 1]
    images[:, 2] += images[:, 1]
    return images
