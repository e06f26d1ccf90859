"""Loadings of columns on factors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from boxloop.figures.style import (
    FAINT,
    Array,
    add_legend,
    label_lines,
    pick_colour,
    pick_marker,
    prepare_axes,
)

MOST = 30
"""Columns that are shown: those with the largest loadings."""


def loadings(
    values: Array,
    names: Sequence[str],
    error: Array | None = None,
    ax: Axes | None = None,
    *,
    title: str = "",
    across: str = "",
    word: str = "factor",
    most: int = MOST,
) -> Axes:
    """Loadings of every column on every factor, the columns that load most on top.

    Args:
        values: loadings, (k, d).
        names: of the d columns.
        error: their standard errors, (k, d), drawn as bars of two; NaN leaves one out.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        across: what is measured.
        word: what a factor is called.
        most: columns that are shown.

    Returns:
        The axes.
    """
    k, d = values.shape
    order = np.argsort(-np.square(np.nan_to_num(values)).sum(0), kind="stable")[:most]
    title = title if len(order) == d else f"{title} ({len(order)} of {d} columns)"
    ax = prepare_axes(ax, 7.4, 1.5 + max(0.24, 0.07 * k) * max(len(order), 4), title, across)
    label_lines(ax, [names[j] for j in order], 30)
    ax.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    apart = min(0.3, 0.8 / k)
    for f, line in enumerate(values):
        height = np.arange(len(order)) + apart * (f - (k - 1) / 2)
        bars = None if error is None else 2.0 * np.nan_to_num(error[f][order])
        ax.errorbar(
            line[order],
            height,
            xerr=bars,
            fmt=pick_marker(f),
            color=pick_colour(f),
            markersize=6 if k <= 3 else 4.5,
            elinewidth=1.5,
            label=f"{word} {f}",
        )
    add_legend(ax, beside=True)
    return ax
