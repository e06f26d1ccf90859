"""All pairs of some columns: rows and components below the diagonal, each column by itself on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from boxloop.figures.ellipses import Codes, ellipses
from boxloop.figures.style import FAINT, INK, LABEL, Array, colour, dress, new_figure, short


def pair_grid(
    rows: Array,
    weights: Array,
    means: Array,
    covariances: Array,
    names: Sequence[str],
    *,
    component: Codes | None = None,
    title: str = "",
) -> NDArray[np.object_]:
    """A figure of its own, with a grid of axes for all pairs of columns.

    Args:
        rows: (n, d); what is missing is left out, pair by pair.
        weights: of the components, (k,).
        means: of the components, (k, d).
        covariances: of the components, (k, d, d).
        names: of the columns.
        component: of each row, for its colour.
        title: of the figure.

    Returns:
        The axes, (d, d), those above the diagonal empty.
    """
    d = len(names)
    figure = new_figure(1.2 + 1.9 * d, 1.0 + 1.8 * d)
    grid = figure.subplots(d, d, squeeze=False, sharex="col")
    for i in range(d):
        _column(grid[i, i], rows[:, i], weights, means[:, i], covariances[:, i, i])
        for j in range(i):
            both = [j, i]
            inner = covariances[:, both][:, :, both]
            ellipses(rows[:, both], means[:, both], inner, ("", ""), grid[i, j], component=component)
        for j in range(i + 1, d):
            grid[i, j].set_axis_off()
    for i in range(d):
        grid[-1, i].set_xlabel(short(names[i]), fontsize=LABEL - 1, color=INK, parse_math=False)
        grid[i, 0].set_ylabel(short(names[i]) if i else "", fontsize=LABEL - 1, color=INK, parse_math=False)
        for j in range(i + 1):
            inside = j > 0 or i == 0
            grid[i, j].tick_params(labelsize=7.5, labelleft=not inside, labelbottom=i == d - 1)
    figure.suptitle(title, color=INK, fontsize=12, fontweight="bold", parse_math=False)
    return np.asarray(grid, dtype=object)


def _column(ax: Axes, values: Array, weights: Array, means: Array, variances: Array) -> None:
    """A column's histogram with the density of each component and of all."""
    seen = values[np.isfinite(values)]
    dress(ax, "")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    if len(seen):
        bins = int(np.clip(2.0 * len(seen) ** (1 / 3), 5, 60))
        ax.hist(seen, bins=bins, density=bool(np.ptp(seen) > 0.0), color=FAINT, alpha=0.35)
    spread = np.sqrt(variances.clip(min=1e-300))
    low, high = float(np.min(means - 3 * spread)), float(np.max(means + 3 * spread))
    at = np.unique(np.concatenate([np.linspace(low, high, 300), means]))
    scaled = (at - means[:, None]) / spread[:, None]
    density = weights[:, None] * np.exp(-0.5 * scaled**2) / (spread[:, None] * np.sqrt(2.0 * np.pi))
    for k, line in enumerate(density):
        ax.plot(at, line, color=colour(k), linewidth=1.2)
    ax.plot(at, density.sum(0), color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.set_ylim(bottom=0.0)
