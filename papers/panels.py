"""Log-log panels of error against the length of a stream, one line a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, dress, new_figure


def panels(
    curves: Mapping[str, Mapping[str, Mapping[int, Sequence[Sequence[float]]]]], which: int, label: str
) -> Figure:
    """One panel a problem; mean over seeds with its standard error.

    Args:
        curves: problem -> method -> length -> one tuple of measures a seed.
        which: which measure to draw.
        label: its name.
    """
    columns = 2 if len(curves) > 1 else 1
    rows = -(-len(curves) // columns)
    figure = new_figure(5.6 * columns, 3.6 * rows + 0.9)
    axes: Any = figure.subplots(rows, columns, squeeze=False, sharex=True)
    methods = list(dict.fromkeys(method for panel in curves.values() for method in panel))
    for axis, (name, panel) in zip(axes.flat, curves.items()):
        for colour, method in zip(COLOURS, methods):
            if method in panel:
                _line(axis, panel[method], which, colour, method)
        lengths = [t for panel in curves.values() for method in panel.values() for t in method]
        axis.set(xlim=(0.7 * min(lengths), 1.4 * max(lengths)))
        axis.set(xscale="log", yscale="log")
        dress(axis, name, "vectors seen", label)
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2 if columns == 1 else 4, frameon=False)
    return figure


def _line(
    axis: Any, lengths: Mapping[int, Sequence[Sequence[float]]], which: int, colour: str, method: str
) -> None:
    t = sorted(lengths)
    values = [np.asarray([measures[which] for measures in lengths[length]]) for length in t]
    middle = [v.mean() for v in values]
    error = [v.std() / max(len(v) - 1, 1) ** 0.5 for v in values]
    dashed = "--" if method in ("maximum likelihood", "scikit-learn, randomised", "diagonal only") else "-"
    axis.errorbar(
        t, middle, yerr=error, color=colour, label=method, linestyle=dashed, marker="o", markersize=3, lw=1.5
    )
