"""Eigenvalues beside those of noise."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from boxloop.figures.style import COLOURS, FAINT, MARKED, Array, add_legend, check_axes, dress, new_axes


def spectrum(
    values: Array,
    null: Array,
    counted: int,
    ax: Axes | None = None,
    *,
    title: str = "How many stand out from noise",
    across: str = "eigenvalue",
    up: str = "size",
) -> Axes:
    """Eigenvalues in falling order, the range of those of noise, and a line after the last that counts.

    Args:
        values: (r,).
        null: of noise, for the second value and as many more as were tested, (tested, draws).
        counted: how many stand out.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        across: what is numbered.
        up: what is measured.

    Returns:
        The axes; sizes are on a scale that is straight near zero and logarithmic beyond noise.
    """
    ax = check_axes(ax) or new_axes(6.6, 4.2)
    dress(ax, title, across, up)
    place = np.arange(1, len(values) + 1)
    low, high = (np.append(edge, edge[-1:]) for edge in (null.min(1), null.max(1)))
    steps = np.arange(len(low)) + 1.5
    ax.fill_between(steps, low, high, step="post", color=FAINT, alpha=0.3, linewidth=0, label="noise")
    ax.plot(place, values, "o-", color=COLOURS[0], markersize=5, linewidth=1.4, label="data")
    ax.axvline(
        counted + 0.5, color=MARKED, linewidth=1.4, linestyle=(0, (4, 3)), label=f"{counted} stand out"
    )
    edge = float(np.abs(null).max(initial=0.0))
    ax.set_yscale("symlog", linthresh=max(edge, 1e-12))
    ax.set_ylim(bottom=1.3 * min(0.0, float(values.min()), float(null.min(initial=0.0))))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(ax, "upper right")
    return ax
