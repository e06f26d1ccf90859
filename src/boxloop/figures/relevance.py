"""How much of one view can be inferred from the other, variable by variable."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from boxloop.figures.style import FAINT, INK, MARKED, PLAIN, Array, add_legend, check_axes, dress, new_axes


def relevance_spectrum(
    value: ArrayLike,
    error: ArrayLike,
    ax: Axes | None = None,
    *,
    training: ArrayLike | None = None,
    exact: ArrayLike | None = None,
    marked: NDArray[np.bool_] | Sequence[bool] | None = None,
    title: str = "How relevant each variable is",
    across: str = "canonical variable",
    up: str = "relevance (squared correlation)",
) -> Axes:
    """Held-out relevances with bars of one and two standard errors, beside those on the training rows.

    Args:
        value: on rows that did not train the variables, (r,); NaN leaves a gap.
        error: standard errors, (r,).
        ax: where to draw; a figure of its own when omitted.
        training: on the training rows, (r,).
        exact: where they are known, (r,).
        marked: which are significant, (r,); the others are faint.
        title: of the picture.
        across: what is numbered.
        up: what is measured.

    Returns:
        The axes; heights run from 0 to at most 1.
    """
    ax = check_axes(ax) or new_axes(7.0, 4.4)
    dress(ax, title, across, f"{up}\n(bars: 1 and 2 standard errors)")
    height, spread = np.asarray(value, dtype=float), np.nan_to_num(np.asarray(error, dtype=float))
    place = np.arange(1, len(height) + 1)
    if exact is not None:
        ax.plot(place, np.asarray(exact, dtype=float), "_", color=INK, markersize=16, label="exact")
    if training is not None:
        (points,) = ax.plot(
            place, np.asarray(training, dtype=float), "D", color=MARKED, label="training rows"
        )
        points.set(markersize=5.5, fillstyle="none")
    if marked is None:
        _barred(ax, place, height, spread, PLAIN, "o", "held out")
    else:
        chosen = np.asarray(marked, dtype=bool)
        _barred(ax, place[chosen], height[chosen], spread[chosen], PLAIN, "o", "held out, significant")
        rest = ~chosen
        _barred(ax, place[rest], height[rest], spread[rest], FAINT, "s", "held out, not significant")
    shown = [height + 2 * spread] + [np.asarray(a, dtype=float) for a in (training, exact) if a is not None]
    top = float(np.nanmax(np.concatenate([*shown, [1e-3]])))
    ax.set(ylim=(-0.02 * top, 1.08 * min(top, 1.0)), xlim=(0.4, len(height) + 0.6))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(ax)
    return ax


def _barred(
    ax: Axes,
    place: NDArray[np.int64],
    middle: Array,
    reach: Array,
    colour: str,
    shape: str,
    name: str,
) -> None:
    """Points with bars of one and two errors, where there are any."""
    if len(place):
        ax.vlines(place, middle - 2 * reach, middle + 2 * reach, color=colour, linewidth=1.0)
        ax.vlines(place, middle - reach, middle + reach, color=colour, linewidth=2.6)
        ax.plot(place, middle, shape, color=colour, markersize=5.5, label=name)
