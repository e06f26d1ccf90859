"""Variables of a disk and a ring that are learned from points, and what the exact channel says of them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from boxloop.data import DiskAndRing
from boxloop.estimators import RelevantFeatures
from boxloop.numeric import generator
from boxloop.twoview import GaussianNoise
from papers.ring_channel import Array, Channel, angle_told, families, names_of, shares

RIDGE = 1e-6
"""Of random features, relative to their variances; networks need none."""


@dataclass(frozen=True)
class Setting:
    """How variables are learned.

    Args:
        features: that a fit learns, without the constant.
        rows: points.
        passes: over them.
        batch: rows of a mini-batch.
        rate: of Adam, which falls to zero by a cosine.
        fourier: random features, of the fits without networks.
        length: of their kernel, in standard deviations of a column.
    """

    features: int
    rows: int
    passes: int
    batch: int
    rate: float
    fourier: int
    length: float = 0.4


@dataclass(frozen=True)
class Task:
    """One fit: of which law, with which shift, by which features (``network`` or ``fourier``), from which seed."""

    shape: DiskAndRing
    sd: float
    kind: str
    seed: int
    setting: Setting


def fit(task: Task) -> RelevantFeatures:
    """Learn the variables; the second view is drawn anew at every step."""
    points = task.shape.rows(task.setting.rows, generator(task.seed)).numpy()
    setting = task.setting
    learner = RelevantFeatures(
        setting.features,
        x_features=task.kind,
        y_features=task.kind,
        n_fourier=setting.fourier,
        length_scale=setting.length,
        ridge=RIDGE if task.kind == "fourier" else 0.0,
        channel=GaussianNoise(task.sd),
        learning_rate=setting.rate,
        schedule="cosine",
        batch_size=setting.batch,
        max_iter=setting.passes,
        patience=None,
        random_state=task.seed,
        device="auto" if task.kind == "network" else "cpu",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the passes are those that were planned
        return learner.fit(points)


def tried(task: Task, channel: Channel, pixels: Array | None = None) -> dict[str, Any]:
    """Fit, and name what was found.

    Args:
        task: the fit.
        channel: exact.
        pixels: places to evaluate the variables at, (p, 2), for pictures.

    Returns:
        Names of the variables, shares by name, relevances on the rows of the fit and under the exact law, how much the
        first variable tells of the angle, and ``pixels``, (p, k), where asked.
    """
    found = fit(task)
    left, right = found.transform(channel.points, channel.places)
    share = shares(channel, families(channel, task.shape.gap), left)
    facts = {
        "seed": task.seed,
        "names": names_of(share),
        "shares": {name: values.tolist() for name, values in share.items()},
        "relevance": found.relevance_.tolist(),
        "true relevance": channel.true_relevance(left, right).tolist(),
        "angle told": angle_told(channel, left[:, 0]),
    }
    return facts if pixels is None else {**facts, "pixels": found.transform(pixels)}


def grid(shape: DiskAndRing, side: int) -> Array:
    """Pixels of a picture, (side * side, 2), rows from top to bottom."""
    edge = 1.15 * shape.outer
    line = np.linspace(-edge, edge, side)
    across, up = np.meshgrid(line, line[::-1])
    return np.stack([across.ravel(), up.ravel()], 1)


def scanned(disks: Sequence[float], thick: Sequence[float], shifts: Sequence[float]) -> list[dict[str, Any]]:
    """Exact orders for other radii and shifts, the middle of the ring at 1: where each kind of variable first comes.

    Args:
        disks: radii of the disk.
        thick: thicknesses of the ring.
        shifts: standard deviations of the shift.
    """
    found = []
    for disk in disks:
        for width in thick:
            for sd in shifts:
                shape = DiskAndRing(disk, 1.0 - width / 2, 1.0 + width / 2)
                channel = Channel.of(shape, sd, 30, step=1.0)
                names = names_of(shares(channel, families(channel), channel.variables))
                places = {name: names.index(name) + 1 for name in dict.fromkeys(names)}
                found.append({"disk": disk, "thickness": width, "sd": sd, "first": places})
    return found
