"""Left halves of digits inferred from right halves, with their uncertainty (003, section 5.1, figure 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from papers.experiment import Finding, Options, Report
from papers.halves_coverage import ranks, refits, residuals
from papers.halves_data import Halves, digits, right
from papers.halves_figures import calibration, mosaic
from papers.halves_findings import batches, errors, laws, means, spectra, variances
from papers.halves_trials import Setting, fit, judged, rivals, simple, small_batches

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


LARGE = Size((50, 100, 200), Setting(32, 80), 500, 100, None, (10_000, 48), 4)
"""MNIST."""
FEW = Size((10, 20, 40), Setting(16, 120), 397, 200, None, (1400, 100), 40)
"""Small digits."""
QUICK = Size((6, 12), Setting(4, 8, 5e-3, device="cpu"), 60, 30, 600, (300, 10), 4)


def experiment(options: Options) -> Report:
    """Fit at every cutoff, compare with others, and hold the error bars against other rows and the truth."""
    real = options.data is not None and (options.data / "mnist.npz").exists()
    size = QUICK if options.quick else LARGE if real else FEW
    data, plain = digits(options.data, size.rows, options.seed)
    watch = _Watch(options, len(size.cutoffs) + 5)
    fits = {}
    for cutoff in size.cutoffs:
        fits[cutoff] = fit(data.train, cutoff, options.seed, size.trained)
        watch(f"k0 = {cutoff}")
    facts = {cutoff: judged(found, data) for cutoff, found in fits.items()}
    last = fits[size.cutoffs[-1]]
    law = {
        "residuals": residuals(last, data, size.given),
        "ranks": ranks(last, data.test, data.train, size.ranked, options.seed),
    }
    watch("residuals")
    curves = {"cutoffs": facts, **law, **_beside(options, size, data, plain, watch)}
    images = data.test[:SHOWN]
    figures = {
        "digits": mosaic(images, last.expect(given=right(images)), facts),
        "calibration": calibration(law["residuals"], law["ranks"]),
    }
    title = "Halves of digits inferred, with their uncertainty"
    return Report(
        "halves", title, _settings(options, size, data), _findings(curves, size, real), curves, figures
    )


@dataclass
class _Watch:
    """Tells how far the work is."""

    options: Options
    total: int
    done: int = 0

    def __call__(self, what: str) -> None:
        self.done += 1
        self.options.progress(self.done, self.total, what)


def _beside(options: Options, size: Size, data: Halves, plain: Halves, watch: _Watch) -> dict[str, Any]:
    """Other rows, small batches, other methods, and images as they are."""
    first, seed, trained = size.cutoffs[0], options.seed, size.trained
    refit = refits(data, first, min(size.given, 200), seed + 1, trained)
    watch("refits")
    small = small_batches(data, first, seed, replace(trained, passes=size.small))
    watch("small batches")
    others = {**simple(data), **rivals(data, trained, *size.forest, seed)}
    watch("others")
    still = {k: judged(fit(plain.train, k, seed, trained), plain) for k in size.cutoffs[:2]}
    as_they_are = {"cutoffs": still, "others": simple(plain)}
    watch("images as they are")
    return {"refits": refit, "small batches": small, "others": others, "images as they are": as_they_are}


def _findings(curves: dict[str, Any], size: Size, real: bool) -> list[Finding]:
    first, last, still = size.cutoffs[0], size.cutoffs[-1], curves["images as they are"]
    return [
        *errors(curves["cutoffs"], curves["others"], "turned and shifted", real),
        *errors(still["cutoffs"], still["others"], "as they are", real),
        spectra(curves["cutoffs"]),
        *variances(curves["residuals"], last),
        laws(curves["ranks"], last),
        *means(curves["refits"], first),
        *batches(curves["small batches"], first),
    ]


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
        "batch": "30 k0, at least 256" if size.trained.batch is None else size.trained.batch,
        "random forest": f"{size.forest[1]} trees on {size.forest[0]} rows",
        "seed": options.seed,
    }
