"""How a fit climbed."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from boxloop.figures.style import MARKED, PLAIN, add_legend, check_axes, dress, new_axes, say

FEW = 60
"""Rounds up to which each has its own mark."""


def trace(
    values: ArrayLike, ax: Axes | None = None, *, title: str = "", up: str = "", told: str = ""
) -> Axes:
    """A line through the values after each round, less the last of them.

    The axis leaves out the steep first rounds where later ones would be a flat line: their changes are what tells
    whether a fit has settled.

    Args:
        values: one a round; those that are not finite leave a hole.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        up: what the values are.
        told: what the legend says of the last round.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes()
    dress(ax, title, "round", f"{up}, less the last")
    line = np.asarray(values, dtype=float)
    line = np.where(np.isfinite(line), line, np.nan)
    known = np.flatnonzero(~np.isnan(line))
    if len(known) == 0:
        say(ax, "no rounds to show")
        return ax
    line -= line[known[-1]]
    ax.plot(np.arange(1, len(line) + 1), line, "o-" if len(line) <= FEW else "-", color=PLAIN, markersize=3.5)
    ax.plot(known[-1] + 1, line[known[-1]], "D", color=MARKED, markersize=7, label=told or None)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    later = line[known[len(known) // 4 :]]
    span = float(np.ptp(later))
    if span > 0.0 and np.ptp(line[known]) > 8.0 * span:
        ax.set_ylim(float(later.min()) - 0.6 * span, float(later.max()) + 0.15 * span)
    if told:
        add_legend(ax, "lower right")
    return ax
