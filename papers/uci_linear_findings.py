"""What figure 6.3 of document 004 claims, set by set."""

from __future__ import annotations

import numpy as np

from papers.experiment import Finding
from papers.uci_linear_trials import EM, EXACT, OURS, PRETRAINED, SGA, SWA, Array
from papers.words import held, met

Errors = dict[str, dict[str, Array]]
"""Set -> method -> mean squared error of every fold."""

AGREE, BETTER = 0.02, 0.05
ENERGY = "Energy Efficiency"


def judge(found: Errors, real: bool) -> list[Finding]:
    """All claims; those about the document's sets only where these are there."""
    lines = [_agreement(name, each, method) for name, each in found.items() for method in (EM, OURS)]
    if not real:
        return [*lines, *(_against_exact(name, each) for name, each in found.items())]
    return [
        _energy(found[ENERGY]),
        _three(found),
        _overlap(found),
        *lines,
        _gradient(found),
        *(_against_exact(name, each) for name, each in found.items()),
    ]


def _energy(each: dict[str, Array]) -> Finding:
    gains = {method: 1.0 - each[method].mean() / each[PRETRAINED].mean() for method in (SWA, EM)}
    paired = each[PRETRAINED] - each[SWA]
    return Finding(
        "Energy: SWA and the online EM ensemble beat pre-training",
        "by a relatively large difference",
        f"by {gains[SWA]:.1%} and {gains[EM]:.1%}",
        None,
        "reproduced in distribution" if min(gains.values()) > BETTER else "not reproduced",
        f"{each[PRETRAINED].mean():.2f} falls to {each[SWA].mean():.2f}, by {paired.mean():.2f} ± {_error(paired):.2f} "
        "within folds: 500 epochs at rate 0.001 leave directions of nearly collinear inputs unlearned.",
    )


def _three(found: Errors) -> Finding:
    lower = [
        name
        for name, each in found.items()
        if max(each[SWA].mean(), each[EM].mean()) < each[PRETRAINED].mean()
    ]
    return Finding(
        "sets on which both have a lower error than pre-training",
        "three of four",
        f"{len(lower)} of {len(found)}",
        None,
        "reproduced in distribution" if len(lower) >= 3 else "not reproduced",
        f"Lower on {', '.join(lower)}.",
    )


def _overlap(found: Errors) -> Finding:
    bars = {}
    for name, each in found.items():
        gap = abs(each[PRETRAINED].mean() - each[SWA].mean())
        bars[name] = gap / (_ten(each[PRETRAINED]) + _ten(each[SWA]))
    clear = [name for name, gap in bars.items() if gap > 1.0]
    rest = ", ".join(f"{name} {gap:.2f}" for name, gap in bars.items())
    return Finding(
        "error bars of pre-training and SWA overlap but for Energy",
        "significant overlap elsewhere",
        f"apart on {', '.join(clear) if clear else 'none'}",
        None,
        "reproduced in distribution" if clear in ([], [ENERGY]) else "not reproduced",
        f"Gap over the sum of both standard errors of ten folds: {rest}.",
    )


def _agreement(name: str, each: dict[str, Array], method: str) -> Finding:
    ratio = each[method].mean() / each[SWA].mean() - 1.0
    ours = method == OURS
    holds = abs(ratio) < AGREE
    return Finding(
        f"{name}: {method} ensemble against SWA",
        "not in the document" if ours else "almost identical",
        _told(each[method], each[SWA]),
        _error(each[method] - each[SWA]),
        met(holds) if ours else held(holds),
        "The mean of 30 draws from a law about the SWA solution: what differs is the chance of the draws.",
    )


def _gradient(found: Errors) -> Finding:
    ratios = {name: each[SGA].mean() / each[SWA].mean() - 1.0 for name, each in found.items()}
    told = ", ".join(f"{name} {ratio:+.1%}" for name, ratio in ratios.items())
    return Finding(
        "the online gradient ensemble against SWA",
        "SWA and online EM are the best in general",
        f"{np.mean(list(ratios.values())):+.1%} on average",
        None,
        "reproduced in distribution" if np.mean(list(ratios.values())) > 0.0 else "not reproduced",
        f"{told}: its unit start is wider than the cloud, and so are its draws.",
    )


def _against_exact(name: str, each: dict[str, Array]) -> Finding:
    ratio = each[SWA].mean() / each[EXACT].mean() - 1.0
    return Finding(
        f"{name}: SWA against the exact posterior mean",
        "not in the document",
        _told(each[SWA], each[EXACT]),
        _error(each[SWA] - each[EXACT]),
        "target met" if abs(ratio) < AGREE else "target missed",
        "Bayesian linear regression whose alpha and beta have the highest evidence: one solve for 600 epochs.",
    )


def _told(ours: Array, others: Array) -> str:
    """Two mean errors, and their difference last, whose standard error follows."""
    ratio, gap = ours.mean() / others.mean() - 1.0, (ours - others).mean()
    return f"{ours.mean():.2f} against {others.mean():.2f} ({ratio:+.2%}), by {gap:+.2g}"


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def _ten(values: Array) -> float:
    """Standard error of a mean over ten folds, as the document has it."""
    return float(values.std(ddof=1) / 10**0.5)
