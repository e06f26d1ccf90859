"""Numbers with errors along another number, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from boxloop.figures.style import (
    FAINT,
    MARKED,
    add_legend,
    check_axes,
    colour,
    dress,
    marker,
    new_axes,
    short,
)


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
    ax: Axes | None = None,
    *,
    best: tuple[float, float] | None = None,
    told: str = "",
    crosses: tuple[ArrayLike, ArrayLike] = ((), ()),
    crossed: str = "",
    title: str = "",
    across: str = "",
    up: str = "",
) -> Axes:
    """One line a name, bars of one standard error, and a ring around the best point.

    Args:
        lines: places, values and standard errors by name; a value that is not finite leaves a hole. The name of a
            single line is not written.
        ax: where to draw; a figure of its own when omitted.
        best: the point to ring.
        told: what the legend says about it.
        crosses: places and values of points that belong to no line.
        crossed: what the legend says about them.
        title: of the picture.
        across: what the places are.
        up: what the values are.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(6.6 if len(lines) == 1 else 8.6, 4.6)
    dress(ax, title, across, f"{up}\n(bars: 1 standard error)")
    ax.axhline(0.0, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    whole = True
    for j, (name, (at, value, error)) in enumerate(lines.items()):
        places, middle = np.asarray(at, dtype=float), np.asarray(value, dtype=float)
        middle = np.where(np.isfinite(middle), middle, np.nan)
        whole = whole and bool(np.all(places == np.round(places)))
        ax.errorbar(
            places,
            middle,
            yerr=np.nan_to_num(np.asarray(error, dtype=float)),
            marker=marker(2 * j),
            markersize=5.5,
            linewidth=1.6,
            capsize=3.5,
            color=colour(2 * j if len(lines) == 1 else j),
            label=short(name, 30) if len(lines) > 1 else None,
        )
    if np.size(crosses[0]):
        ax.plot(*crosses, "x", color=FAINT, label=crossed or None, markersize=7.0, markeredgewidth=2.0)
    if best is not None:
        (ring,) = ax.plot(*best, "o", color=MARKED, label=told or None, fillstyle="none")
        ring.set(markersize=14.0, markeredgewidth=2.0)
    if len(lines) > 1:
        add_legend(ax, beside=True)
    elif told or crossed:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.14 * (high - low))  # room for the legend above all that is drawn
        add_legend(ax, "upper right")
    if whole:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax
