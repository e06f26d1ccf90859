"""Moment gaps as a regulariser of autoencoders (000, sections 7 and 8.3, table 4, figures 10 and 11)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sklearn.utils.parallel import Parallel, delayed

from papers.experiment import Options, Report
from papers.vae_data import Problem, cells, clusters, fours
from papers.vae_figures import pictures, trade
from papers.vae_findings import judge
from papers.vae_trials import NODES, Setting, Task, drawn, fit, floor, penalty_seconds, tried

STRONG = (0.0, 1.0, 10.0, 100.0)
"""Weights of the penalty on images. The document does not say its own."""

SHOWN = 10.0
"""The weight whose samples are drawn."""

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
    5, 2000, Setting(16, 256, 25, 20, NODES), Setting(8, 128, 80, 16, 1024, 2e-3, 0.2, True, 0.5), 2000, 500
)
SMALL = Size(2, 300, Setting(4, 32, 8, 10, 128, 3e-3), Setting(2, 16, 8, 4, 64, 1e-2, 0.2, True, 0.3), 200, 2)


def experiment(options: Options) -> Report:
    """Fit the images at every weight, then the three data sets, with several seeds each."""
    size = SMALL if options.quick else FULL
    images, real = fours(options.data, options.seed)
    others = [clusters(size.rows, options.seed + 50), cells(options.seed), images]
    seeds = range(options.seed, options.seed + size.seeds)
    tasks = [Task(images, alpha, seed, size.images, "images") for seed in seeds for alpha in STRONG]
    tasks += [
        Task(problem, alpha, seed, size.others, problem.name)
        for problem in others
        for seed in seeds
        for alpha in (*WEAK, "validation")
    ]
    trials = _worked(tasks, options, size.draws)
    strong = trials.pop("images")
    last = fit(images, 0.0, options.seed, size.images)
    seconds = penalty_seconds(last, images.train, size.evaluations, len(images.train) // size.images.batches)
    floors = {problem.name: floor(problem, size.draws, options.seed) for problem in others}
    curves: dict[str, Any] = {
        "images": strong,
        "three data sets": trials,
        "two samples of rows": floors,
        "penalty": {"evaluations": size.evaluations, "seconds": seconds[0], "device": seconds[1]},
    }
    assert images.side is not None
    networks = {0.0: last, SHOWN: fit(images, SHOWN, options.seed, size.images)}
    shown = {alpha: drawn(network, 64, options.seed) for alpha, network in networks.items()}
    figures = {
        "samples": pictures(shown, images.side),
        "trade": trade(strong, floors[images.name], trials),
    }
    title = "Moment gaps as a regulariser of autoencoders"
    findings = judge(strong, trials, seconds, size.evaluations, real)
    return Report("mega-vae", title, _settings(options, size, images), findings, curves, figures)


def _worked(tasks: list[Task], options: Options, draws: int) -> dict[str, dict[str, list[dict[str, float]]]]:
    """All fits, judged, by table and weight; in parallel where they are many."""
    done = Parallel(n_jobs=1 if options.quick else -1, return_as="generator")(
        delayed(tried)(task, options.seed, draws) for task in tasks
    )
    found: dict[str, dict[str, list[dict[str, float]]]] = {}
    for number, (task, facts) in enumerate(zip(tasks, done)):
        options.progress(number + 1, len(tasks) + 1, f"{task.problem.name}, alpha = {task.label}")
        found.setdefault(task.table, {}).setdefault(task.label, []).append(facts)
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
