"""Chains: where they went, and whether they agree."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy import stats

from boxloop.figures.style import FAINT, INK, add_legend, check_axes, colour, dress, new_axes

MOST_LINES = 7
"""Chains that have a colour of their own; more are drawn alike, and faint."""

MOST_POINTS = 1500
"""Draws of a chain that are drawn one by one."""


def chain_traces(values: ArrayLike, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draws in order, a line for each chain; those of chains that agree cover one another.

    Args:
        values: (chains, draws).
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(7.6, 3.6)
    dress(ax, title, "draw", "value")
    table = np.asarray(values, dtype=float)
    table = np.where(np.isfinite(table), table, np.nan)
    every = -(-table.shape[1] // MOST_POINTS)
    place = np.arange(1, table.shape[1] + 1)[::every]
    many = len(table) > MOST_LINES
    for i, line in enumerate(table):
        ax.plot(
            place,
            line[::every],
            color=INK if many else colour(i),
            alpha=max(0.05, 4.0 / len(table)) if many else 0.75,
            linewidth=0.7,
            label=None if many else f"chain {i}",
        )
    ax.set_xlim(1, max(2, table.shape[1]))
    if not many and len(table) > 1:
        add_legend(ax, beside=True)
    return ax


def chain_ranks(
    values: ArrayLike, ax: Axes | None = None, *, title: str = "", effective: float | None = None
) -> Axes:
    """How the ranks of each chain among all draws differ from even; flat lines inside the band agree.

    Args:
        values: (chains, draws).
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        effective: effective draws of each chain, for the band in which all lines stay with a chance of 95%; as many
            as draws when omitted.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(7.6, 3.6)
    dress(ax, title, "share of all draws below", "share of the chain's, less even")
    table = np.asarray(values, dtype=float)
    chains, draws = table.shape
    ranks = np.sort(stats.rankdata(table, nan_policy="omit").reshape(chains, draws) / table.size, axis=1)
    grid = np.linspace(0.0, 1.0, 201)
    band = float(stats.kstwobign.isf(0.05 / chains)) / np.sqrt(effective or draws)
    ax.axhspan(-band, band, color=FAINT, alpha=0.18, linewidth=0, label="agreement, 95%")
    many = chains > MOST_LINES
    for i, line in enumerate(ranks):
        share = np.searchsorted(line, grid, side="right") / draws
        ax.plot(
            grid,
            share - grid,
            color=INK if many else colour(i),
            alpha=max(0.08, 4.0 / chains) if many else 0.9,
            linewidth=1.2,
            label=None if many else f"chain {i}",
        )
    ax.set_xlim(0.0, 1.0)
    add_legend(ax, beside=True)
    return ax
