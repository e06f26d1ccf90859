"""Models along the weight of a penalty: how far each is from the best, and which is chosen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from boxloop.figures.style import (
    FAINT,
    INK,
    PLAIN,
    Array,
    add_legend,
    label_lines,
    pick_colour,
    prepare_axes,
    short,
)

WIDE = 20.0
"""Breakpoints that span more than this factor need a logarithmic axis."""
WEIGHT = "weight of the penalty, alpha"


def path_lines(
    value: Array,
    penalty: Array,
    names: Sequence[str],
    chosen: Sequence[int],
    breakpoints: Array,
    ax: Axes | None = None,
    *,
    error: Array | None = None,
    title: str = "",
    up: str = "penalised log-likelihood per row,\nminus the best's",
) -> Axes:
    """Every model as a line in alpha, minus the upper envelope: the chosen model runs along zero.

    Args:
        value: of each model without a penalty, (k,); a model at -inf is left out.
        penalty: of each model, (k,).
        names: of the models.
        chosen: places of the models chosen before, between and after the breakpoints.
        breakpoints: where the choice changes, rising.
        ax: where to draw; a figure of its own when omitted.
        error: standard errors of the breakpoints, drawn as bands.
        title: of the picture.
        up: what the height is.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 8.2, 4.4, title, WEIGHT, up)
    alphas = _set_alpha_grid(ax, breakpoints)
    with np.errstate(invalid="ignore"):
        height = value[:, None] - alphas * penalty[:, None]
    height -= height[list(chosen)].max(0)
    for j in range(len(names)):
        if j not in chosen and np.isfinite(value[j]):
            ax.plot(alphas, height[j], color=FAINT, linewidth=0.9, alpha=0.7, zorder=1)
    edges = [0.0, *breakpoints.tolist(), np.inf]
    for place, j in enumerate(chosen):
        shade = pick_colour(place)
        label = f"{short(names[j], 24)}: {_format_interval(edges[place], edges[place + 1])}"
        ax.plot(alphas, height[j], color=shade, linewidth=1.6, label=label)
        mine = (alphas >= edges[place]) & (alphas <= edges[place + 1])
        ax.plot(alphas[mine], 0.0 * alphas[mine], color=shade, linewidth=5.0, solid_capstyle="butt")
    _mark_breakpoints(ax, breakpoints, error)
    # All models that are chosen up to the last breakpoint, or all models where only one is, fit in the picture.
    early = alphas <= breakpoints.max(initial=0.0)
    shown = height[list(chosen)][:, early] if len(chosen) > 1 else height[np.isfinite(height).all(1)]
    depth = -float(shown.min()) or 1.0
    ax.set_ylim(-1.05 * depth, 0.08 * depth)
    if len(chosen) < len(names):
        ax.plot([], [], color=FAINT, linewidth=0.9, label="never chosen")
    add_legend(ax, beside=True, title="chosen")
    return ax


def path_choice(
    names: Sequence[str],
    chosen: Sequence[int],
    breakpoints: Array,
    ax: Axes | None = None,
    *,
    error: Array | None = None,
    title: str = "",
) -> Axes:
    """Which model is chosen at each alpha, one line per model (Beaulac 2023, fig. 7 and 9).

    Args:
        names: of the models, the first at the bottom.
        chosen: places of the models chosen before, between and after the breakpoints.
        breakpoints: where the choice changes, rising.
        ax: where to draw; a figure of its own when omitted.
        error: standard errors of the breakpoints, drawn as bands.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 7.0, 1.6 + 0.28 * max(len(names), 3), title, WEIGHT)
    label_lines(ax, list(names), 30)
    ax.invert_yaxis()
    alphas = _set_alpha_grid(ax, breakpoints)
    place = np.searchsorted(breakpoints, alphas, side="right")
    ax.step(alphas, np.asarray(chosen)[place], where="post", color=PLAIN, linewidth=2.4)
    _mark_breakpoints(ax, breakpoints, error)
    return ax


def _set_alpha_grid(ax: Axes, breakpoints: Array) -> Array:
    """Limit the axis, and alphas to draw at, a little beyond the breakpoints, all of which are among them."""
    if len(breakpoints) == 0:
        low, high = 0.0, 1.0
    elif breakpoints[-1] > WIDE * breakpoints[0]:
        low, high = float(breakpoints[0]) / 4.0, float(breakpoints[-1]) * 4.0
        ax.set_xscale("log")
    else:
        low, high = 0.0, 1.4 * float(breakpoints[-1])
    ax.set_xlim(low, high)
    grid = np.geomspace(low, high, 600) if low > 0.0 else np.linspace(low, high, 600)
    return np.unique(np.concatenate([grid, breakpoints]))


def _mark_breakpoints(ax: Axes, breakpoints: Array, error: Array | None) -> None:
    for j, at in enumerate(breakpoints):
        ax.axvline(at, color=INK, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        if error is not None and np.isfinite(error[j]):
            low = max(at - error[j], ax.get_xlim()[0])
            ax.axvspan(low, at + error[j], color=INK, alpha=0.07, linewidth=0, zorder=0)


def _format_interval(low: float, high: float) -> str:
    if low == 0.0:
        return "all alpha" if np.isinf(high) else f"below {high:.3g}"
    return f"from {low:.3g}" if np.isinf(high) else f"{low:.3g} to {high:.3g}"
