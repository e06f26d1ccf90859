"""Predictions of linear models by SGD, SWA and factor analysis of the trajectory; Brownlie (2021), section 6.2."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.model_selection import KFold
from torch import Generator, Tensor

from boxloop.data import load_dataset
from boxloop.figures import COLOURS, MARKERS, dress, new_figure
from boxloop.fit import FactorStream, GradientStream
from boxloop.networks import RegressionMoments, WeightDistribution, linear_regression
from boxloop.numeric import ConditionError, generator, spawn
from papers.experiment import Finding, Options, Report
from papers.sgd_linear import Array, Descent, Tables, descend
from papers.verdicts import judge_claim, judge_target, standard_error

Errors = dict[str, dict[str, Array]]
"""Set -> method -> mean squared error of every fold."""

FILE = "uci_regression_004.npz"

SETS = {"energy": "Energy Efficiency", "boston": "Boston Housing", "concrete": "Concrete", "yacht": "Yacht"}

FOLDS, RANK, WARMUP, DRAWS, SGA_RATE = 10, 3, 100, 30, 1e-3

DECAY = 0.001

FULL, QUICK = (3, FOLDS), (1, 4)
"""Shuffles of the rows into ten folds, and how many folds of each are used; the paper has one shuffle and all folds."""

PRETRAINED, SWA, EM, SGA = "pre-trained", "SWA", "online EM (document)", "online gradient (document)"

OURS, EXACT = "online EM (boxloop)", "exact posterior mean"

METHODS = (PRETRAINED, SWA, EM, SGA, OURS, EXACT)

AGREE, BETTER = 0.02, 0.05

ENERGY = "Energy Efficiency"


@dataclass(frozen=True)
class Table:
    """One data set: name, inputs (n, d) and outputs (n,)."""

    name: str
    x: Tensor
    y: Tensor


def load_tables(folder: Path | None) -> tuple[list[Table], bool]:
    """The paper's four sets, or scikit-learn's diabetes; and whether they are the paper's."""
    if folder is not None and (folder / FILE).exists():
        with np.load(folder / FILE) as file:
            results = [
                Table(name, *(_tensor(file[f"{key}_{part}"]) for part in "Xy")) for key, name in SETS.items()
            ]
        return results, True
    table = load_dataset("diabetes")
    return [Table("Diabetes", _tensor(table.rows), _tensor(table.target))], False


def _tensor(values: NDArray[np.generic]) -> Tensor:
    return torch.from_numpy(np.asarray(values, dtype=np.float64))


@dataclass(frozen=True)
class Folds:
    """Training and test rows of every fold, inputs standardised by the training rows, a column of ones last."""

    train: Tables
    test: list[tuple[Tensor, Tensor]]


def split_folds(table: Table, seed: int, n_folds: int = FOLDS) -> Folds:
    """The first of ten folds of rows in random order."""
    train: list[tuple[Tensor, Tensor]] = []
    test: list[tuple[Tensor, Tensor]] = []
    cuts = KFold(FOLDS, shuffle=True, random_state=seed).split(table.x)
    for fitted, left_out in islice(cuts, n_folds):
        mean, scale = table.x[fitted].mean(0), table.x[fitted].std(0, correction=0)
        unit = torch.where(scale > 0.0, scale, 1.0)
        for rows, part in ((fitted, train), (left_out, test)):
            x = (table.x[rows] - mean) / unit
            part.append((torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1), table.y[rows]))
    return Folds(Tables.padded(train), test)


@dataclass(frozen=True)
class Training:
    """Weights of every fold by method.

    Args:
        weights: by method, each (f, d + 1).
        failed: number of folds whose distribution could not be learned, by method; their weights are NaN.
    """

    weights: dict[str, Tensor]
    failed: dict[str, int]


