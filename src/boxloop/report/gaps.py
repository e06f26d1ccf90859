"""The picture of a criticism: which pairs of columns misfit, and which moments most."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.criticise import Gap, Mega
from boxloop.report.figures import COLOURS, DPI, FAINT, INK, png

NAMED = 24
"""Most columns whose names are written on the axes of the heat map."""
WORST = 12


def gap_picture(result: Mega) -> bytes:
    """The z-scores of second moments as a heat map, and the worst moments of all with their errors, as a PNG."""
    pairs = next((g for g in result.gaps if g.gap.dim() == 2), None)
    figure = Figure(figsize=(12.6 if pairs is not None else 7.0, 6.0), dpi=DPI, layout="constrained")
    axes: Any = figure.subplots(
        1,
        2 if pairs is not None else 1,
        squeeze=False,
        width_ratios=[1.0, 1.15] if pairs is not None else None,
    )
    if pairs is not None:
        draw_pairs(figure, axes[0][0], pairs)
    draw_worst(axes[0][-1], result)
    chance = "" if result.p_value is None else f"; all tests together: p = {result.p_value:.3g}"
    figure.suptitle(f"Data minus model on {result.n_rows} rows{chance}", color=INK, fontsize=12)
    return png(figure)


def draw_pairs(figure: Any, axes: Any, gap: Gap) -> None:
    """z-scores of all pairs of columns; blue where the model has too little, orange where too much."""
    names = gap.probe.scene.names
    d = len(names)
    z = np.zeros((d, d))
    i, j = np.triu_indices(d)
    z[i, j] = z[j, i] = gap.z.cpu().numpy()
    limit = max(4.0, float(np.abs(z).max()))
    image = axes.imshow(z, cmap="PuOr", vmin=-limit, vmax=limit)
    figure.colorbar(image, ax=axes, shrink=0.85, label="gap in units of its error")
    axes.set_title("Variances and covariances", color=INK, fontsize=10.5, loc="left")
    if d <= NAMED:
        axes.set_xticks(range(d), [short(name, 12) for name in names], rotation=90, fontsize=8)
        axes.set_yticks(range(d), [short(name) for name in names], fontsize=8)
    else:
        axes.set_xlabel("column")
        axes.set_ylabel("column")


def draw_worst(axes: Any, result: Mega) -> None:
    """The moments that misfit most, in units of their errors; those within 2 are grey."""
    table = result.table()[:WORST][::-1]
    z = np.asarray(table["z"], dtype=float)
    labels = [
        f"{f}: {' x '.join(map(short, e.split(' x ')))}"
        for f, e in zip(table["function"], table["entry"], strict=True)
    ]
    colours = [COLOURS[1] if found <= 0.05 else FAINT for found in table["discovery"]]
    places = np.arange(len(z))
    axes.hlines(places, 0, z, color=colours, linewidth=1.6)
    axes.scatter(z, places, c=colours, s=34, zorder=3)
    axes.axvspan(-2, 2, color=FAINT, alpha=0.12, linewidth=0)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_xlabel("gap in units of its error")
    axes.set_title("Worst moments (orange: 5% false discovery)", color=INK, fontsize=10.5, loc="left")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def short(name: str, most: int = 18) -> str:
    """A name that leaves room for the picture.

    Example:
        >>> short("od280/od315_of_diluted_wines")
        'od280/od315_of_di\u2026'
    """
    return name if len(name) <= most else name[: most - 1] + "\u2026"
