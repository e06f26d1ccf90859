"""Left halves of digits inferred from right halves, with their uncertainty (003, section 5.1, figure 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from boxloop.replicate.experiment import Options, Report
from boxloop.replicate.halves_coverage import ranks, refits, residuals
from boxloop.replicate.halves_data import Halves, digits, right
from boxloop.replicate.halves_figures import calibration, mosaic
from boxloop.replicate.halves_findings import batches, errors, laws, means, spectra, variances
from boxloop.replicate.halves_trials import Setting, fit, judged, rivals, simple, small_batches

SHOWN = 24
"""Digits in the picture."""


@dataclass(frozen=True)
class Size:
    """How much is run.

    Args:
        cutoffs: k0, the constant counted.
        trained: how features are learned.
        given: test images whose laws are looked at.
        ranked: test images whose pixels are ranked.
        rows: training images, at most.
        forest: rows and trees of the random forest.
        small: passes of the fit by batches that are too small.
    """

    cutoffs: tuple[int, ...]
    trained: Setting
    given: int
    ranked: int
    rows: int | None
    forest: tuple[int, int]
    small: int


LARGE = Size((50, 100, 200), Setting(32, 80, batch=2000), 500, 100, None, (10_000, 48), 4)
"""MNIST."""
FEW = Size((10, 20, 40), Setting(16, 120), 397, 200, None, (1400, 100), 40)
"""Small digits."""
QUICK = Size((6, 12), Setting(4, 8, 5e-3, device="cpu"), 60, 30, 600, (300, 10), 4)


def experiment(options: Options) -> Report:
    """Fit at every cutoff, compare with others, and hold the error bars against other rows and the truth."""
    has_mnist = options.data is not None and (options.data / "mnist.npz").exists()
    size = QUICK if options.quick else LARGE if has_mnist else FEW
    data, plain = digits(options.data, size.rows, options.seed)
    steps, done = len(size.cutoffs) + 5, 0

    def told(what: str) -> None:
        nonlocal done
        done += 1
        options.progress(done, steps, what)

    facts: dict[int, dict[str, Any]] = {}
    for cutoff in size.cutoffs:
        found = fit(data.train, cutoff, options.seed, size.trained)
        facts[cutoff] = judged(found, data)
        told(f"k0 = {cutoff}")
    last, first = size.cutoffs[-1], size.cutoffs[0]
    residual = residuals(found, data, size.given)
    rank = ranks(found, data.test, data.train, size.ranked, options.seed)
    told("residuals")
    refit = refits(data, first, min(size.given, 200), options.seed + 1, size.trained)
    told("refits")
    small = small_batches(data, first, options.seed, replace(size.trained, passes=size.small))
    told("small batches")
    others = {**simple(data), **rivals(data, size.trained, *size.forest, options.seed)}
    told("others")
    still = {k: judged(fit(plain.train, k, options.seed, size.trained), plain) for k in size.cutoffs[:2]}
    beside = simple(plain)
    told("images as they are")
    findings = [
        *errors(facts, others, "turned and shifted", has_mnist),
        *errors(still, beside, "as they are", has_mnist),
        spectra(facts),
        *variances(residual, last),
        laws(rank, last),
        *means(refit, first),
        *batches(small, first),
    ]
    curves = {
        "cutoffs": facts,
        "others": others,
        "images as they are": {"cutoffs": still, "others": beside},
        "residuals": residual,
        "ranks": rank,
        "refits": refit,
        "small batches": small,
    }
    images = data.test[:SHOWN]
    figures = {
        "digits": mosaic(images, found.expect(given=right(images)), facts),
        "calibration": calibration(residual, rank),
    }
    title = "Halves of digits inferred, with their uncertainty"
    return Report("halves", title, _settings(options, size, data), findings, curves, figures)


def _settings(options: Options, size: Size, data: Halves) -> dict[str, Any]:
    channels = size.trained.channels
    return {
        "images": data.name,
        "training images": len(data.train),
        "test images": len(data.test),
        "k0": list(size.cutoffs),
        "network": f"four convolutions (twice {channels}, twice {2 * channels} channels), a dense layer, tanh",
        "passes": size.trained.passes,
        "learning rate": f"{size.trained.rate:g}, cosine",
        "batch": "10 k0, at least 256" if size.trained.batch is None else size.trained.batch,
        "random forest": f"{size.forest[1]} trees on {size.forest[0]} rows",
        "seed": options.seed,
    }
