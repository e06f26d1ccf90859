"""A matrix by colour: which pairs of columns misfit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes

from boxloop.figures.style import INK, LABEL, Array, check_axes, dress, new_axes, short

NAMED = 30
"""Most columns whose names are written on the axes."""
LEAST_LIMIT = 4.0
"""The colours reach at least so far, or noise would look like a finding."""


def heat_map(
    values: Array,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    title: str = "",
    label: str = "",
    least: float = LEAST_LIMIT,
) -> Axes:
    """A square matrix of signed numbers: purple above zero, orange below, white at zero, grey where unknown.

    Args:
        values: (d, d); NaN where there is no number.
        names: of the d columns.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        label: what the colours measure.
        least: the colours span at least this far either way.

    Returns:
        The axes.
    """
    d = len(names)
    size = 3.2 + 0.24 * min(d, NAMED)
    ax = check_axes(ax) or new_axes(size + 1.2, size)
    finite = np.abs(values[np.isfinite(values)])
    limit = max(least, float(finite.max())) if finite.size else least
    shades = colormaps["PuOr"].with_extremes(bad="#c8c8c8")
    image = ax.imshow(values, cmap=shades, vmin=-limit, vmax=limit, interpolation="nearest")
    dress(ax, title)
    ax.grid(visible=False)
    if d <= NAMED:
        size_of_names = LABEL - 1 if d <= 16 else LABEL - 3
        ax.set_xticks(range(d), [short(name, 14) for name in names], rotation=90, parse_math=False)
        ax.set_yticks(range(d), [short(name) for name in names], parse_math=False)
        ax.tick_params(labelsize=size_of_names, length=0)
    else:
        ax.set_xlabel("column", fontsize=LABEL, color=INK)
        ax.set_ylabel("column", fontsize=LABEL, color=INK)
    bar: Any = ax.figure.colorbar(image, ax=ax, shrink=0.85)  # its stubs differ between releases
    bar.set_label(label, color=INK, fontsize=LABEL, parse_math=False)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=LABEL - 1.5, colors=INK, length=2)
    return ax
