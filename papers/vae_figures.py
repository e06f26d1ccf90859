"""Pictures of autoencoders with and without the moment penalty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from boxloop.figures import COLOURS, FAINT, add_legend, dress, new_figure

Runs = list[dict[str, float]]


def pictures(shown: Mapping[float, tuple[Tensor, Tensor]], side: int) -> Figure:
    """Sixty-four samples and their means, without the penalty and with it: figures 10 and 11 of document 000.

    Args:
        shown: samples and means (64, pixels) by weight of the penalty.
        side: pixels on a side.
    """
    figure = new_figure(9.0, 9.4)
    axes: Any = figure.subplots(2, len(shown))
    for column, (alpha, both) in enumerate(shown.items()):
        for row, (rows, what) in enumerate(zip(both, ("samples x", "means mu(z) of the same"))):
            axis = axes[row, column]
            axis.imshow(_tiled(rows, side), cmap="gray_r", vmin=0.0, vmax=1.0, interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(f"{what}, {'no penalty' if alpha == 0 else f'alpha = {alpha:g}'}", loc="left")
    return figure


def _tiled(rows: Tensor, side: int) -> Any:
    """Sixty-four images as one, eight in a line, a white line between."""
    images = rows.reshape(8, 8, side, side).numpy()
    framed = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return framed.transpose(0, 2, 1, 3).reshape(8 * (side + 2), 8 * (side + 2))


def trade(
    strong: Mapping[str, Runs], level: Mapping[str, float], table: Mapping[str, Mapping[str, Runs]]
) -> Figure:
    """Distances of the images against the weight of the penalty, and gap against bound on every data set.

    Args:
        strong: fits of the images by weight.
        level: what two samples of the images differ by.
        table: fits of every data set by name of the weight.
    """
    figure = new_figure(12.0, 4.4)
    axes: Any = figure.subplots(1, 2)
    _distances(axes[0], strong, level)
    _exchange(axes[1], table)
    return figure


def _distances(axis: Any, strong: Mapping[str, Runs], level: Mapping[str, float]) -> None:
    place, weights = np.arange(len(strong)), list(strong)
    for i, (name, label) in enumerate((("Fréchet x", "samples x"), ("Fréchet mean", "means mu(z)"))):
        values = np.asarray([[run[name] for run in strong[alpha]] for alpha in weights])
        error = 2 * values.std(1) / max(values.shape[1] - 1, 1) ** 0.5
        told = f"{label} (± 2 s.e.)"
        axis.errorbar(place, values.mean(1), error, color=COLOURS[i], marker="o", capsize=3, label=told)
    axis.axhline(level["Fréchet x"], color=FAINT, ls="--", label="two samples of images")
    axis.set_xticks(place, weights)
    axis.set_ylim(bottom=0.0)
    dress(axis, "Distance of the images", "weight of the penalty, alpha", "squared Fréchet distance")
    add_legend(axis)


def _exchange(axis: Any, table: Mapping[str, Mapping[str, Runs]]) -> None:
    for i, (problem, trials) in enumerate(table.items()):
        plain = trials["0"]
        for name, marker in zip(trials, ("o", "^", "s", "*")):
            cost = np.mean([b["elbo"] - a["elbo"] for a, b in zip(plain, trials[name])])
            gap = np.mean([b["gap"] / a["gap"] for a, b in zip(plain, trials[name])])
            size, known = (11, problem) if name == "validation" else (7, None)
            axis.plot(cost, gap, marker, color=COLOURS[i], markersize=size, label=known)
    axis.axhline(1.0, color=FAINT, lw=1)
    axis.axvline(0.0, color=FAINT, lw=1)
    axis.set_xscale("symlog", linthresh=0.1)
    axis.margins(x=0.15, y=0.1)
    across, up = "change of the held-out bound, nats a row", "held-out moment gap, relative to no penalty"
    dress(axis, "Alpha: circle 0, triangle 0.1, square 1, star by validation", across, up)
    add_legend(axis)
