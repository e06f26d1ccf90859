"""Whether probabilities are as often right as they say: reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes

from boxloop.figures.style import (
    FAINT,
    INK,
    Array,
    add_legend,
    check_axes,
    colour,
    dress,
    marker,
    new_axes,
    say,
    short,
)

BASE = 0.18
"""Height of the tallest bar of counts, where the axis has height 1."""

Lines = tuple[Array, Array, Array, Array, Array]
"""Said, happened, rows, and the lower and upper edge of the band of chance, one number a bin."""


def reliability_diagram(curves: Mapping[str, Lines], ax: Axes | None = None, *, title: str = "") -> Axes:
    """What happened against what was said, bin by bin; on the diagonal where probabilities are right.

    Args:
        curves: by name: mean probability, share of rows where the event took place, number of rows, and the two edges
            of the band that chance allows the share if the probabilities are right; bins without rows left out.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes. The band is the first curve's; so are the bars at the foot, its rows of every bin.
    """
    ax = check_axes(ax) or new_axes(6.2, 4.8)
    dress(ax, title, "probability said", "share of rows where it was so")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    if not any(len(parts[0]) for parts in curves.values()):
        say(ax, "no rows")
        return ax
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
    for place, (name, parts) in enumerate(curves.items()):
        order = np.argsort(parts[0])
        said, happened, rows, low, high = (part[order] for part in parts)
        if place == 0:
            _counts(ax, said, rows)
            ax.vlines(said, low, high, color=FAINT, alpha=0.45, linewidth=6, label="by chance, 95 %")
        ax.plot(
            said,
            happened,
            color=colour(place),
            marker=marker(place),
            markersize=4.5,
            linewidth=1.4,
            label=short(name, 24),
            zorder=4 - place / 10,
            clip_on=False,
        )
    add_legend(ax, "upper left")
    return ax


def _counts(ax: Axes, said: Array, rows: Array) -> None:
    """Bars at the foot: how many rows stand behind each point."""
    apart = np.diff(said).min(initial=0.06) if len(said) > 1 else 0.06
    tall = float(rows.max())
    ax.bar(
        said,
        BASE * rows / tall,
        width=0.8 * max(float(apart), 0.01),
        color=FAINT,
        alpha=0.35,
        linewidth=0,
        label=f"rows, {tall:.0f} at most",
        zorder=1,
    )
