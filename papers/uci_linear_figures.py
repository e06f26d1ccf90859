"""Figure 6.3 of document 004: mean squared errors by method."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from boxloop.figures import COLOURS, MARKERS, dress, new_figure
from papers.uci_linear_findings import Errors
from papers.uci_linear_trials import METHODS


def draw(found: Errors) -> Figure:
    """One panel a set; mean over folds, with the standard error that ten folds have."""
    columns = 2 if len(found) > 1 else 1
    rows = -(-len(found) // columns)
    figure = new_figure(5.4 * columns, 3.3 * rows)
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for place, (panel, (name, each)) in enumerate(zip(axes.flat, found.items())):
        for j, method in enumerate(METHODS):
            values = each[method]
            error = values.std(ddof=1) / 10**0.5
            panel.errorbar(
                values.mean(),
                j,
                xerr=error,
                fmt=MARKERS[j],
                color=COLOURS[j],
                markersize=7,
                capsize=3,
                lw=1.5,
            )
        dress(panel, name, "mean squared error of test rows")
        panel.set_yticks(range(len(METHODS)), METHODS if place % columns == 0 else [""] * len(METHODS))
        panel.set_ylim(len(METHODS) - 0.5, -0.5)
    for panel in axes.flat[len(found) :]:
        panel.set_visible(False)
    return figure
