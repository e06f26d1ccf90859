"""Test error and loss after every epoch, one panel a set of images, one line an objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from boxloop.figures import COLOURS, MARKERS, dress, new_figure

Runs = list[dict[str, Any]]

LINES = ("DCCI", "cross-entropy", "cross-entropy, dropout", "squared loss")


def learning_curves(panels: Mapping[str, Mapping[str, Runs]]) -> Figure:
    """Figure 2 of document 003: error above, loss below; means over seeds, bands of one standard deviation.

    Each loss is drawn beside its own value for outputs that know nothing of the image, since the objectives have units
    of their own.

    Args:
        panels: runs by set of images and method.
    """
    figure = new_figure(max(4.6 * len(panels), 6.4), 7.4)
    axes: Any = figure.subplots(2, len(panels), squeeze=False, sharex="col")
    for column, (name, runs) in zip(axes.T, panels.items()):
        for place, method in enumerate(LINES):
            if method in runs:
                _band(column[0], np.asarray([run["error"] for run in runs[method]]), place, method)
                share = [np.asarray(run["loss"]) / run["chance"] for run in runs[method]]
                _band(column[1], np.asarray(share), place, method)
        column[0].set_yscale("log")
        column[0].yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        column[0].yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100.0 * share:g}%"))
        column[0].yaxis.set_minor_formatter(NullFormatter())
        dress(column[0], name, "", "test images wrong")
        dress(column[1], "", "epoch", "test loss, relative to chance")
        column[1].set_ylim(0.0, min(column[1].get_ylim()[1], 1.5))
        column[1].xaxis.set_major_locator(MaxNLocator(integer=True))
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, names, loc="outside lower center", ncols=2 if len(panels) == 1 else 4, frameon=False
    )
    return figure


def _band(axis: Any, values: Any, place: int, label: str) -> None:
    """Mean over seeds, and one standard deviation either way."""
    middle, spread = values.mean(0), values.std(0)
    at = np.arange(1, len(middle) + 1)
    axis.fill_between(
        at,
        np.maximum(middle - spread, 0.2 * middle),
        middle + spread,
        color=COLOURS[place],
        alpha=0.18,
        linewidth=0,
    )
    axis.plot(at, middle, color=COLOURS[place], marker=MARKERS[place], markersize=4, lw=1.6, label=label)
