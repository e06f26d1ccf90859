"""Whether probabilities and standard deviations are right: transforms, intervals, reliability diagrams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import ArrayLike

from boxloop.figures.style import (
    COLOURS,
    FAINT,
    INK,
    MARKED,
    PLAIN,
    Array,
    add_legend,
    pick_colour,
    pick_marker,
    prepare_axes,
    short,
    write_message,
)

FINE = 2001
"""Most points of a line."""
FEW = 4
"""Lines that are named where there are more than colours."""
COUNT_HEIGHT = 0.18
"""Height of the tallest bar of counts, where the axis has height 1."""
LEAST_RATIO = 1e-3
"""Smaller ratios are drawn here."""

ReliabilityCurve = tuple[Array, Array, Array, Array, Array]
"""Predicted probability, observed frequency, rows, and the edges of the band of chance, one number per bin."""


def probability_lines(
    transform: Array,
    names: Sequence[str],
    band: float,
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """Observed minus nominal probability of every column; a true model stays within the band.

    Args:
        transform: values that should be uniform, (n, d); NaN is left out.
        names: of the columns.
        band: how far a line may stray from zero by chance, over all its length.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes. Of many columns those that stray furthest are named; the others are grey.
    """
    ax = prepare_axes(
        ax, 8.2, 4.4, title, "probability under the model", "share of rows below, minus uniform"
    )
    ax.axhspan(-band, band, color=FAINT, alpha=0.15, linewidth=0, label="by chance, 95 %")
    ax.axhline(0.0, color=INK, linewidth=0.8)
    ax.set_xlim(0.0, 1.0)
    lines = [_subtract_uniform(values[np.isfinite(values)]) for values in transform.T]
    far = np.array([float(np.abs(up).max(initial=0.0)) for _, up in lines])
    order = np.argsort(-far, kind="stable")
    named = {int(j): place for place, j in enumerate(order[: _count_named_lines(len(order))])}
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
    ax = prepare_axes(ax, 6.2, 4.0, title, "probability under the model", "rows, relative to a true model")
    finite = np.asarray(values, dtype=float)
    finite = finite[np.isfinite(finite)]
    if len(finite) == 0:
        write_message(ax, "no values")
        return ax
    count, edges = np.histogram(finite, bins=bins, range=(0.0, 1.0))
    height = count * bins / len(finite)
    odd = (height < band[0]) | (height > band[1])
    colours = [MARKED if one else PLAIN for one in odd]
    ax.axhspan(*band, color=FAINT, alpha=0.2, linewidth=0, label="by chance, 95 %")
    ax.bar(
        edges[:-1],
        height,
        np.diff(edges),
        align="edge",
        color=colours,
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
    ax = prepare_axes(ax, 7.2, 4.8, title, "probability of the interval", "share of rows inside")
    low, high = np.clip(nominal - band, 0.0, 1.0), np.clip(nominal + band, 0.0, 1.0)
    ax.fill_between(nominal, low, high, color=FAINT, alpha=0.2, linewidth=0, label="by chance, ± 2 s.e.")
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
    far = np.nan_to_num(np.abs(observed - nominal[:, None])).max(0, initial=0.0)
    order = np.argsort(-far, kind="stable")
    named = _count_named_lines(len(order))
    for j in order[named:]:
        ax.plot(nominal, observed[:, j], color=FAINT, linewidth=0.8)
    for place, j in enumerate(order[:named]):
        ax.plot(nominal, observed[:, j], color=COLOURS[place], linewidth=1.6, label=short(names[j], 24))
    if len(order) > named:
        ax.plot([], [], color=FAINT, linewidth=0.8, label=f"{len(order) - named} others")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    add_legend(ax, beside=True)
    return ax


def predictor_coverage(transforms: Mapping[str, Array], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Coverage of several predictors of the same rows, from their probability integral transforms (n, q) by name."""
    level = np.linspace(0.0, 1.0, 101)
    reach = [np.sort(np.abs(2.0 * u - 1.0), axis=None) for u in transforms.values()]
    observed = [np.searchsorted(values, level, side="right") / len(values) for values in reach]
    n = min(len(u) for u in transforms.values())
    band = 2.0 * np.sqrt(level * (1.0 - level) / n)
    ax = coverage(level, np.stack(observed, axis=1), list(transforms), band, ax, title=title)
    add_legend(ax, "upper left")
    return ax


