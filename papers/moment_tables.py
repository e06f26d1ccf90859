"""Four models of rows with two columns: MEGA, MMD, exact gaps and our tests; Beaulac (2023), tables 1 and 2."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from boxloop.criticise import First, Fourier, Power, Second, draw_rows, mega, mmd, paper_gaps
from boxloop.figures import COLOURS, INK, dress, new_figure
from boxloop.numeric import generator, spawn
from boxloop.types import LatentModel
from papers.experiment import Finding, Options, Report
from papers.moment_gaps import exact_gaps, fit_mixture
from papers.verdicts import judge_claim, judge_target, percent

FUNCTIONS = (First(), Second(), Power(3), Power(4), Fourier(50))
METRICS = ("1MEGA-F", "2MEGA-F", "MMD²")
NAMES = ("first", "second", "third", "fourth", "Fourier")
LEVEL = 0.05
MOST = 0.8
"""Share of data sets in which an ordering must appear for it to count as reproduced."""


@dataclass(frozen=True)
class Candidate:
    """One of the four models; ``trained`` where it is the maximum of the likelihood of the training rows."""

    name: str
    model: LatentModel
    trained: bool = True


@dataclass(frozen=True)
class Claim:
    """An ordering that the paper reads off its table.

    Args:
        text: what it says.
        paper: the paper's numbers.
        holds: measures (data sets, models, ...) -> whether it holds in each data set.
        reason: why it does or does not.
    """

    text: str
    paper: str
    holds: Callable[[NDArray[np.float64]], NDArray[np.bool_]]
    reason: str


@dataclass(frozen=True)
class Study:
    """What differs between the two tables.

    Args:
        name: of the experiment.
        title: of its table.
        rows: (n, seed) -> rows.
        candidates: (training rows, seed) -> the four models.
        components: numbers of components whose exact gaps are compared.
        claims: of the paper.
        named: which candidate is the mixture that fits, from zero; the first one is unimodal.
    """

    name: str
    title: str
    rows: Callable[[int, int], Tensor]
    candidates: Callable[[Tensor, int], list[Candidate]]
    components: tuple[int, ...]
    claims: Sequence[Claim]
    best: int = 3


def range_of_gaps(rows: Tensor, components: Sequence[int], seed: int) -> float:
    """Largest difference of an entry of the exact gaps between any two numbers of components, full and tied."""
    largest = 0.0
    for kind in ("full", "tied"):
        fits = (fit_mixture(rows, k, seed, kind) for k in components)
        gaps = torch.stack([torch.cat([g.flatten() for g in exact_gaps(fit, rows)]) for fit in fits])
        largest = max(largest, float((gaps.amax(0) - gaps.amin(0)).max()))
    return largest


def measure_candidate(
    candidate: Candidate, train: Tensor, test: Tensor, nodes: int, draws: int, seed: int
) -> list[float]:
    """1MEGA-F, 2MEGA-F and squared MMD as in the paper, both exact gaps, and a p-value for each test function."""
    streams = spawn(generator(seed), 2)
    first, second = paper_gaps(candidate.model, train, streams[0], nodes)
    distance = mmd(train, draw_rows(candidate.model, len(train), streams[1]), random_state=seed).value
    exact = exact_gaps(candidate.model, train)
    tested = mega(
        candidate.model,
        test.numpy(),
        functions=FUNCTIONS,
        train=train.numpy() if candidate.trained else None,
        draws=draws,
        random_state=seed,
    )
    p_values = [float(gap.p_value) for gap in tested.gaps if gap.p_value is not None]
    return [
        float(first.norm()),
        float(second.norm()),
        float(distance),
        *(float(g.norm()) for g in exact),
        *p_values,
    ]


def run_study(study: Study, options: Options) -> Report:
    """Measure every model on every data set."""
    repeats, n, draws = (3, 300, 99) if options.quick else (40, 1000, 199)
    nodes = 1000
    measured, largest = [], 0.0
    for i in range(repeats):
        options.progress(i, repeats, f"data set {i + 1}")
        seed = options.seed + i
        both = study.rows(2 * n, seed)
        train, test = both[:n], both[n:]
        if i < (1 if options.quick else 5):
            largest = max(largest, range_of_gaps(train, study.components, seed))
        candidates = study.candidates(train, seed)
        measured.append([measure_candidate(c, train, test, nodes, draws, seed) for c in candidates])
    table = np.asarray(measured)
    names = [c.name for c in candidates]
    settings = {
        "data": "synthetic",
        "data sets": repeats,
        "training rows": n,
        "held-out rows": n,
        "m": nodes,
        "models": names,
        "seed": options.seed,
    }
    figures = {
        "models": draw_models(train, candidates, options.seed),
        "rejections": draw_rejections(table, names),
    }
    return Report(
        study.name, study.title, settings, judge(study, table, names, largest), _curves(table, names), figures
    )


def judge(study: Study, table: NDArray[np.float64], names: list[str], largest: float) -> list[Finding]:
    """The paper's orderings, the identity that explains them, and the power of our tests."""
    findings = [_ordering(claim, table) for claim in study.claims]
    shown = ", ".join(map(str, study.components))
    findings.append(
        Finding(
            f"exact first and second gaps on the training rows tell K = {shown} apart",
            "MEGA compares models",
            f"largest difference between any two K {largest:.0e}",
            None,
            judge_claim(largest > 1e-8),
            "An M step with full or tied covariance matches both moments whatever K is, so MEGA cannot tell K = 1 "
            f"from K = {study.components[-1]}: with finite m it compares the noise of its nodes.",
            exact=True,
        )
    )
    return findings + [_power(i, table, names, study) for i in range(len(NAMES))]


