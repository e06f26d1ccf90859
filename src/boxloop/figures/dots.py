"""Signed numbers in units of their errors: which moments misfit, and how surely."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from boxloop.figures.style import FAINT, INK, MARKED, Array, check_axes, dress, name_rows, new_axes


def dots(
    z: Array,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    marked: NDArray[np.bool_] | Sequence[bool] | None = None,
    title: str = "",
    across: str = "gap in units of its error",
) -> Axes:
    """One dot a moment on a stem from zero; what lies within two errors is in the shaded middle.

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
    ax = check_axes(ax) or new_axes(6.8, 1.5 + 0.27 * max(len(z), 3))
    marked = np.abs(z) > 2.0 if marked is None else np.asarray(marked)
    dress(ax, title, across)
    name_rows(ax, list(names))
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
