"""Figure 6.2 of document 004, and what other windows give."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from boxloop.figures import COLOURS, INK, MARKERS, dress, new_figure
from papers.sgd_posterior_figures import cloud
from papers.sgd_posterior_trials import Problem
from papers.window_averaging_trials import Walk, averaged, rule


def draw(problem: Problem, walks: dict[str, Walk], paths: dict[str, Tensor], trial: int) -> Figure:
    """Raw vectors, windows of both kinds, and the error by the length of a window."""
    figure = new_figure(10.4, 9.0)
    axes: Any = figure.subplots(2, 2)
    shuffled, anew = paths["shuffled"][trial : trial + 1], paths["drawn anew"][trial : trial + 1]
    batch = walks["shuffled"].how.batch
    half, whole = rule(batch, False), rule(batch, True)
    shown = (
        (axes[0, 0], "Vectors as they come, every 10th", shuffled[:, ::10]),
        (axes[0, 1], f"Means of {half}, rows shuffled", averaged(shuffled, half)),
        (axes[1, 0], f"Means of {whole}, rows drawn anew", averaged(anew, whole)),
    )
    for panel, title, path in shown:
        cloud(panel, path[0], problem.mean[trial], problem.covariance[trial], problem.start[trial])
        dress(panel, title, "first weight", "second weight")
    _errors(axes[1, 1], walks)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, markerscale=1.3)
    return figure


def _errors(axes: Any, walks: dict[str, Walk]) -> None:
    dress(axes, "How long must a window be?", "vectors in a window", "relative error of the covariance")
    for j, (name, walk) in enumerate(walks.items()):
        windows = sorted(walk.found)
        values = [walk.found[w].covariance for w in windows]
        axes.errorbar(
            windows,
            [v.mean() for v in values],
            yerr=[2.0 * v.std(ddof=1) / len(v) ** 0.5 for v in values],
            fmt=MARKERS[j] + "-",
            color=COLOURS[2 * j],
            label=f"rows {name}",
            lw=1.5,
            markersize=5.5,
        )
        best = rule(walk.how.batch, walk.how.replacement)
        axes.axvline(best, color=COLOURS[2 * j], lw=1.0, ls=":")
    axes.axhline(1.0, color=INK, lw=0.8, ls="--")
    axes.text(1.0, 1.04, "no spread at all", fontsize=9, va="bottom", color=INK)
    axes.set(xscale="log", yscale="log")
    ticks = np.array([1, 5, 10, 25, 50, 100, 200, 500])
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_yticks([0.1, 0.2, 0.5, 1.0, 2.0, 5.0], ["0.1", "0.2", "0.5", "1", "2", "5"])
    axes.legend(frameon=False, fontsize=9)
