"""Pictures of an audit: how alike vectors of a trajectory are, how wide a law is, what its intervals hold."""

from __future__ import annotations

from collections.abc import Mapping, Set

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from boxloop.figures.dots import dots
from boxloop.figures.probability import coverage
from boxloop.figures.style import FAINT, INK, PLAIN, Array, add_legend, check_axes, dress, new_axes, say
from boxloop.numeric import format_with_error

LEAST = 1e-3
"""Ratios below are drawn here."""


def correlogram(
    correlation: Array, stride: int, effective: float, ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """A mean autocorrelation by lag, until it has died away.

    Args:
        correlation: at lags 0, 1, ..., (l,).
        stride: vectors from one lag to the next.
        effective: independent values in the series, which set what chance allows.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(6.2, 4.0)
    dress(ax, title, "vectors apart", "autocorrelation, mean over weights")
    low = np.flatnonzero(correlation < 0.02)
    shown = correlation[: min(len(correlation), max(12, 3 * int(low[0]) if len(low) else len(correlation)))]
    band = 2.0 / max(effective, 1.0) ** 0.5
    ax.axhspan(-band, band, color=FAINT, alpha=0.15, linewidth=0, label="by chance, ± 2 s.e.")
    ax.axhline(0.0, color=INK, linewidth=0.8)
    lag = stride * np.arange(len(shown))
    ax.plot(lag, shown, color=PLAIN, linewidth=1.6, marker="o" if len(lag) < 40 else None, markersize=3)
    ax.set_ylim(min(-0.25, 1.1 * float(shown.min())), 1.05)
    add_legend(ax, "upper right")
    return ax


def width_ratios(truth: Array, ratio: Array, ax: Axes | None = None, *, title: str = "") -> Axes:
    """How wide a law is in every weight, relative to the exact posterior.

    Args:
        truth: standard deviations of the exact posterior, (p,).
        ratio: of the law's standard deviations to these, (p,); 0 is drawn at the foot.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    ax = check_axes(ax) or new_axes(6.2, 4.0)
    dress(ax, title, "exact standard deviation", "law's, relative to it")
    kept = (truth > 0.0) & np.isfinite(ratio)
    if not kept.any():
        say(ax, "no weights to compare")
        return ax
    ax.axhspan(0.5, 2.0, color=FAINT, alpha=0.15, linewidth=0, label="within a factor of 2")
    ax.axhline(1.0, color=INK, linewidth=0.8)
    ax.plot(truth[kept], np.maximum(ratio[kept], LEAST), "o", color=PLAIN, markersize=4.5, alpha=0.7)
    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    ax.set_xlim(0.5 * float(truth[kept].min()), 2.0 * float(truth[kept].max()))
    low, high = float(np.maximum(ratio[kept], LEAST).min()), float(ratio[kept].max())
    ax.set_ylim(0.6 * min(low, 0.4), 1.6 * max(high, 2.5))
    add_legend(ax, "best")
    return ax


def coverage_of(transforms: Mapping[str, Array], ax: Axes | None = None, *, title: str = "") -> Axes:
    """How often central intervals hold the value, for several predictors of the same rows.

    Args:
        transforms: by name: probability integral transforms, (n, q); outputs are taken together.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    level = np.linspace(0.0, 1.0, 101)
    reach = {name: np.sort(np.abs(2.0 * u - 1.0), axis=None) for name, u in transforms.items()}
    observed = [np.searchsorted(values, level, side="right") / len(values) for values in reach.values()]
    n = min(len(u) for u in transforms.values())
    band = 2.0 * np.sqrt(level * (1.0 - level) / n)
    ax = coverage(level, np.stack(observed, axis=1), list(transforms), band, ax, title=title)
    add_legend(ax, "upper left")
    return ax


def gains(
    scores: Mapping[str, tuple[float, float]],
    falling: Set[str],
    ax: Axes | None = None,
    *,
    title: str = "",
) -> Axes:
    """Differences of scores in units of their standard errors, to the right where the first is better.

    Args:
        scores: by name: the difference and its standard error.
        falling: names of those that are better when smaller.
        ax: where to draw; a figure of its own when omitted.
        title: of the picture.

    Returns:
        The axes.
    """
    z, names = [], []
    for name, (value, error) in scores.items():
        turned = -value if name in falling else value
        z.append(turned / error if error > 0.0 else 0.0)
        names.append(f"{name} {format_with_error(value, error, sign='+')}")
    across = "standard errors, to the right is better"
    return dots(np.asarray(z), names, ax, title=title, across=across)
