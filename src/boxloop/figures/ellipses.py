"""Rows and the components of a mixture: in two columns as ellipses, or in all pairs of columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from boxloop.figures.style import (
    FAINT,
    INK,
    LABEL,
    PLENTY,
    Array,
    add_legend,
    dress,
    new_figure,
    pick_colour,
    pick_marker,
    prepare_axes,
    short,
)

RADII = ((2.0, 0.07), (1.0, 0.13))
"""Standard deviations of the ellipses and how dense their fill is: they hold 86 % and 39 % of a component."""
NUMBERED = 20
"""Most components that carry their number."""

Codes = NDArray[np.int64]


def ellipses(
    rows: Array,
    means: Array,
    covariances: Array,
    names: Sequence[str],
    ax: Axes | None = None,
    *,
    component: Codes | None = None,
    group: Codes | None = None,
    groups: Sequence[str] = (),
    title: str = "",
) -> Axes:
    """Rows coloured by component, with ellipses of one and two standard deviations.

    Args:
        rows: (n, 2); rows with a missing value are left out. More than a few thousand are shown as a density.
        means: of the components, (k, 2).
        covariances: of the components, (k, 2, 2).
        names: of the two columns.
        ax: where to draw; a figure of its own when omitted.
        component: of each row, for its colour; grey when omitted.
        group: of each row, for its shape.
        groups: names of the groups.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = prepare_axes(ax, 6.4, 5.2, title, *names)
    complete = np.isfinite(rows).all(1)
    shown = rows[complete]
    if len(shown) > PLENTY:
        norm = LogNorm(vmin=0.5)
        ax.hexbin(*shown.T, gridsize=60, mincnt=1, cmap="Greys", norm=norm, linewidths=0.0, alpha=0.6)
    else:
        colours = np.full((len(shown), 4), to_rgba(FAINT))
        if component is not None:
            colours = np.array([to_rgba(pick_colour(k)) for k in component[complete]]).reshape(-1, 4)
        codes = np.zeros(len(shown), dtype=np.int64) if group is None else group[complete]
        _scatter_groups(ax, shown, colours, codes, groups)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        for radius, fill in RADII:
            ax.add_patch(make_ellipse(mean, covariance, radius, pick_colour(k), fill))
        if len(means) <= NUMBERED:
            shade = pick_colour(k)
            box = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": shade, "linewidth": 1.1}
            ax.annotate(f"{k}", mean, color=shade, ha="center", va="center", fontsize=9, bbox=box)
    ax.autoscale_view()
    if groups:
        add_legend(ax)
    return ax


def _scatter_groups(ax: Axes, rows: Array, colours: Array, codes: Codes, groups: Sequence[str]) -> None:
    size, alpha = (12, 0.6) if len(rows) > 1000 else (28, 0.85)
    for g in range(max(len(groups), 1)):
        across, up = rows[codes == g].T
        shades = colours[codes == g]
        points = ax.scatter(across, up, size, shades, marker=pick_marker(g), alpha=alpha)
        points.set(edgecolors="white", linewidths=0.5)
    for g, name in enumerate(groups):
        ax.scatter([], [], marker=pick_marker(g), c=FAINT, s=34, label=name)


def make_ellipse(mean: Array, covariance: Array, radius: float, shade: str, fill: float) -> Ellipse:
    """The points at so many standard deviations from a mean in two columns."""
    size, axes = np.linalg.eigh(covariance)
    width, height = 2.0 * radius * np.sqrt(size.clip(min=0.0))
    angle = float(np.degrees(np.arctan2(axes[1, 0], axes[0, 0])))
    return Ellipse(
        (float(mean[0]), float(mean[1])),
        width,
        height,
        angle=angle,
        facecolor=to_rgba(shade, fill),
        edgecolor=to_rgba(shade, 0.9),
        linewidth=1.2,
    )


def pair_grid(
    rows: Array,
    weights: Array,
    means: Array,
    covariances: Array,
    names: Sequence[str],
    *,
    component: Codes | None = None,
    title: str = "",
) -> NDArray[np.object_]:
    """A figure of its own, with a grid of axes for all pairs of columns.

    Args:
        rows: (n, d); what is missing is left out, pair by pair.
        weights: of the components, (k,).
        means: of the components, (k, d).
        covariances: of the components, (k, d, d).
        names: of the columns.
        component: of each row, for its colour.
        title: of the figure.

    Returns:
        The axes, (d, d), those above the diagonal empty.
    """
    d = len(names)
    figure = new_figure(1.2 + 1.9 * d, 1.0 + 1.8 * d)
    grid = figure.subplots(d, d, squeeze=False, sharex="col")
    for i in range(d):
        _draw_column_density(grid[i, i], rows[:, i], weights, means[:, i], covariances[:, i, i])
        for j in range(i):
            both = [j, i]
            inner = covariances[:, both][:, :, both]
            ellipses(rows[:, both], means[:, both], inner, ("", ""), grid[i, j], component=component)
        for j in range(i + 1, d):
            grid[i, j].set_axis_off()
    for i in range(d):
        grid[-1, i].set_xlabel(short(names[i]), fontsize=LABEL - 1, color=INK, parse_math=False)
        grid[i, 0].set_ylabel(short(names[i]) if i else "", fontsize=LABEL - 1, color=INK, parse_math=False)
        for j in range(i + 1):
            inside = j > 0 or i == 0
            grid[i, j].tick_params(labelsize=7.5, labelleft=not inside, labelbottom=i == d - 1)
    figure.suptitle(title, color=INK, fontsize=12, fontweight="bold", parse_math=False)
    return np.asarray(grid, dtype=object)


def _draw_column_density(ax: Axes, values: Array, weights: Array, means: Array, variances: Array) -> None:
    """A column's histogram with the density of each component and of all."""
    finite = values[np.isfinite(values)]
    dress(ax, "")
    ax.set_yticks([])
    ax.spines["left"].set_visible(False)
    if len(finite):
        bins = int(np.clip(2.0 * len(finite) ** (1 / 3), 5, 60))
        ax.hist(finite, bins=bins, density=bool(np.ptp(finite) > 0.0), color=FAINT, alpha=0.35)
    sd = np.sqrt(variances.clip(min=1e-300))
    low, high = float(np.min(means - 3 * sd)), float(np.max(means + 3 * sd))
    at = np.unique(np.concatenate([np.linspace(low, high, 300), means]))
    scaled = (at - means[:, None]) / sd[:, None]
    density = weights[:, None] * np.exp(-0.5 * scaled**2) / (sd[:, None] * np.sqrt(2.0 * np.pi))
    for k, line in enumerate(density):
        ax.plot(at, line, color=pick_colour(k), linewidth=1.2)
    ax.plot(at, density.sum(0), color=INK, linewidth=1.0, linestyle=(0, (4, 2)))
    ax.set_ylim(bottom=0.0)
