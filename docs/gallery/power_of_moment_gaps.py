"""Figures and numbers of the gallery page "What moment gaps can and cannot detect".

python docs/gallery/power_of_moment_gaps.py              # 60 repetitions, some minutes
python docs/gallery/power_of_moment_gaps.py --repeats 1  # a short run, some seconds
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from boxloop import GaussianMixture, mega
from boxloop.criticise import First, Fourier, Power, Second
from boxloop.figures import COLOURS, FAINT, INK

HERE = Path(__file__).parent
TESTS = {"first": First(), "second": Second(), "third": Power(3), "fourth": Power(4), "fourier": Fourier(50)}
COMPONENTS = (1, 2, 3, 4, 6)
CENTRES = np.array([[-2.2, 0.0], [2.2, 0.0], [0.0, 2.6]])


def clusters(rng: np.random.Generator, n: int) -> np.ndarray:
    return CENTRES[rng.integers(3, size=n)] + 0.9 * rng.normal(size=(n, 2))


def rejections(n: int, repeats: int) -> tuple[dict[str, list[float]], list[float]]:
    """How often each test rejects at 5%, by number of components; and the exact second gap on the training rows."""
    found = {name: [] for name in [*TESTS, "together"]}
    own = []
    for k in COMPONENTS:
        chances, gaps = [], []
        for seed in range(repeats):
            rng = np.random.default_rng(seed)
            train, held = clusters(rng, n), clusters(rng, n)
            fit = GaussianMixture(k, random_state=0, tol=1e-8, max_iter=2000).fit(train)
            result = mega(fit, held, functions=list(TESTS.values()), train=train, draws=99, random_state=seed)
            chances.append([*(g.p_value for g in result.gaps), result.p_value])
            gaps.append(mega(fit, train, train=train, draws=0, null="signs")["second"].norm())
        for name, column in zip(found, np.array(chances).T, strict=True):
            found[name].append(float((column <= 0.05).mean()))
        own.append(float(np.max(gaps)))
        print(k, {name: values[-1] for name, values in found.items()}, own[-1], flush=True)
    return found, own


def training_error(repeats: int) -> dict[str, list[float]]:
    """How often a true model is rejected at 5%, with and without the error of its parameters."""
    sizes = (100, 400, 1600)
    found: dict[str, list[float]] = {"included": [], "ignored": []}
    for held in sizes:
        for name in found:
            chances = []
            for seed in range(repeats):
                rng = np.random.default_rng(seed)
                train, test = clusters(rng, 400), clusters(rng, held)
                fit = GaussianMixture(3, random_state=0, tol=1e-8).fit(train)
                given = train if name == "included" else None
                chances.append(
                    mega(
                        fit, test, functions=list(TESTS.values()), train=given, draws=99, random_state=seed
                    ).p_value
                )
            found[name].append(float((np.array(chances) <= 0.05).mean()))
        print(held, {name: values[-1] for name, values in found.items()}, flush=True)
    return found


def draw(by_k: dict[str, list[float]], by_size: dict[str, list[float]]) -> None:
    figure = Figure(figsize=(12.0, 4.2), dpi=160, layout="constrained")
    FigureCanvasAgg(figure)
    rows, tests, error = figure.subplots(1, 3, width_ratios=[1.0, 1.35, 1.0])
    points = clusters(np.random.default_rng(0), 600)
    rows.scatter(*points.T, s=6, color=FAINT)
    rows.set_title("Three clusters, 600 rows", loc="left", fontsize=10.5, color=INK)
    rows.set_aspect("equal")
    places = np.arange(len(COMPONENTS))
    for i, (name, values) in enumerate(by_k.items()):
        style = (
            {"color": INK, "linewidth": 2.4} if name == "together" else {"color": COLOURS[i % len(COLOURS)]}
        )
        tests.plot(places, values, marker="o", label=name, **style)
    tests.axhline(0.05, color=FAINT, linestyle="--", linewidth=1)
    tests.set_xticks(places, [str(k) for k in COMPONENTS])
    tests.set_xlabel("components fitted (the truth is 3)")
    tests.set_title("Share of fits rejected at 5% on held-out rows", loc="left", fontsize=10.5, color=INK)
    tests.legend(frameon=False, fontsize=8.5)
    for i, (name, values) in enumerate(by_size.items()):
        error.plot([100, 400, 1600], values, marker="o", color=COLOURS[i], label=f"training error {name}")
    error.axhline(0.05, color=FAINT, linestyle="--", linewidth=1)
    error.set_xscale("log")
    error.set_xticks([100, 400, 1600], ["100", "400", "1600"])
    error.minorticks_off()
    error.set_xlabel("held-out rows (400 training rows)")
    error.set_title("Share of correct models rejected at 5%", loc="left", fontsize=10.5, color=INK)
    error.legend(frameon=False, fontsize=8.5)
    for axes in (rows, tests, error):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    for axes in (tests, error):
        axes.set_ylim(-0.03, 1.03)
    figure.savefig(HERE / "power_of_moment_gaps.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=60)
    repeats = parser.parse_args().repeats
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        by_k, _ = rejections(600, repeats)
        draw(by_k, training_error(repeats))


if __name__ == "__main__":
    main()
