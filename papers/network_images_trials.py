"""Every method on every group of runs: what it says of test images, and of images that belong to no class."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boxloop.criticise import reliability
from boxloop.weights import NET, Posterior, Predictor, WeightWarning
from papers.network_images_data import Scene
from papers.network_images_training import Setting, gathering, trained
from papers.uci_networks_training import Run
from papers.uci_networks_trials import METHODS, SPREAD, SWA, SWAG

Array = NDArray[np.float64]
Progress = Callable[[str], None]

SCALES = (0.0, *(4.0**power for power in range(-3, 4)))
ENTROPY, INFORMATION = KINDS = ("entropy", "mutual information")


@dataclass(frozen=True)
class Trial:
    """How much is tried.

    Args:
        groups: of runs, each judged by itself.
        runs: trainings in a group; methods of one run take its first.
        draws: networks of a posterior that has spread.
        setting: how networks are trained.
        scales: of covariances, that are tried.
    """

    groups: int
    runs: int
    draws: int
    setting: Setting
    scales: tuple[float, ...] = SCALES


@dataclass(frozen=True)
class Said:
    """What one method says, a line for each group.

    Args:
        score: log-probability of the class of every test image, (g, n), tuned.
        plain: the same as it is, at scale 1 and temperature 1.
        right: whether the likeliest class is the image's, (g, n).
        chance: probabilities of classes (g, n, c), tuned.
        bare: the same as it is.
        doubt: by kind of uncertainty and of images, ``"test"`` or unknown, (g, n): entropy as tuned; mutual information
            as it is, since at a scale of 0, where tuning may end, there is none.
        scale: of the covariance, that other images prefer, (g,).
        temperature: likewise.
        stale: log-probabilities as ``plain``, with statistics of BatchNorm of the last iterate, where that was asked.
    """

    score: Array
    plain: Array
    right: Array
    chance: Array
    bare: Array
    doubt: dict[str, dict[str, Array]]
    scale: Array
    temperature: Array
    stale: Array | None

    def calibration(self, y: NDArray[np.int64], *, tuned: bool) -> Array:
        """Expected calibration error of each group."""
        which = self.chance if tuned else self.bare
        return np.array([reliability(p, y, repeats=2).calibration_error for p in which])


Sayings = dict[str, Said]
"""By method."""


def tried(scene: Scene, trial: Trial, seed: int, progress: Progress) -> Sayings:
    """All groups, and all methods on each.

    Args:
        scene: on the device where networks are to be trained.
        trial: sizes.
        seed: of the first run; the others follow.
        progress: told what was done.
    """
    found: dict[str, list[Said]] = {}
    for group in range(trial.groups):
        runs: list[Run] = []
        for run in range(trial.runs):
            own = seed + group * trial.runs + run
            runs.append(trained(scene, trial.setting, own, laplace=run == 0))
            progress(f"{scene.name}, network {group * trial.runs + run + 1}")
        for method, said in judged(scene, trial, runs, seed + group).items():
            found.setdefault(method, []).append(said)
        progress(f"{scene.name}, group {group + 1} judged")
    return {method: _joined(parts) for method, parts in found.items()}


def judged(scene: Scene, trial: Trial, runs: Sequence[Run], seed: int) -> Sayings:
    """All methods on one group of runs."""
    return {
        method: _said(scene, trial, of(runs), seed, method in SPREAD, method in (SWA, SWAG))
        for method, of in METHODS.items()
    }


def _said(scene: Scene, trial: Trial, posterior: Posterior, seed: int, spread: bool, stale: bool) -> Said:
    draws = trial.draws if spread else 2
    start = Predictor.of(
        posterior,
        "classification",
        draws,
        refresh=gathering(scene, trial.setting),
        random_state=seed,
        together=True,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WeightWarning)  # a scale at the end of the grid
        best = start.tuned(
            scene.x["valid"], scene.y["valid"], scales=trial.scales if spread else (0.0,), refine=2
        )
    images = {"test": scene.x["test"], **scene.unknown}
    tuned, plain = ({name: who.predict(x) for name, x in images.items()} for who in (best, start))
    y = scene.y["test"]
    old = start.fresh(NET).predict(scene.x["test"]).log_prob(y)[None] if stale else None
    return Said(
        tuned["test"].log_prob(y)[None],
        plain["test"].log_prob(y)[None],
        (tuned["test"].predict() == y.cpu().numpy())[None].astype(np.float64),
        tuned["test"].probability[None],
        plain["test"].probability[None],
        {
            ENTROPY: {name: one.entropy[None] for name, one in tuned.items()},
            INFORMATION: {name: one.mutual_information[None] for name, one in plain.items()},
        },
        np.array([best.scale]),
        np.array([best.temperature]),
        old,
    )


def _joined(parts: list[Said]) -> Said:
    first = parts[0]
    doubt = {
        kind: {name: np.concatenate([part.doubt[kind][name] for part in parts]) for name in of}
        for kind, of in first.doubt.items()
    }
    whole = {
        field: np.concatenate([getattr(part, field) for part in parts])
        for field in ("score", "plain", "right", "chance", "bare", "scale", "temperature")
    }
    old = [part.stale for part in parts if part.stale is not None]
    return Said(**whole, doubt=doubt, stale=np.concatenate(old) if old else None)
