"""Images in a grid: rows of a table of pixels, samples of a model, reconstructions of rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from boxloop.figures.style import INK, LABEL, Array, check_axes, dress, new_axes, short, write_message

GAP = 1
"""Pixels between two images."""
PAPER = 1.0
"""What lies between images: white."""
INCHES = 0.62
"""Of the side of an image."""


def image_grid(
    images: ArrayLike,
    ax: Axes | None = None,
    *,
    columns: int | None = None,
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> Axes:
    """Images side by side, row by row, on one scale of brightness.

    Args:
        images: (n, H, W) grey or (n, H, W, 3) coloured; a pixel that is not finite is left white.
        ax: where to draw; a figure of its own when omitted.
        columns: images in a line; about as many as there are lines when omitted.
        limits: values shown black and white; smallest and largest of all when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    shown = _scale_brightness(images, limits)
    across = max(1, columns or math.ceil(math.sqrt(max(len(shown), 1))))
    down = max(1, math.ceil(len(shown) / across))
    ax = _prepare_axes(ax, across, down, shown, title)
    if len(shown):
        ax.imshow(_tile_images(shown, across, down), interpolation="nearest")
    return ax


def image_pairs(
    left: ArrayLike,
    right: ArrayLike,
    names: Sequence[str] = ("rows", "reconstructions"),
    ax: Axes | None = None,
    *,
    columns: int = 10,
    limits: tuple[float, float] | None = None,
    title: str = "",
) -> Axes:
    """Images with their partners below them: rows and reconstructions, or a distribution's mean and a draw from it.

    Args:
        left: (n, H, W) or (n, H, W, 3), on the upper line of each pair of lines.
        right: the same shape, below.
        names: what the two are, written beside the first pair of lines.
        ax: where to draw; a figure of its own when omitted.
        columns: most pairs in a line.
        limits: values shown black and white, for both; smallest and largest of all when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    above, below = np.asarray(left, dtype=float), np.asarray(right, dtype=float)
    if above.shape != below.shape:
        raise ValueError(f"pairs must have the same shape, got {above.shape} and {below.shape}")
    n = len(above)
    shown = _scale_brightness(np.concatenate([above, below]), limits)
    across = max(1, min(columns, n))
    lines = max(1, math.ceil(n / across))
    ax = _prepare_axes(ax, across, 2 * lines, shown, title, margin=0.9)
    if not n:
        return ax
    height = shown.shape[1] + GAP
    parts = []
    for line in range(lines):
        here = slice(line * across, (line + 1) * across)
        for half, gap in ((shown[:n], GAP), (shown[n:], 3 * GAP)):
            parts.append(_tile_images(half[here], across, 1)[:-GAP])
            parts.append(np.full((gap, *parts[-1].shape[1:]), PAPER))
    ax.imshow(np.concatenate(parts[:-1]), interpolation="nearest")
    ax.set_yticks([0.5 * height - 1, 1.5 * height - 1], [short(name, 24) for name in names], parse_math=False)
    ax.tick_params(axis="y", labelsize=LABEL - 1, colors=INK, length=0)
    return ax


def _scale_brightness(images: ArrayLike, limits: tuple[float, float] | None) -> Array:
    """(n, H, W, 3) between 0 and 1."""
    values = np.asarray(images, dtype=float)
    if values.ndim not in (3, 4) or (values.ndim == 4 and values.shape[3] not in (1, 3)):
        raise ValueError(f"images must have the shape (n, H, W) or (n, H, W, 3), got {values.shape}")
    values = values if values.ndim == 4 else values[..., None]
    known = values[np.isfinite(values)]
    low, high = limits if limits is not None else (known.min(initial=np.inf), known.max(initial=-np.inf))
    width = high - low if np.isfinite(high - low) and high > low else 1.0
    start = low if np.isfinite(low) else 0.0
    scaled = np.where(np.isfinite(values), np.clip((values - start) / width, 0.0, 1.0), PAPER)
    return np.broadcast_to(scaled, (*scaled.shape[:3], 3))


def _tile_images(images: Array, across: int, down: int) -> Array:
    """One image of all of them, white between and where there is none."""
    n, height, width, _ = images.shape
    canvas = np.full((down * (height + GAP), across * (width + GAP), 3), PAPER)
    for place in range(n):
        top, side = (place // across) * (height + GAP), (place % across) * (width + GAP)
        canvas[top : top + height, side : side + width] = images[place]
    return canvas


def _prepare_axes(
    ax: Axes | None, across: int, down: int, images: Array, title: str, margin: float = 0.0
) -> Axes:
    """Axes without ticks and frame, of a size that suits the images, with a message if there are none."""
    height, width = images.shape[1:3]
    tall = INCHES * (height / width if width else 1.0)
    ax = check_axes(ax) or new_axes(max(2.4, 0.4 + margin + INCHES * across), max(1.8, 0.6 + tall * down))
    dress(ax, title)
    ax.grid(visible=False)
    ax.set_xticks([])
    ax.set_yticks([])
    ax.spines[["left", "bottom"]].set_visible(False)
    if not len(images):
        write_message(ax, "no images")
    return ax
