"""Outliers by low density, and which number of components finds them; Beaulac (2023), section 8.2, figures 8 and 9."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer

from boxloop.criticise import Fourier, Power, Second, as_model, mega
from boxloop.data import load_dataset
from boxloop.estimators import FactorAnalysis, FitWarning, GaussianMixture
from boxloop.figures import COLOURS, dress, new_figure
from boxloop.numeric import generator, spawn
from boxloop.select import penalised_path
from papers.experiment import Finding, Options, Report
from papers.moment_gaps import LARGEST_ALPHA, NODES, ComponentMoments, chosen_along, data_moments, gap_norms
from papers.verdicts import judge_claim, judge_target, percent

Rows = NDArray[np.float64]

SHARE = 0.35

LIKELIHOOD, MOMENTS = "held-out likelihood", "held-out moment tests"

PAPER = {3: 103, 20: 67}
"""Outliers found, of 126, among 123 flagged rows."""

TICKS = (-100, -50, -25, 0, 25, 50, 100, 1000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class Table:
    """Rows, which of them are outliers, and where they come from."""

    rows: Rows
    outlier: NDArray[np.bool_]
    source: str
    real: bool

    def count_outliers(self, density: Rows) -> int:
        """Outliers among the 35% of rows with the lowest density."""
        flagged = np.argsort(density, kind="stable")[: round(SHARE * len(density))]
        return int(self.outlier[flagged].sum())


def load_table(folder: Path | None) -> Table:
    """The ionosphere data if the folder has them, else tumours, of which a similar share is malignant."""
    if folder is not None and (folder / "ionosphere.npz").exists():
        with np.load(folder / "ionosphere.npz") as file:
            return Table(file["X"].astype(np.float64), file["is_outlier"] == 1, "ionosphere", True)
    stand_in = load_dataset("breast_cancer")
    outlier = stand_in.target == stand_in.classes.index("malignant")
    return Table(
        stand_in.rows, outlier, "scikit-learn's breast cancer, malignant as outliers (no ionosphere)", False
    )


def run_paper_procedure(table: Table, components: tuple[int, ...], seed: int) -> dict[str, Any]:
    """One seed of the paper's procedure: scikit-learn's mixture, full covariance, regulariser 1e-6, raw data."""
    n_found, aic, aic_2k, likelihood, penalty = [], [], [], [], []
    rows, streams = torch.from_numpy(table.rows), spawn(generator(seed), len(components))
    for k, stream in zip(components, streams):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            peer = Peer(k, reg_covar=1e-6, random_state=seed).fit(table.rows)
        model: Any = as_model(peer)
        density = peer.score_samples(table.rows)
        gaps = gap_norms(data_moments(rows), ComponentMoments.of(model).estimate_forward(NODES, stream))
        n_found.append(table.count_outliers(density))
        aic.append(float(peer.aic(table.rows)))
        aic_2k.append(4.0 * k - 2.0 * float(density.sum()))
        likelihood.append(float(density.mean()))
        penalty.append(gaps[0] + gaps[1] ** 0.5)
    return {
        "found": n_found,
        "AIC": aic,
        "AIC, p = 2K": aic_2k,
        "path": chosen_along(penalised_path(likelihood, penalty, components)),
    }


def list_candidates(components: tuple[int, ...]) -> dict[str, Callable[[int], Any]]:
    """Our candidates by name: the paper's family, and two with fewer parameters."""
    full = {f"full, K = {k}": lambda seed, k=k: GaussianMixture(k, random_state=seed) for k in components}
    spare: dict[str, Callable[[int], Any]] = {
        "diagonal, K = 20": lambda seed: GaussianMixture(20, covariance_type="diag", random_state=seed),
        "factor analysis, 5 factors": lambda seed: FactorAnalysis(5, random_state=seed),
    }
    return {**full, **spare}


