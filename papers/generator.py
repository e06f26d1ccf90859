"""Independent variables and a generative model: error against latent dimension (003, section 5.4, figure 4)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from boxloop.estimators import DimensionCurve
from boxloop.figures import COLOURS, add_legend, image_grid, new_figure
from boxloop.twoview import Knee
from papers.experiment import Options, Report
from papers.generator_findings import judge
from papers.generator_trials import (
    Digits,
    Sampled,
    Setting,
    curve_of,
    digits,
    features_of,
    namer,
    recognised,
    sampled,
)

MANY = (1, 2, 3, 4, 6, 8, 11, 14, 19, 25, 33, 45, 60, 80, 110)
FULL = Setting(600, 500, (64, 128), 80, (800,) * 5, 500, 40, MANY, 3)
"""For MNIST. The document learns 1200 variables and keeps 1000."""

DIGITS = Setting(60, 50, (16, 32), 150, (200,) * 3, 64, 60, (1, 2, 3, 4, 6, 8, 11, 14, 19, 25, 33, 45), 3)
"""For the small digits, of which there are 1300."""

SMALL = Setting(24, 20, (8, 16), 5, (64,), 65, 8, (1, 2, 3, 5, 8, 12, 20), 2, rows=1500, rate=1e-2)


def experiment(options: Options) -> Report:
    """Learn relevant variables of digits, then generators at every latent dimension."""
    known = options.data is not None and (options.data / "mnist.npz").exists()
    setting = SMALL if options.quick else (FULL if known else DIGITS)
    images = digits(options, setting.rows)
    total = len(setting.dimensions) * (setting.seeds + 1) + 2
    options.progress(0, total, "relevant variables")
    features = features_of(images, setting, options.seed, "network")

    def told(done: int, _: int, what: str) -> None:
        options.progress(1 + done, total, what)

    curve = curve_of(images, features, setting, options.seed, setting.seeds, told)
    first = len(setting.dimensions) * setting.seeds
    linear = features_of(images, setting, options.seed, "linear")
    pixels = curve_of(
        images,
        linear,
        setting,
        options.seed,
        1,
        lambda done, n, what: told(first + done, n, f"pixels, {what}"),
    )
    knee, network = curve.knee(), namer(images, options.seed)
    near = min(curve.dimensions, key=lambda k: abs(np.log(k / knee.at)))
    shown = sorted({*(k for k in setting.shown if k in curve.fits), near})
    draws = 200 if options.quick else 2000
    samples = {k: sampled(curve.fits[k], images, network, options.seed, draws) for k in shown}
    real = recognised(network, images.held.cpu().numpy())
    findings = judge(curve, knee, pixels, samples, real, images.real)
    figures = {"curve": _curve(curve, pixels), "samples": _grid(samples)}
    title = "Independent variables and a generative model"
    return Report(
        "generator",
        title,
        _settings(images, setting, options),
        findings,
        _told(curve, pixels, knee, features),
        figures,
    )


def _settings(images: Digits, setting: Setting, options: Options) -> dict[str, Any]:
    return {
        "images": images.name,
        "images fitted": len(images.train),
        "variables learned": setting.learned,
        "variables kept": setting.kept,
        "hidden layers": list(setting.hidden),
        "passes": setting.passes,
        "seeds": setting.seeds,
        "seed": options.seed,
    }


def _told(curve: DimensionCurve, pixels: DimensionCurve, knee: Knee, features: Any) -> dict[str, Any]:
    numbers = {name: value for name, value in asdict(knee).items() if name not in ("x", "y", "fitted")}
    return {
        "dimensions": list(curve.dimensions),
        "errors": curve.errors.tolist(),
        "errors of pixels": pixels.errors.tolist(),
        "change of slope": numbers,
        "relevance": features.relevance_.tolist(),
    }


def _curve(curve: DimensionCurve, pixels: DimensionCurve) -> Figure:
    figure = new_figure(7.2, 4.8)
    axis = figure.subplots()
    curve.plot(axis)
    bottom, top = axis.get_ylim()
    mean = pixels.errors.mean(1)
    axis.plot(
        pixels.dimensions, mean, "x", color=COLOURS[3], markersize=5, label="linear functions of pixels"
    )
    axis.set_ylim(min(bottom, 0.93 * mean.min()), max(top, 1.07 * mean.max()))
    told = "" if curve.knee().found else ": no change of slope"
    axis.set_title(f"Error of images made from their code{told}", loc="left")
    add_legend(axis)
    return figure


def _grid(samples: dict[int, Sampled]) -> Figure:
    figure = new_figure(4.2 * len(samples), 4.4)
    axes: Any = figure.subplots(1, len(samples), squeeze=False)[0]
    for axis, (k, one) in zip(axes, samples.items(), strict=True):
        image_grid(1.0 - one.images, axis, columns=8, limits=(0.0, 1.0), title=f"latent dimension {k}")
    return figure
