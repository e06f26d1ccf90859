"""Whether probabilities are right: transforms that should be uniform, and intervals that should hold what they say."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from boxloop.figures.style import (
    COLOURS,
    FAINT,
    INK,
    MARKED,
    PLAIN,
    Array,
    add_legend,
    check_axes,
    dress,
    new_axes,
    say,
    short,
)

FINE = 2001
"""Most points of a line."""
FEW = 4
"""Lines that are named where there are more than colours."""


def probability_lines(
    transform: Array,
    names: Sequence[str],
    band: float,
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """Observed less nominal probability of every column; a true model stays within the band.

    Args:
        transform: values that should be uniform, (n, d); NaN is left out.
        names: of the columns.
        band: how far a line may stray from zero by chance, over all its length.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes. Of many columns those that stray furthest are named; the others are grey.
    """
    ax = check_axes(ax) or new_axes(8.2, 4.4)
    dress(ax, title, "probability under the model", "share of rows below, less that")
    ax.axhspan(-band, band, color=FAINT, alpha=0.15, linewidth=0, label="by chance, 95 %")
    ax.axhline(0.0, color=INK, linewidth=0.8)
    ax.set_xlim(0.0, 1.0)
    lines = [_difference(values[np.isfinite(values)]) for values in transform.T]
    far = np.array([float(np.abs(up).max(initial=0.0)) for _, up in lines])
    order = np.argsort(-far, kind="stable")
    named = {int(j): place for place, j in enumerate(order[: _named(len(order))])}
    for j in reversed(order.tolist()):
        at, up = lines[j]
        shade = COLOURS[named[j]] if j in named else FAINT
        ax.plot(at, up, color=shade, linewidth=1.6 if j in named else 0.8, zorder=3 - named.get(j, 9) / 10)
    for j in named:
        ax.plot([], [], color=COLOURS[named[j]], linewidth=1.6, label=short(names[j], 24))
    if len(order) > len(named):
        ax.plot([], [], color=FAINT, linewidth=0.8, label=f"{len(order) - len(named)} others")
    reach = 1.15 * max(band, float(far.max(initial=0.0)))
    ax.set_ylim(-reach, reach)
    add_legend(ax, beside=True)
    return ax


def uniform_histogram(
    values: ArrayLike, band: tuple[float, float], bins: int, ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """A histogram of transforms: level for a true model, a hill for one that is too wide, a valley for a narrow one.

    Args:
        values: numbers that should be uniform, (n,); NaN is left out.
        band: heights between which all bars lie by chance, where level is 1.
        bins: number of bars.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(6.2, 4.0)
    dress(ax, title, "probability under the model", "rows, relative to a true model")
    seen = np.asarray(values, dtype=float)
    seen = seen[np.isfinite(seen)]
    if len(seen) == 0:
        say(ax, "no values")
        return ax
    count, edges = np.histogram(seen, bins=bins, range=(0.0, 1.0))
    height = count * bins / len(seen)
    odd = (height < band[0]) | (height > band[1])
    ax.axhspan(*band, color=FAINT, alpha=0.2, linewidth=0, label="by chance, 95 %")
    ax.bar(
        edges[:-1],
        height,
        np.diff(edges),
        align="edge",
        color=[MARKED if one else PLAIN for one in odd],
        edgecolor="white",
        linewidth=0.8,
        alpha=0.85,
    )
    ax.axhline(1.0, color=INK, linewidth=0.8)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(0.0, 1.3 * max(float(height.max()), band[1]))
    add_legend(ax, "upper right")
    return ax


def coverage(
    nominal: Array,
    observed: Array,
    names: Sequence[str],
    band: Array,
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """How often central intervals hold the value, against how often they should.

    Args:
        nominal: probabilities of the intervals, (p,).
        observed: share of rows inside, (p, d); NaN where a column has none.
        names: of the columns.
        band: how far a share may stray by chance at each probability, (p,).
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes; of many columns those that stray furthest are named.
    """
    ax = check_axes(ax) or new_axes(7.2, 4.8)
    dress(ax, title, "probability of the interval", "share of rows inside")
    low, high = np.clip(nominal - band, 0.0, 1.0), np.clip(nominal + band, 0.0, 1.0)
    ax.fill_between(nominal, low, high, color=FAINT, alpha=0.2, linewidth=0, label="by chance, ± 2 s.e.")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
    far = np.nan_to_num(np.abs(observed - nominal[:, None])).max(0, initial=0.0)
    order = np.argsort(-far, kind="stable")
    named = _named(len(order))
    for j in order[named:]:
        ax.plot(nominal, observed[:, j], color=FAINT, linewidth=0.8)
    for place, j in enumerate(order[:named]):
        ax.plot(nominal, observed[:, j], color=COLOURS[place], linewidth=1.6, label=short(names[j], 24))
    if len(order) > named:
        ax.plot([], [], color=FAINT, linewidth=0.8, label=f"{len(order) - named} others")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    add_legend(ax, beside=True)
    return ax


def _named(lines: int) -> int:
    """How many of the lines have a colour and a name: all that can be told apart, or the few furthest off."""
    return lines if lines <= len(COLOURS) else FEW


def _difference(seen: Array) -> tuple[Array, Array]:
    """The empirical distribution less the uniform one, on both sides of every step; thinned where it is long."""
    n = len(seen)
    if n == 0:
        return np.array([0.0, 1.0]), np.array([np.nan, np.nan])
    at = np.repeat(np.sort(seen), 2)
    up = np.repeat(np.arange(n + 1) / n, 2)[1:-1] - at
    if len(at) > FINE:
        kept = np.linspace(0, len(at) - 1, FINE).astype(int)
        at, up = at[kept], up[kept]
    return np.concatenate([[0.0], at, [1.0]]), np.concatenate([[0.0], up, [0.0]])
