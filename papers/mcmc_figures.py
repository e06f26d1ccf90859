"""Scales and effective draws against columns, and efficiency against acceptance: one picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, ScalarFormatter

from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from papers.mcmc_theory import EXPONENTS, GOALS, POWERS, limit_best, limit_curve, scale_for
from papers.mcmc_trials import Array, Measured

LOOK = {name: (COLOURS[j], MARKERS[j]) for j, name in enumerate(POWERS)}
LIMITS = {"random walk": 2.38, "MALA": 1.65}
WORDS = {-1.0 / 2.0: "-1/2", -1.0 / 6.0: "-1/6", -1.0 / 4.0: "-1/4"}


def draw(
    scales: Mapping[str, Mapping[int, Array]],
    runs: list[Measured],
    sweep: Mapping[tuple[str, str], list[Measured]],
    tops: Mapping[tuple[str, str], tuple[float, float, float, float]],
    d: int,
) -> Figure:
    """Five panels.

    Args:
        scales: tuned ones, by algorithm and columns.
        runs: at tuned scales.
        sweep: runs along scales, by algorithm and rule.
        tops: acceptance at the maximum and its error, efficiency there and its error.
        d: columns of the sweep.
    """
    figure = new_figure(12.4, 8.6)
    grid: Any = figure.add_gridspec(2, 6, height_ratios=(1.1, 1.0))
    _scales(figure.add_subplot(grid[0, :3]), scales)
    _worths(figure.add_subplot(grid[0, 3:]), runs)
    for j, name in enumerate(POWERS):
        axes = figure.add_subplot(grid[1, 2 * j : 2 * j + 2])
        _sweep(axes, name, {rule: sweep[name, rule] for rule in ("metropolis", "barker")}, tops, d)
        if j == 0:
            axes.set_ylabel("efficiency over the best of Metropolis", color=INK)
    return figure


def _plain(axes: Any, ticks: list[int]) -> None:
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_formatter(NullFormatter())


def _scales(axes: Any, scales: Mapping[str, Mapping[int, Array]]) -> None:
    dress(axes, "Scales tuned to 0.234, 0.574 and 0.651", "columns d", "scale h")
    axes.set(xscale="log", yscale="log")
    columns = sorted(next(iter(scales.values())))
    dense = np.geomspace(columns[0], columns[-1], 60)
    for name, by in scales.items():
        colour, marker = LOOK[name]
        middle = [float(np.exp(np.log(found).mean())) for found in by.values()]
        axes.plot(list(by), middle, marker, color=colour, markersize=6.5, label=f"{name}, tuned in warm-up")
        axes.plot(dense, [scale_for(name, GOALS[name], d) for d in dense], "-", color=colour, lw=1.4)
        power = EXPONENTS[name]
        last = LIMITS.get(name, middle[-1] * columns[-1] ** -power)
        axes.plot(dense, last * dense**power, ":", color=colour, lw=1.6)
        axes.annotate(
            f"$d^{{{WORDS[power]}}}$",
            (dense[-1], last * dense[-1] ** power),
            xytext=(7, -3 if name != "HMC" else -9),
            textcoords="offset points",
            color=colour,
            fontsize=11,
        )
    axes.plot([], [], "-", color=FAINT, lw=1.4, label="closed form for d columns")
    axes.plot([], [], ":", color=FAINT, lw=1.6, label="law of many columns")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks([0.2, 0.5, 1.0, 2.0], ["0.2", "0.5", "1", "2"])
    axes.set_xlim(right=1.5 * columns[-1])
    _plain(axes, columns)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _worths(axes: Any, runs: list[Measured]) -> None:
    dress(axes, "What an evaluation is worth", "columns d", "effective draws, column mean")
    axes.set(xscale="log", yscale="log")
    columns = sorted({run.d for run in runs})
    for name in POWERS:
        colour, marker = LOOK[name]
        mine = [run for run in runs if run.name == name]
        worth = [run.worth / run.cost for run in mine]
        label = f"{name}, a {'gradient' if name == 'HMC' else 'draw'}"
        axes.errorbar(
            [run.d for run in mine],
            worth,
            yerr=[2.0 * run.error / run.cost for run in mine],
            fmt=marker + "-",
            color=colour,
            lw=1.4,
            markersize=6,
            label=label,
        )
    dense = np.asarray([10.0, float(columns[-1])])
    axes.plot(dense, 0.331 / dense, ":", color=LOOK["random walk"][0], lw=1.6)
    axes.annotate(
        "0.331 / d",
        (dense[0], 0.331 / dense[0]),
        xytext=(-50, -14),
        textcoords="offset points",
        color=INK,
        fontsize=9,
    )
    axes.set_xlim(0.8 * columns[0], 1.25 * columns[-1])
    _plain(axes, columns)
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _sweep(
    axes: Any,
    name: str,
    runs: Mapping[str, list[Measured]],
    tops: Mapping[tuple[str, str], tuple[float, float, float, float]],
    d: int,
) -> None:
    dress(axes, f"{name}, d = {d}" + (", by gradients" if name == "HMC" else ""), "acceptance")
    best = tops[name, "metropolis"][2]
    for j, (rule, found) in enumerate(runs.items()):
        colour = (LOOK[name][0], INK)[j]
        axes.errorbar(
            [run.accepted for run in found],
            [run.worth / run.cost / best for run in found],
            yerr=[2.0 * run.error / run.cost / best for run in found],
            fmt=("o", "v")[j],
            color=colour,
            markersize=5,
            elinewidth=1,
            label=rule.capitalize(),
        )
        axes.plot(*limit_curve(name, rule), "-", color=colour, lw=1.3, alpha=0.7)
        goal = limit_best(name, rule)
        axes.axvline(goal, color=colour, lw=1.1, ls="--", alpha=0.7)
        side = ("left", "right")[j]
        axes.text(goal, 1.2, f" {goal:.3f} ", color=colour, fontsize=9, va="top", ha=side)
    axes.set(xlim=(0.0, 1.0), ylim=(0.0, 1.22))
    if name == "random walk":
        axes.plot([], [], "-", color=FAINT, lw=1.3, label="law of many columns")
        axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1.0, 0.9))
