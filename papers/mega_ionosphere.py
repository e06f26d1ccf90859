"""Outliers by low density, and which number of components finds them (000, section 8.2, figures 8 and 9)."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from boxloop.criticise import Fourier, Power, Second, as_model, mega
from boxloop.data import load_dataset
from boxloop.estimators import FactorAnalysis, FitWarning, GaussianMixture
from boxloop.numeric import generator, spawn
from boxloop.select import penalised_path
from papers.component_moments import Components, apart, data_moments
from papers.experiment import Finding, Options, Report
from papers.mega_path import LARGEST_ALPHA, NODES, within
from papers.outlier_figures import draw_criteria, draw_found
from papers.words import held, met, percent

Rows = NDArray[np.float64]
SHARE = 0.35
LIKELIHOOD, MOMENTS = "held-out likelihood", "held-out moment tests"
PAPER = {3: 103, 20: 67}
"""Outliers found, of 126, among 123 flagged rows."""


@dataclass(frozen=True)
class Table:
    """Rows, which of them are outliers, and where they come from."""

    rows: Rows
    outlier: NDArray[np.bool_]
    source: str
    real: bool

    def found(self, density: Rows) -> int:
        """Outliers among the 35% of rows with the lowest density."""
        flagged = np.argsort(density, kind="stable")[: round(SHARE * len(density))]
        return int(self.outlier[flagged].sum())


def load(folder: Path | None) -> Table:
    """The ionosphere data where they are at hand, else tumours, of which a like share is malignant."""
    if folder is not None and (folder / "ionosphere.npz").exists():
        with np.load(folder / "ionosphere.npz") as file:
            return Table(file["X"].astype(np.float64), file["is_outlier"] == 1, "ionosphere", True)
    stand_in = load_dataset("breast_cancer")
    outlier = stand_in.target == stand_in.classes.index("malignant")
    return Table(
        stand_in.rows, outlier, "scikit-learn's breast cancer, malignant as outliers (no ionosphere)", False
    )


def document(table: Table, components: tuple[int, ...], seed: int) -> dict[str, Any]:
    """One seed of the document's procedure: scikit-learn's mixture, full covariance, regulariser 1e-6, raw data."""
    found, aic, aic_2k, likelihood, penalty = [], [], [], [], []
    rows, streams = torch.from_numpy(table.rows), spawn(generator(seed), len(components))
    for k, stream in zip(components, streams):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            peer = Peer(k, reg_covar=1e-6, random_state=seed).fit(table.rows)
        model: Any = as_model(peer)
        density = peer.score_samples(table.rows)
        gaps = apart(data_moments(rows), Components.of(model).forward(NODES, stream))
        found.append(table.found(density))
        aic.append(float(peer.aic(table.rows)))
        aic_2k.append(4.0 * k - 2.0 * float(density.sum()))
        likelihood.append(float(density.mean()))
        penalty.append(gaps[0] + gaps[1] ** 0.5)
    return {
        "found": found,
        "AIC": aic,
        "AIC, p = 2K": aic_2k,
        "path": within(penalised_path(likelihood, penalty, components)),
    }


def ours(components: tuple[int, ...]) -> dict[str, Callable[[int], Any]]:
    """Our candidates by name: the document's family, and two with fewer parameters."""
    full = {f"full, K = {k}": lambda seed, k=k: GaussianMixture(k, random_state=seed) for k in components}
    spare: dict[str, Callable[[int], Any]] = {
        "diagonal, K = 20": lambda seed: GaussianMixture(20, covariance_type="diag", random_state=seed),
        "factor analysis, 5 factors": lambda seed: FactorAnalysis(5, random_state=seed),
    }
    return {**full, **spare}


def held_out(table: Table, components: tuple[int, ...], draws: int, seed: int) -> dict[str, Any]:
    """One split: held-out likelihood and moment tests of every candidate, and what it finds when fitted to all rows."""
    order = np.random.default_rng(seed).permutation(len(table.rows))
    cut = round(0.7 * len(order))
    train, test = table.rows[order[:cut]], table.rows[order[cut:]]
    tests = (Second(), Power(3), Power(4), Fourier(50))
    facts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # few rows for so many parameters
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, make in ours(components).items():
            fit = make(seed).fit(train)
            tested = mega(fit, test, functions=tests, draws=draws, random_state=seed)
            facts[name] = {
                "log-likelihood": float(fit.score(test)),
                "p": tested.p_value,
                "worst": max(gap.norm() / (gap.norm_null or 1.0) for gap in tested.gaps),
                "found": table.found(make(seed).fit(table.rows).score_samples(table.rows)),
            }
    return facts