def _ordering(claim: Claim, table: NDArray[np.float64]) -> Finding:
    holds = claim.holds(table)
    metrics = [f"{metric} {_medians(table, i)}" for i, metric in enumerate(METRICS)]
    return Finding(
        claim.text,
        claim.paper,
        f"in {percent(holds.mean())} of data sets; medians of models 1 to 4: {'; '.join(metrics)}",
        None,
        judge_claim(holds.mean() >= MOST),
        claim.reason,
    )


def _power(which: int, table: NDArray[np.float64], names: list[str], study: Study) -> Finding:
    rejected = table[:, :, 5 + which] <= LEVEL
    poor, good = rejected[:, 0].mean(), rejected[:, study.best].mean()
    allowed = LEVEL + 3.0 * (LEVEL * (1 - LEVEL) / len(table)) ** 0.5
    others = " and ".join(percent(rejected[:, j].mean()) for j in range(1, 4) if j != study.best)
    if which < 2:
        target, reason = (
            max(poor, good) <= allowed,
            "The fit matches these moments: on new rows only chance is left",
        )
    else:
        target, reason = (
            poor >= MOST and good <= allowed,
            "It is to reject the first in most data sets, not the second",
        )
    return Finding(
        f"held-out test by {NAMES[which]} moments, {names[0]} and {names[study.best]}",
        "not in the document",
        f"rejected in {percent(poor)} and {percent(good)} of data sets; median p "
        f"{np.median(table[:, 0, 5 + which]):.3f} and {np.median(table[:, study.best, 5 + which]):.3f}",
        None,
        judge_target(bool(target)),
        f"{reason}; the other two models are rejected in {others}.",
    )


def _medians(table: NDArray[np.float64], which: int) -> str:
    return ", ".join(f"{value:.3g}" for value in np.median(table[:, :, which], axis=0))


def _curves(table: NDArray[np.float64], names: list[str]) -> dict[str, Any]:
    columns = [
        "1MEGA-F",
        "2MEGA-F",
        "MMD squared",
        "exact first",
        "exact second",
        *(f"p, {f}" for f in NAMES),
    ]
    return {
        name: {column: table[:, i, j].tolist() for j, column in enumerate(columns)}
        for i, name in enumerate(names)
    }


def draw_models(rows: Tensor, candidates: Sequence[Candidate], seed: int) -> Figure:
    """Training rows and as many from each model, as in figures 3 and 4."""
    figure = new_figure(8.4, 8.0)
    axes: Any = figure.subplots(2, 2, sharex=True, sharey=True)
    for axis, candidate, stream in zip(axes.flat, candidates, spawn(generator(seed), 4)):
        fresh = draw_rows(candidate.model, len(rows), stream)
        axis.scatter(*rows.numpy().T, s=5, color=COLOURS[0], alpha=0.5, label="training rows", lw=0)
        axis.scatter(*fresh.numpy().T, s=5, color=COLOURS[1], alpha=0.5, label="drawn from the model", lw=0)
        dress(axis, candidate.name)
    for axis in axes[-1]:
        axis.set_xlabel("first column")
    for axis in axes[:, 0]:
        axis.set_ylabel("second column")
    handles, names = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False, markerscale=3)
    return figure


def draw_rejections(table: NDArray[np.float64], names: Sequence[str]) -> Figure:
    """Share of data sets in which each test function rejects each model on held-out rows."""
    figure = new_figure(7.6, 4.4)
    axis: Any = figure.subplots()
    share = (table[:, :, 5:] <= LEVEL).mean(0)
    place = np.arange(len(NAMES))
    for i, (name, colour) in enumerate(zip(names, COLOURS)):
        axis.bar(place + 0.2 * (i - 1.5), share[i], 0.18, color=colour, edgecolor=colour, label=name)
    axis.axhline(LEVEL, color=INK, lw=1, ls="--", label="a true model at the 5% level")
    axis.set(xticks=place, ylim=(0.0, 1.02))
    axis.set_xticklabels(["means", "products", "third powers", "fourth powers", "Fourier features"])
    dress(
        axis,
        "Which tests see that a model is wrong",
        "test function, on held-out rows",
        "share of data sets that reject",
    )
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return figure
