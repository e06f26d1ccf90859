"""What generators on relevant variables showed, beside document 003."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from boxloop.estimators import DimensionCurve
from boxloop.twoview import Knee
from papers.experiment import Finding
from papers.generator_trials import Sampled
from papers.words import held, met, percent

PAPER = 19
"""Where the document's lines cross."""


def judge(
    curve: DimensionCurve,
    knee: Knee,
    pixels: DimensionCurve,
    samples: Mapping[int, Sampled],
    known: float,
    real: bool,
) -> list[Finding]:
    """Figure 4, its controls, and what criticism says of the samples.

    Args:
        curve: of relevant variables.
        knee: its change of slope.
        pixels: the curve of linear functions of pixels.
        samples: by dimension.
        known: share of real images that are recognised.
        real: whether the images are the document's.
    """
    return [*_slope(knee, real), _after(curve, knee), _control(curve, pixels), *_samples(samples, known)]


def _slope(knee: Knee, real: bool) -> list[Finding]:
    found = [
        Finding(
            "the error falls as a power of the latent dimension whose exponent changes",
            "a distinct change of polynomial scaling law",
            str(knee),
            None,
            held(knee.found),
            "Two lines that meet, by least squares in logarithms, against one line and against a parabola.",
        )
    ]
    if real:
        inside = knee.found and knee.low <= PAPER <= knee.high
        why = (
            f"The interval {'holds' if inside else 'does not hold'} it; network, noise, number of variables and "
            "passes of the document are not all known, and the place depends on them."
        )
        found.append(
            Finding(
                "the dimension at which it changes", str(PAPER), f"{knee.at:.1f}", None, held(inside), why
            )
        )
    return found


def _after(curve: DimensionCurve, knee: Knee) -> Finding:
    claim = "more dimensions beyond it bring no improvement"
    paper = "increasing the dimension further provides no improvement"
    if not knee.found:
        why = f"The error still falls from {curve.best[-2]:.4g} to {curve.best[-1]:.4g} at the last two dimensions."
        return Finding(claim, paper, "there is no change of slope", None, held(False), why)
    slope, error = knee.slopes[1], knee.slope_errors[1]
    gain = 1.0 - np.exp(slope * np.log(curve.dimensions[-1] / knee.at))
    return Finding(
        claim,
        paper,
        f"slope {slope:.3f} after the change",
        error,
        held(slope > -2.0 * error),
        f"From {knee.at:.1f} to {curve.dimensions[-1]} dimensions the line falls by {percent(gain)}.",
    )


def _control(curve: DimensionCurve, pixels: DimensionCurve) -> Finding:
    ratio = np.exp(np.log(curve.errors).mean(1) - np.log(pixels.errors).mean(1))
    told = ", ".join(f"{r:.2f} at {k}" for k, r in zip(curve.dimensions, ratio) if k in curve.dimensions[::3])
    other = pixels.knee()
    return Finding(
        "control: the same generator on linear functions of the pixels",
        "not in the document",
        f"error of relevant variables relative to it: {told}",
        None,
        met(bool(ratio[: len(ratio) // 2].max() < 1.0)),
        f"Its own curve: {other}. A change that both curves show belongs to the generator, not to the variables; few "
        "relevant variables should say more than as many linear ones.",
    )


def _samples(samples: Mapping[int, Sampled], known: float) -> list[Finding]:
    shares = ", ".join(f"{percent(one.recognised)} at {k}" for k, one in samples.items())
    gaps = ", ".join(f"{one.gap:.2f} and {one.mixture_gap:.2f} at {k}" for k, one in samples.items())
    below = all(one.mixture_gap < one.gap for one in samples.values())
    return [
        Finding(
            "samples from a Gaussian law of codes are recognised as digits",
            "most, below dimension 20",
            shares,
            None,
            held(all(one.recognised > 0.5 for k, one in samples.items() if k < 20)),
            f"Named by a small network with probability 0.9 or more; of real images {percent(known)} are. A network is "
            "sure of some shapes that are no digits, so this is an upper bound of what eyes would say.",
        ),
        Finding(
            "a mixture as the law of codes lowers the moment gap",
            "not in the document",
            f"gap of the Gaussian and of the mixture: {gaps}",
            None,
            met(below),
            "On images held out. The mixture of ten Gaussians is fitted by EM to the same codes.",
        ),
    ]
