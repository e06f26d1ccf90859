"""Labels inferred by canonical correlations against cross-entropy (003, section 5.2, figure 2)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sklearn.utils.parallel import Parallel, delayed

from papers.dcci_data import Images, digits, photographs
from papers.dcci_figures import learning_curves
from papers.dcci_findings import Runs, judge
from papers.dcci_networks import HE_GAIN
from papers.dcci_trials import METHODS, Setting, Task, tried
from papers.experiment import Options, Report

FAST = 1e-2
"""The learning rate at which the lead should be looked at again."""

PLAIN, NORMAL = "CIFAR-10", "CIFAR-10, batch normalisation"


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        seeds: of every training on digits.
        train: digits to train on, where there are so many.
        test: digits to test with.
        others: other numbers of digits of MNIST, for one epoch.
        digits: how networks of digits are trained.
        photographs: how networks of photographs are, None for not at all.
        photograph_seeds: of every training on photographs.
    """

    seeds: int
    train: int
    test: int
    others: tuple[int, ...]
    digits: Setting
    photographs: Setting | None
    photograph_seeds: int


DEEP = (32, 32, -32, 64, 64, -64, 128, 128, 128, -128)
"""Ten convolutions, as in the document's short VGG network."""

FULL = Size(
    10,
    5000,
    5000,
    (2000, 20_000, 60_000),
    Setting((-16, -32, -32), (), 100, 20),
    Setting(
        DEEP, (128, 128), 128, 15, pooled=True, gain=HE_GAIN
    ),  # from a smaller start nothing passes 13 layers
    5,
)
SMALL = Size(3, 2000, 500, (), Setting((-8, -16), (), 100, 4), None, 0)


def experiment(options: Options) -> Report:
    """Train one network by four objectives on digits, at two rates; on photographs with and without normalisation."""
    size = SMALL if options.quick else FULL
    images = digits(options.data, size.train, size.test, options.seed)
    real = images.shape[1] > 8
    name = "MNIST" if real else "digits"
    slow = size.digits
    fast = replace(slow, epochs=1, rate=FAST)
    seeds = range(options.seed, options.seed + size.seeds)
    tasks = [Task(images, method, slow, seed, name) for seed in seeds for method in METHODS]
    tasks += [Task(images, method, fast, seed, "fast") for seed in seeds for method in METHODS]
    sized = replace(slow, epochs=1, gain=HE_GAIN)
    tasks += [Task(images, method, sized, seed, "start") for seed in seeds for method in METHODS]
    once = replace(slow, epochs=1)
    for n in size.others if real else ():
        more = digits(options.data, n, size.test, options.seed)
        tasks += [
            Task(more, method, once, seed, f"{n} images")
            for seed in seeds
            for method in ("DCCI", "cross-entropy")
        ]
    colour = photographs(options.data) if size.photographs is not None else None
    if colour is not None and size.photographs is not None:
        tasks += _photographs(
            colour, size.photographs, range(options.seed, options.seed + size.photograph_seeds)
        )
    runs = _worked(tasks, options)
    curves: dict[str, Any] = {**runs}
    panels = {panel: runs[panel] for panel in (name, PLAIN, NORMAL) if panel in runs}
    figures = {"curves": learning_curves(panels)}
    return Report(
        "dcci",
        "Labels inferred by canonical correlations, against cross-entropy",
        _settings(options, size, images, colour),
        judge(runs, name, PLAIN, NORMAL, real),
        curves,
        figures,
    )


def _photographs(images: Images, setting: Setting, seeds: range) -> list[Task]:
    return [
        Task(images, method, replace(setting, normalised=panel == NORMAL), seed, panel)
        for seed in seeds
        for panel in (PLAIN, NORMAL)
        for method in ("DCCI", "cross-entropy")
    ]


def _worked(tasks: list[Task], options: Options) -> dict[str, dict[str, Runs]]:
    """All trainings by panel and method; in parallel where they are many."""
    done = Parallel(n_jobs=1 if options.quick else -1, return_as="generator")(
        delayed(tried)(task) for task in tasks
    )
    found: dict[str, dict[str, Runs]] = {}
    for number, (task, facts) in enumerate(zip(tasks, done)):
        options.progress(number + 1, len(tasks), f"{task.panel}, {task.method}, seed {task.seed}")
        found.setdefault(task.panel, {}).setdefault(task.method, []).append(facts)
    return found


def _settings(options: Options, size: Size, images: Images, colour: Images | None) -> dict[str, Any]:
    found = {
        "images": images.name,
        "test images": len(images.test),
        "channels": [abs(c) for c in size.digits.channels],
        "rows of a batch": size.digits.batch,
        "batches in an epoch": -(-len(images.train) // size.digits.batch),
        "variance of slopes at the start, times values summed": round(size.digits.gain, 3),
        "epochs": size.digits.epochs,
        "Adam's rate": size.digits.rate,
        "seeds": size.seeds,
        "seed": options.seed,
    }
    if colour is not None and size.photographs is not None:
        found |= {
            "photographs": colour.name,
            "their test images": len(colour.test),
            "their channels": [abs(c) for c in size.photographs.channels],
            "their rows of a batch": size.photographs.batch,
            "variance of their slopes at the start, times values summed": size.photographs.gain,
            "their epochs": size.photographs.epochs,
            "their seeds": size.photograph_seeds,
        }
    return found
