"""Mixing against the noise of log W, its price, the planted bug, and correlation: one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, MARKERS, dress, new_figure
from papers.pseudo_marginal_trials import BEST, Runs, Walked

PLAIN, LINKED, IDEAL, WRONG = COLOURS[0], COLOURS[2], FAINT, COLOURS[1]


def draw(runs: Runs) -> Figure:
    """Four panels."""
    figure = new_figure(12.0, 8.4)
    axes: Any = figure.subplots(2, 2)
    _mixing(axes[0, 0], runs)
    _price(axes[0, 1], runs)
    _bias(axes[1, 0], runs)
    _correlation(axes[1, 1], runs)
    return figure


def _points(
    axes: Any, x: list[float], found: list[Walked], over: list[float], look: str, **more: Any
) -> None:
    axes.errorbar(
        x,
        [run.worth / by for run, by in zip(found, over, strict=True)],
        yerr=[2.0 * run.error / by for run, by in zip(found, over, strict=True)],
        fmt=look,
        lw=1.4,
        markersize=5.5,
        **more,
    )


def _number(axes: Any, runs: Runs, which: dict[int, Walked], colour: str, over: bool) -> None:
    """The number of draws beside some of the points."""
    for n in [k for k in which if k in (1, 2, 4, 8, 16, 32)]:
        at = which[n].worth / (n if over else 1)
        axes.annotate(
            f"N = {n}" if n == min(which) else f"{n}",
            (runs.spread[n], at),
            xytext=(-7, 6) if over else (5, 5),
            ha="right" if over else "left",
            textcoords="offset points",
            fontsize=8.5,
            color=colour,
        )


def _mixing(axes: Any, runs: Runs) -> None:
    dress(axes, "More noise, slower chains", "standard deviation of log W", "effective draws a draw")
    axes.set(yscale="log")
    n = sorted(runs.plain)
    sd = [runs.spread[k] for k in n]
    ones = [1.0] * len(n)
    linked = {k: runs.correlated[k, BEST] for k in n}
    _points(axes, sd, [runs.plain[k] for k in n], ones, "o-", color=PLAIN, label="independent numbers")
    _points(axes, sd, list(linked.values()), ones, "s-", color=LINKED, label=f"correlation {BEST}")
    axes.plot(
        list(runs.ideal), [run.worth for run in runs.ideal.values()], "--", color=IDEAL, label="log-normal W"
    )
    axes.axhline(runs.exact.worth, color=INK, lw=1.0, ls=":", label="exact marginal")
    _number(axes, runs, linked, LINKED, over=False)
    axes.set_xlim(right=1.08 * max(sd))
    axes.legend(frameon=False, fontsize=9, loc="lower left")


def _price(axes: Any, runs: Runs) -> None:
    dress(
        axes,
        "What one importance draw is worth",
        "standard deviation of log W",
        "effective draws a draw, over N",
    )
    n = sorted(runs.plain)
    sd = [runs.spread[k] for k in n]
    cost = [float(k) for k in n]
    linked = {k: runs.correlated[k, BEST] for k in n}
    axes.axvspan(1.0, 1.7, color=INK, alpha=0.06, lw=0)
    _points(axes, sd, [runs.plain[k] for k in n], cost, "o-", color=PLAIN, label="independent numbers")
    _points(axes, sd, list(linked.values()), cost, "s-", color=LINKED, label=f"correlation {BEST}")
    top = max(runs.plain[k].worth / k for k in n)
    ideal = {s: run.worth * s * s for s, run in runs.ideal.items() if s > 0.0}
    best = max(ideal.values())
    axes.plot(
        list(ideal),
        [top * v / best for v in ideal.values()],
        "--",
        color=IDEAL,
        label="log-normal W, cost 1 / variance",
    )
    axes.set_ylim(bottom=0.0)
    axes.text(1.35, axes.get_ylim()[1] * 0.985, "1.0 to 1.7", ha="center", va="top", fontsize=9, color=INK)
    axes.set_xlim(0.0, 1.12 * max(sd))
    _number(axes, runs, linked, LINKED, over=True)
    axes.legend(frameon=False, fontsize=9, loc="center right")


def _bias(axes: Any, runs: Runs) -> None:
    dress(
        axes,
        "The same posterior for every N, unless W is drawn anew",
        "draws a group, N",
        "sd over the exact one",
    )
    axes.set(xscale="log")
    n = sorted(runs.plain)
    for shift, look, colour, label, found in (
        (0.96, MARKERS[0], PLAIN, "W kept with the state", runs.plain),
        (1.0, MARKERS[2], LINKED, f"W kept, correlation {BEST}", {k: runs.correlated[k, BEST] for k in n}),
        (1.04, MARKERS[1], WRONG, "W of the state drawn anew: wrong", runs.refreshed),
    ):
        sd = [found[k].sd for k in n]
        axes.errorbar(
            np.asarray(n) * shift,
            [value for value, _ in sd],
            yerr=[2.0 * error for _, error in sd],
            fmt=look,
            color=colour,
            markersize=6,
            capsize=2.5,
            label=label,
        )
    axes.axhline(1.0, color=INK, lw=1.0, ls=":")
    axes.set_xlim(0.85 * n[0], 1.2 * n[-1])
    axes.set_xticks(n, [str(k) for k in n])
    axes.minorticks_off()
    axes.legend(frameon=False, fontsize=9, loc="upper right")


def _correlation(axes: Any, runs: Runs) -> None:
    dress(axes, "Correlation helps, up to a point", "correlation of the numbers", "effective draws a draw")
    tried = sorted({n for n, rho in runs.correlated if rho != BEST}) or sorted(runs.plain)
    for j, n in enumerate(tried):
        found = {0.0: runs.plain[n]} | {
            rho: run for (k, rho), run in sorted(runs.correlated.items()) if k == n
        }
        _points(
            axes,
            list(found),
            list(found.values()),
            [1.0] * len(found),
            MARKERS[j] + "-",
            color=COLOURS[j],
            label=f"N = {n}, sd {runs.spread[n]:.1f}",
        )
    axes.axhline(runs.exact.worth, color=INK, lw=1.0, ls=":")
    axes.text(0.0, runs.exact.worth, "exact marginal", fontsize=9, va="bottom", color=INK)
    axes.set_ylim(0.0, 1.15 * runs.exact.worth)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(0.0, 0.86), ncols=2)
