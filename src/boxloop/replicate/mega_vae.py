"""Moment gaps as a regulariser of autoencoders (000, sections 7 and 8.3, table 4, figures 10 and 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from boxloop.replicate.experiment import Options, Report
from boxloop.replicate.vae_data import Problem, cells, clusters, fours
from boxloop.replicate.vae_figures import pictures, trade
from boxloop.replicate.vae_findings import judge
from boxloop.replicate.vae_trials import NODES, Setting, drawn, fit, floor, judged, penalty_seconds

STRONG = (0.0, 1.0, 10.0, 100.0)
"""Weights of the penalty on images. The document does not say its own."""

WEAK = (0.0, 0.1, 1.0)
"""Weights on the three data sets, beside the one that validation chooses."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        seeds: of every fit.
        draws: rows drawn from a model to judge it by.
        images: how the images are fitted.
        others: how the three data sets are.
        rows: of the plane.
        evaluations: of the penalty that are timed.
    """

    seeds: int
    draws: int
    images: Setting
    others: Setting
    rows: int
    evaluations: int


FULL = Size(
    5, 2000, Setting(16, 256, 25, 20, NODES), Setting(8, 128, 100, 16, 1024, 2e-3, 0.2, True, 0.5), 2000, 500
)
SMALL = Size(2, 500, Setting(8, 64, 12, 20, 256), Setting(2, 32, 12, 6, 64, 5e-3, 0.2, True, 0.5), 300, 10)


def experiment(options: Options) -> Report:
    """Fit the images at every weight, then the three data sets, with several seeds each."""
    size = SMALL if options.quick else FULL
    images, real = fours(options.data, options.seed)
    others = [clusters(size.rows, options.seed + 50), cells(options.seed), images]
    total = size.seeds * (len(STRONG) + len(others) * (len(WEAK) + 1)) + 1
    tell = _Count(options, total)
    kept: dict[float, Any] = {}
    strong: dict[float, list[dict[str, float]]] = {alpha: [] for alpha in STRONG}
    for seed in _seeds(options, size):
        for alpha in STRONG:
            tell(f"{images.name}, alpha = {alpha:g}")
            network = fit(images, alpha, seed, size.images)
            strong[alpha].append(judged(network, images, options.seed, size.draws))
            kept.setdefault(alpha, network)
    table = {problem.name: _tried(problem, options, size, tell) for problem in others}
    tell("the time of the penalty")
    seconds = penalty_seconds(
        kept[STRONG[0]], images.train, size.evaluations, len(images.train) // size.images.batches
    )
    floors = {problem.name: floor(problem, size.draws, options.seed) for problem in others}
    curves: dict[str, Any] = {
        "images": {f"{alpha:g}": found for alpha, found in strong.items()},
        "three data sets": table,
        "two samples of rows": floors,
        "penalty": {"evaluations": size.evaluations, "seconds": seconds[0], "device": seconds[1]},
    }
    assert images.side is not None
    shown = {alpha: drawn(kept[alpha], 64, options.seed) for alpha in (STRONG[0], STRONG[2])}
    figures = {
        "samples": pictures(shown, images.side),
        "trade": trade(strong, floors[images.name], table),
    }
    title = "Moment gaps as a regulariser of autoencoders"
    findings = judge(strong, table, seconds, size.evaluations, real)
    return Report("mega-vae", title, _settings(options, size, images), findings, curves, figures)


@dataclass
class _Count:
    """Tells how far the work has come."""

    options: Options
    total: int
    done: int = 0

    def __call__(self, what: str) -> None:
        self.options.progress(self.done, self.total, what)
        self.done += 1


def _seeds(options: Options, size: Size) -> range:
    return range(options.seed, options.seed + size.seeds)


def _tried(problem: Problem, options: Options, size: Size, tell: _Count) -> dict[str, list[dict[str, float]]]:
    """Without a penalty, with a little, with much, and with what validation chooses."""
    found: dict[str, list[dict[str, float]]] = {}
    for seed in _seeds(options, size):
        for alpha in (*WEAK, "validation"):
            name = alpha if isinstance(alpha, str) else f"{alpha:g}"
            tell(f"{problem.name}, alpha = {name}")
            network = fit(problem, alpha, seed, size.others)
            facts = {**judged(network, problem, options.seed, size.draws), "alpha": network.alpha_}
            found.setdefault(name, []).append(facts)
    return found


def _settings(options: Options, size: Size, images: Problem) -> dict[str, Any]:
    return {
        "images": images.name,
        "images fitted": len(images.train),
        "columns of z": size.images.codes,
        "channels": list(size.images.channels),
        "passes": size.images.passes,
        "batches in a pass": size.images.batches,
        "m": size.images.nodes,
        "seeds": size.seeds,
        "draws judged": size.draws,
        "seed": options.seed,
    }