def run_split(table: Table, components: tuple[int, ...], draws: int, seed: int) -> dict[str, Any]:
    """One split: held-out likelihood and moment tests of every candidate; outliers found by its fit to all rows."""
    order = np.random.default_rng(seed).permutation(len(table.rows))
    cut = round(0.7 * len(order))
    train, test = table.rows[order[:cut]], table.rows[order[cut:]]
    tests = (Second(), Power(3), Power(4), Fourier(50))
    facts = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # few rows for so many parameters
        warnings.simplefilter("ignore", ConvergenceWarning)
        for name, make in list_candidates(components).items():
            fit = make(seed).fit(train)
            tested = mega(fit, test, functions=tests, draws=draws, random_state=seed)
            facts[name] = {
                "log-likelihood": float(fit.score(test)),
                "p": tested.p_value,
                "worst": max(gap.norm() / (gap.expected_norm or 1.0) for gap in tested.gaps),
                "found": table.count_outliers(make(seed).fit(table.rows).score_samples(table.rows)),
            }
    return facts


def judge(table: Table, runs: list[dict[str, Any]], components: tuple[int, ...]) -> list[Finding]:
    """The paper's counts, AIC and path."""
    n_found = np.asarray([run["found"] for run in runs])
    few, many = components.index(3), len(components) - 1
    medians, top, findings = np.median(n_found, axis=0), components[-1], []
    for k, limit in ((3, 100), (20, 90)):
        if not table.real or k not in components:
            continue
        place = components.index(k)
        holds = medians[place] >= limit if k == 3 else medians[place] <= limit
        findings.append(
            Finding(
                f"outliers found with K = {k}",
                f"{PAPER[k]} of 126",
                f"median {medians[place]:g}, from {n_found[:, place].min()} to {n_found[:, place].max()}",
                None,
                judge_claim(bool(holds)),
                f"Over {len(runs)} seeds; the median is to be {'at least' if k == 3 else 'at most'} {limit}.",
            )
        )
    better = float((n_found[:, few] > n_found[:, many]).mean())
    findings.append(
        Finding(
            f"K = 3 finds more outliers than K = {top}",
            "103 against 67 (K = 20)",
            f"in {percent(better)} of seeds; medians {medians[few]:g} and {medians[many]:g}",
            None,
            judge_claim(better > 0.8),
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
        text = ", ".join(f"{k}: {percent(n / len(runs))}" for k, n in sorted(chosen.items()))
        findings.append(
            Finding(
                f"AIC chooses the largest K, {count}",
                "K = 20",
                f"chosen: {text}",
                None,
                judge_claim(chosen[top] / len(runs) > 0.5),
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
            judge_claim(share > 0.5),
            f"{len(paths)} distinct paths in {len(runs)} seeds; the most common is "
            + " → ".join(map(str, paths.most_common(1)[0][0]))
            + ".",
        )
    )
    return findings


def judge_ours(splits: list[dict[str, Any]], target: float) -> list[Finding]:
    """Choices by held-out rows; they are to find as many outliers as the paper's choice."""
    full = [name for name in splits[0] if name.startswith("full")]
    findings = []
    for names, label in ((full, "full covariance"), (list(splits[0]), "all candidates")):
        for rule in (LIKELIHOOD, MOMENTS):
            best = [_choose(split, names, rule) for split in splits]
            n_found = [split[name]["found"] for split, name in zip(splits, best)]
            text = ", ".join(f"{name} in {count}" for name, count in Counter(best).most_common(3))
            passed = sum(split[name]["p"] > 0.05 for split, name in zip(splits, best))
            findings.append(
                Finding(
                    f"outliers found with the choice by {rule}, {label}",
                    "not in the document",
                    f"median {np.median(n_found):g}, from {min(n_found)} to {max(n_found)}",
                    None,
                    judge_target(bool(np.median(n_found) >= target)),
                    f"Of {len(splits)} splits it chooses {text}; moment tests accept the choice in {passed}. The "
                    f"target is {target:g}, what K = 3 finds by the document's procedure."
                    + (" Moments do not mind a density that is too peaked." if rule == MOMENTS else ""),
                )
            )
    return findings


def _choose(facts: dict[str, Any], names: list[str], rule: str) -> str:
    """The candidate that a rule chooses; of equal p-values the one whose worst gap is the smallest."""
    if rule == LIKELIHOOD:
        return max(names, key=lambda name: facts[name]["log-likelihood"])
    return max(names, key=lambda name: (facts[name]["p"], -facts[name]["worst"]))


def draw_found(
    runs: Sequence[Mapping[str, Any]],
    splits: Sequence[Mapping[str, Any]],
    components: Sequence[int],
    printed: Mapping[int, int],
) -> Figure:
    """Outliers among the flagged rows: every seed, medians and the paper's numbers."""
    figure, axis = _axes(components, "Outliers among the flagged rows", "outliers found")
    place = np.arange(len(components))
    n_found = np.asarray([run["found"] for run in runs])
    own = np.asarray([[split[f"full, K = {k}"]["found"] for k in components] for split in splits])
    for values, colour, shift, label in (
        (n_found, COLOURS[0], -0.12, "scikit-learn, as in the document"),
        (own, COLOURS[2], 0.12, "boxloop"),
    ):
        for row in values:
            axis.plot(place + shift, row, "o", color=colour, alpha=0.25, markersize=4)
        middle = np.median(values, axis=0)
        axis.plot(place + shift, middle, "_-", color=colour, markersize=14, label=f"{label}, median of seeds")
    if printed:
        at = [i for i, k in enumerate(components) if k in printed]
        counts = [printed[components[i]] for i in at]
        axis.plot(at, counts, "x", color=COLOURS[1], markersize=9, mew=2, label="document")
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize="small")
    return figure


def draw_criteria(
    runs: Sequence[Mapping[str, Any]],
    splits: Sequence[Mapping[str, Any]],
    components: Sequence[int],
    n: int,
) -> Figure:
    """AIC of the training rows and likelihood of held-out rows, medians over seeds."""
    figure, axis = _axes(
        components,
        "What each criterion sees (medians of seeds)",
        "per row, lower is better (log scale beyond 50)",
    )
    place = np.arange(len(components))
    losses = [[-split[f"full, K = {k}"]["log-likelihood"] for k in components] for split in splits]
    loss = np.median(losses, axis=0)
    aic = np.median([run["AIC"] for run in runs], axis=0) / (2 * n)
    simple = np.median([run["AIC, p = 2K"] for run in runs], axis=0) / (2 * n)
    axis.plot(place, loss, "s-", color=COLOURS[4], label="held-out rows: minus log-likelihood")
    axis.plot(place, aic, "o-", color=COLOURS[0], label="AIC / 2n")
    axis.plot(place, simple, "^-", color=COLOURS[1], label="AIC / 2n with p = 2K")
    axis.set_yscale("symlog", linthresh=50.0)
    axis.set_yticks(TICKS, labels=[f"{tick:,}" for tick in TICKS])
    axis.set_ylim(min(1.6 * simple.min(), -10.0), max(2.0 * loss.max(), 10.0))
    axis.minorticks_off()
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=3, frameon=False, fontsize="small")
    return figure


