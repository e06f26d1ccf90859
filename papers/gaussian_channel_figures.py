"""Learned variables beside Hermite polynomials, relevances beside powers of gamma, laws inferred by few variables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure, relevance_spectrum
from boxloop.twoview import GaussianChannel
from papers.gaussian_channel_trials import Learned, Size, inferred_density

DEGREES = ("He₁", "He₂", "He₃", "He₄")


def draw_learned(runs: Sequence[Learned], size: Size) -> Figure:
    """Relevances, inferred moments, and four variables."""
    figure = new_figure(13.0, 8.0)
    layout: Any = [["relevance"] * 2 + ["moments"] * 2, [f"u{n}" for n in range(1, 5)]]
    axes: Any = figure.subplot_mosaic(layout)
    first, channel = runs[0], runs[0].channel
    judged = first.judged
    relevance_spectrum(
        judged.relevance,
        judged.relevance_error,
        axes["relevance"],
        training=judged.training**2,
        exact=channel.relevance(len(judged.relevance)).numpy(),
        title=f"Relevances, {size.rows} rows",
        across="canonical variable n (exact: γⁿ)",
    )
    _moments(axes["moments"], first)
    for n in range(4):
        _variable(axes[f"u{n + 1}"], runs, n)
    add_legend(axes["u1"], "upper left")
    return figure


def _moments(axes: Any, run: Learned) -> None:
    dress(axes, "Inferred by the learned variables", "y", "moment of x given y\n(bands: 2 standard errors)")
    spread = float(run.channel.cov_y) ** 0.5
    y = np.linspace(-2.5, 2.5, 61) * spread
    mean, error = run.moments(y)
    given = torch.from_numpy(y)[:, None]
    for k, name in ((1, "E[x | y]"), (2, "E[x² | y]")):
        exact = run.channel.conditional_moment(k, given)[:, 0].numpy()
        axes.plot(y, exact, color=INK, lw=1.2, ls="--", label="exact" if k == 1 else None)
        axes.plot(y, mean[:, k - 1], color=COLOURS[k - 1], lw=1.8, label=name)
        low, high = mean[:, k - 1] - 2 * error[:, k - 1], mean[:, k - 1] + 2 * error[:, k - 1]
        axes.fill_between(y, low, high, color=COLOURS[k - 1], alpha=0.2, linewidth=0)
    add_legend(axes, "upper center")


def _variable(axes: Any, runs: Sequence[Learned], n: int) -> None:
    """All data sets' n-th variable, with the sign of the polynomial; shaded where nine rows in ten are."""
    dress(axes, f"Variable {n + 1} and {DEGREES[n]}", "x, in deviations", "value" if n == 0 else "")
    channel = runs[0].channel
    scale = float(channel.cov_x) ** 0.5
    x = torch.linspace(-3.5, 3.5, 281, dtype=torch.float64) * scale
    known = channel.left(x[:, None], n + 1)[:, n]
    weight = torch.exp(-0.5 * (x / scale).square())
    axes.axvspan(-1.645, 1.645, color=FAINT, alpha=0.12, linewidth=0)
    for j, run in enumerate(runs):
        u = run.variables(x)[:, n]
        u = u * torch.sign((weight * u * known).sum())
        axes.plot(x / scale, u, color=COLOURS[0], lw=1.0, alpha=0.7, label=None if j else "learned")
    axes.plot(x / scale, known, color=INK, lw=1.4, ls="--", label="exact")
    near = known[x.abs() <= 2.7 * scale]
    low, high = float(near.min()), float(near.max())
    axes.set(xlim=(-3.5, 3.5), ylim=(low - 0.15 * (high - low), high + 0.15 * (high - low)))


def draw_densities(channel: GaussianChannel) -> Figure:
    """The law of x given y by 3, 5 and 9 variables with the constant, beside the exact one, at two values of y."""
    figure = new_figure(11.0, 4.4)
    spread, scale = float(channel.cov_y) ** 0.5, float(channel.cov_x) ** 0.5
    x = np.linspace(-4.0, 4.0, 401) * scale
    panels: Any = figure.subplots(1, 2, sharey=True)
    for axes, at in zip(panels, (0.5, 1.5)):
        y = at * spread
        dress(axes, f"x given y = {at:g} deviations", "x", "density" if at == 0.5 else "")
        mean, cover = channel.conditional(torch.tensor([[y]], dtype=torch.float64))
        exact = np.exp(-0.5 * (x - float(mean)) ** 2 / float(cover)) / math.sqrt(2 * math.pi * float(cover))
        axes.axhline(0.0, color=FAINT, lw=0.8)
        for j, count in enumerate((3, 5, 9)):
            axes.plot(
                x, inferred_density(channel, x, y, count), color=COLOURS[j], lw=1.6, label=f"k0 = {count}"
            )
        axes.plot(x, exact, color=INK, lw=1.4, ls="--", label="exact")
    add_legend(panels[0], "upper left")
    return figure
