"""Figure 6.1 of document 004: vectors of SGD over the contours of the exact posterior."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure

LEVELS = (1.0, 2.0, 3.0)
"""Contours, in standard deviations."""

MANY = 400
"""Vectors that are drawn faintly, as they cover one another."""


def clouds(paths: dict[str, Tensor], mean: Tensor, covariance: Tensor, start: Tensor) -> Figure:
    """One panel a setting.

    Args:
        paths: vectors of one trial by title, (t, 2).
        mean: of the posterior, (2,).
        covariance: of the posterior, (2, 2).
        start: the pre-trained vector, (2,).
    """
    columns = 3 if len(paths) > 4 or len(paths) == 3 else 2
    rows = -(-len(paths) // columns)
    figure = new_figure(4.4 * columns, 4.1 * rows + 0.4)
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for place, (panel, (title, path)) in enumerate(zip(axes.flat, paths.items())):
        cloud(panel, path, mean, covariance, start)
        edge = place % columns == 0
        dress(
            panel,
            title,
            "first weight" if place >= len(paths) - columns else "",
            "second weight" if edge else "",
        )
    for panel in axes.flat[len(paths) :]:
        panel.set_visible(False)
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, markerscale=1.3)
    return figure


def cloud(axes: Any, path: Tensor, mean: Tensor, covariance: Tensor, start: Tensor) -> None:
    """Vectors, their mean and the pre-trained one, over contours."""
    angle = np.linspace(0.0, 2.0 * np.pi, 200)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    half = torch.linalg.cholesky(covariance).numpy()
    at = mean.numpy()[:, None]
    for level in LEVELS:
        ring = at + level * half @ circle
        label = "posterior: 1, 2, 3 deviations" if level == LEVELS[0] else None
        axes.plot(*ring, color=COLOURS[0], lw=1.3, label=label, zorder=2)
    size, alpha = (5, 0.35) if len(path) > MANY else (14, 0.7)
    axes.scatter(
        *path.numpy().T, s=size, color=COLOURS[1], alpha=alpha, linewidths=0, label="vectors", zorder=1
    )
    axes.plot(
        *mean.numpy(), "P", color=COLOURS[0], markersize=8, label="posterior mean", mec="white", zorder=4
    )
    axes.plot(*start.numpy(), "o", color="white", mec=FAINT, markersize=7, label="pre-trained", zorder=4)
    axes.plot(
        *path.mean(0).numpy(),
        "*",
        color=INK,
        markersize=11,
        label="mean of the vectors",
        mec="white",
        zorder=5,
    )
    axes.set_aspect("equal", adjustable="datalim")
    axes.locator_params(nbins=5)
