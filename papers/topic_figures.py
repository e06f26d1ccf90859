"""Errors of topics against the number of documents, coverage of their intervals, and diagonalisers side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, INK, MARKERS, add_legend, dress, new_figure
from papers.topic_recovery import DOCUMENT, LEVELS
from papers.words import standard_error

Runs = Sequence[Mapping[str, Any]]


def draw_growth(runs: Runs, sizes: Sequence[int]) -> Figure:
    """Mean column error against n, a line a method, each problem in faint dots, and a line of slope -1/2."""
    figure = new_figure(7.2, 4.8)
    axis: Any = figure.subplots()
    dress(axis, "Error of topics falls as one over the root of n", "documents n", "L1 error of a topic, mean")
    x = np.asarray(sizes, dtype=np.float64)
    names = {
        "spectral": "moments",
        "spectral + EM": "moments, then EM",
        DOCUMENT: "one random direction (document)",
    }
    for j, (name, label) in enumerate(names.items()):
        values = np.asarray([run[name] for run in runs])
        for row in values:
            axis.plot(x, row, ".", color=COLOURS[j], alpha=0.25, markersize=4)
        axis.plot(x, np.median(values, axis=0), MARKERS[j] + "-", color=COLOURS[j], label=label, markersize=6)
    first = float(np.median([run["spectral"][0] for run in runs]))
    axis.plot(x, 0.6 * first * (x / x[0]) ** -0.5, ":", color=INK, label="slope -1/2")
    axis.set(xscale="log", yscale="log")
    ticks(axis.xaxis, sizes)
    ticks(axis.yaxis, [m * 10.0**e for e in range(-4, 1) for m in (1, 2, 5)])
    add_legend(axis, "lower left", title="median of problems")
    return figure


def draw_coverage(runs: Mapping[int, Runs]) -> Figure:
    """How often intervals hold the truth, less how often they say, with Monte Carlo errors."""
    figure = new_figure(9.2, 4.2)
    panels: Any = figure.subplots(1, len(runs), squeeze=False, sharey=True)[0]
    place = np.arange(len(LEVELS))
    nominal = np.asarray([float(level[:-1]) for level in LEVELS])
    labels = {"words": "words", "rare words": "words rarer than 1 in 1000", "weights": "weights of topics"}
    for axis, (n, each) in zip(panels, runs.items()):
        up = "held the truth minus level (points)" if axis is panels[0] else ""
        dress(axis, f"{n:,} documents, {len(each)} problems", "level of the interval", up)
        axis.axhline(0.0, color=INK, linewidth=0.9)
        for j, (kind, label) in enumerate(labels.items()):
            shares = 100.0 * np.asarray([run[kind] for run in each])
            error = [2.0 * standard_error(column) for column in shares.T]
            axis.errorbar(
                place + 0.16 * (j - 1),
                shares.mean(0) - nominal,
                yerr=error,
                fmt=MARKERS[j],
                color=COLOURS[j],
                capsize=3,
                label=label,
            )
        axis.set_xticks(place, labels=list(LEVELS))
        axis.set_xlim(-0.5, len(LEVELS) - 0.5)
    handles, names = panels[0].get_legend_handles_labels()
    legend = figure.legend(handles, names, loc="outside lower center", ncols=3, frameon=False)
    legend.set_title("bars: two Monte Carlo errors")
    return figure


def draw_rivals(runs: Mapping[str, Runs]) -> Figure:
    """Errors of every diagonaliser relative to the default, a group of marks a case; hollow without scales."""
    names = list(next(iter(runs.values()))[0])
    default = names[0]
    figure = new_figure(9.4, 4.6)
    axis: Any = figure.subplots()
    dress(axis, "Error of each diagonaliser relative to the default", "", f'error / error of "{default}"')
    kinds = list(dict.fromkeys(name.split(",")[0] for name in names))
    for j, name in enumerate(names[1:], 1):
        kind = kinds.index(name.split(",")[0])
        ratio = [np.asarray([run[name][0] / run[default][0] for run in each]) for each in runs.values()]
        axis.errorbar(
            np.arange(len(runs)) + 0.11 * (j - len(names) / 2),
            [r.mean() for r in ratio],
            yerr=[standard_error(r) for r in ratio],
            fmt=MARKERS[kind],
            color=COLOURS[kind],
            fillstyle="none" if "unscaled" in name else "full",
            capsize=2.5,
            label=name,
        )
    axis.axhline(1.0, color=INK, linewidth=0.9)
    axis.set_yscale("log")
    ticks(axis.yaxis, (0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 20.0, 50.0))
    axis.set_xticks(range(len(runs)), labels=[case.replace(" ", "\n", 1) for case in runs])
    axis.set_xlim(-0.5, len(runs) - 0.5)
    for edge in range(len(runs) - 1):
        axis.axvline(edge + 0.5, color=INK, alpha=0.15, linewidth=0.8)
    axis.grid(axis="x", visible=False)
    add_legend(axis, beside=True)
    return figure


def ticks(axis: Any, values: Sequence[float]) -> None:
    """Plain numbers on a logarithmic axis: those of ``values`` that lie in sight."""
    low, high = axis.get_view_interval()
    seen = [value for value in values if low <= value <= high]
    axis.set_ticks(seen, labels=[f"{value:,g}" if value < 1e4 else f"{value:,.0f}" for value in seen])
    axis.set_ticks([], minor=True)
