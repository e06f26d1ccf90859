"""What inferred half images showed, beside document 003, section 5.1."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from papers.experiment import Finding
from papers.words import held, met, percent

Fits = Mapping[int, Mapping[str, Any]]

SHARE = 0.6
"""Of the error of column means, below which that of the inferred half must lie."""
COLLAPSED = 0.95
"""Share of the variables asked for; a loss in training above it says that they have become constants."""


def errors(fits: Fits, others: Mapping[str, Mapping[str, float]], what: str, real: bool) -> list[Finding]:
    """Mean squared errors against those who infer the mean and nothing else.

    Args:
        fits: facts by cutoff.
        others: errors by method, column means and ridge regression among them.
        what: how the images were made.
        real: whether they are MNIST, of which the claim is.
    """
    base, ridge = others["column means"], others["ridge"]
    said = ", ".join(f"{who} {facts['mse']:.4f} ± {facts['error']:.1g}" for who, facts in others.items())
    prototype = (
        {50: "; prototype 0.0313", 100: "; prototype 0.0294"} if what == "as they are" and real else {}
    )
    findings = []
    for cutoff, ours in fits.items():
        ratio = ours["mse"] / base["mse"]
        below = ours["mse"] + 2.0 * ours["error"] < ridge["mse"]
        findings.append(
            Finding(
                f"mean squared error of the left half, images {what}, k0 = {cutoff}",
                f"below {SHARE} of column means and below ridge{prototype.get(cutoff, '')}",
                f"{ours['mse']:.4f}",
                ours["error"],
                held(ratio < SHARE and below),
                f"{ratio:.2f} times that of column means. On the same test images: {said}."
                + ("" if real else " The claim is of MNIST; these are few and small images."),
            )
        )
    return findings


def spectra(fits: Fits) -> Finding:
    """Whether the drop at the end of the singular values is of the cutoff or of the data."""
    cutoffs = sorted(fits)
    lines, lifts = [], []
    for low, high in pairwise(cutoffs):
        end = slice(int(0.9 * (low - 1)), low - 1)
        last = [
            float(np.mean(np.asarray(fits[k][which])[end]))
            for which in ("correlation", "held out")
            for k in (low, high)
        ]
        lifts.append(last[1] - last[0])
        lines.append(
            f"last tenth at k0 = {low}: {last[0]:.3f}, the same places at {high}: {last[1]:.3f} "
            f"(test images {last[2]:.3f} and {last[3]:.3f})"
        )
    kept = ", ".join(f"{fits[k]['significant']} of {k - 1}" for k in cutoffs)
    total = ", ".join(
        f"{sum(np.square(fits[k]['correlation'])):.1f} ({sum(np.square(np.clip(fits[k]['held out'], 0, 1))):.1f})"
        for k in cutoffs
    )
    return Finding(
        "the sudden drop at the end of the singular values is not robust to a larger cutoff",
        "k0 = 200 is too low to capture all",
        "; ".join(lines),
        None,
        held(all(lift > 0.0 for lift in lifts)),
        f"Total relevance on training images (and on test images) {total}; significant on test images: {kept}.",
    )


def variances(facts: Mapping[str, Any], cutoff: int) -> list[Finding]:
    """Negative variances, and conditional deviations beside residuals."""
    ratio = np.sqrt(facts["mean square of residuals"] / facts["mean variance"])
    inferred, seen = np.asarray(facts["by deviation"]).T
    upper = inferred > np.median(inferred)
    classes = seen[upper] / inferred[upper]
    even = bool(np.abs(np.log(classes)).max() < np.log(1.25))
    return [
        Finding(
            f"negative conditional variances, k0 = {cutoff}",
            "30% of pixels in a prototype",
            percent(facts["negative variances"]),
            None,
            met(facts["negative variances"] < 0.3),
            f"Of pixels that are not blank ({percent(facts['negative variances of all pixels'])} of all), counted and "
            f"taken for 0; negative mass {facts['negative mass']:.2f} on average, at worst "
            f"{facts['worst negative mass']:.2f}.",
        ),
        Finding(
            f"conditional deviations beside residuals of test images, k0 = {cutoff}",
            "not in the document",
            f"{percent(facts['within 1'])} within 1, {percent(facts['within 2'])} within 2",
            None,
            met(0.9 < ratio < 1.1 and even and facts["negative variances"] < 0.05),
            f"Root mean square residual {ratio:.2f} times the root mean inferred variance; by class "
            f"{classes.min():.2f} to {classes.max():.2f} in the upper half of deviations; where the variance is "
            f"negative and the deviation thus 0, residuals are {facts['residual where negative']:.2f}. Pixels are "
            "mostly black or white: a right law need not give 68% and 95%. Along the main direction of ambiguity "
            f"{percent(facts['along within 1'])} and {percent(facts['along within 2'])}, residuals "
            f"{facts['along ratio']:.2f} times the deviation.",
        ),
    ]


def laws(facts: Mapping[str, Any], cutoff: int) -> Finding:
    """Chances of bright pixels, and ranks of true pixels."""
    found = np.asarray(facts["reliability"])
    off = float(np.abs(found[:, 0] - found[:, 1]) @ found[:, 3])
    count = np.asarray(facts["histogram"])
    share = count / count.sum()
    return Finding(
        f"chance of a bright pixel (above 0.5) beside how often it is, k0 = {cutoff}",
        "not in the document",
        f"mean gap {off:.3f}",
        None,
        met(off < 0.02),
        "Over ten classes of chance. Ranks of true pixels in their laws: shares of ten classes from "
        f"{share.min():.3f} to {share.max():.3f} (uniform 0.1), largest distance of the distribution "
        f"functions {facts['distance']:.3f}.",
    )


def means(facts: Mapping[str, Mapping[str, float]], cutoff: int) -> list[Finding]:
    """Standard errors of the mean against rows that have nothing in common."""
    findings = []
    for kind, found in facts.items():
        given = kind == "features given"
        reason = (
            "Pairs of parts of the rows, features learned from others: all that differs is in the error bars."
            if given
            else "Each part learns its own features: what that costs the error bars leave out, as documented."
        )
        findings.append(
            Finding(
                f"standard error of the inferred mean, {kind}, k0 = {cutoff}",
                "not in the document",
                f"spread of z {found['spread']:.2f}",
                found["error"],
                met(0.85 < found["spread"] < (1.15 if given else 1.5)),
                f"{reason} {found['pairs']} pairs; {percent(found['within 1'])} within 1, "
                f"{percent(found['within 2'])} within 2 (68% and 95% for a normal law); median standard error "
                f"{found['standard error']:.3g}.",
            )
        )
    return findings


def batches(facts: Mapping[str, Any], cutoff: int) -> list[Finding]:
    """Batches that are too small: for the loss, and for a gradient."""
    rows, slope = facts["rows"], facts["gradient"]
    return [
        _small(facts, cutoff),
        Finding(
            f"a batch of {rows['too few']} rows, fewer than the {cutoff - 1} features",
            "not in the document (prototype: zero gradient)",
            f"norm of the gradient {slope['too few']:.1g}",
            None,
            met(slope["too few"] < 1e-8 * slope["enough"]),
            f"Any features span the same space of so few rows, so nothing changes the loss; {rows['enough']} rows give "
            f"{slope['enough']:.2g}.",
        ),
    ]


def _small(facts: Mapping[str, Any], cutoff: int) -> Finding:
    """Losses by two rows a variable; where training ended with no relevance at all there are none to compare."""
    most, last = cutoff - 1, facts["losses in training"][-1]
    collapsed = last > COLLAPSED * most
    apart = f"{facts['batch loss']:.1f} in a batch, {facts['loss']:.1f} on all rows, of {most}"
    return Finding(
        f"a batch of {facts['batch']} rows for k0 = {cutoff}",
        "dramatically different losses on larger batches (prototype: 7.8 and 45 at k0 = 50, batch 100)",
        f"training collapsed: loss {last:.1f} of {most} in its last pass; {apart}" if collapsed else apart,
        None,
        held(not collapsed and facts["loss"] > 1.5 * facts["batch loss"]),
        f"By such batches features became constant, and {facts['variables']} of {most} variables are left: there are "
        "no losses to compare. The estimator warns of the batches and of the variables that are missing."
        if collapsed
        else "Learned by such batches, the variables fit the chance of each; the estimator warns, and reports the loss "
        "on all rows.",
    )
