"""Candidates one under another, each with its error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from boxloop.figures.style import FAINT, MARKED, PLAIN, check_axes, dress, name_rows, new_axes


def forest(
    names: Sequence[str],
    value: ArrayLike,
    error: ArrayLike,
    ax: Axes | None = None,
    *,
    marked: Sequence[bool] | None = None,
    title: str = "",
    across: str = "",
    up: str = "",
) -> Axes:
    """A point a candidate, a thick bar of one standard error and a thin one of two; a line at zero.

    Args:
        names: of the candidates, the first on top.
        value: one number a candidate; the line says so where it is not finite.
        error: its standard error; NaN where unknown.
        ax: where to draw; a figure of its own when omitted.
        marked: the candidates to look at first.
        title: of the picture.
        across: what is measured.
        up: what the names are.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(7.2, 1.5 + 0.32 * max(len(names), 2))
    middle, spread = np.asarray(value, dtype=float), np.nan_to_num(np.asarray(error, dtype=float))
    chosen = np.zeros(len(names), dtype=bool) if marked is None else np.asarray(marked, dtype=bool)
    dress(ax, title, f"{across}\n(bars: 1 and 2 standard errors)", up)
    name_rows(ax, list(names))
    ax.axvline(0.0, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    known = np.isfinite(middle) & np.isfinite(spread)
    for mine, colour, shape, size in ((known & ~chosen, PLAIN, "o", 5.5), (known & chosen, MARKED, "D", 7.0)):
        places = np.flatnonzero(mine)
        at, reach = middle[places], spread[places]
        ax.hlines(places, at - 2 * reach, at + 2 * reach, color=colour, linewidth=1.0)
        ax.hlines(places, at - reach, at + reach, color=colour, linewidth=2.6)
        ax.plot(at, places, shape, color=colour, markersize=size)
    ax.autoscale_view(scaley=False)
    edge = ax.get_yaxis_transform()
    for place in np.flatnonzero(~known):
        told = "density of zero on some row" if np.isneginf(middle[place]) else "no value"
        ax.text(0.98, float(place), told, transform=edge, ha="right", va="center", color=FAINT, fontsize=9)
    return ax
