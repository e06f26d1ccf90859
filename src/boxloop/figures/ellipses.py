"""Two columns of rows and the components that a mixture sees in them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, to_rgba
from matplotlib.patches import Ellipse
from numpy.typing import NDArray

from boxloop.figures.style import (
    FAINT,
    PLENTY,
    Array,
    add_legend,
    check_axes,
    colour,
    dress,
    marker,
    new_axes,
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
    ax = check_axes(ax) or new_axes(6.4, 5.2)
    whole = np.isfinite(rows).all(1)
    shown = rows[whole]
    if len(shown) > PLENTY:
        draw_density(ax, shown)
    else:
        colours = np.full((len(shown), 4), to_rgba(FAINT))
        if component is not None:
            colours = np.array([to_rgba(colour(k)) for k in component[whole]]).reshape(-1, 4)
        codes = np.zeros(len(shown), dtype=np.int64) if group is None else group[whole]
        _scatter(ax, shown, colours, codes, groups)
    for k, (mean, covariance) in enumerate(zip(means, covariances, strict=True)):
        for radius, fill in RADII:
            ax.add_patch(ellipse(mean, covariance, radius, colour(k), fill))
        if len(means) <= NUMBERED:
            box = {
                "boxstyle": "round,pad=0.2",
                "facecolor": "white",
                "edgecolor": colour(k),
                "linewidth": 1.1,
            }
            ax.annotate(f"{k}", mean, color=colour(k), ha="center", va="center", fontsize=9, bbox=box)
    ax.autoscale_view()
    dress(ax, title, *names)
    if groups:
        add_legend(ax)
    return ax


def draw_density(ax: Axes, rows: Array) -> None:
    """Many rows as grey hexagons, darker where there are more."""
    ax.hexbin(*rows.T, gridsize=60, mincnt=1, cmap="Greys", norm=LogNorm(vmin=0.5), linewidths=0.0, alpha=0.6)


def _scatter(ax: Axes, rows: Array, colours: Array, codes: Codes, groups: Sequence[str]) -> None:
    size, alpha = (12, 0.6) if len(rows) > 1000 else (28, 0.85)
    for g in range(max(len(groups), 1)):
        across, up = rows[codes == g].T
        shades = colours[codes == g]
        ax.scatter(
            across, up, size, shades, marker=marker(g), alpha=alpha, edgecolors="white", linewidths=0.5
        )
    for g, name in enumerate(groups):
        ax.scatter([], [], marker=marker(g), c=FAINT, s=34, label=name)


def ellipse(mean: Array, covariance: Array, radius: float, shade: str, fill: float) -> Ellipse:
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
