"""The picture of the energy models: fitted densities, divergence against rows, and z-scores of log Z."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from scipy.stats import norm

from boxloop.estimators import EnergyBasedModel
from boxloop.figures import COLOURS, FAINT, INK, add_legend, dress, new_figure
from papers.energy_trials import Truth, log_integral


def picture(
    line: Truth,
    plane: Truth,
    fits: Mapping[str, EnergyBasedModel],
    short: EnergyBasedModel,
    kl: Mapping[str, Mapping[str, Mapping[str, list[float]]]],
    checks: Mapping[str, Mapping[str, list[float]]],
) -> Figure:
    """Four panels.

    Args:
        line: the target with one column.
        plane: the target with two.
        fits: fitted with persistent chains, by target.
        short: fitted to the first with chains that start anew.
        kl: divergences by target, method and rows.
        checks: z-scores of log Z by target.
    """
    figure = new_figure(11.0, 8.0)
    axes: Any = figure.subplots(2, 2)
    _densities(axes[0, 0], line, fits[line.name], short)
    _plane(figure, axes[0, 1], plane, fits[plane.name])
    _divergence(axes[1, 0], kl)
    _scores(axes[1, 1], checks)
    return figure


def _densities(axis: Any, truth: Truth, fit: EnergyBasedModel, short: EnergyBasedModel) -> None:
    x = torch.linspace(-4.5, 5.0, 600, dtype=torch.float64)[:, None]
    axis.plot(x, truth.log_prob(x).exp(), color=INK, lw=2.2, label="truth")
    lines = (("persistent chains", fit, COLOURS[0], "-"), ("chains that start anew", short, COLOURS[1], "--"))
    for name, estimator, colour, style in lines:
        level = log_integral(lambda rows, e=estimator: -e.model_.energy(rows), truth)  # type: ignore[misc]
        axis.plot(
            x, (-estimator.model_.energy(x) - level).exp(), color=colour, linestyle=style, lw=1.6, label=name
        )
    dress(axis, "Two hills: the fitted density", "x", "density")
    axis.set_ylim(0.0, 0.8)  # the narrow density goes on above
    add_legend(axis, "upper right")


def _plane(figure: Figure, axis: Any, truth: Truth, fit: EnergyBasedModel) -> None:
    side = np.linspace(-3.4, 3.4, 160)
    points = torch.from_numpy(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2))
    level = log_integral(lambda rows: -fit.model_.energy(rows), truth)
    density = (-fit.model_.energy(points) - level).exp().reshape(160, 160)
    mesh = axis.pcolormesh(side, side, density, cmap="viridis", shading="auto", rasterized=True)
    for radius in (1.5, 2.5):
        axis.add_patch(_circle(radius))
    figure.colorbar(mesh, ax=axis, label="density")
    dress(axis, "Ring: the fit (dashed: truth ± 2 sd)", "x0", "x1")
    axis.grid(visible=False)
    axis.set_aspect("equal")


def _circle(radius: float) -> Any:
    from matplotlib.patches import Circle

    return Circle((0.0, 0.0), radius, fill=False, color="white", linestyle="--", linewidth=1.0)


def _divergence(axis: Any, kl: Mapping[str, Mapping[str, Mapping[str, list[float]]]]) -> None:
    for j, (target, panel) in enumerate(kl.items()):
        for method, style in (("energy", "-"), ("Gaussian mixture", "--")):
            rows = [int(n) for n in panel[method]]
            values = [np.asarray(v) for v in panel[method].values()]
            error = [v.std() / max(len(v) - 1, 1) ** 0.5 for v in values]
            axis.errorbar(
                rows,
                [v.mean() for v in values],
                yerr=error,
                color=COLOURS[j],
                linestyle=style,
                marker="o",
                markersize=4,
                label=f"{target}, {method}",
            )
    axis.set(xscale="log", yscale="log")
    dress(axis, "Divergence against rows", "rows", "KL(truth, fitted)")
    axis.set_xticks(rows, [str(n) for n in rows])
    axis.minorticks_off()
    low, high = axis.get_ylim()
    axis.set_ylim(low, 12.0 * high)  # room for the legend above the lines
    add_legend(axis, "upper right")


def _scores(axis: Any, checks: Mapping[str, Mapping[str, list[float]]]) -> None:
    x = np.linspace(-4.0, 4.0, 200)
    for colour, (name, check) in zip(COLOURS, checks.items()):
        bins = np.linspace(-4.0, 4.0, 25)
        axis.hist(np.clip(check["z"], -4, 4), bins, density=True, color=colour, alpha=0.45, label=name)
    axis.plot(x, norm.pdf(x), color=FAINT, lw=2, label="N(0, 1)")
    dress(axis, "log Z by annealing against quadrature", "(estimate - exact) / reported error", "density")
    add_legend(axis, "upper right")
