"""What the runs of Monte Carlo EM say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from papers.experiment import Finding, Verdict
from papers.mcem_trials import Rows, Trail

EMPTY = "section 2.6 is empty"
ONE, TWENTY, GROWING, FALLING = (
    "m = 1, full replacement",
    "m = 20",
    "m = k²",
    "stochastic approximation, m = 5",
)


def settled(trails: Sequence[Trail], begin: float = 0.75, end: float = 1.0) -> tuple[float, float]:
    """Root mean square distance from the maximum over a part of the draws, with its error over seeds."""
    parts = []
    for trail in trails:
        share = trail.spent / trail.spent[-1]
        parts.append(np.mean(trail.distance[(share > begin) & (share <= end)] ** 2))
    level = float(np.sqrt(np.mean(parts)))
    return level, float(np.std(parts) / len(parts) ** 0.5 / (2.0 * level))


def judge(
    trails: Mapping[str, Sequence[Trail]],
    gone: Mapping[str, Mapping[str, Rows]],
    rises: Rows,
    scores: Rows,
) -> list[Finding]:
    """Findings, in the order of the panels."""
    return [
        *(_collapse(problem, schemes) for problem, schemes in gone.items()),
        _lost(trails[ONE]),
        _floor(trails[TWENTY]),
        _converges(GROWING, trails[GROWING], trails[TWENTY]),
        _converges(FALLING, trails[FALLING], trails[TWENTY]),
        _restarted(GROWING, trails[GROWING], trails[f"{GROWING}, restarted"]),
        _restarted(FALLING, trails[FALLING], trails["stochastic approximation, restarted"]),
        _upward(rises),
        _calibrated(scores),
    ]


def _met(holds: bool) -> Verdict:
    return "target met" if holds else "target missed"


def _share_error(share: float, n: int) -> float:
    """Error of a share, never zero (Agresti and Coull 1998)."""
    middle = (share * n + 2.0) / (n + 4.0)
    return float((middle * (1.0 - middle) / (n + 4.0)) ** 0.5)


def _collapse(problem: str, schemes: Mapping[str, Rows]) -> Finding:
    share = {name: float(np.isfinite(when).mean()) for name, when in schemes.items()}
    alone = share.pop(ONE)
    n = len(schemes[ONE])
    ours = max(share.values())
    where = (
        "It does collapse here" if alone > 0.2 else "No collapse here: so many units leave little to chance"
    )
    return Finding(
        f"m = 1 with full replacement, {problem}",
        EMPTY,
        f"{alone:.0%} of runs collapse; with m = k² or falling rates {ours:.0%}",
        _share_error(alone, n),
        _met(ours == 0.0),
        f"{where}. {n} runs each, of equal cost; a collapsed one never comes back.",
    )


def _lost(one: Sequence[Trail]) -> Finding:
    level, error = settled(one)
    last = np.asarray([trail.deviation[-1] for trail in one])
    return Finding(
        "m = 1 on 60 groups of 6 rows",
        EMPTY,
        f"{level:.2f} standard errors from the maximum",
        error,
        _met(level > 0.5),
        f"It wanders until the variance between groups is gone, which nothing undoes: so end {np.mean(last < 0.1):.0%}"
        " of the seeds.",
    )


def _floor(constant: Sequence[Trail]) -> Finding:
    early, _ = settled(constant, 0.25, 0.5)
    late, error = settled(constant)
    return Finding(
        "m = 20 in every round",
        EMPTY,
        f"{late:.2f} standard errors in the last quarter, {early:.2f} in the second",
        error,
        _met(late > 0.5 * early),
        "A floor of noise: more rounds do not lower it.",
    )


def _converges(name: str, trails: Sequence[Trail], constant: Sequence[Trail]) -> Finding:
    late, error = settled(trails, 0.9)
    early, _ = settled(trails, 0.05, 0.25)
    floor, _ = settled(constant)
    return Finding(
        name,
        EMPTY,
        f"{late:.3f} standard errors at the end, {early:.3f} early on",
        error,
        _met(late < 0.5 * early),
        f"At the same cost m = 20 is at {floor:.3f}, and stays there.",
    )


def _restarted(name: str, kept: Sequence[Trail], again: Sequence[Trail]) -> Finding:
    ours, error = settled(kept, 0.9)
    theirs, _ = settled(again, 0.9)
    strict = name != GROWING
    reason = (
        "Short chains never reach the law they should average over: a bias that no rate removes."
        if strict
        else "Rounds of hundreds of draws forget where they began: here persistence gains little."
    )
    return Finding(
        f"persistent chains, {name}",
        EMPTY,
        f"{ours:.3f} standard errors; {theirs:.3f} if chains start anew each round",
        error,
        _met(ours < theirs if strict else ours < 1.5 * theirs),
        reason,
    )


def _upward(rises: Rows) -> Finding:
    share = float((rises > 0.0).mean())
    return Finding(
        "steps taken at 90% confidence raise the true likelihood",
        EMPTY,
        f"{share:.0%} of {len(rises)} steps",
        _share_error(share, len(rises)),
        _met(share >= 0.9),
        "Ascent-based Monte Carlo EM; the likelihood of every step is checked by quadrature.",
    )


def _calibrated(scores: Rows) -> Finding:
    spread = float(np.sqrt(np.mean(scores**2)))
    return Finding(
        "distance of the final estimate over its reported Monte Carlo error",
        EMPTY,
        f"root mean square {spread:.2f}",
        spread / (2.0 * len(scores)) ** 0.5,
        _met(0.5 < spread < 1.7),
        f"It should be 1. {len(scores)} seeds; the parameters of one seed are correlated, so the error counts seeds.",
    )
