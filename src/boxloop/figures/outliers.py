"""Scores of rows and the threshold that flags some of them."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from boxloop.figures.style import FAINT, INK, MARKED, PLAIN, PLENTY, Array, add_legend, prepare_axes

NAMED = 5
"""How many of the lowest rows are labelled."""


def outlier_scores(
    scores: ArrayLike,
    threshold: float,
    ax: Axes | None = None,
    *,
    places: ArrayLike | None = None,
    title: str = "",
    up: str = "",
) -> Axes:
    """Every row at its score; those below the threshold stand out, and the lowest carry their row number.

    Args:
        scores: one per row. A score of -inf is drawn at the lower edge, NaN not at all.
        threshold: rows below it are flagged; none where it is -inf.
        ax: where to draw; a figure of its own when omitted.
        places: the row numbers; from 0 on when omitted.
        title: of the picture.
        up: what the scores are.

    Returns:
        The axes. Of more rows than can be seen, ordinary ones are thinned out evenly; flagged ones are all there.
    """
    ax = prepare_axes(ax, 8.8, 4.2, title, "row", up)
    values = np.asarray(scores, dtype=float)
    number = np.arange(len(values)) if places is None else np.asarray(places)
    drawn, edge = _place_scores(values, threshold)
    found = np.flatnonzero(values < threshold)
    usual = np.flatnonzero(~(values < threshold) & np.isfinite(drawn))
    step = max(1, -(-len(usual) // PLENTY))
    thinned = f" (1 of {step} drawn)" if step > 1 else ""
    few, others, flagged = usual[::step], f"other rows{thinned}", f"{len(found)} flagged"
    ax.scatter(number[few], drawn[few], s=12, color=PLAIN, alpha=0.5, linewidth=0, label=others)
    ax.scatter(number[found], drawn[found], s=30, color=MARKED, marker="v", label=flagged, zorder=3)
    if np.isfinite(threshold):
        dashes = (0, (4, 3))
        ax.axhline(threshold, color=INK, linewidth=1.0, linestyle=dashes, label=f"threshold {threshold:.4g}")
    for row in _select_labelled_rows(found[np.argsort(values[found], kind="stable")], drawn):
        at = (number[row], drawn[row])
        ax.annotate(f"{number[row]}", at, (5.0, -3.0), textcoords="offset points", fontsize=8, color=INK)
    if np.isneginf(values).any():
        ax.axhspan(*edge, color=FAINT, alpha=0.15, linewidth=0)
    add_legend(ax, beside=True)
    return ax


def _place_scores(values: Array, threshold: float) -> tuple[Array, tuple[float, float]]:
    """Where each score is drawn, and the strip below all others in which those of -inf lie."""
    finite = values[np.isfinite(values)]
    low = float(min(finite.min(initial=np.inf), threshold if np.isfinite(threshold) else np.inf))
    high = float(finite.max(initial=low if np.isfinite(low) else 0.0))
    low = low if np.isfinite(low) else high - 1.0
    reach = high - low
    drawn = np.where(np.isneginf(values), low - 0.12 * reach, values)
    return drawn, (low - 0.2 * reach, low - 0.06 * reach)


def _select_labelled_rows(rows: NDArray[np.int64], drawn: Array) -> list[int]:
    """The first few of some rows whose labels would not be written over one another."""
    reach = float(np.nanmax(drawn) - np.nanmin(drawn)) or 1.0
    labelled: list[int] = []
    for row in rows[: 10 * NAMED].tolist():
        near = [
            abs(row - k) < 0.1 * len(drawn) and abs(drawn[row] - drawn[k]) < 0.05 * reach for k in labelled
        ]
        if not any(near) and len(labelled) < NAMED:
            labelled.append(row)
    return labelled
