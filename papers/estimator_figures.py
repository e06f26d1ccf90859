"""Error against rows, errors beside the closed form, and coverage: one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from papers.estimator_trials import Rows, Trials


def draw(
    paths: dict[str, Rows], lengths: Sequence[int], errors: dict[str, Rows], trials: Sequence[Trials]
) -> Figure:
    """Three panels.

    Args:
        paths: root mean square errors by estimator, one for each length.
        lengths: numbers of rows.
        errors: errors over the closed form by kind, one for each sample.
        trials: samples of each problem.
    """
    figure = new_figure(12.0, 8.2)
    grid: Any = figure.add_gridspec(2, 2, width_ratios=(1.15, 1.0), height_ratios=(1.25, 1.0))
    _paths(figure.add_subplot(grid[0, 0]), paths, lengths)
    _errors(figure.add_subplot(grid[0, 1]), errors)
    _coverage(figure.add_subplot(grid[1, :]), trials)
    return figure


def _paths(axes: Any, paths: dict[str, Rows], lengths: Sequence[int]) -> None:
    dress(axes, "Error falls as one over the root of n", "rows", "root mean square error")
    axes.set(xscale="log", yscale="log")
    n = np.asarray(lengths, dtype=float)
    for j, (name, path) in enumerate(paths.items()):
        axes.plot(n, path, MARKERS[j] + "-", color=COLOURS[j], lw=1.3, markersize=4.5, label=name)
    middle = np.exp(np.mean([np.log(path[0]) for path in paths.values()]))
    axes.plot(n, middle * (n / n[0]) ** -0.5, "--", color=FAINT, lw=1.2, label="slope -1/2")
    low = min(float(path.min()) for path in paths.values())
    axes.set_ylim(bottom=low / 12.0)  # room for the legend below all lines
    axes.legend(frameon=False, fontsize=7.5, loc="lower left", ncols=2, columnspacing=0.8, handlelength=1.6)


def _errors(axes: Any, errors: dict[str, Rows]) -> None:
    dress(axes, "Errors of a slope, noise that grows", "", "over the closed form")
    axes.axhline(1.0, color=FAINT, lw=1.2, ls="--")
    for j, values in enumerate(errors.values()):
        spread = np.linspace(-0.15, 0.15, len(values))
        axes.plot(j + spread, values, MARKERS[j], color=COLOURS[j], markersize=5, alpha=0.8)
        axes.hlines(values.mean(), j - 0.3, j + 0.3, color=INK, lw=1.6)
    axes.set_xticks(range(len(errors)), list(errors))
    axes.set_ylim(0.0, 1.1 * max(float(values.max()) for values in errors.values()))


def _coverage(axes: Any, trials: Sequence[Trials]) -> None:
    dress(axes, "Share of 95% intervals that hold the truth", "share, with 2 Monte Carlo errors")
    axes.axvline(0.95, color=FAINT, lw=1.2, ls="--")
    for j, t in enumerate(trials):
        _share(axes, j, t.covered(t.error), len(t.value), 0, "sandwich" if j == 0 else None)
        if np.isfinite(t.information).all():
            _share(
                axes,
                j,
                t.covered(t.information),
                len(t.value),
                1,
                "information" if j == len(trials) - 1 else None,
            )
    axes.set_yticks(range(len(trials)), [t.problem.name for t in trials])
    axes.set_ylim(len(trials) - 0.4, -0.6)
    axes.legend(frameon=False, fontsize=9, loc="upper left")


def _share(axes: Any, line: int, share: float, repeats: int, kind: int, label: str | None) -> None:
    reach = 2.0 * (share * (1.0 - share) / repeats) ** 0.5
    axes.errorbar(
        share,
        line + (0.12 if kind else -0.12),
        xerr=reach,
        fmt=MARKERS[kind],
        color=COLOURS[kind],
        markersize=6,
        capsize=3,
        label=label,
    )
