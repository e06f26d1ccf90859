"""Pictures of inferred half images: figure 1 of document 003, and whether the laws behind them hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure
from papers.halves_data import Images, right

FINE = 28
"""Dots on the side of an image: smaller ones are enlarged, so that lines stay thin."""
ACROSS = 3
"""Digits in a line of the mosaic, four images each."""


def mosaic(images: Images, law: Any, fits: Mapping[int, Mapping[str, Any]]) -> Figure:
    """Digits whose left half is inferred: minus one deviation, mean, plus one deviation, truth; loss; singular values.

    Args:
        images: whole, (m, H, W).
        law: of their left halves, an expectation.
        fits: facts by cutoff.
    """
    main = law.ambiguity()
    figure = new_figure(13.0, 0.75 * -(-len(images) // ACROSS) + 0.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(1.45, 1.0))
    axis = figure.add_subplot(grid[:, 0])
    shown = _tiled(
        images,
        [part.reshape(-1, images.shape[1], images.shape[2] // 2) for part in (main.low, law.mean, main.high)],
    )
    axis.imshow(shown, cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
    axis.set_axis_off()
    axis.set_title(
        "Left half inferred: mean - 1 sd, mean, mean + 1 sd along the main direction; truth (boxed)",
        loc="left",
        fontsize=10.5,
        color=INK,
    )
    _loss(figure.add_subplot(grid[0, 1]), fits)
    _spectra(figure.add_subplot(grid[1, 1]), fits)
    return figure


def _tiled(images: Images, parts: list[Any]) -> Any:
    """Four images a digit, a grey line where they are cut, a frame around the truth."""
    known, grain = right(images), max(1, round(FINE / images.shape[1]))
    m, height, width = len(images), *(grain * side for side in images.shape[1:])
    lines = -(-m // ACROSS)
    tall, wide = height + 2, 4 * (width + 2) + 4
    canvas = np.zeros((lines * tall, ACROSS * wide))
    for place in range(m):
        top, side = (place // ACROSS) * tall + 1, (place % ACROSS) * wide + 1
        for number in range(4):
            whole = images[place] if number == 3 else np.hstack([parts[number][place], known[place]])
            whole = np.kron(whole, np.ones((grain, grain)))
            start = side + number * (width + 2)
            if number == 3:
                canvas[top - 1 : top + height + 1, start - 1 : start + width + 1] = 0.6
            canvas[top : top + height, start : start + width] = whole.clip(0.0, 1.0)
            if number < 3:
                cut = canvas[top : top + height, start + width // 2 - 1]
                cut[:] = np.maximum(cut, 0.25)
    return canvas


def _loss(axis: Any, fits: Mapping[int, Mapping[str, Any]]) -> None:
    cutoff = max(fits)
    history = fits[cutoff]["history"]
    pass_ = np.arange(1, len(history["loss"]) + 1)
    axis.plot(pass_, history["loss"], color=COLOURS[0], label="in training batches")
    there = cutoff - 1 - np.asarray(history["validation_relevance"])
    axis.plot(np.arange(1, len(there) + 1), there, color=COLOURS[1], label="on rows held out (score)")
    axis.axhline(fits[cutoff]["loss"], color=FAINT, ls="--", label="on all rows of the fit")
    dress(axis, f"Loss, k0 = {cutoff}", "pass", "k0 less total relevance")
    add_legend(axis)


def _spectra(axis: Any, fits: Mapping[int, Mapping[str, Any]]) -> None:
    for colour, (cutoff, facts) in zip(COLOURS, fits.items()):
        place = np.arange(1, cutoff)[: len(facts["correlation"])]
        axis.plot(place, facts["correlation"], color=colour, label=f"k0 = {cutoff}")
        axis.plot(place, facts["held out"], color=colour, ls=":", lw=1)
    axis.plot([], [], color=FAINT, ls=":", label="the same on test images")
    axis.set_ylim(min(0.0, axis.get_ylim()[0]), 1.02)
    dress(axis, "Singular values", "variable", "correlation")
    add_legend(axis)


def calibration(residual: Mapping[str, Any], law: Mapping[str, Any]) -> Figure:
    """Residuals by inferred deviation, frequencies by inferred chance, ranks of true pixels.

    Args:
        residual: of :func:`papers.halves_coverage.residuals`.
        law: of :func:`papers.halves_coverage.ranks`.
    """
    figure = new_figure(13.0, 4.2)
    axes: Any = figure.subplots(1, 3)
    spread = np.asarray(residual["by deviation"])
    top = 1.05 * spread.max()
    axes[0].plot([0.0, top], [0.0, top], color=FAINT, ls="--")
    axes[0].plot(spread[:, 0], spread[:, 1], "o-", color=COLOURS[0])
    dress(axes[0], "Residuals by deviation", "inferred standard deviation", "root mean square residual")
    chance = np.asarray(law["reliability"])
    axes[1].plot([0.0, 1.0], [0.0, 1.0], color=FAINT, ls="--")
    axes[1].errorbar(chance[:, 0], chance[:, 1], 2.0 * chance[:, 2], fmt="o-", color=COLOURS[0], capsize=3)
    dress(axes[1], "Bright pixels", "inferred chance", "frequency (± 2 s.e.)")
    count = np.asarray(law["histogram"], dtype=float)
    share = count / count.sum()
    axes[2].bar(
        (np.arange(len(share)) + 0.5) / len(share), share, 0.9 / len(share), color=COLOURS[0], alpha=0.6
    )
    axes[2].axhline(1.0 / len(share), color=FAINT, ls="--")
    dress(axes[2], "Ranks of true pixels", "place in the inferred law", "share")
    return figure
