"""Predictions over one input with their bands, and the choice of a scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    Array,
    add_legend,
    pick_colour,
    prepare_axes,
    short,
)

BARS = 150
"""Most rows that have bars of their own; of more, so many are shown."""


def regression_bands(
    X: Array,
    mean: Array,
    weight_sd: Array,
    sd: Array,
    observed: Array | None = None,
    *,
    column: int = 0,
    name: str = "",
    ax: Axes | None = None,
) -> Axes:
    """Predicted means (n,) over one column, with two standard deviations due to weights and two of an observation."""
    at, is_alone, name = _read_column(X, column, name)
    ax = prepare_axes(ax, 7.2, 4.6, "Prediction and its uncertainty", name, "prediction")
    if observed is not None:
        few = _space_indices(len(at), PLENTY)
        (points,) = ax.plot(at[few], observed[few], ".", color=INK, alpha=0.55, label="observed")
        points.set(markersize=4.5, zorder=3)
    order = np.argsort(at, kind="stable")
    order = order if is_alone else order[_space_indices(len(order), BARS)]
    place, middle, inner, outer = at[order], mean[order], 2.0 * weight_sd[order], 2.0 * sd[order]
    draw: Any = ax.fill_between if is_alone else ax.vlines
    if bool((sd > weight_sd).any()):
        style = {"alpha": 0.16, "linewidth": 0} if is_alone else {"alpha": 0.3, "linewidth": 1.0}
        draw(place, middle - outer, middle + outer, color=PLAIN, label="weights and noise, ± 2 s.d.", **style)
    style = {"alpha": 0.42, "linewidth": 0} if is_alone else {"alpha": 0.75, "linewidth": 2.6}
    draw(place, middle - inner, middle + inner, color=PLAIN, label="weights, ± 2 s.d.", **style)
    mean_style: Any = {"linewidth": 1.8} if is_alone else {"marker": "o", "linestyle": "", "markersize": 3.6}
    ax.plot(place, middle, color=PLAIN, zorder=4, label="mean", **mean_style)
    add_legend(ax, beside=True)
    return ax


def class_probability_bands(
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
    """Probabilities (n, c) of the likeliest classes over one column, with the bands in which most networks are."""
    at, is_alone, name = _read_column(X, column, name)
    ax = prepare_axes(ax, 7.6, 4.4, "Class probabilities and their uncertainty", name, "probability")
    order = np.argsort(at, kind="stable")
    order = order if is_alone else order[_space_indices(len(order), BARS)]
    shown = np.sort(np.argsort(-probability.mean(0), kind="stable")[: len(COLOURS)])
    for place, c in enumerate(shown):
        shade, label, middle = pick_colour(place), short(names[c], 24), probability[order, c]
        if is_alone:
            ax.fill_between(at[order], low[order, c], high[order, c], color=shade, alpha=0.22, linewidth=0)
            ax.plot(at[order], middle, color=shade, linewidth=1.8, label=label)
        else:
            ax.vlines(at[order], low[order, c], high[order, c], color=shade, alpha=0.35, linewidth=1.4)
            ax.plot(at[order], middle, "o", color=shade, markersize=3.6, label=label)
    if len(shown) < probability.shape[1]:
        ax.plot([], [], color=FAINT, label=f"{probability.shape[1] - len(shown)} others not shown")
    ax.set_ylim(-0.02, 1.02)
    add_legend(ax, beside=True, title="bands: middle\n90 % of networks")
    return ax


def tuning_curve(scales: Array, behind: Array, errors: Array, best: int, ax: Axes | None = None) -> Axes:
    """How far each scale of a covariance is behind the best in mean log score, with errors of paired differences."""
    across = "scale (0: the mean network alone)"
    up = "log score per row, minus the best\n(bars: 1 standard error)"
    ax = prepare_axes(ax, 7.0, 4.4, "Scale of the covariance, by held-out rows", across, up)
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
    _limit_to_near_best(ax, behind, np.nan_to_num(errors))
    ticks = [zero] * bool((scales == 0.0).any()) + [float(t) for t in np.unique(np.round(at[joined]))]
    step = max(1, -(-len(ticks) // 9))
    ax.set_xticks(ticks[:1] + ticks[1::step] if step > 1 else ticks)
    ax.xaxis.set_major_formatter(
        FuncFormatter(lambda t, _: "0" if t == zero and zero in ticks else f"{2.0**t:.3g}")
    )
    add_legend(ax, "lower right")
    return ax


def _limit_to_near_best(ax: Axes, behind: Array, errors: Array) -> None:
    """Scales that are far off may leave the picture, so that those near the best can be distinguished."""
    depth, middle = float(-behind.min()), float(-np.median(behind))
    near = behind >= -(4.0 * middle if depth > 8.0 * middle > 0.0 else depth)
    low, high = float((behind - errors)[near].min()), float((behind + errors)[near].max())
    if high > low:
        ax.set_ylim(low - 0.08 * (high - low), high + 0.08 * (high - low))


def _read_column(X: Array, column: int, name: str) -> tuple[Array, bool, str]:
    """The column, whether it alone varies, and what it is called."""
    table = np.asarray(X, dtype=np.float64)
    table = table.reshape(len(table), -1)
    if not -table.shape[1] <= column < table.shape[1]:
        raise ValueError(f"column {column} of {table.shape[1]}")
    others = np.delete(table, column % table.shape[1], axis=1)
    is_alone = bool((others == others[:1]).all())
    return table[:, column], is_alone, name or ("input" if table.shape[1] == 1 else f"input {column}")


def _space_indices(n: int, most: int) -> NDArray[np.int_]:
    """At most ``most`` indices below n, evenly spaced."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(int))
