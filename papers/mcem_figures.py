"""Distance against draws, one path of each scheme, and collapses: one picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, dress, new_figure
from papers.mcem_trials import Rows, Trail

SHOWN = ("m = 1, full replacement", "m = 20", "m = k²", "stochastic approximation, m = 5")
PAIRS = (("m = k²", "m = k², restarted"), (SHOWN[3], "stochastic approximation, restarted"))


def draw(
    trails: Mapping[str, Sequence[Trail]],
    gone: Mapping[str, Mapping[str, Rows]],
    deviation: float,
    draws: int,
) -> Figure:
    """Four panels.

    Args:
        trails: runs of each scheme, one a seed.
        gone: draws until each scheme collapsed, by problem.
        deviation: of the effects at the maximum of the likelihood.
        draws: spent in the problems that may collapse.
    """
    figure = new_figure(12.0, 8.6)
    axes: Any = figure.subplots(2, 2)
    _distances(axes[0, 0], trails)
    _paths(axes[0, 1], trails, deviation)
    _collapses(axes[1, 0], gone, draws)
    _restarts(axes[1, 1], trails)
    return figure


def _averaged(trails: Sequence[Trail]) -> tuple[Rows, Rows, Rows]:
    """Root mean square distance over seeds, in bins of draws of equal ratio, with two standard errors either side."""
    edges = np.geomspace(10.0, trails[0].spent[-1] * 1.001, 16)
    at, middle, reach = [], [], []
    for low, high in pairwise(edges):
        inside = [trail.distance[(trail.spent > low) & (trail.spent <= high)] for trail in trails]
        if len(inside[0]):
            squares = np.asarray([np.mean(values**2) for values in inside])
            at.append(float(np.sqrt(low * high)))
            middle.append(float(np.sqrt(squares.mean())))
            reach.append(float(squares.std() / len(squares) ** 0.5 / middle[-1]))
    return np.asarray(at), np.asarray(middle), np.asarray(reach)


def _line(axes: Any, trails: Sequence[Trail], colour: str, label: str, style: str = "o-") -> None:
    at, middle, reach = _averaged(trails)
    axes.plot(at, middle, style, color=colour, lw=1.5, markersize=4, label=label)
    axes.fill_between(
        at, np.maximum(middle - reach, 1e-2 * middle), middle + reach, color=colour, alpha=0.15, lw=0
    )


def _distances(axes: Any, trails: Mapping[str, Sequence[Trail]]) -> None:
    dress(
        axes, "Only growing draws or falling rates converge", "draws a group", "distance, in standard errors"
    )
    axes.set(xscale="log", yscale="log")
    for j, name in enumerate(SHOWN):
        _line(axes, trails[name], COLOURS[j], name)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _paths(axes: Any, trails: Mapping[str, Sequence[Trail]], deviation: float) -> None:
    dress(axes, "Deviation of the effects, one seed", "draws a group", "standard deviation")
    for j, name in enumerate(SHOWN):
        trail = trails[name][0]
        axes.plot(trail.spent, trail.deviation, color=COLOURS[j], lw=1.3, alpha=0.9, label=name)
    axes.axhline(deviation, color=INK, lw=1.2, ls="--", label="maximum of the likelihood")
    axes.set_ylim(0.0, 1.7)
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _collapses(axes: Any, gone: Mapping[str, Mapping[str, Rows]], draws: int) -> None:
    dress(axes, "Share of runs that have collapsed", "draws a unit", "share of runs")
    for j, (problem, schemes) in enumerate(gone.items()):
        for scheme, when in schemes.items():
            alone = scheme.startswith("m = 1")
            at = np.concatenate([[0.0], np.sort(when[np.isfinite(when)]), [draws]])
            share = np.concatenate([np.arange(len(at) - 1), [len(at) - 2]]) / len(when)
            axes.step(
                at,
                share,
                where="post",
                color=COLOURS[j],
                lw=1.8 if alone else 1.2,
                ls="-" if alone else ":",
                label=f"{problem}, m = 1" if alone else None,
            )
    axes.plot([], [], ":", color=FAINT, label="m = k² and stochastic approximation")
    axes.set_ylim(-0.03, 1.5)  # room for the legend above all lines
    axes.set_yticks([0.0, 0.25, 0.5, 0.75, 1.0])
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _restarts(axes: Any, trails: Mapping[str, Sequence[Trail]]) -> None:
    dress(axes, "Chains that persist, at equal cost", "draws a group", "distance, in standard errors")
    axes.set(xscale="log", yscale="log")
    for j, (kept, again) in enumerate(PAIRS):
        _line(axes, trails[kept], COLOURS[2 + j], f"{kept}, persistent")
        _line(axes, trails[again], COLOURS[2 + j], again, "^--")
    axes.legend(frameon=False, fontsize=9, loc="lower left")
