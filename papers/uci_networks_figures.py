"""Methods against SGD, table by table; and how often their intervals hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from boxloop.figures import COLOURS, FAINT, INK, dress, name_rows, new_figure
from papers.uci_networks_compare import split_error
from papers.uci_networks_trials import ALONE, SGD, SPREAD, Facts

Results = Mapping[str, Facts]

FAR = 3.0
"""Times the widest tuned difference, where the axis ends."""


def against_sgd(results: Results, measure: str, title: str) -> Figure:
    """Differences from SGD, paired by split, with one standard error; lower is better.

    Args:
        results: facts by table.
        measure: ``"nll"``, whose differences are drawn, or ``"rmse"``, whose ratios are.
        title: of the axes across.
    """
    columns = min(4, len(results))
    lines = -(-len(results) // columns)
    names = [method for method in next(iter(results.values())) if method != SGD]
    figure = new_figure(2.9 * columns + 1.6, 0.27 * len(names) * lines + 1.2 * lines + 0.4)
    axes: Any = figure.subplots(lines, columns, squeeze=False, sharey=True)
    for axis, (table, facts) in zip(axes.flat, results.items()):
        dress(axis, table, title)
        tuned = [_difference(facts, method, measure) for method in names]
        plain = [_difference(facts, method, measure, ALONE) for method in names]
        _dots(axis, tuned, -0.13, COLOURS[0], "scale tuned on other rows")
        spread = [place for place, method in enumerate(names) if method in SPREAD]
        ends = FAR * max(abs(mean) + error for mean, error in tuned)
        _dots(axis, plain, 0.17, COLOURS[1], "scale 1", spread, ends)
        axis.axvline(0.0, color=INK, linewidth=0.8)
        _around(axis, tuned, [plain[place] for place in spread], ends)
        axis.xaxis.set_major_locator(MaxNLocator(4))
        if measure == "rmse":
            axis.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100.0 * share:+g}%"))
    for axis in axes.flat:
        name_rows(axis, names)
        axis.tick_params(labelleft=axis in axes[:, 0])
    for axis in axes.flat[len(results) :]:
        axis.set_visible(False)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def coverage(results: Results) -> Figure:
    """Share of test rows in 95% intervals, a dot a table."""
    names = list(next(iter(results.values())))
    figure = new_figure(7.4, 0.42 * len(names) + 1.4)
    axis = figure.subplots()
    dress(axis, "", "share of test rows in 95% intervals")
    for end, lift, colour, word in (
        ("", -0.13, COLOURS[0], "scale tuned on other rows"),
        (ALONE, 0.17, COLOURS[1], "scale 1"),
    ):
        for place, method in enumerate(names):
            if end and method not in SPREAD:
                continue
            shares = [np.mean(facts[method]["inside" + end]) for facts in results.values()]
            label = word if place == (0 if not end else names.index(SPREAD[0])) else None
            axis.plot(
                shares,
                [place + lift] * len(shares),
                "o",
                color=colour,
                markersize=4.5,
                alpha=0.8,
                label=label,
            )
    axis.axvline(0.95, color=INK, linewidth=0.8)
    name_rows(axis, names)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return figure


def _difference(facts: Facts, method: str, measure: str, end: str = "") -> tuple[float, float]:
    one, base = np.asarray(facts[method][measure + end]), np.asarray(facts[SGD][measure])
    values = one / base - 1.0 if measure == "rmse" else one - base
    return float(values.mean()), split_error(values)


def _dots(
    axis: Any,
    found: list[tuple[float, float]],
    lift: float,
    colour: str,
    label: str,
    places: list[int] | None = None,
    ends: float = np.inf,
) -> None:
    """Means with errors; an arrow where one lies beyond the axis."""
    shown = range(len(found)) if places is None else places
    inside = [place for place in shown if abs(found[place][0]) <= ends]
    axis.errorbar(
        [found[place][0] for place in inside],
        [place + lift for place in inside],
        xerr=[found[place][1] for place in inside],
        fmt="o",
        color=colour,
        markersize=4.0,
        linewidth=1.2,
        label=label,
    )
    for place in shown:
        mean = found[place][0]
        if abs(mean) > ends:
            mark, side = (">", "right") if mean > 0.0 else ("<", "left")
            edge = np.sign(mean) * ends
            axis.plot([edge], [place + lift], mark, color=colour, markersize=5)
            axis.text(
                edge,
                place + lift,
                f"{mean:+.2g}  ",
                ha=side,
                va="center",
                fontsize=7.5,
                color=FAINT,
                clip_on=True,
            )


def _around(
    axis: Any, tuned: list[tuple[float, float]], plain: list[tuple[float, float]], ends: float
) -> None:
    """Room for all that is drawn, zero among it."""
    low = min([0.0, *(m - e for m, e in tuned), *(max(m - e, -ends) for m, e in plain)])
    high = max([0.0, *(m + e for m, e in tuned), *(min(m + e, ends) for m, e in plain)])
    pad = 0.06 * (high - low)
    axis.set_xlim(low - pad, high + pad)
