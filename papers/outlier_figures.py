"""Outliers found and criteria against the number of components."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, dress, new_figure

TICKS = (-100, -50, -25, 0, 25, 50, 100, 1000, 10_000, 100_000, 1_000_000)


def draw_found(
    runs: Sequence[Mapping[str, Any]],
    splits: Sequence[Mapping[str, Any]],
    components: Sequence[int],
    paper: Mapping[int, int],
) -> Figure:
    """Outliers among the flagged rows: every seed, medians and the document's numbers."""
    figure, axis = _axes(components, "Outliers among the flagged rows", "outliers found")
    place = np.arange(len(components))
    found = np.asarray([run["found"] for run in runs])
    own = np.asarray([[split[f"full, K = {k}"]["found"] for k in components] for split in splits])
    for values, colour, shift, label in (
        (found, COLOURS[0], -0.12, "scikit-learn, as in the document"),
        (own, COLOURS[2], 0.12, "boxloop"),
    ):
        for row in values:
            axis.plot(place + shift, row, "o", color=colour, alpha=0.25, markersize=4)
        middle = np.median(values, axis=0)
        axis.plot(place + shift, middle, "_-", color=colour, markersize=14, label=f"{label}, median of seeds")
    if paper:
        at = [i for i, k in enumerate(components) if k in paper]
        told = [paper[components[i]] for i in at]
        axis.plot(at, told, "x", color=COLOURS[1], markersize=9, mew=2, label="document")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize="small")
    return figure


def draw_criteria(
    runs: Sequence[Mapping[str, Any]],
    splits: Sequence[Mapping[str, Any]],
    components: Sequence[int],
    n: int,
) -> Figure:
    """AIC of the training rows and likelihood of held-out rows, medians over seeds."""
    figure, axis = _axes(
        components,
        "What each criterion sees (medians of seeds)",
        "per row, lower is better (log scale beyond 50)",
    )
    place = np.arange(len(components))
    held = [[-split[f"full, K = {k}"]["log-likelihood"] for k in components] for split in splits]
    loss = np.median(held, axis=0)
    aic = np.median([run["AIC"] for run in runs], axis=0) / (2 * n)
    simple = np.median([run["AIC, p = 2K"] for run in runs], axis=0) / (2 * n)
    axis.plot(place, loss, "s-", color=COLOURS[4], label="held-out rows: minus log-likelihood")
    axis.plot(place, aic, "o-", color=COLOURS[0], label="AIC / 2n")
    axis.plot(place, simple, "^-", color=COLOURS[1], label="AIC / 2n with p = 2K")
    axis.set_yscale("symlog", linthresh=50.0)
    axis.set_yticks(TICKS, labels=[f"{tick:,}" for tick in TICKS])
    axis.set_ylim(min(1.6 * simple.min(), -10.0), max(2.0 * loss.max(), 10.0))
    axis.minorticks_off()
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize="small")
    return figure


def _axes(components: Sequence[int], title: str, up: str) -> tuple[Figure, Any]:
    figure = new_figure(7.6, 4.6)
    axis: Any = figure.subplots()
    dress(axis, title, "number of components K, full covariance", up)
    axis.set_xticks(range(len(components)), labels=[f"{k}" for k in components])
    return figure, axis
