"""Pictures of the variables of a disk and a ring: figure 3 of document 003."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, INK, add_legend, dress, new_figure
from papers.ring_channel import Array, half_wave, wave

SHOWN = 20
"""Variables in a mosaic, the constant first."""
ACROSS = 5


def mosaics(drawn: Mapping[str, tuple[Array, Array]]) -> Figure:
    """The first twenty variables as images, and the same times the law of X: mid-grey is 0.

    Args:
        drawn: by name, variables at pixels (side * side, k), the constant left out, and which pixels have mass.
    """
    figure = new_figure(11.0, 4.8 * len(drawn) + 0.3)
    axes: Any = figure.subplots(len(drawn), 2, squeeze=False)
    for row, (name, (values, mass)) in zip(axes, drawn.items()):
        whole = np.column_stack([np.ones(len(values)), values[:, : SHOWN - 1]])
        size = np.sqrt(np.mean(whole[mass] ** 2, axis=0))
        largest = whole[mass][np.abs(whole[mass]).argmax(0), np.arange(whole.shape[1])]
        whole = whole / (size * np.sign(largest))
        for axis, part, what in zip(row, (whole, whole * mass[:, None]), ("variables", "times the law of X")):
            axis.imshow(_tiled(part), cmap="gray", vmin=-2.2, vmax=2.2, interpolation="nearest")
            axis.set_axis_off()
            axis.set_title(f"{name}: {what}", loc="left", fontsize=11, color=INK)
    return figure


def _tiled(values: Array) -> Array:
    """Variables as square images, five in a line, white between."""
    side = round(len(values) ** 0.5)
    images = values.T.reshape(-1, side, side).clip(-2.2, 2.2)
    lines = -(-len(images) // ACROSS)
    canvas = np.full((lines * (side + 2), ACROSS * (side + 2)), 2.2)
    for place, image in enumerate(images):
        top, left = (side + 2) * (place // ACROSS) + 1, (side + 2) * (place % ACROSS) + 1
        canvas[top : top + side, left : left + side] = image
    return canvas


def order(
    exact: Mapping[str, tuple[Array, Sequence[str]]],
    runs: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]],
) -> Figure:
    """Relevances by kind of variable: exact as lines, learned as points under the exact law.

    Args:
        exact: by law, relevances and names.
        runs: by law and kind of features, the fits.
    """
    figure = new_figure(12.0, 4.6)
    axes: Any = figure.subplots(1, len(exact), sharey=True, squeeze=False)
    for axis, (law, (relevance, names)) in zip(axes[0], exact.items()):
        place = np.arange(1, len(relevance) + 1)
        for kind, colour in zip(dict.fromkeys(_kind(name) for name in names), COLOURS):
            mine = np.asarray([_kind(name) == kind for name in names])
            axis.bar(place[mine], relevance[mine], color=colour, alpha=0.45, width=0.8, label=kind)
        for (features, fits), shape in zip(runs[law].items(), ("o", "^")):
            values = np.asarray([run["true relevance"] for run in fits])
            error = 2.0 * values.std(0) / max(len(values) - 1, 1) ** 0.5
            at = place[: values.shape[1]] + (0.15 if shape == "^" else -0.15)
            axis.errorbar(
                at,
                values.mean(0)[: len(place)],
                error[: len(place)],
                fmt=shape,
                color=INK,
                markersize=3.5,
                lw=1,
                label=f"learned, {features} (± 2 s.e.)",
            )
        dress(axis, law, "canonical variable", "relevance" if axis is axes[0][0] else "")
        axis.set(ylim=(0.0, 1.05), xlim=(0.3, len(place) + 0.7))
        add_legend(axis, "upper right")
    return figure


def _kind(name: str) -> str:
    """A coarser name, of few enough for colours."""
    if name in {wave(m) for m in range(1, 99)} | {half_wave(j) for j in range(1, 99)}:
        return "angle in the ring, exact"
    known = {"disk or ring": "disk or ring", "radius in the ring": "radius in the ring"}
    return known.get(name, "in the disk" if "disk" in name else "radius times angle")