def train_folds(folds: Folds, seed: int) -> Training:
    """Pre-train 500 epochs at rate 0.001, collect 100 at rate 0.1, and learn the distribution of these iterates."""
    f, n, d = folds.train.x.shape
    streams = [spawn(generator(seed * 1009 + fold), 3) for fold in range(f)]
    batch = -(-n // 10)
    descending = [each[0] for each in streams]
    unit = torch.stack([torch.rand(d, generator=s, dtype=torch.float64) for s in descending])
    first = (2.0 * unit - 1.0) * (d - 1) ** -0.5  # what torch.nn.Linear starts from
    start, _ = descend(folds.train, first, Descent(0.001, DECAY, batch, 500), descending, keep_path=False)
    _, path = descend(folds.train, start, Descent(0.1, DECAY, batch, 100), descending)
    weights = {PRETRAINED: start, SWA: path.mean(1), EXACT: _exact_means(folds)}
    failed = {}
    for name in (EM, SGA, OURS):
        results = [_ensemble(name, rows, each[1], each[2]) for rows, each in zip(path, streams, strict=True)]
        weights[name] = torch.stack(results)
        failed[name] = int(weights[name].isnan().any(1).sum())
    return Training({name: weights[name] for name in METHODS}, failed)


def _start_stream(name: str, d: int, starting: Generator) -> FactorStream | GradientStream:
    if name == SGA:
        return GradientStream.start(
            d, RANK, starting, learning_rate=SGA_RATE, dtype=torch.float64, warmup=WARMUP, variant="paper"
        )
    variant: Literal["paper", "exact"] = "paper" if name == EM else "exact"
    return FactorStream.start(d, RANK, starting, dtype=torch.float64, warmup=WARMUP, variant=variant)


def _ensemble(name: str, rows: Tensor, starting: Generator, drawing: Generator) -> Tensor:
    """Mean of 30 draws of the weights; for a linear model it gives their average prediction (eq. 6.6)."""
    stream = _start_stream(name, rows.shape[1], starting)
    try:
        for row in rows:
            stream.observe(row)
    except ConditionError:
        return torch.full_like(rows[0], torch.nan)
    model = stream.model()
    distribution = WeightDistribution(model.mean, model.loadings, model.noise.clamp(min=0.0))
    return distribution.draw(DRAWS, drawing).mean(0)


def _exact_means(folds: Folds) -> Tensor:
    """Means of the exact posterior at the precisions of the highest evidence, a column of ones among the inputs."""
    results = []
    for x, y, n in zip(folds.train.x, folds.train.y, folds.train.count, strict=True):
        results.append(linear_regression(RegressionMoments.from_rows(x[:n], y[:n, None]))[0].mean[0])
    return torch.stack(results)


def measure_errors(folds: Folds, weights: Tensor) -> Array:
    """Mean squared error of every fold, (f,)."""
    results = [float((x @ w - y).square().mean()) for (x, y), w in zip(folds.test, weights, strict=True)]
    return np.asarray(results)


def judge(results: Errors, real: bool) -> list[Finding]:
    """All claims; those about the paper's sets only with these sets."""
    findings = [_agreement(name, each, method) for name, each in results.items() for method in (EM, OURS)]
    if not real:
        return [*findings, *(_against_exact(name, each) for name, each in results.items())]
    return [
        _energy(results[ENERGY]),
        _three(results),
        _overlap(results),
        *findings,
        _gradient(results),
        *(_against_exact(name, each) for name, each in results.items()),
    ]


def _energy(each: dict[str, Array]) -> Finding:
    gains = {method: 1.0 - each[method].mean() / each[PRETRAINED].mean() for method in (SWA, EM)}
    paired = each[PRETRAINED] - each[SWA]
    return Finding(
        "Energy: SWA and the online EM ensemble beat pre-training",
        "by a relatively large difference",
        f"by {gains[SWA]:.1%} and {gains[EM]:.1%}",
        None,
        judge_claim(bool(min(gains.values()) > BETTER)),
        f"{each[PRETRAINED].mean():.2f} falls to {each[SWA].mean():.2f}, by {paired.mean():.2f} "
        f"± {standard_error(paired):.2f} within folds: 500 epochs at rate 0.001 leave directions of nearly "
        "collinear inputs unlearned.",
    )


def _three(results: Errors) -> Finding:
    lower = [
        name
        for name, each in results.items()
        if max(each[SWA].mean(), each[EM].mean()) < each[PRETRAINED].mean()
    ]
    return Finding(
        "sets on which both have a lower error than pre-training",
        "three of four",
        f"{len(lower)} of {len(results)}",
        None,
        judge_claim(len(lower) >= 3),
        f"Lower on {', '.join(lower)}.",
    )


def _overlap(results: Errors) -> Finding:
    bars = {}
    for name, each in results.items():
        gap = abs(each[PRETRAINED].mean() - each[SWA].mean())
        bars[name] = gap / (_ten_fold_error(each[PRETRAINED]) + _ten_fold_error(each[SWA]))
    clear = [name for name, gap in bars.items() if gap > 1.0]
    rest = ", ".join(f"{name} {gap:.2f}" for name, gap in bars.items())
    return Finding(
        "error bars of pre-training and SWA overlap but for Energy",
        "significant overlap elsewhere",
        f"apart on {', '.join(clear) if clear else 'none'}",
        None,
        judge_claim(clear in ([], [ENERGY])),
        f"Gap over the sum of both standard errors of ten folds: {rest}.",
    )


def _agreement(name: str, each: dict[str, Array], method: str) -> Finding:
    ratio = each[method].mean() / each[SWA].mean() - 1.0
    ours = method == OURS
    holds = bool(abs(ratio) < AGREE)
    return Finding(
        f"{name}: {method} ensemble against SWA",
        "not in the document" if ours else "almost identical",
        _compare_means(each[method], each[SWA]),
        standard_error(each[method] - each[SWA]),
        judge_target(holds) if ours else judge_claim(holds),
        "The mean of 30 draws from a distribution about the SWA solution: what differs is the chance of the draws.",
    )


def _gradient(results: Errors) -> Finding:
    ratios = {name: each[SGA].mean() / each[SWA].mean() - 1.0 for name, each in results.items()}
    text = ", ".join(f"{name} {ratio:+.1%}" for name, ratio in ratios.items())
    return Finding(
        "the online gradient ensemble against SWA",
        "SWA and online EM are the best in general",
        f"{np.mean(list(ratios.values())):+.1%} on average",
        None,
        judge_claim(bool(np.mean(list(ratios.values())) > 0.0)),
        f"{text}: its unit start is wider than the cloud, and so are its draws.",
    )


def _against_exact(name: str, each: dict[str, Array]) -> Finding:
    ratio = each[SWA].mean() / each[EXACT].mean() - 1.0
    return Finding(
        f"{name}: SWA against the exact posterior mean",
        "not in the document",
        _compare_means(each[SWA], each[EXACT]),
        standard_error(each[SWA] - each[EXACT]),
        judge_target(bool(abs(ratio) < AGREE)),
        "Bayesian linear regression whose alpha and beta have the highest evidence: one solve for 600 epochs.",
    )


def _compare_means(ours: Array, others: Array) -> str:
    """Two mean errors, and their difference last, whose standard error follows."""
    ratio, gap = ours.mean() / others.mean() - 1.0, (ours - others).mean()
    return f"{ours.mean():.2f} against {others.mean():.2f} ({ratio:+.2%}), by {gap:+.2g}"


def _ten_fold_error(values: Array) -> float:
    """Standard error of a mean over ten folds, as in the paper."""
    return float(values.std(ddof=1) / 10**0.5)


def draw(results: Errors) -> Figure:
    """Figure 6.3: one panel per set; mean over folds, with the standard error of ten folds."""
    columns = 2 if len(results) > 1 else 1
    rows = -(-len(results) // columns)
    figure = new_figure(5.4 * columns, 3.3 * rows)
    axes: Any = figure.subplots(rows, columns, squeeze=False)
    for place, (panel, (name, each)) in enumerate(zip(axes.flat, results.items())):
        for j, method in enumerate(METHODS):
            values = each[method]
            error = values.std(ddof=1) / 10**0.5
            panel.errorbar(
                values.mean(),
                j,
                xerr=error,
                fmt=MARKERS[j],
                color=COLOURS[j],
                markersize=7,
                capsize=3,
                lw=1.5,
            )
        dress(panel, name, "mean squared error of test rows")
        panel.set_yticks(range(len(METHODS)), METHODS if place % columns == 0 else [""] * len(METHODS))
        panel.set_ylim(len(METHODS) - 0.5, -0.5)
    for panel in axes.flat[len(results) :]:
        panel.set_visible(False)
    return figure


def experiment(options: Options) -> Report:
    """Run every set, shuffle and fold."""
    sets, real = load_tables(options.data)
    repeats, n_folds = QUICK if options.quick else FULL
    errors_by_fold: dict[str, dict[str, list[Any]]] = {
        t.name: {method: [] for method in METHODS} for t in sets
    }
    failed: dict[str, int] = {}
    jobs = [(table, repeat) for table in sets for repeat in range(repeats)]
    for done, (table, repeat) in enumerate(jobs):
        options.progress(done, len(jobs), f"{table.name}, shuffle {repeat + 1}")
        folds = split_folds(table, options.seed + repeat, n_folds)
        results = train_folds(folds, options.seed + repeat)
        for method, weights in results.weights.items():
            errors_by_fold[table.name][method].append(measure_errors(folds, weights))
        for method, count in results.failed.items():
            failed[method] = failed.get(method, 0) + count
    errors: Errors = {
        name: {method: np.concatenate(values) for method, values in each.items()}
        for name, each in errors_by_fold.items()
    }
    settings = {
        "data": "the document's four sets"
        if real
        else "scikit-learn's diabetes, as --data has no file of the four",
        "folds": f"{n_folds} of {FOLDS}",
        "shuffles": repeats,
        "factors": RANK,
        "warm-up": WARMUP,
        "draws": DRAWS,
        "decay": DECAY,
        "folds in which a distribution could not be learned": sum(failed.values()),
        "first seed": options.seed,
    }
    curves = {
        name: {method: values.tolist() for method, values in each.items()} for name, each in errors.items()
    }
    title = "Predictions of linear models by SGD and distributions of its trajectory"
    return Report("uci-linear", title, settings, judge(errors, real), curves, {"errors": draw(errors)})