def experiment(options: Options) -> Report:
    """The document's procedure over many seeds, then ours."""
    table = load(options.data)
    components = (1, 3, 10) if options.quick else (1, 2, 3, 4, 5, 10, 15, 20)
    seeds, splits, draws = (3, 1, 39) if options.quick else (20, 10, 99)
    theirs, mine = [], []
    for i in range(seeds):
        options.progress(i, seeds + splits, f"document, seed {i}")
        theirs.append(document(table, components, options.seed + i))
    for i in range(splits):
        options.progress(seeds + i, seeds + splits, f"held-out rows, split {i}")
        mine.append(held_out(table, components, draws, options.seed + i))
    settings = {
        "data": table.source,
        "rows": len(table.rows),
        "outliers": int(table.outlier.sum()),
        "flagged": round(SHARE * len(table.rows)),
        "K": list(components),
        "seeds": seeds,
        "splits": splits,
        "seed": options.seed,
    }
    target = float(np.median([run["found"][components.index(3)] for run in theirs]))
    findings = judge(table, theirs, components) + judge_ours(mine, PAPER[3] if table.real else target)
    figures = {
        "found": draw_found(theirs, mine, components, PAPER if table.real else {}),
        "criteria": draw_criteria(theirs, mine, components, len(table.rows)),
    }
    title, curves = "Outliers by low density under a mixture", {"document": theirs, "ours": mine}
    return Report("mega-ionosphere", title, settings, findings, curves, figures)


def judge(table: Table, runs: list[dict[str, Any]], components: tuple[int, ...]) -> list[Finding]:
    """The document's counts, AIC and path."""
    found = np.asarray([run["found"] for run in runs])
    few, many = components.index(3), len(components) - 1
    medians, top, findings = np.median(found, axis=0), components[-1], []
    for k, limit in ((3, 100), (20, 90)):
        if not table.real or k not in components:
            continue
        place = components.index(k)
        holds = medians[place] >= limit if k == 3 else medians[place] <= limit
        findings.append(
            Finding(
                f"outliers found with K = {k}",
                f"{PAPER[k]} of 126",
                f"median {medians[place]:g}, from {found[:, place].min()} to {found[:, place].max()}",
                None,
                held(bool(holds)),
                f"Over {len(runs)} seeds; the median is to be {'at least' if k == 3 else 'at most'} {limit}.",
            )
        )
    better = float((found[:, few] > found[:, many]).mean())
    findings.append(
        Finding(
            f"K = 3 finds more outliers than K = {top}",
            "103 against 67 (K = 20)",
            f"in {percent(better)} of seeds; medians {medians[few]:g} and {medians[many]:g}",
            None,
            held(better > 0.8),
            f"Medians over K = {', '.join(map(str, components))}: {', '.join(f'{m:g}' for m in medians)}.",
        )
    )
    return findings + _choices(runs, components, table.rows.shape)


def _choices(
    runs: list[dict[str, Any]], components: tuple[int, ...], shape: tuple[int, ...]
) -> list[Finding]:
    top, (n, d) = components[-1], shape
    parameters = top - 1 + top * d + top * d * (d + 1) // 2
    findings = []
    for name, count in (("AIC, p = 2K", "the document's count"), ("AIC", "the right count")):
        chosen = Counter(components[int(np.argmin(run[name]))] for run in runs)
        told = ", ".join(f"{k}: {percent(n / len(runs))}" for k, n in sorted(chosen.items()))
        findings.append(
            Finding(
                f"AIC chooses the largest K, {count}",
                "K = 20",
                f"chosen: {told}",
                None,
                held(chosen[top] / len(runs) > 0.5),
                f"K = {top} has {parameters} parameters for {n} rows; components that close in on few of them have "
                "likelihoods without bound, and AIC was not made for that.",
            )
        )
    paths = Counter(run["path"] for run in runs)
    share = sum(n for path, n in paths.items() if path[1:-1] == (3,)) / len(runs)
    findings.append(
        Finding(
            "the moment penalty suggests K = 3, between the extremes of its path",
            "K = 3 (figure 9)",
            f"in {percent(share)} of seeds, alpha from 0 to {LARGEST_ALPHA:g}",
            None,
            held(share > 0.5),
            f"{len(paths)} distinct paths in {len(runs)} seeds; the most common is "
            + " → ".join(map(str, paths.most_common(1)[0][0]))
            + ".",
        )
    )
    return findings


def _best(facts: dict[str, Any], names: list[str], rule: str) -> str:
    """The candidate that a rule chooses; of equal p-values the one whose worst gap is the smallest."""
    if rule == LIKELIHOOD:
        return max(names, key=lambda name: facts[name]["log-likelihood"])
    return max(names, key=lambda name: (facts[name]["p"], -facts[name]["worst"]))


def judge_ours(splits: list[dict[str, Any]], target: float) -> list[Finding]:
    """What held-out rows choose, and what that finds; it is to be as much as the document's choice does."""
    full = [name for name in splits[0] if name.startswith("full")]
    findings = []
    for names, label in ((full, "full covariance"), (list(splits[0]), "all candidates")):
        for rule in (LIKELIHOOD, MOMENTS):
            best = [_best(split, names, rule) for split in splits]
            found = [split[name]["found"] for split, name in zip(splits, best)]
            told = ", ".join(f"{name} in {count}" for name, count in Counter(best).most_common(3))
            passed = sum(split[name]["p"] > 0.05 for split, name in zip(splits, best))
            findings.append(
                Finding(
                    f"outliers found with the choice by {rule}, {label}",
                    "not in the document",
                    f"median {np.median(found):g}, from {min(found)} to {max(found)}",
                    None,
                    met(bool(np.median(found) >= target)),
                    f"Of {len(splits)} splits it chooses {told}; moment tests accept the choice in {passed}. The "
                    f"target is {target:g}, what K = 3 finds by the document's procedure."
                    + (" Moments do not mind a density that is too peaked." if rule == MOMENTS else ""),
                )
            )
    return findings
