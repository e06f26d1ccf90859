"""Relevant variables of points in a disk and a ring (003, section 5.3, figure 3)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from sklearn.utils.parallel import Parallel, delayed

from boxloop.data import DiskAndRing
from papers.experiment import Finding, Options, Report
from papers.ring_channel import Array, Channel, angle_told, families, names_of, shares
from papers.ring_figures import mosaics, order
from papers.ring_findings import exact_order, gap, learned_order, learned_radius, radii, relevances
from papers.ring_trials import Setting, Task, grid, scanned, tried

SHAPE, SD, GAP = DiskAndRing(0.45, 0.78, 1.22), 0.14, 1.0
"""Radii, standard deviation of the shift, and gap in radians; the document gives none."""

WHOLE, OPEN = "a whole ring", "a ring with a gap"


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        seeds: samples of points, each fitted by networks and by random features.
        settings: of the fits, by kind of features.
        judged: variables that are judged, by kind.
        side: pixels of an image.
        disks: radii of the scan.
        thick: thicknesses of the ring.
        shifts: standard deviations of the shift.
    """

    seeds: int
    settings: dict[str, Setting]
    judged: dict[str, int]
    side: int
    disks: tuple[float, ...]
    thick: tuple[float, ...]
    shifts: tuple[float, ...]


MANY = Setting(24, 20_000, 200, 2000, 3e-3, 300)
FULL = Size(
    5, {"network": MANY, "fourier": MANY}, {"network": 16, "fourier": 16}, 72,
    (0.3, 0.36, 0.42, 0.48), (0.2, 0.32, 0.44, 0.6), (0.08, 0.11, 0.14, 0.2, 0.28),
)  # fmt: skip
SMALL = Size(
    2, {"network": Setting(6, 3000, 25, 400, 1e-2, 1), "fourier": Setting(20, 4000, 1, 400, 1e-2, 200)},
    {"network": 2, "fourier": 9}, 24, (0.3, 0.42), (0.2, 0.44), (0.14, 0.28),
)  # fmt: skip


def experiment(options: Options) -> Report:
    """Decompose the channel exactly, learn it from samples of points, with and without a gap, and scan other radii."""
    size = SMALL if options.quick else FULL
    shapes = {WHOLE: SHAPE, OPEN: replace(SHAPE, gap=GAP)}
    most = max(setting.features for setting in size.settings.values())
    channels = {law: Channel.of(shape, SD, most) for law, shape in shapes.items()}
    named = {
        law: names_of(shares(channel, families(channel, shapes[law].gap), channel.variables))
        for law, channel in channels.items()
    }
    runs, pictures = _worked(options, size, shapes, channels)
    scan = scanned(size.disks, size.thick, size.shifts)
    exact = {law: (channel.relevance, named[law]) for law, channel in channels.items()}
    curves: dict[str, Any] = {
        "exact": {
            law: {"relevance": values.tolist(), "names": names} for law, (values, names) in exact.items()
        },
        "learned": runs,
        "other radii": scan,
    }
    drawn = {
        f"{law.capitalize()}, {kind}": (
            pixels,
            shapes[law].contains(torch.from_numpy(grid(SHAPE, size.side))).numpy(),
        )
        for (law, kind), pixels in pictures.items()
        if kind == ("fourier" if options.quick else "network")
    }
    figures = {"variables": mosaics(drawn), "order": order(exact, runs)}
    settings = _settings(options, size)
    return Report(
        "ring",
        "Variables of a disk and a ring",
        settings,
        _findings(size, channels, named, runs, scan),
        curves,
        figures,
    )


def _worked(
    options: Options, size: Size, shapes: dict[str, DiskAndRing], channels: dict[str, Channel]
) -> tuple[dict[str, dict[str, list[dict[str, Any]]]], dict[tuple[str, str], Array]]:
    """All fits by law and kind, and the variables of the first of each at the pixels."""
    pixels = grid(SHAPE, size.side)
    work = [
        (law, Task(shape, SD, kind, options.seed + i, setting), i == 0)
        for law, shape in shapes.items()
        for kind, setting in size.settings.items()
        for i in range(size.seeds)
    ]
    jobs = 1 if options.quick or torch.cuda.is_available() else -1
    done = Parallel(n_jobs=jobs, return_as="generator")(
        delayed(tried)(task, channels[law], pixels if first else None) for law, task, first in work
    )
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    pictures: dict[tuple[str, str], Array] = {}
    for number, ((law, task, first), facts) in enumerate(zip(work, done)):
        options.progress(number + 1, len(work) + 1, f"{law}, {task.kind}")
        if first:
            pictures[law, task.kind] = facts.pop("pixels")
        runs.setdefault(law, {}).setdefault(task.kind, []).append(facts)
    return runs, pictures


def _findings(
    size: Size,
    channels: dict[str, Channel],
    named: dict[str, list[str]],
    runs: dict[str, dict[str, list[dict[str, Any]]]],
    scan: list[dict[str, Any]],
) -> list[Finding]:
    whole = channels[WHOLE]
    told = tuple(angle_told(channels[law], channels[law].variables[:, 0]) for law in (OPEN, WHOLE))
    findings = [exact_order(named[WHOLE], whole.relevance)]
    for kind, judged in size.judged.items():
        found = runs[WHOLE][kind]
        findings += learned_order(found, kind, judged)
        if judged >= 16:
            findings.append(learned_radius(found, kind))
        findings.append(relevances(found, whole.relevance, kind, judged))
        findings.append(gap((told[0], told[1]), runs[OPEN][kind], found, named[OPEN], kind))
    return [*findings, radii(scan)]


def _settings(options: Options, size: Size) -> dict[str, Any]:
    network, kernel = size.settings["network"], size.settings["fourier"]
    return {
        "disk": SHAPE.disk,
        "ring": [SHAPE.inner, SHAPE.outer],
        "sd of the shift": SD,
        "gap": GAP,
        "points": network.rows,
        "variables learned": network.features,
        "network": "two layers of 128, tanh at the end",
        "passes": network.passes,
        "batch": network.batch,
        "learning rate": f"{network.rate:g}, cosine",
        "random features": kernel.fourier,
        "seeds": size.seeds,
        "seed": options.seed,
    }
