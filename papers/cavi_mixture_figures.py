"""Bounds that climb towards the evidence, what q believes of the means, and how both depend on overlap: one picture."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure
from papers.cavi_mixture_trials import exact_posterior

if TYPE_CHECKING:
    from papers.cavi_mixture import Cell

Cells = Mapping[int, Mapping[float, "list[Cell]"]]


def draw(cells: Cells, limits: Mapping[float, float]) -> Figure:
    """Four panels.

    Args:
        cells: data sets by number of components and by distance between their means.
        limits: ratio of deviations with many rows, by distance.
    """
    figure = new_figure(12.0, 8.6)
    axes: Any = figure.subplots(2, 2)
    middle = min(cells[3], key=lambda apart: abs(apart - 3.0))
    _climbs(axes[0, 0], cells[3][middle][0], middle)
    _beliefs(axes[0, 1], cells[2])
    _gaps(axes[1, 0], cells)
    _ratios(axes[1, 1], cells[2], limits)
    return figure


def _climbs(axes: Any, cell: Cell, apart: float) -> None:
    k = cell.problem.k
    dress(axes, f"The bound, {k} components {apart:g} apart", "sweep", "bound, less the log evidence")
    evidence = cell.exact.log_evidence
    best = float(cell.best.trace[-1])
    longest = 0
    for run in cell.runs:
        high = run.trace[-1] > best - 1e-3
        line = run.trace - evidence
        settled = int(np.flatnonzero(line >= line[-1] - 1e-3)[0]) + 3
        longest = max(longest, min(settled, len(line)))
        axes.plot(np.arange(len(line)), line, color=COLOURS[0] if high else COLOURS[4], lw=1.2, alpha=0.8)
    axes.axhline(0.0, color=INK, lw=1.4, label="log evidence")
    axes.axhline(-math.log(math.factorial(k)), color=INK, lw=1.2, ls="--", label=f"log evidence − log {k}!")
    axes.plot([], [], color=COLOURS[0], label="starts that reach the best")
    if any(run.trace[-1] <= best - 1e-3 for run in cell.runs):
        axes.plot([], [], color=COLOURS[4], label="other maxima")
    ends = [float(run.trace[-1]) - evidence for run in cell.runs]
    low = min(min(ends), -4.0)
    axes.set(xlim=(0, longest), ylim=(1.35 * low, -0.1 * low))
    axes.legend(frameon=False, fontsize=9, loc="lower right")


def _beliefs(axes: Any, by_apart: Mapping[float, list[Cell]]) -> None:
    """Exact densities of the means in order, and those of q, where components overlap."""
    apart = min(by_apart, key=lambda value: abs(value - 2.0))
    cell = by_apart[apart][0]
    dress(axes, f"The means, 2 components {apart:g} apart", "mean", "posterior density")
    exact = exact_posterior(cell.problem, tol=0.0, most=400_000)  # fine enough to look smooth
    density, _ = exact.ordered()
    place = exact.axis.numpy()
    model = cell.best.model
    centre, variance = model.mean[:, 0].numpy(), model.variance.numpy()
    shown = density.sum(0) > 1e-3 * density.max()
    fine = np.linspace(place[shown][0] - 0.2, place[shown][-1] + 0.2, 400)
    for j, one in enumerate(np.argsort(centre)):
        axes.plot(place, density[j], color=COLOURS[j], lw=1.8, label=f"mean {j + 1}, exact")
        believed = np.exp(-0.5 * (fine - centre[one]) ** 2 / variance[one])
        axes.plot(
            fine,
            believed / math.sqrt(2 * math.pi * variance[one]),
            color=COLOURS[j],
            lw=1.5,
            ls="--",
            label=f"mean {j + 1}, q",
        )
    axes.set(xlim=(fine[0], fine[-1]), ylim=(0.0, None))
    axes.legend(frameon=False, fontsize=9, loc="upper center")


def _gaps(axes: Any, cells: Cells) -> None:
    dress(axes, "What the bound misses", "distance between means", "log evidence, less the bound")
    for j, (k, by_apart) in enumerate(cells.items()):
        apart = np.asarray(sorted(by_apart))
        gaps = [np.asarray([cell.gap for cell in by_apart[value]]) for value in apart]
        middle = np.asarray([gap.mean() for gap in gaps])
        error = np.asarray([gap.std() / max(len(gap) - 1, 1) ** 0.5 for gap in gaps])
        axes.errorbar(
            apart,
            middle,
            yerr=error,
            color=COLOURS[j],
            marker="o",
            markersize=4,
            lw=1.5,
            label=f"{k} components",
        )
        axes.axhline(math.log(math.factorial(k)), color=COLOURS[j], lw=1.0, ls="--")
        axes.text(
            apart[-1], math.log(math.factorial(k)) - 0.05, f"log {k}!", color=COLOURS[j], va="top", ha="right"
        )
    axes.set_ylim(0.0, None)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _ratios(axes: Any, by_apart: Mapping[float, list[Cell]], limits: Mapping[float, float]) -> None:
    dress(axes, "How sure q is of a mean", "distance between means", "deviation under q over the exact one")
    apart = np.asarray(sorted(by_apart))
    ratios = [np.asarray([cell.ratio for cell in by_apart[value]]) for value in apart]
    for value, ratio in zip(apart, ratios):
        axes.plot(np.full(len(ratio), value), ratio, ".", color=FAINT, markersize=4)
    axes.plot(
        apart,
        [r.mean() for r in ratios],
        "o-",
        color=COLOURS[0],
        lw=1.5,
        markersize=4,
        label="mean over data sets",
    )
    axes.plot(apart, [limits[value] for value in apart], "--", color=INK, lw=1.2, label="limit of many rows")
    axes.axhline(1.0, color=FAINT, lw=1.0)
    axes.set_ylim(0.0, 1.3)
    axes.legend(frameon=False, fontsize=9, loc="lower right")
