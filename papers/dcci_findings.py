"""What four objectives of one network showed, beside document 003."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.experiment import Finding
from papers.words import held, met, standard_error

Runs = list[dict[str, Any]]
Table = Mapping[str, Mapping[str, Runs]]

LEAD = 0.03
"""Accuracy after one epoch by which DCCI is to lead."""

SURE = 2.0
"""Standard errors by which a difference must exceed zero to be one."""

MEANS = "Means over seeds of paired differences; the networks start alike and see the same batches."


def judge(runs: Table, name: str, plain: str, normal: str, real: bool) -> list[Finding]:
    """The lead after one epoch and what is left of it; then photographs, and probabilities.

    Args:
        runs: by panel and method.
        name: the panel of digits.
        plain: the panel of photographs.
        normal: the same with batch normalisation.
        real: whether the digits are those of the document.
    """
    found = [_lead(runs[name], real), _fast(runs[name], runs["fast"]), _start(runs[name], runs["start"])]
    found += [_squared(runs[name]), _rule(runs[name]), *_final(runs[name], name)]
    more = {panel: table for panel, table in runs.items() if panel.endswith(" images")}
    if more:
        found.insert(3, _sizes(more))
    if plain in runs:
        found += _photographs(runs[plain], runs[normal])
    return [*found, _probabilities(runs[name])]


def errors(runs: Runs, epoch: int, kind: str = "error") -> NDArray[np.float64]:
    """Share of test images that are wrong after an epoch, a seed each."""
    return np.asarray([run[kind][epoch] for run in runs])


def _gain(worse: Runs, better: Runs, epoch: int) -> NDArray[np.float64]:
    return errors(worse, epoch) - errors(better, epoch)


def _lead(runs: Mapping[str, Runs], real: bool) -> Finding:
    gain = _gain(runs["cross-entropy"], runs["DCCI"], 0)
    middle = float(np.median(gain))
    both = [float(np.mean(1.0 - errors(runs[method], 0))) for method in ("DCCI", "cross-entropy")]
    return Finding(
        "accuracy after one epoch, DCCI less cross-entropy, at Adam's rate 1e-3",
        "DCCI converges faster",
        f"median {middle:+.3f} (target over {LEAD}); {both[0]:.3f} and {both[1]:.3f}",
        standard_error(gain),
        held(middle > LEAD),
        "Few steps are in an epoch; the canonical correlations of a batch solve the last layer, which cross-entropy "
        f"must learn.{'' if real else ' Other images than the document has.'}",
    )


def _fast(slow: Mapping[str, Runs], fast: Mapping[str, Runs]) -> Finding:
    gain = _gain(fast["cross-entropy"], fast["DCCI"], 0)
    across = _gain(fast["cross-entropy"], slow["DCCI"], 0)
    middle = float(np.median(gain))
    return Finding(
        "the same at the rate 1e-2",
        "not in the document",
        f"median {middle:+.3f}; DCCI at 1e-3 less cross-entropy at 1e-2 {np.median(across):+.3f}",
        standard_error(gain),
        held(middle > LEAD),
        "A larger step is enough for cross-entropy to make up for "
        + ("part of" if middle > LEAD else "all but little of")
        + " the lead, which is one of speed at a given rate.",
    )


def _start(small: Mapping[str, Runs], sized: Mapping[str, Runs]) -> Finding:
    gain = _gain(sized["cross-entropy"], sized["DCCI"], 0)
    middle = float(np.median(gain))
    before = float(np.median(_gain(small["cross-entropy"], small["DCCI"], 0)))
    return Finding(
        "the same from slopes that keep the size of activations (He et al., 2015), at 1e-3",
        "not in the document",
        f"median {middle:+.3f}",
        standard_error(gain),
        held(middle > LEAD),
        (
            "Canonical correlations do not change with the size of outputs, which is small where torch starts and the "
            "lead was found; cross-entropy must first make them large."
            if middle < 0.5 * before
            else f"The lead, {before:+.3f} where torch starts, is not one of the start."
        ),
    )


def _sizes(more: Table) -> Finding:
    """The lead after one epoch of fewer and of more steps."""
    gains = {panel: _gain(runs["cross-entropy"], runs["DCCI"], 0) for panel, runs in more.items()}
    told = [
        f"{np.median(gain):+.3f} ± {standard_error(gain):.3f} for {panel}" for panel, gain in gains.items()
    ]
    last = list(gains.values())[-1]
    return Finding(
        "the same with more images, and so more steps, in an epoch",
        "mean of 10 runs, 60000 images",
        "median " + ", ".join(told),
        None,
        held(float(np.median(last)) > LEAD),
        f"Judged on {list(gains)[-1]}: the lead is one of the first steps.",
    )


def _squared(runs: Mapping[str, Runs]) -> Finding:
    gains = [_gain(runs["squared loss"], runs["DCCI"], epoch) for epoch in (0, -1)]
    first, last = (float(gain.mean()) for gain in gains)
    error = standard_error(gains[0])
    tie = abs(first) < max(SURE * error, 0.01)
    return Finding(
        "DCCI is ahead of the plain squared loss on indicators after one epoch",
        "not in the document",
        f"{first:+.3f} after one epoch, {last:+.3f} after the last",
        error,
        met(first > SURE * error and not tie),
        (
            "They tie: for given features DCCI is least squares on indicators with its last layer solved."
            if tie
            else "For given features DCCI is least squares on indicators with its last layer solved, which the "
            "squared loss must learn by steps, from a start of its own."
        ),
    )


def _rule(runs: Mapping[str, Runs]) -> Finding:
    """How much of the lead is the exact last layer, of which any network can have the use."""
    plain = runs["cross-entropy"]
    whole = _gain(plain, runs["DCCI"], 0)
    rule = errors(plain, 0) - errors(plain, 0, "solved error")
    rest = whole - rule
    share = float(rule.mean() / whole.mean()) if whole.mean() > 0.0 else float("nan")
    return Finding(
        "the lead after one epoch is one of features, not of the rule alone",
        "not in the document",
        f"{rule.mean():+.3f} of {whole.mean():+.3f} ({share:.0%}) comes to cross-entropy's network when its outputs "
        f"are put through DCCI's rule; {rest.mean():+.3f} is left",
        standard_error(rest),
        met(float(rest.mean()) > SURE * standard_error(rest)),
        "The rule finds the last layer by least squares over all training rows, whatever the network was trained for.",
    )


def _final(runs: Mapping[str, Runs], name: str) -> list[Finding]:
    found = []
    for method, paper in (
        ("cross-entropy", "a large improvement of the final accuracy"),
        ("cross-entropy, dropout", "DCCI alone outperforms dropout"),
    ):
        gain = _gain(runs[method], runs["DCCI"], -1)
        error = standard_error(gain)
        both = [float(errors(runs[which], -1).mean()) for which in ("DCCI", method)]
        found.append(
            Finding(
                f"{name}: error after the last epoch, {method} less DCCI",
                paper,
                f"{gain.mean():+.4f}; {both[0]:.4f} for DCCI and {both[1]:.4f}",
                error,
                held(float(gain.mean()) > SURE * error),
                MEANS,
            )
        )
    return found


def _photographs(plain: Mapping[str, Runs], normal: Mapping[str, Runs]) -> list[Finding]:
    found = []
    rules: tuple[tuple[Mapping[str, Runs], str, str, Callable[[float, float], bool]], ...] = (
        (plain, "CIFAR-10", "DCCI is better", lambda gain, error: gain > SURE * error),
        (
            normal,
            "CIFAR-10 with batch normalisation",
            "no distinction",
            lambda gain, error: abs(gain) < SURE * error,
        ),
    )
    for runs, name, paper, holds in rules:
        gain = _gain(runs["cross-entropy"], runs["DCCI"], -1)
        best = np.asarray([min(run["error"]) for run in runs["cross-entropy"]]) - np.asarray(
            [min(run["error"]) for run in runs["DCCI"]]
        )
        both = [float(errors(runs[method], -1).mean()) for method in ("DCCI", "cross-entropy")]
        error = standard_error(gain)
        found.append(
            Finding(
                f"{name}: error after the last epoch, cross-entropy less DCCI",
                paper,
                f"{gain.mean():+.4f}; {both[0]:.3f} for DCCI and {both[1]:.3f}; at the best epoch {best.mean():+.4f}",
                error,
                held(holds(float(gain.mean()), error)),
                f"A fifth of the document's images. {MEANS}",
            )
        )
    return found


def _probabilities(runs: Mapping[str, Runs]) -> Finding:
    """Calibration after the last epoch."""
    told = []
    for method, kind, word in (
        ("DCCI", "plain", "DCCI projected"),
        ("DCCI", "temperature", "DCCI with a temperature"),
        ("cross-entropy", "plain", "cross-entropy"),
        ("cross-entropy", "temperature", "cross-entropy with a temperature"),
    ):
        facts = {key: np.mean([run[kind][key] for run in runs[method]]) for key in runs[method][0][kind]}
        text = f"{word} {facts['ECE']:.3f}, {facts['log score']:.3f}"
        told.append(text + (f", {facts['impossible']:.2%} impossible" if facts["impossible"] > 0.0 else ""))
    gain = np.asarray([run["plain"]["ECE"] - run["temperature"]["ECE"] for run in runs["DCCI"]])
    return Finding(
        "probabilities on other test rows: calibration error and log score; a temperature lowers DCCI's",
        "not in the document",
        "; ".join(told) + f"; calibration error of DCCI lowered by {gain.mean():.3f}",
        standard_error(gain),
        met(float(gain.mean()) > SURE * standard_error(gain)),
        "Expected indicators are least squares estimates: projections are timid, and may rule the label out.",
    )
