"""Posteriors over the weights of a convolutional classifier, on images that it knows and images that it does not."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from boxloop.estimators import pick_device
from papers.experiment import Options, Report
from papers.network_images_data import Scene, digits, mnist, photographs
from papers.network_images_figures import reliabilities, unknown
from papers.network_images_findings import judge_known
from papers.network_images_measures import mean_of, over_groups
from papers.network_images_training import Setting
from papers.network_images_trials import KINDS, Said, Sayings, Trial, tried
from papers.network_images_unknown import areas, judge_unknown

DIGITS = Trial(4, 3, 20, Setting((8, -16), 32, 25, 300, 200, 2, prior_precision=0.1, gathered=100))
MNIST = Trial(3, 3, 20, Setting((-32, -64, -64), 64, 200, 600, 600, 6, gathered=500))
CIFAR = Trial(3, 3, 20, Setting((32, -32, -64, -128), 64, 128, 1000, 1000, 10, gathered=500))
SLOW = Trial(2, 3, 10, Setting((-8, -16, -16), 32, 100, 300, 300, 6, gathered=400))
"""MNIST where there is no GPU."""
SMALL = Trial(2, 2, 6, Setting((-4, -8), 16, 50, 80, 60, 3, rank=5, gathered=100), (0.0, 1.0, 8.0))


def experiment(options: Options) -> Report:
    """Train classifiers with BatchNorm, and judge what eleven methods make of their trajectories."""
    device = pick_device("auto" if options.data is not None else "cpu")
    plan = _plan(options, device)
    total = sum(trial.groups * (trial.runs + 1) for _, trial in plan)
    done = 0

    def told(what: str) -> None:
        nonlocal done
        done += 1
        options.progress(done, total, what)

    found: dict[str, Sayings] = {}
    for scene, trial in plan:
        found[scene.name] = tried(scene.to(device), trial, options.seed, told)
    labels = {scene.name: scene.y["test"].numpy() for scene, _ in plan}
    findings = []
    for name, said in found.items():
        findings += [*judge_known(name, said, labels[name]), *judge_unknown(name, said)]
    return Report(
        "network-images",
        "Posteriors over the weights of a convolutional classifier, with images of no class",
        _settings(options, plan, device),
        findings,
        {
            name: {method: _facts(said, method, labels[name]) for method in said}
            for name, said in found.items()
        },
        {"reliability": reliabilities(found, labels), "unknown": unknown(found)},
    )


def _plan(options: Options, device: torch.device) -> list[tuple[Scene, Trial]]:
    """Which images, and how much of them: digits without data; MNIST and, on a GPU, CIFAR-10 with them."""
    folder, seed = options.data, options.seed
    if folder is None:
        return [(digits(seed), SMALL if options.quick else DIGITS)]
    _check(folder)
    if options.quick:
        return [(mnist(folder, 2000, 500, 300, 300, seed), SMALL)]
    if device.type == "cpu":
        return [(mnist(folder, 5000, 1000, 1000, 1000, seed), SLOW)]
    return [
        (mnist(folder, 57_000, 3000, 5000, 2000, seed), MNIST),
        (photographs(folder, 1000, 2000, seed), CIFAR),
    ]


def _check(folder: Path) -> None:
    for name in ("mnist.npz", "cifar10_subset.npz"):
        if not (folder / name).exists():
            raise FileNotFoundError(f"{folder} has no {name}")


def _facts(said: Sayings, method: str, y: Any) -> dict[str, Any]:
    """Numbers of one method, each with its standard error."""
    own: Said = said[method]
    facts = {
        "accuracy": mean_of(own.right),
        "log score": mean_of(own.score),
        "log score at scale 1": mean_of(own.plain),
        "calibration error": over_groups(own.calibration(y, tuned=True)),
        "calibration error at scale 1": over_groups(own.calibration(y, tuned=False)),
    }
    for kind in KINDS:
        facts |= {f"{kind}, {what}": one for what, one in areas(said, method, kind).items()}
    numbers = {name: [one.value, one.error] for name, one in facts.items()}
    return {**numbers, "scale": np.asarray(own.scale).tolist(), "temperature": own.temperature.tolist()}


def _settings(options: Options, plan: list[tuple[Scene, Trial]], device: torch.device) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for scene, trial in plan:
        setting = {key.replace("_", " "): value for key, value in asdict(trial.setting).items()}
        found[scene.name] = {
            "images": {part: len(x) for part, x in scene.x.items()},
            "groups": trial.groups,
            "runs of a group": trial.runs,
            "draws": trial.draws,
            **setting,
            "weight decay": "alpha / N",
        }
    kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return {**found, "device": kind, "seed": options.seed}
