"""What the experiment on topics says of its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from papers.experiment import Finding
from papers.topic_recovery import DOCUMENT, LENGTH, LEVELS, RANDOM, slopes
from papers.words import held, met, percent, standard_error

Array = NDArray[np.float64]
Runs = Sequence[Mapping[str, Any]]
DEFAULT = "joint, scaled"
TRAPPED = 0.05
"""Error of the worst topic from which on a fit is another maximum, not noise."""
TARGETS = {"spectral": 0.03, "spectral + EM": 0.015}


def judge_exact(runs: Runs) -> list[Finding]:
    """Moments of the law itself."""
    size = f"Worst of {len(runs)} problems and {len(runs[0]) - 2} ways to make the third moment diagonal."
    ours = max(run[name] for run in runs for name in run if name not in (DOCUMENT, "same word"))
    alone = max(run[DOCUMENT] for run in runs)
    literal = np.asarray([run["same word"] for run in runs])
    return [
        Finding(
            "exact moments of distinct words give the topics back",
            "exactly",
            f"largest column L1 error {ours:.1e}",
            None,
            "reproduced" if ours < 1e-10 else "not reproduced",
            f"{size} Every document of three words was weighed by its probability. One random direction and no "
            f"whitening, as the document has it: {alone:.1e}.",
            exact=True,
        ),
        Finding(
            "exact moments as the document writes them, E[x1 x1'] and E[x1 x1' (x1' eta)]",
            "the topics",
            f"mean column L1 error, at most 2, is {literal.mean():.2f}",
            standard_error(literal),
            "reproduced" if literal.max() < 1e-10 else "not reproduced",
            f"At least {literal.min():.2f} in {len(runs)} problems. A word agrees with itself: these matrices are "
            "diagonal, and their eigenvectors are single words.",
            exact=True,
        ),
    ]


def judge_recovery(runs: Runs, n: int) -> list[Finding]:
    """Errors at one number of documents, and how often random starts are trapped."""
    findings = []
    for name, limit in TARGETS.items():
        worst = np.asarray([max(run[name]) for run in runs])
        findings.append(
            Finding(
                f"column L1 error of the worst topic, {name}",
                "not in the document",
                f"{worst.mean():.4f} in the mean",
                standard_error(worst),
                met(bool((worst < limit).mean() >= 0.95)),
                f"Below {limit} in {percent(float((worst < limit).mean()))} of {len(runs)} problems of {n:,} "
                f"documents, {LENGTH} words each, at most {worst.max():.4f}; it is to be in 95%.",
            )
        )
    return [*findings, _random(runs), _default(runs)]


def _random(runs: Runs) -> Finding:
    shares, typical = {}, {}
    for kind in RANDOM:
        fits = np.asarray([fit for run in runs for fit in run[kind]])  # (fits, k)
        trapped = fits.max(1) > TRAPPED
        shares[kind] = trapped
        typical[kind] = fits[trapped].mean() if trapped.any() else 0.0
    every = np.concatenate(list(shares.values()))
    told = "; ".join(
        f"{kind}: {percent(float(shares[kind].mean()))}, mean column error there {typical[kind]:.2f}"
        for kind in RANDOM
    )
    return Finding(
        "EM finds only a local optimum",
        "guaranteed no more than that",
        f"share of {len(every)} random starts that are trapped {every.mean():.2f}",
        float((every.mean() * (1.0 - every.mean()) / len(every)) ** 0.5),
        held(bool(every.mean() > 0.1)),
        f"A worst topic off by more than {TRAPPED}. {told}.",
    )


def _default(runs: Runs) -> Finding:
    worst = np.asarray([max(run["default starts"]) for run in runs])
    caught = int((worst > TRAPPED).sum())
    return Finding(
        "EM from our default starts is trapped",
        "not in the document",
        f"in {caught} of {len(worst)} problems",
        None,
        met(caught == 0),
        f"Eight starts of five kinds are raced on a sample. Error of the worst topic {worst.mean():.4f} in the mean.",
    )


def judge_growth(runs: Runs, sizes: Sequence[int]) -> list[Finding]:
    """Error against the number of documents."""
    findings = []
    for name in ("spectral", "spectral + EM"):
        slope, error = slopes([run[name] for run in runs], sizes)
        findings.append(
            Finding(
                f"error against the number of documents, {name}",
                "falls as n^(-1/2)",
                f"log-log slope {slope:.3f}",
                error,
                held(abs(slope + 0.5) <= 0.03 + 2.0 * error),
                f"{len(runs)} problems, n = {sizes[0]:,} to {sizes[-1]:,}; within 0.03 and two standard errors.",
            )
        )
    last = np.asarray([[run[name][-1] for run in runs] for name in ("spectral", "spectral + EM", DOCUMENT)])
    findings.append(
        Finding(
            f"one random direction without whitening, as in the document, n = {sizes[-1]:,}",
            "the same estimate",
            f"mean column error {last[2].mean():.4f}",
            standard_error(last[2]),
            held(bool(np.median(last[2]) < 1.5 * np.median(last[0]))),
            f"Ours {last[0].mean():.4f}, with EM {last[1].mean():.4f}; medians {np.median(last[2]):.4f} and "
            f"{np.median(last[0]):.4f}, to be within a factor of 1.5. Two eigenvalues that a random direction leaves "
            "near each other mix their topics; whitening and all directions at once do not.",
        )
    )
    return findings


def judge_coverage(runs: Mapping[int, Runs]) -> list[Finding]:
    """Whether intervals hold the truth as often as they say."""
    findings = []
    for n, each in runs.items():
        for level in ("90%", "95%"):
            which, nominal = list(LEVELS).index(level), float(level[:-1]) / 100.0
            shares = {kind: np.asarray([run[kind][which] for run in each]) for kind in each[0]}
            words, error = shares["words"].mean(), standard_error(shares["words"])
            others = ", ".join(
                f"{kind} {100 * value.mean():.1f} ± {100 * standard_error(value):.1f}%"
                for kind, value in shares.items()
                if kind != "words"
            )
            findings.append(
                Finding(
                    f"{level} intervals by the delta method, n = {n:,}",
                    f"{level} in the limit",
                    f"hold the truth in {100 * words:.2f}%",
                    100 * error,
                    held(bool(abs(words - nominal) <= 0.01 + 2.0 * error)),
                    f"All words of all topics of {len(each)} problems; {others}. Within one point and two Monte "
                    "Carlo errors.",
                )
            )
    return findings


def judge_rivals(runs: Mapping[str, Runs]) -> list[Finding]:
    """Diagonalisers side by side, and why the default is what it is."""
    findings = []
    for case, each in runs.items():
        loss = {name: np.asarray([run[name][0] for run in each]) for name in each[0]}
        ours = loss.pop(DEFAULT)
        ratio = {name: float(np.mean(value / ours)) for name, value in loss.items()}
        told = ", ".join(f"{name} {value:.2f}" for name, value in ratio.items())
        findings.append(
            Finding(
                f"the default, all slices at once on scaled words: {case}",
                "one direction with distinct values will do",
                f"mean column error {ours.mean():.4f}",
                standard_error(ours),
                met(min(ratio.values()) > 0.95),
                f"Errors of the others, relative to it, {len(each)} problems: {told}.",
            )
        )
    seconds = {
        name: np.mean([run[name][1] for each in runs.values() for run in each])
        for name in next(iter(runs.values()))[0]
    }
    last = runs[list(runs)[-1]]
    gap = np.mean([run["gap, scaled"][0] / run[DEFAULT][0] for run in last])
    power = np.mean([run["power, scaled"][0] / run[DEFAULT][0] for run in last])
    findings.append(
        Finding(
            "why the default is joint diagonalisation",
            "not in the document",
            f"one slice with the widest gap has {gap:.1f} times its error on {list(runs)[-1]}",
            None,
            met(bool(gap > 1.0)),
            f"The tensor power method has {power:.2f} times its error and takes "
            f"{seconds['power, scaled'] / seconds[DEFAULT]:.1f} times as long in the mean. Standard errors are "
            "those of joint diagonalisation.",
        )
    )
    return findings


def judge_text(name: str, real: bool, told: Mapping[str, Any]) -> list[Finding]:
    """Newsgroups or their stand-in."""
    arms = {arm: value for arm, value in told.items() if arm != "rivals"}
    middle = {
        arm: {key: float(np.median([fit[key] for fit in fits])) for key in fits[0]}
        for arm, fits in arms.items()
    }
    ours, rest = middle["spectral + EM"], middle["EM, random starts"]
    starts = told["EM, random starts"]
    best = min(starts, key=lambda fit: float(fit["train"]))
    beaten = np.mean([fit["perplexity"] > ours["perplexity"] for fit in starts])
    where = name if real else f"STAND-IN, {name}"
    lines = "; ".join(
        f"{arm}: {facts['perplexity']:.1f}, {facts['rand']:.3f}, {facts['seconds']:.1f} s"
        for arm, facts in middle.items()
    )
    agreed = np.mean([fit["rand"] < ours["rand"] for fit in starts])
    return [
        Finding(
            f"held-out perplexity of spectral + EM, {where}",
            "not in the document",
            f"{ours['perplexity']:.1f}; lower than {percent(float(beaten))} of {len(starts)} random starts",
            None,
            met(ours["perplexity"] <= rest["perplexity"]),
            f"Medians of perplexity, adjusted Rand index and time: {lines}. The random start with the highest "
            f"likelihood of all has {best['perplexity']:.1f}.",
        ),
        Finding(
            f"agreement of its clusters with the labels, {where}",
            "not in the document",
            f"adjusted Rand index {ours['rand']:.3f}; higher than {percent(float(agreed))} of random starts",
            None,
            met(ours["rand"] >= rest["rand"]),
            f"Held-out documents. Moments alone {middle['spectral']['rand']:.3f}, random starts "
            f"{rest['rand']:.3f} in the median, default starts {middle['EM, default starts']['rand']:.3f}.",
        ),
        _text_rivals(where, told["rivals"]),
    ]


def _text_rivals(where: str, rivals: Mapping[str, Mapping[str, float]]) -> Finding:
    ours = rivals[DEFAULT]
    told = "; ".join(
        f"{name}: {facts['perplexity']:.0f}, {facts['after EM']:.1f}, {percent(facts['left'])}"
        for name, facts in rivals.items()
    )
    best = min(rivals, key=lambda name: rivals[name]["after EM"])
    return Finding(
        f"the default diagonaliser as a start, {where}",
        "not in the document",
        f"perplexity {ours['perplexity']:.0f} by moments, {ours['after EM']:.1f} after EM",
        None,
        met(ours["after EM"] <= 1.01 * rivals[best]["after EM"]),
        f"Perplexity by moments, after EM, and share of the third moment that no topics account for: {told}. Lowest "
        f"after EM: {best}; the default is to be within 1% of it.",
    )
