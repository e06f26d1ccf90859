"""What posteriors over the weights of a convolutional classifier are worth on images that it should know."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from papers.experiment import Finding
from papers.network_images_measures import Measured, mean_of, over_groups
from papers.network_images_trials import Said
from papers.uci_networks_trials import (
    ANNEALED,
    ENSEMBLE,
    FACTOR,
    LAPLACE,
    MULTI_FACTOR,
    MULTI_SWA,
    MULTI_SWAG,
    SGD,
    SPREAD,
    SWA,
    SWAG,
)
from papers.words import met

Sayings = Mapping[str, Said]
Labels = NDArray[np.int64]

SURE = 2.0
"""Standard errors that make a difference."""
SINGLE = (SGD, ANNEALED, SWA, SWAG, FACTOR, LAPLACE)


def ahead(said: Sayings, method: str, base: str, field: str = "score") -> Measured:
    """A method's mean less another's, paired by group and image; above 0 the first is better."""
    one, other = (getattr(said[name], field) for name in (method, base))
    return mean_of(one - other)


def judge_known(name: str, said: Sayings, y: Labels) -> list[Finding]:
    """Log scores, accuracy and calibration of test images.

    Args:
        name: of the images.
        said: by method.
        y: classes of the test images.
    """
    return [
        _better(name, said, (SWAG, FACTOR), SGD, "are better than SGD", "Maddox et al. (2019)"),
        _better(
            name,
            said,
            (SWAG, FACTOR),
            ANNEALED,
            "are better than SGD whose rate fell to 0",
            "not in the document",
        ),
        _better(name, said, (LAPLACE,), SGD, "is better than SGD", "not in the document"),
        _no_worse(name, said),
        _accuracy(name, said),
        _several(name, said),
        _adds(name, said),
        _calibration(name, said, y),
        _alone(name, said),
        _statistics(name, said),
        _table(name, said, y),
    ]


def _told(found: Mapping[str, Measured]) -> str:
    return ", ".join(f"{name} {one.value:+.4f} (z = {one.z:+.1f})" for name, one in found.items())


def _better(name: str, said: Sayings, methods: tuple[str, ...], base: str, words: str, paper: str) -> Finding:
    found = {method: ahead(said, method, base) for method in methods}
    return Finding(
        f"{name}: {' and '.join(methods)} {words}, by log score",
        paper,
        _told(found),
        None,
        met(all(one.z > SURE for one in found.values())),
        "Scale and temperature of all were tuned alike, on images of neither training nor test.",
    )


def _no_worse(name: str, said: Sayings) -> Finding:
    tuned, plain = (ahead(said, FACTOR, SWAG, field) for field in ("score", "plain"))
    return Finding(
        f"{name}: factor EM is as good as SWAG or better, by log score",
        "004, chapter 5: EM fits better",
        _told({"tuned": tuned, "at scale 1 and temperature 1": plain}),
        tuned.error,
        met(tuned.z > -SURE),
        f"No worse is a z above {-SURE:g}.",
    )


def _accuracy(name: str, said: Sayings) -> Finding:
    found = {method: ahead(said, method, SGD, "right") for method in (SWA, ANNEALED)}
    return Finding(
        f"{name}: accuracy of SWA is no lower than SGD's",
        "Izmailov et al. (2018): wider optima",
        _told(found),
        found[SWA].error,
        met(found[SWA].z > -SURE),
        f"Share of test images. No lower is a z above {-SURE:g}.",
    )


def _several(name: str, said: Sayings) -> Finding:
    several = [method for method in said if method not in SINGLE]
    found = {
        method: min((ahead(said, method, single) for single in SINGLE), key=lambda one: one.z)
        for method in several
    }
    return Finding(
        f"{name}: several runs together are better than any one run, by log score",
        "Wilson and Izmailov (2020)",
        _told(found),
        None,
        met(all(found[method].z > SURE for method in (ENSEMBLE, MULTI_SWAG))),
        "Each against the single-run method that it is least ahead of; judged by the deep ensemble and MultiSWAG.",
    )


def _adds(name: str, said: Sayings) -> Finding:
    pairs = ((MULTI_SWAG, ENSEMBLE), (MULTI_SWAG, MULTI_SWA), (MULTI_FACTOR, MULTI_SWA))
    found = {f"{one} less {other}": ahead(said, one, other) for one, other in pairs}
    return Finding(
        f"{name}: Gaussians around the members of an ensemble are better than the members: MultiSWAG less the deep "
        "ensemble",
        "Wilson and Izmailov (2020)",
        _told(found),
        None,
        met(next(iter(found.values())).z > SURE),
        "MultiSWA has the same means without spread.",
    )


def _calibration(name: str, said: Sayings, y: Labels) -> Finding:
    """As methods are, before anything is tuned."""
    bare = {method: one.calibration(y, tuned=False) for method, one in said.items()}
    tuned = {method: one.calibration(y, tuned=True).mean() for method, one in said.items()}
    found = {method: over_groups(bare[SGD] - bare[method]) for method in (SWAG, FACTOR, MULTI_SWAG, ENSEMBLE)}
    told = ", ".join(f"{method} {own.mean():.4f} ({tuned[method]:.4f} tuned)" for method, own in bare.items())
    return Finding(
        f"{name}: before any tuning SWAG and factor EM are better calibrated than SGD",
        "Maddox et al. (2019)",
        f"calibration error of SGD less theirs: {_told(found)}",
        None,
        met(all(found[method].z > SURE for method in (SWAG, FACTOR))),
        f"Expected calibration error of the likeliest class in 15 bins of equal width, mean over groups: {told}.",
    )


def _alone(name: str, said: Sayings) -> Finding:
    """What laws claim by themselves."""
    found = {method: mean_of(said[method].plain - said[SGD].plain) for method in SPREAD if method in SINGLE}
    scales = {method: np.median(said[method].scale) for method in SPREAD}
    return Finding(
        f"{name}: laws of one run are better than SGD as they are, at scale 1 and temperature 1",
        "not in the document",
        _told(found),
        None,
        met(all(one.z > SURE for one in found.values())),
        "Log score. Median of the scale that other images prefer: "
        + ", ".join(f"{method} {scale:.2g}" for method, scale in scales.items())
        + ".",
    )


def _statistics(name: str, said: Sayings) -> Finding:
    """What BatchNorm owes to statistics of the weights that are used."""
    found = {}
    for method, one in said.items():
        if one.stale is not None:
            found[method] = mean_of(one.plain - one.stale)
    return Finding(
        f"{name}: statistics of BatchNorm must be gathered anew for averaged and drawn weights",
        "Izmailov et al. (2018)",
        f"log score with them less that with the last iterate's: {_told(found)}",
        None,
        met(all(one.z > SURE for one in found.values())),
        "Averaged weights give other activations than the weights they are the average of.",
    )


def _table(name: str, said: Sayings, y: Labels) -> Finding:
    told = []
    for method, one in said.items():
        right, score = mean_of(one.right), mean_of(one.score)
        error = over_groups(one.calibration(y, tuned=True))
        told.append(
            f"{method} {right.value:.4f} ± {right.error:.4f}, {score.value:.4f} ± {score.error:.4f}, "
            f"{error.value:.4f} ± {error.error:.4f}"
        )
    best = max(said, key=lambda method: float(said[method].score.mean()))
    return Finding(
        f"{name}: the best log score is one of several runs",
        "not in the document",
        "; ".join(told),
        None,
        met(best not in SINGLE),
        "Accuracy, log score and calibration error, tuned; errors count images and groups of runs (the last, groups "
        f"alone). Best: {best}.",
    )
