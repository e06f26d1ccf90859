"""Figures of a study."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from boxloop.figures import curves, ellipses, loadings, new_axes, new_figure, png
from boxloop.report.numbers import number
from boxloop.report.study import Study

Draw = Callable[[Axes, Study], Axes]


def picture(study: Study) -> bytes:
    """All three figures of a study as one PNG."""
    figure = new_figure(11.0, 9.2)
    halves: Any = figure.subfigures(2, 1, height_ratios=[1.0, 0.95], hspace=0.04)
    top, bottom = halves
    left, right = top.subplots(1, 2, width_ratios=[1.15, 1.0])
    draw_groups(left, study)
    draw_held_out(right, study)
    draw_loadings(bottom.subplots(), study)
    return png(figure)


def panel(study: Study, draw: Draw, height: float = 4.6) -> bytes:
    """One figure of a study as a PNG."""
    return png(draw(new_axes(6.6, height), study))


def draw_groups(axes: Axes, study: Study) -> Axes:
    """Two columns of the rows: colour is the component, shape the class, ellipses hold 39 % and 86 %."""
    places = [study.columns.index(name) for name in study.pair]
    classes = study.data.classes
    return ellipses(
        study.rows[:, places],
        study.mixture.means_[:, places],
        study.mixture.covariances_[:, places][:, :, places],
        study.pair,
        axes,
        component=study.component,
        group=study.data.target.astype(np.int64) if classes else None,
        groups=classes,
        title="Components (colours) and classes (shapes)",
    )


def draw_held_out(axes: Axes, study: Study) -> Axes:
    """Held-out log-likelihood of each size, as its distance from the best."""
    held = study.held
    gaps = np.array([held.gap(place) for place in range(len(held.sizes))])
    size, best = held.sizes[held.best], number(float(held.mean[held.best]))
    return curves(
        {"": (held.sizes, 0.0 - gaps[:, 0], gaps[:, 1])},
        axes,
        best=(size, 0.0),
        told=f"best: {size} ({best} a row)",
        title="Rows held out choose the number",
        across="components",
        up="log-likelihood a row, less the best's",
    )


def draw_loadings(axes: Axes, study: Study) -> Axes:
    """Loadings of every column on every factor, with bars of two standard errors."""
    return loadings(
        study.loadings,
        study.data.names,
        study.errors,
        axes,
        title="Which columns load on which factor",
        across="correlation with the factor (± 2 s.e.)",
    )
