"""Figures of a study. Drawn on objects of their own: no display, no state that others share."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import MaxNLocator

from boxloop.report.numbers import number
from boxloop.report.study import Array, Study

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette: told apart by readers with any kind of colour vision."""
MARKERS = ("o", "^", "s", "D", "v", "P")
INK, FAINT = "#222222", "#8a8a8a"
LABEL = 10.5
DPI = 160

Draw = Callable[[Any, Study], None]


def picture(study: Study) -> bytes:
    """All three figures of a study as one PNG."""
    figure = Figure(figsize=(11.0, 9.2), dpi=DPI, layout="constrained")
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.0, 0.95], hspace=0.04)
    top, bottom = halves
    left, right = top.subplots(1, 2, width_ratios=[1.15, 1.0])
    draw_groups(left, study)
    draw_held_out(right, study)
    draw_loadings(bottom.subplots(), study)
    return png(figure)


def panel(study: Study, draw: Draw, height: float = 4.6) -> bytes:
    """One figure of a study as a PNG."""
    figure = Figure(figsize=(6.6, height), dpi=DPI, layout="constrained")
    draw(figure.subplots(), study)
    return png(figure)


def draw_groups(axes: Any, study: Study) -> None:
    """Two columns of the rows: colour is the component, shape the class, ellipses hold 39 % and 86 %."""
    places = [study.columns.index(name) for name in study.pair]
    rows, component, target = study.rows[:, places], study.component, study.data.target.astype(int)
    classes = study.data.classes or ("row",)
    for c, name in enumerate(classes):
        mine = target == c if study.data.classes else np.ones(len(rows), dtype=bool)
        colours = [COLOURS[k % len(COLOURS)] for k in component[mine]]
        style = {"s": 30, "alpha": 0.85, "edgecolor": "white", "linewidth": 0.6}
        axes.scatter(*rows[mine].T, marker=MARKERS[c % len(MARKERS)], c=colours, **style)
        axes.scatter([], [], marker=MARKERS[c % len(MARKERS)], c=FAINT, s=34, label=name)
    for k, mean in enumerate(study.mixture.means_[:, places]):
        colour = COLOURS[k % len(COLOURS)]
        covariance = study.mixture.covariances_[k][np.ix_(places, places)]
        for radius, fill in ((2.0, 0.08), (1.0, 0.14)):
            axes.add_patch(_ellipse(mean, covariance, radius, colour, fill))
        box = {"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": colour, "linewidth": 1.2}
        axes.annotate(str(k), mean, color=colour, ha="center", va="center", fontweight="bold", bbox=box)
    axes.autoscale_view()
    _dress(axes, "Components (colours) and classes (shapes)", *study.pair)
    for text in axes.legend(frameon=False, loc="best", handletextpad=0.2).get_texts():
        text.set_parse_math(False)


def draw_held_out(axes: Any, study: Study) -> None:
    """Held-out log-likelihood of each size, as its distance from the best."""
    held = study.held
    gaps = np.array([held.gap(place) for place in range(len(held.sizes))])
    axes.axhline(0.0, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    line = {"marker": "o", "markersize": 6, "linewidth": 1.6, "capsize": 4, "color": COLOURS[0]}
    axes.errorbar(held.sizes, -gaps[:, 0], yerr=gaps[:, 1], **line)
    axes.plot(
        held.sizes[held.best], 0.0, "o", markersize=13, fillstyle="none", color=COLOURS[1], markeredgewidth=2
    )
    best = number(float(held.mean[held.best]))
    axes.annotate(
        f"best: {held.sizes[held.best]}\n({best} a row)",
        (held.sizes[held.best], 0.0),
        xytext=(0, -44),
        textcoords="offset points",
        ha="center",
        color=COLOURS[1],
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _dress(
        axes,
        "Rows held out choose the number",
        "components",
        "log-likelihood a row, below the best (± 1 s.e.)",
    )


def draw_loadings(axes: Any, study: Study) -> None:
    """Loadings of every column on every factor, with bars of two standard errors."""
    order = np.argsort(study.factors.communalities_)
    names = [study.data.names[j] for j in order]
    k = len(study.loadings)
    axes.axvline(0.0, color=FAINT, linewidth=0.8, zorder=0)
    for f, (load, error) in enumerate(zip(study.loadings, study.errors, strict=True)):
        height = np.arange(len(order)) + 0.16 * ((k - 1) / 2 - f) * 2
        style = {"fmt": MARKERS[f % len(MARKERS)], "markersize": 6, "elinewidth": 1.6, "capsize": 0}
        axes.errorbar(
            load[order],
            height,
            xerr=2.0 * error[order],
            color=COLOURS[f % len(COLOURS)],
            label=f"factor {f}",
            **style,
        )
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.set_ylim(-0.7, len(names) - 0.3)
    _dress(axes, "Which columns load on which factor", "correlation with the factor (± 2 s.e.)", "")
    axes.grid(axis="y", visible=False)
    for line in range(0, len(names), 2):
        axes.axhspan(line - 0.5, line + 0.5, color=INK, alpha=0.035, linewidth=0, zorder=-1)
    axes.legend(frameon=False, loc="lower left")


def _dress(axes: Any, title: str, across: str, up: str) -> None:
    """Title, labels and lines; names of columns are text, never formulas."""
    axes.set_title(title, loc="left", fontsize=12.5, fontweight="bold", color=INK, parse_math=False)
    axes.set_xlabel(across, fontsize=LABEL, color=INK, parse_math=False)
    axes.set_ylabel(up, fontsize=LABEL, color=INK, parse_math=False)
    axes.tick_params(labelsize=LABEL - 1, colors=INK, length=3)
    axes.grid(visible=True, color=INK, alpha=0.08)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(FAINT)


def _ellipse(mean: Array, covariance: Array, radius: float, colour: str, fill: float) -> Ellipse:
    size, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * radius * np.sqrt(size)
    angle = float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    face, edge = (*_rgb(colour), fill), (*_rgb(colour), 0.9)
    return Ellipse(
        (float(mean[0]), float(mean[1])),
        width,
        height,
        angle=angle,
        facecolor=face,
        edgecolor=edge,
        linewidth=1.2,
    )


def _rgb(colour: str) -> tuple[float, float, float]:
    return int(colour[1:3], 16) / 255, int(colour[3:5], 16) / 255, int(colour[5:7], 16) / 255


def png(figure: Figure) -> bytes:
    """A figure as PNG."""
    out = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(out, format="png")
    return out.getvalue()
