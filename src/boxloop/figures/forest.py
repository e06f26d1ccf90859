"""Numbers one under another, each with its error: candidates, moments, differences of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from boxloop.figures.style import FAINT, INK, MARKED, PLAIN, Array, label_lines, prepare_axes
from boxloop.numeric import format_with_error


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
    """A point per candidate, a thick bar of one standard error and a thin one of two; a line at zero.

    Args:
        names: of the candidates, the first on top.
        value: one number per candidate; a text says so where it is not finite.
        error: its standard error; NaN where unknown.
        ax: where to draw; a figure of its own when omitted.
        marked: the candidates to look at first.
        title: of the picture.
        across: what is measured.
        up: what the names are.

    Returns:
        The axes.
    """
    height = 1.5 + 0.32 * max(len(names), 2)
    ax = prepare_axes(ax, 7.2, height, title, f"{across}\n(bars: 1 and 2 standard errors)", up)
    middle, errors = np.asarray(value, dtype=float), np.nan_to_num(np.asarray(error, dtype=float))
    chosen = np.zeros(len(names), dtype=bool) if marked is None else np.asarray(marked, dtype=bool)
    label_lines(ax, list(names))
    ax.axvline(0.0, color=FAINT, linewidth=1.0, linestyle=(0, (4, 3)), zorder=0)
    known = np.isfinite(middle) & np.isfinite(errors)
    for mine, colour, shape, size in ((known & ~chosen, PLAIN, "o", 5.5), (known & chosen, MARKED, "D", 7.0)):
        places = np.flatnonzero(mine)
        at, reach = middle[places], errors[places]
        ax.hlines(places, at - 2 * reach, at + 2 * reach, color=colour, linewidth=1.0)
        ax.hlines(places, at - reach, at + reach, color=colour, linewidth=2.6)
        ax.plot(at, places, shape, color=colour, markersize=size)
    ax.autoscale_view(scaley=False)
    edge = ax.get_yaxis_transform()
    for place in np.flatnonzero(~known):
        reason = "density of zero on some row" if np.isneginf(middle[place]) else "no value"
        ax.text(0.98, float(place), reason, transform=edge, ha="right", va="center", color=FAINT, fontsize=9)
    return ax


def dots(
    z: Array,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    marked: NDArray[np.bool_] | Sequence[bool] | None = None,
    title: str = "",
    across: str = "gap in units of its error",
) -> Axes:
    """One dot per moment on a stem from zero; the shaded middle is within two errors.

    Args:
        z: numbers in units of their standard errors, (p,), the first on top; NaN leaves its line empty.
        names: of the moments.
        ax: where to draw; a figure of its own when omitted.
        marked: which stand out; beyond two errors when omitted.
        title: of the picture.
        across: what is measured.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 6.8, 1.5 + 0.27 * max(len(z), 3), title, across)
    marked = np.abs(z) > 2.0 if marked is None else np.asarray(marked)
    label_lines(ax, list(names))
    ax.axvspan(-2.0, 2.0, color=FAINT, alpha=0.12, linewidth=0)
    ax.axvline(0.0, color=INK, linewidth=0.8)
    known = np.isfinite(z)
    for mine, colour, shape in ((known & ~marked, FAINT, "o"), (known & marked, MARKED, "D")):
        places = np.flatnonzero(mine)
        ax.hlines(places, 0.0, z[places], color=colour, linewidth=1.8)
        ax.scatter(z[places], places, color=colour, marker=shape, s=32, zorder=3)
    reach = max(3.0, 1.08 * float(np.abs(z[known]).max())) if known.any() else 3.0
    low, high = float(np.min(z[known], initial=0.0)), float(np.max(z[known], initial=0.0))
    ax.set_xlim(-reach if low < -2.0 else -3.0, reach if high > 2.0 else 3.0)
    return ax


def score_differences(
    scores: Mapping[str, tuple[float, float]],
    lower_is_better: Set[str],
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """Differences of scores, by name with their errors, in standard errors; to the right where the first is better."""
    z, names = [], []
    for name, (value, error) in scores.items():
        gain = -value if name in lower_is_better else value
        z.append(gain / error if error > 0.0 else 0.0)
        names.append(f"{name} {format_with_error(value, error, sign='+')}")
    across = "standard errors, to the right is better"
    return dots(np.asarray(z), names, ax, title=title, across=across)
