"""Chains and trajectories: where they went, whether they agree, how fast they forget."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike
from scipy import stats

from boxloop.figures.style import FAINT, INK, PLAIN, Array, add_legend, pick_colour, prepare_axes

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
    ax = prepare_axes(ax, 7.6, 3.6, title, "draw", "value")
    table = np.asarray(values, dtype=float)
    table = np.where(np.isfinite(table), table, np.nan)
    every = -(-table.shape[1] // MOST_POINTS)
    place = np.arange(1, table.shape[1] + 1)[::every]
    for i, line in enumerate(table):
        ax.plot(place, line[::every], linewidth=0.7, **_style_chain(i, len(table), 0.75, 0.05))
    ax.set_xlim(1, max(2, table.shape[1]))
    if 1 < len(table) <= MOST_LINES:
        add_legend(ax, beside=True)
    return ax


def chain_ranks(
    values: ArrayLike, ax: Axes | None = None, *, title: str = "", effective: float | None = None
) -> Axes:
    """How the ranks of each chain among all draws differ from uniform; flat lines inside the band agree.

    Args:
        values: (chains, draws).
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.
        effective: effective draws of each chain, for the band in which all lines stay with a chance of 95%; as many
            as draws when omitted.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 7.6, 3.6, title, "fractional rank among all draws", "chain's ECDF, minus uniform")
    table = np.asarray(values, dtype=float)
    chains, draws = table.shape
    ranks = np.sort(stats.rankdata(table, nan_policy="omit").reshape(chains, draws) / table.size, axis=1)
    grid = np.linspace(0.0, 1.0, 201)
    band = float(stats.kstwobign.isf(0.05 / chains)) / np.sqrt(effective or draws)
    ax.axhspan(-band, band, color=FAINT, alpha=0.18, linewidth=0, label="agreement, 95%")
    for i, line in enumerate(ranks):
        share = np.searchsorted(line, grid, side="right") / draws
        ax.plot(grid, share - grid, linewidth=1.2, **_style_chain(i, chains, 0.9, 0.08))
    ax.set_xlim(0.0, 1.0)
    add_legend(ax, beside=True)
    return ax


def _style_chain(place: int, chains: int, alpha: float, least_alpha: float) -> dict[str, Any]:
    """A colour and a label for each of a few chains; of many, faint lines without labels."""
    if chains > MOST_LINES:
        return {"color": INK, "alpha": max(least_alpha, 4.0 / chains), "label": None}
    return {"color": pick_colour(place), "alpha": alpha, "label": f"chain {place}"}


def correlogram(
    correlation: Array, stride: int, effective: float, ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """A mean autocorrelation at lags of ``stride`` vectors, until it is small, with the range that chance allows."""
    ax = prepare_axes(ax, 6.2, 4.0, title, "lag in vectors", "autocorrelation, mean over weights")
    low = np.flatnonzero(correlation < 0.02)
    shown = correlation[: min(len(correlation), max(12, 3 * int(low[0]) if len(low) else len(correlation)))]
    band = 2.0 / max(effective, 1.0) ** 0.5
    ax.axhspan(-band, band, color=FAINT, alpha=0.15, linewidth=0, label="by chance, ± 2 s.e.")
    ax.axhline(0.0, color=INK, linewidth=0.8)
    lag = stride * np.arange(len(shown))
    ax.plot(lag, shown, color=PLAIN, linewidth=1.6, marker="o" if len(lag) < 40 else None, markersize=3)
    ax.set_ylim(min(-0.25, 1.1 * float(shown.min())), 1.05)
    add_legend(ax, "upper right")
    return ax
