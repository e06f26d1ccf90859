"""The picture of a choice: candidates by held-out likelihood, with errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.report.figures import COLOURS, DPI, FAINT, INK, png
from boxloop.report.gaps import short


def choice_picture(
    names: Sequence[str], difference: Sequence[float], error: Sequence[float], chosen: Sequence[bool]
) -> bytes:
    """How far each candidate is below the best on the same rows, with the error of that difference, as a PNG.

    Args:
        names: of the candidates.
        difference: mean log-likelihood of a row minus the best's, zero or less.
        error: standard error of the difference.
        chosen: which are marked.
    """
    figure = Figure(figsize=(7.4, 1.4 + 0.34 * len(names)), dpi=DPI, layout="constrained")
    axes: Any = figure.subplots()
    places = np.arange(len(names))[::-1]
    for place, gap, spread, mark in zip(places, difference, error, chosen, strict=True):
        if not np.isfinite(gap):
            continue
        colour = COLOURS[1] if mark else COLOURS[0]
        axes.errorbar(gap, place, xerr=spread, fmt="o", color=colour, markersize=7 if mark else 5, capsize=3)
    axes.axvline(0.0, color=FAINT, linewidth=1.0, linestyle="--")
    axes.set_yticks(places, [short(name, 40) for name in names], fontsize=9)
    axes.set_xlabel("held-out log-likelihood of a row, less the best's")
    axes.set_title(
        "Candidates with standard errors; the chosen one is orange", loc="left", fontsize=10.5, color=INK
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)