def _axes(components: Sequence[int], title: str, ylabel: str) -> tuple[Figure, Any]:
    figure = new_figure(7.6, 4.6)
    axis: Any = figure.subplots()
    dress(axis, title, "number of components K, full covariance", ylabel)
    axis.set_xticks(range(len(components)), labels=[f"{k}" for k in components])
    return figure, axis


def experiment(options: Options) -> Report:
    """Run the paper's procedure over many seeds, then ours over splits."""
    table = load_table(options.data)
    components = (1, 3, 10) if options.quick else (1, 2, 3, 4, 5, 10, 15, 20)
    seeds, n_splits, draws = (3, 1, 39) if options.quick else (20, 10, 99)
    runs, splits = [], []
    for i in range(seeds):
        options.progress(i, seeds + n_splits, f"document, seed {i}")
        runs.append(run_paper_procedure(table, components, options.seed + i))
    for i in range(n_splits):
        options.progress(seeds + i, seeds + n_splits, f"held-out rows, split {i}")
        splits.append(run_split(table, components, draws, options.seed + i))
    settings = {
        "data": table.source,
        "rows": len(table.rows),
        "outliers": int(table.outlier.sum()),
        "flagged": round(SHARE * len(table.rows)),
        "K": list(components),
        "seeds": seeds,
        "splits": n_splits,
        "seed": options.seed,
    }
    target = float(np.median([run["found"][components.index(3)] for run in runs]))
    findings = judge(table, runs, components) + judge_ours(splits, PAPER[3] if table.real else target)
    figures = {
        "found": draw_found(runs, splits, components, PAPER if table.real else {}),
        "criteria": draw_criteria(runs, splits, components, len(table.rows)),
    }
    title, curves = "Outliers by low density under a mixture", {"document": runs, "ours": splits}
    return Report("mega-ionosphere", title, settings, findings, curves, figures)
