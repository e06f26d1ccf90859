"""Numbers in falling order: eigenvalues beside those of noise, relevances of canonical variables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from boxloop.figures.style import COLOURS, FAINT, INK, MARKED, PLAIN, Array, add_legend, prepare_axes


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
    ax = prepare_axes(ax, 6.6, 4.2, title, across, up)
    place = np.arange(1, len(values) + 1)
    low, high = (np.append(edge, edge[-1:]) for edge in (null.min(1), null.max(1)))
    steps = np.arange(len(low)) + 1.5
    ax.fill_between(steps, low, high, step="post", color=FAINT, alpha=0.3, linewidth=0, label="noise")
    ax.plot(place, values, "o-", color=COLOURS[0], markersize=5, linewidth=1.4, label="data")
    dashes = (0, (4, 3))
    ax.axvline(counted + 0.5, color=MARKED, linewidth=1.4, linestyle=dashes, label=f"{counted} stand out")
    edge = float(np.abs(null).max(initial=0.0))
    ax.set_yscale("symlog", linthresh=max(edge, 1e-12))
    ax.set_ylim(bottom=1.3 * min(0.0, float(values.min()), float(null.min(initial=0.0))))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(ax, "upper right")
    return ax


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
    ax = prepare_axes(ax, 7.0, 4.4, title, across, f"{up}\n(bars: 1 and 2 standard errors)")
    height, errors = np.asarray(value, dtype=float), np.nan_to_num(np.asarray(error, dtype=float))
    place = np.arange(1, len(height) + 1)
    others = [np.asarray(part, dtype=float) for part in (training, exact) if part is not None]
    if exact is not None:
        ax.plot(place, others[-1], "_", color=INK, markersize=16, label="exact")
    if training is not None:
        (points,) = ax.plot(place, others[0], "D", color=MARKED, label="training rows")
        points.set(markersize=5.5, fillstyle="none")

    def draw_with_errors(chosen: NDArray[np.bool_], colour: str, shape: str, label: str) -> None:
        if chosen.any():
            at, middle, reach = place[chosen], height[chosen], errors[chosen]
            ax.vlines(at, middle - 2 * reach, middle + 2 * reach, color=colour, linewidth=1.0)
            ax.vlines(at, middle - reach, middle + reach, color=colour, linewidth=2.6)
            ax.plot(at, middle, shape, color=colour, markersize=5.5, label=label)

    if marked is None:
        draw_with_errors(np.ones(len(height), dtype=bool), PLAIN, "o", "held out")
    else:
        chosen = np.asarray(marked, dtype=bool)
        draw_with_errors(chosen, PLAIN, "o", "held out, significant")
        draw_with_errors(~chosen, FAINT, "s", "held out, not significant")
    top = float(np.nanmax(np.concatenate([height + 2 * errors, *others, [1e-3]])))
    ax.set(ylim=(-0.02 * top, 1.08 * min(top, 1.0)), xlim=(0.4, len(height) + 0.6))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    add_legend(ax)
    return ax
