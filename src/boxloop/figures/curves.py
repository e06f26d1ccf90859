"""Numbers along another number: scores with errors and the best of them, and how a fit converged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from boxloop.figures.style import (
    FAINT,
    MARKED,
    PLAIN,
    add_legend,
    pick_colour,
    pick_marker,
    prepare_axes,
    short,
    write_message,
)

FEW = 60
"""Iterations up to which each has its own mark."""


def curves(
    lines: Mapping[str, tuple[ArrayLike, ArrayLike, ArrayLike]],
    ax: Axes | None = None,
    *,
    best: tuple[float, float] | None = None,
    label: str = "",
    crosses: tuple[ArrayLike, ArrayLike] = ((), ()),
    crosses_label: str = "",
    title: str = "",
    across: str = "",
    up: str = "",
) -> Axes:
    """One line per name, bars of one standard error, and a ring around the best point.

    Args:
        lines: places, values and standard errors by name; a value that is not finite leaves a gap. The name of a
            single line is not written.
        ax: where to draw; a figure of its own when omitted.
        best: the point to ring.
        label: of this point in the legend.
        crosses: places and values of points that belong to no line.
        crosses_label: of these points in the legend.
        title: of the picture.
        across: what the places are.
        up: what the values are.

    Returns:
        The axes.
    """
    width = 6.6 if len(lines) == 1 else 8.6
    ax = prepare_axes(ax, width, 4.6, title, across, f"{up}\n(bars: 1 standard error)")
    ax.axhline(0.0, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    integers = True
    for j, (name, (at, value, error)) in enumerate(lines.items()):
        places, middle = np.asarray(at, dtype=float), np.asarray(value, dtype=float)
        middle = np.where(np.isfinite(middle), middle, np.nan)
        integers = integers and bool(np.all(places == np.round(places)))
        ax.errorbar(
            places,
            middle,
            yerr=np.nan_to_num(np.asarray(error, dtype=float)),
            marker=pick_marker(2 * j),
            markersize=5.5,
            linewidth=1.6,
            capsize=3.5,
            color=pick_colour(2 * j if len(lines) == 1 else j),
            label=short(name, 30) if len(lines) > 1 else None,
        )
    if np.size(crosses[0]):
        ax.plot(*crosses, "x", color=FAINT, label=crosses_label or None, markersize=7.0, markeredgewidth=2.0)
    if best is not None:
        (ring,) = ax.plot(*best, "o", color=MARKED, label=label or None, fillstyle="none")
        ring.set(markersize=14.0, markeredgewidth=2.0)
    if len(lines) > 1:
        add_legend(ax, beside=True)
    elif label or crosses_label:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + 0.14 * (high - low))  # room for the legend above all that is drawn
        add_legend(ax, "upper right")
    if integers:
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return ax


def trace(
    values: ArrayLike, ax: Axes | None = None, *, title: str = "", up: str = "", label: str = ""
) -> Axes:
    """A line through the values after each iteration, minus the last of them.

    The axis leaves out the steep first iterations where later ones would be a flat line: their changes show whether a
    fit has converged.

    Args:
        values: one per iteration; those that are not finite leave a gap.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        up: what the values are.
        label: of the last iteration, in the legend.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 6.6, 4.6, title, "iteration", f"{up}, minus the last")
    line = np.asarray(values, dtype=float)
    line = np.where(np.isfinite(line), line, np.nan)
    known = np.flatnonzero(~np.isnan(line))
    if len(known) == 0:
        write_message(ax, "no iterations to show")
        return ax
    line -= line[known[-1]]
    ax.plot(np.arange(1, len(line) + 1), line, "o-" if len(line) <= FEW else "-", color=PLAIN, markersize=3.5)
    ax.plot(known[-1] + 1, line[known[-1]], "D", color=MARKED, markersize=7, label=label or None)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    later = line[known[len(known) // 4 :]]
    span = float(np.ptp(later))
    if span > 0.0 and np.ptp(line[known]) > 8.0 * span:
        ax.set_ylim(float(later.min()) - 0.6 * span, float(later.max()) + 0.15 * span)
    if label:
        add_legend(ax, "lower right")
    return ax