def reliability_diagram(
    curves: Mapping[str, ReliabilityCurve], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Observed frequency against predicted probability, bin by bin, with the first curve's band and counts."""
    ax = prepare_axes(ax, 6.2, 4.8, title, "predicted probability", "observed frequency")
    ax.set(xlim=(0.0, 1.0), ylim=(0.0, 1.0), aspect="equal")
    if not any(len(parts[0]) for parts in curves.values()):
        write_message(ax, "no rows")
        return ax
    ax.plot([0.0, 1.0], [0.0, 1.0], color=INK, linewidth=0.8)
    for place, (name, parts) in enumerate(curves.items()):
        order = np.argsort(parts[0])
        predicted, observed, rows, low, high = (part[order] for part in parts)
        if place == 0:
            _draw_row_counts(ax, predicted, rows)
            ax.vlines(predicted, low, high, color=FAINT, alpha=0.45, linewidth=6, label="by chance, 95 %")
        ax.plot(
            predicted,
            observed,
            color=pick_colour(place),
            marker=pick_marker(place),
            markersize=4.5,
            linewidth=1.4,
            label=short(name, 24),
            zorder=4 - place / 10,
            clip_on=False,
        )
    add_legend(ax, "upper left")
    return ax


def standard_deviation_ratios(exact: Array, ratio: Array, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Standard deviation of every weight, relative to its ``exact`` one; ratios of 0 are drawn at the bottom."""
    across, up = "exact standard deviation", "standard deviation, relative to exact"
    ax = prepare_axes(ax, 6.2, 4.0, title, across, up)
    known = (exact > 0.0) & np.isfinite(ratio)
    if not known.any():
        write_message(ax, "no weights to compare")
        return ax
    exact, ratio = exact[known], ratio[known]
    drawn = np.maximum(ratio, LEAST_RATIO)
    ax.axhspan(0.5, 2.0, color=FAINT, alpha=0.15, linewidth=0, label="within a factor of 2")
    ax.axhline(1.0, color=INK, linewidth=0.8)
    ax.plot(exact, drawn, "o", color=PLAIN, markersize=4.5, alpha=0.7)
    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0.5 * float(exact.min()), 2.0 * float(exact.max()))
    ax.set_ylim(0.6 * min(float(drawn.min()), 0.4), 1.6 * max(float(ratio.max()), 2.5))
    add_legend(ax, "best")
    return ax


def _count_named_lines(lines: int) -> int:
    """How many of the lines have a colour and a name: all if there are colours enough, else the few furthest off."""
    return lines if lines <= len(COLOURS) else FEW


def _subtract_uniform(finite: Array) -> tuple[Array, Array]:
    """The empirical distribution minus the uniform one, on both sides of every step; fewer points if it is long."""
    n = len(finite)
    if n == 0:
        return np.array([0.0, 1.0]), np.array([np.nan, np.nan])
    at = np.repeat(np.sort(finite), 2)
    up = np.repeat(np.arange(n + 1) / n, 2)[1:-1] - at
    if len(at) > FINE:
        chosen = np.linspace(0, len(at) - 1, FINE).astype(int)
        at, up = at[chosen], up[chosen]
    return np.concatenate([[0.0], at, [1.0]]), np.concatenate([[0.0], up, [0.0]])


def _draw_row_counts(ax: Axes, predicted: Array, rows: Array) -> None:
    """Bars at the bottom: the number of rows behind each point."""
    apart = np.diff(predicted).min(initial=0.06) if len(predicted) > 1 else 0.06
    most = float(rows.max())
    ax.bar(
        predicted,
        COUNT_HEIGHT * rows / most,
        width=0.8 * max(float(apart), 0.01),
        color=FAINT,
        alpha=0.35,
        linewidth=0,
        label=f"rows, {most:.0f} at most",
        zorder=1,
    )
