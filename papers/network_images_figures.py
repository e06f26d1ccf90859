"""Reliability of probabilities, and how well doubt tells the unknown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from boxloop.criticise import reliability
from boxloop.figures import COLOURS, INK, dress, name_rows, new_figure, reliability_diagram
from papers.network_images_findings import Sayings
from papers.network_images_trials import KINDS
from papers.network_images_unknown import areas
from papers.uci_networks_trials import ENSEMBLE, FACTOR, MULTI_SWAG, SGD, SWAG

SHOWN = (SGD, SWAG, FACTOR, ENSEMBLE, MULTI_SWAG)
ENOUGH = 20
"""Rows of a bin that is drawn."""


def reliabilities(scenes: Mapping[str, Sayings], labels: Mapping[str, NDArray[np.int64]]) -> Figure:
    """What was said against what was so, as methods are and tuned; all groups of runs together, bins of 20 at least.

    Args:
        scenes: what was said, by images and method.
        labels: classes of the test images.
    """
    figure = new_figure(11.0, 5.4 * len(scenes))
    axes: Any = figure.subplots(len(scenes), 2, squeeze=False)
    for line, (name, methods) in zip(axes, scenes.items()):
        for axis, tuned in zip(line, (False, True)):
            curves = {}
            for method in SHOWN:
                chance = methods[method].chance if tuned else methods[method].bare
                y = np.tile(labels[name], len(chance))
                parts = reliability(chance.reshape(-1, chance.shape[2]), y, bins=10).lines()
                said, so, rows, low, high = (part[parts[2] >= ENOUGH] for part in parts)
                curves[method] = said, so, rows, low, high
            words = "scale and temperature tuned" if tuned else "as they are"
            reliability_diagram(curves, axis, title=f"{name}, {words}")
    return figure


def unknown(scenes: Mapping[str, Sayings]) -> Figure:
    """Area under the curve by method and kind of unknown images, with one standard error."""
    names = list(next(iter(scenes.values())))
    figure = new_figure(12.0, (0.36 * len(names) + 1.0) * len(scenes) + 0.4)
    widest = max(len(_kinds(said)) for said in scenes.values())
    axes: Any = figure.subplots(len(scenes), widest, squeeze=False, sharey=True)
    for line, (name, said) in zip(axes, scenes.items()):
        for axis, what in zip(line, _kinds(said)):
            dress(axis, f"{name}: {what}", "area under the curve")
            for place, kind in enumerate(KINDS):
                found = {method: areas(said, method, kind)[what] for method in names}
                kept = [(row, found[method]) for row, method in enumerate(names) if found[method].error > 0.0]
                axis.errorbar(
                    [one.value for _, one in kept],
                    [row + 0.3 * place - 0.13 for row, _ in kept],
                    xerr=[one.error for _, one in kept],
                    fmt="o^"[place],
                    color=COLOURS[place],
                    markersize=4.5,
                    linewidth=1.2,
                    label=kind,
                )
            axis.axvline(areas(said, SGD, KINDS[0])[what].value, color=INK, linewidth=0.8)
            name_rows(axis, names)
            axis.tick_params(labelleft=axis is line[0])
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def _kinds(said: Sayings) -> list[str]:
    return [what for what in said[SGD].doubt[KINDS[0]] if what != "test"]
