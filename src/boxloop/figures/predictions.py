"""Predictions over one input with their bands, and the choice of a scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from numpy.typing import NDArray

from boxloop.figures.style import (
    COLOURS,
    FAINT,
    INK,
    MARKED,
    PLAIN,
    PLENTY,
    add_legend,
    check_axes,
    colour,
    dress,
    new_axes,
    short,
)

Array = NDArray[np.float64]

BARS = 150
"""Most rows that have bars of their own; of more, so many are shown."""


def numbers_over_column(
    X: Array,
    mean: Array,
    spread: Array,
    deviation: Array,
    seen: Array | None = None,
    *,
    column: int = 0,
    name: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Predicted numbers over one input: the mean, two standard deviations due to weights, and two of an observation.

    Args:
        X: inputs, (n,) or (n, d). Where another column varies too, rows have bars and no line joins them.
        mean: (n,).
        spread: standard deviation due to weights, (n,).
        deviation: of an observation, (n,).
        seen: observations, (n,).
        column: that goes across.
        name: of the column.
        ax: where to draw; a figure of its own when omitted.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(7.2, 4.6)
    at, alone, name = _across(X, column, name)
    dress(ax, "Prediction and what it does not know", name, "prediction")
    if seen is not None:
        few = _thinned(len(at), PLENTY)
        ax.plot(at[few], seen[few], ".", color=INK, alpha=0.55, markersize=4.5, zorder=3, label="observed")
    order = np.argsort(at, kind="stable")
    order = order if alone else order[_thinned(len(order), BARS)]
    place, middle, inner, outer = at[order], mean[order], 2.0 * spread[order], 2.0 * deviation[order]
    told = ("weights and noise, ± 2 s.d.", "weights, ± 2 s.d.")
    noisy = bool((deviation > spread).any())
    if alone:
        if noisy:
            ax.fill_between(
                place, middle - outer, middle + outer, color=PLAIN, alpha=0.16, linewidth=0, label=told[0]
            )
        ax.fill_between(
            place, middle - inner, middle + inner, color=PLAIN, alpha=0.42, linewidth=0, label=told[1]
        )
        ax.plot(place, middle, color=PLAIN, linewidth=1.8, zorder=4, label="mean")
    else:
        if noisy:
            ax.vlines(
                place, middle - outer, middle + outer, color=PLAIN, alpha=0.3, linewidth=1.0, label=told[0]
            )
        ax.vlines(
            place, middle - inner, middle + inner, color=PLAIN, alpha=0.75, linewidth=2.6, label=told[1]
        )
        ax.plot(place, middle, "o", color=PLAIN, markersize=3.6, zorder=4, label="mean")
    add_legend(ax, beside=True)
    return ax


def classes_over_column(
    X: Array,
    probability: Array,
    low: Array,
    high: Array,
    names: Sequence[str],
    *,
    column: int = 0,
    name: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Probabilities of classes over one input, each with the band in which most networks are.

    Args:
        X: inputs, (n,) or (n, d). Where another column varies too, rows have bars and no line joins them.
        probability: (n, c).
        low: lower ends of the bands, (n, c).
        high: upper ends.
        names: of the classes.
        column: that goes across.
        name: of the column.
        ax: where to draw; a figure of its own when omitted.

    Returns:
        The axes. Of more classes than there are colours, those of the largest mean probability.
    """
    ax = check_axes(ax) or new_axes(7.6, 4.4)
    at, alone, name = _across(X, column, name)
    dress(ax, "Probability, and how far networks agree", name, "probability")
    order = np.argsort(at, kind="stable")
    order = order if alone else order[_thinned(len(order), BARS)]
    shown = np.sort(np.argsort(-probability.mean(0), kind="stable")[: len(COLOURS)])
    for place, c in enumerate(shown):
        shade, called, middle = colour(place), short(names[c], 24), probability[order, c]
        if alone:
            ax.fill_between(at[order], low[order, c], high[order, c], color=shade, alpha=0.22, linewidth=0)
            ax.plot(at[order], middle, color=shade, linewidth=1.8, label=called)
        else:
            ax.vlines(at[order], low[order, c], high[order, c], color=shade, alpha=0.35, linewidth=1.4)
            ax.plot(at[order], middle, "o", color=shade, markersize=3.6, label=called)
    if len(shown) < probability.shape[1]:
        ax.plot([], [], color=FAINT, label=f"{probability.shape[1] - len(shown)} others not shown")
    ax.set_ylim(-0.02, 1.02)
    add_legend(ax, beside=True, title="bands: middle\n90 % of networks")
    return ax


def tuning_curve(scales: Array, behind: Array, errors: Array, best: int, ax: Axes | None = None) -> Axes:
    """How far each scale of a covariance is behind the best in mean log score, with errors of paired differences.

    Args:
        scales: that were tried, rising, (g,); 0 stands apart on the left.
        behind: (g,), at most 0.
        errors: standard errors, (g,).
        best: place of the best.
        ax: where to draw; a figure of its own when omitted.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(7.0, 4.4)
    title = "Scale of the covariance, by held-out rows"
    dress(
        ax,
        title,
        "scale (0: the mean network alone)",
        "log score a row, less the best\n(bars: 1 standard error)",
    )
    above = scales[scales > 0.0]
    zero = np.log2(above.min()) - 1.5 if len(above) else 0.0
    at = np.where(scales > 0.0, np.log2(np.where(scales > 0.0, scales, 1.0)), zero)
    joined = scales > 0.0
    ax.plot(at[joined], behind[joined], color=PLAIN, linewidth=1.4)
    ax.errorbar(at, behind, yerr=np.nan_to_num(errors), fmt="o", color=PLAIN, markersize=5.0, capsize=3.0)
    (ring,) = ax.plot(
        [at[best]], [behind[best]], "o", color=MARKED, fillstyle="none", label=f"best: {scales[best]:.3g}"
    )
    ring.set(markersize=14.0, markeredgewidth=2.0)
    ax.axhline(0.0, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    _keep_in_sight(ax, behind, np.nan_to_num(errors))
    ticks = [zero] * bool((scales == 0.0).any()) + [float(t) for t in np.unique(np.round(at[joined]))]
    step = max(1, -(-len(ticks) // 9))
    ax.set_xticks(ticks[:1] + ticks[1::step] if step > 1 else ticks)
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda t, _: "0" if t == zero and zero in ticks else f"{2.0**t:.3g}")
    )
    add_legend(ax, "lower right")
    return ax


def _keep_in_sight(ax: Axes, behind: Array, errors: Array) -> None:
    """Scales that are far off may leave the picture, so that those near the best can be told apart."""
    depth, middle = float(-behind.min()), float(-np.median(behind))
    near = behind >= -(4.0 * middle if depth > 8.0 * middle > 0.0 else depth)
    low, high = float((behind - errors)[near].min()), float((behind + errors)[near].max())
    if high > low:
        ax.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))


def _across(X: Array, column: int, name: str) -> tuple[Array, bool, str]:
    """The column, whether it alone varies, and what it is called."""
    table = np.asarray(X, dtype=np.float64)
    table = table.reshape(len(table), -1)
    if not -table.shape[1] <= column < table.shape[1]:
        raise ValueError(f"column {column} of {table.shape[1]}")
    others = np.delete(table, column % table.shape[1], axis=1)
    alone = bool((others == others[:1]).all())
    return table[:, column], alone, name or ("input" if table.shape[1] == 1 else f"input {column}")


def _thinned(n: int, most: int) -> NDArray[np.int_]:
    """At most so many places, evenly."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
