"""The number of components along the weight of a moment penalty; Beaulac (2023), section 8.1, figures 6 and 7."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture as Peer
from torch import Generator, Tensor

from boxloop.criticise import paper_gaps
from boxloop.estimators import FitWarning, GaussianMixture
from boxloop.figures import COLOURS, INK, dress, new_figure
from boxloop.numeric import generator, spawn
from boxloop.select import penalised_path
from boxloop.types import LatentModel
from papers.experiment import Finding, Options, Report
from papers.moment_gaps import LARGEST_ALPHA, NODES, chosen_along, draw_clusters, exact_gaps
from papers.verdicts import judge_claim, judge_target, percent, standard_error

TRUE = 3

AIC, AIC_2K, BIC, HELD_OUT = "AIC", "AIC, p = 2K", "BIC", "held-out likelihood"

AIC_PEER = "AIC of scikit-learn's fits"

CRITERIA = (AIC, AIC_PEER, AIC_2K, BIC, HELD_OUT)

REASONS = {
    AIC: "With K-1 + Kd + Kd(d+1)/2 parameters, at the best of several starts.",
    AIC_PEER: "With the same count, at the maximum that one start by k-means leads to.",
    AIC_2K: "The document's count leaves out most parameters, so that it asks for too many components.",
    BIC: "With K-1 + Kd + Kd(d+1)/2 parameters.",
    HELD_OUT: "As many new rows as training rows; nothing to count and nothing to weigh.",
}


def estimate_penalty(model: LatentModel, rows: Tensor, stream: Generator) -> float:
    """1MEGA-F + sqrt(2MEGA-F) of eq. 17, with m nodes."""
    first, second = paper_gaps(model, rows, stream, NODES)
    return float(first.norm() + second.norm().sqrt())


def compute_exact_penalty(model: LatentModel, rows: Tensor) -> float:
    """The same without Monte Carlo; eq. 7 exceeds the mean product by Cov/n."""
    first, second = exact_gaps(model, rows)
    excess = torch.cov(rows.mT) / len(rows)
    return float(first.norm() + (second + excess).norm().sqrt())


def run_data_set(n: int, components: tuple[int, ...], draws: int, seed: int) -> dict[str, Any]:
    """Fits of every K to one data set, what each criterion chooses, and a path for every draw of the nodes."""
    both = draw_clusters(2 * n, seed)
    train, test = both[:n], both[n:]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        warnings.simplefilter("ignore", ConvergenceWarning)
        fits = [GaussianMixture(k, random_state=seed).fit(train.numpy()) for k in components]
        peers = [Peer(k, random_state=seed).fit(train.numpy()) for k in components]
    likelihood = [float(fit.score(train.numpy())) for fit in fits]
    scores = {
        AIC: [fit.aic(train.numpy()) for fit in fits],
        AIC_PEER: [peer.aic(train.numpy()) for peer in peers],
        AIC_2K: [4.0 * k - 2.0 * n * value for k, value in zip(components, likelihood)],
        BIC: [fit.bic(train.numpy()) for fit in fits],
        HELD_OUT: [-float(fit.score(test.numpy())) for fit in fits],
    }
    streams = spawn(generator(seed), draws)
    penalties = [[estimate_penalty(fit.model_, train, stream) for fit in fits] for stream in streams]
    paths = [penalised_path(likelihood, cost, components) for cost in penalties]
    exact = [compute_exact_penalty(fit.model_, train) for fit in fits]
    return {
        "chosen": {name: components[int(np.argmin(values))] for name, values in scores.items()},
        "paths": [chosen_along(path) for path in paths],
        "breakpoints": [path.breakpoints[path.breakpoints <= LARGEST_ALPHA].tolist() for path in paths],
        "penalties": penalties,
        "exact penalty": exact,
        "exact path": chosen_along(penalised_path(likelihood, np.round(exact, 9), components)),
        "likelihood": likelihood,
        "above scikit-learn": [a - float(peer.score(train.numpy())) for a, peer in zip(likelihood, peers)],
    }


def judge(trials: list[dict[str, Any]], components: tuple[int, ...]) -> list[Finding]:
    """The paper's path and criteria."""
    top = components[-1]
    return [
        _path(trials, (top, TRUE, 1)),
        _end(trials, 0, top, "without a penalty the largest model is chosen", "alpha near 0"),
        _end(trials, -1, 1, "a large penalty chooses one component", f"alpha = {LARGEST_ALPHA:g}"),
        _exact(trials),
        *(_criterion(trials, name) for name in CRITERIA),
    ]


def _path(trials: list[dict[str, Any]], wanted: tuple[int, ...]) -> Finding:
    shares = [np.mean([path == wanted for path in one["paths"]]) for one in trials]
    common = Counter(path for one in trials for path in one["paths"]).most_common(3)
    total = sum(len(one["paths"]) for one in trials)
    counts = "; ".join(f"{_arrow(path)} in {percent(count / total)}" for path, count in common)
    return Finding(
        f"the path is {_arrow(wanted)}",
        "figure 7",
        f"in {percent(float(np.mean(shares)))} of runs",
        standard_error(shares),
        judge_claim(float(np.mean(shares)) > 0.5),
        f"The penalty of a fit is the noise of its {NODES} nodes, so the path is random; the most common ones: "
        f"{counts}.",
    )


def _end(trials: list[dict[str, Any]], where: int, wanted: int, claim: str, at: str) -> Finding:
    shares = [np.mean([path[where] == wanted for path in one["paths"]]) for one in trials]
    reason = (
        "A single Gaussian has no latent noise: its estimate by nodes is exact, and its penalty mostly the smallest."
        if wanted == 1
        else "The likelihood of the training rows grows with K."
    )
    return Finding(
        claim,
        f"K = {wanted} at {at}",
        f"in {percent(float(np.mean(shares)))} of runs",
        standard_error(shares),
        judge_claim(float(np.mean(shares)) > 0.5),
        reason,
    )


def _exact(trials: list[dict[str, Any]]) -> Finding:
    largest = max(float(np.ptp(one["exact penalty"])) for one in trials)
    constant = np.mean([len(one["exact path"]) == 1 for one in trials])
    noise = float(np.mean([np.ptp(row) for one in trials for row in one["penalties"]]))
    return Finding(
        "the penalty grows with K",
        "MEGA increases with the number of components",
        f"exact penalties differ by at most {largest:.0e} over K",
        None,
        judge_claim(largest > 1e-4),
        f"Only the floor of variances makes them differ; {NODES} nodes make it {noise:.2f}, all of it noise. "
        f"With exact moments the choice never changes up to alpha = {LARGEST_ALPHA:g} in {percent(float(constant))} of "
        "data sets.",
        exact=True,
    )


def _criterion(trials: list[dict[str, Any]], name: str) -> Finding:
    right = np.asarray([one["chosen"][name] == TRUE for one in trials])
    others = Counter(one["chosen"][name] for one in trials)
    counts = ", ".join(f"{k}: {percent(count / len(trials))}" for k, count in sorted(others.items()))
    good = float(right.mean()) > 0.8
    if name == AIC_PEER:
        # The grid begins 1, 2, 3.
        ahead = np.mean([np.asarray(one["above scikit-learn"][TRUE:]) > 1e-4 for one in trials])
        counts += f"; for larger K ours have the higher likelihood in {percent(float(ahead))}"
    return Finding(
        f"{name} chooses K = {TRUE}",
        "minimum at 3 (figure 6)" if name.startswith(AIC) else "not in the document",
        f"in {percent(float(right.mean()))} of data sets",
        standard_error(right),
        judge_claim(good) if name.startswith(AIC) else judge_target(good),
        f"{REASONS[name]} Chosen: {counts}.",
    )


def _arrow(path: tuple[int, ...]) -> str:
    return " → ".join(map(str, path))


def draw_path(trials: list[dict[str, Any]], components: tuple[int, ...]) -> Figure:
    """Figure 7 for several draws of nodes, and how often each K is chosen at each alpha."""
    alphas = np.geomspace(1e-2, LARGEST_ALPHA, 400)
    figure = new_figure(10.8, 4.6)
    axes: Any = figure.subplots(1, 2)
    place = {k: i for i, k in enumerate(components)}
    for run, colour in zip(range(min(5, len(trials[0]["paths"]))), COLOURS):
        height = [place[k] + 0.09 * (run - 2) for k in _steps(trials[0], run, alphas)]
        axes[0].step(alphas, height, color=colour, lw=1.6, label=f"draw {run + 1}")
    axes[0].axhline(
        place[trials[0]["exact path"][0]] + 0.3, color=INK, ls="--", lw=1.6, label="exact moments"
    )
    axes[0].set(yticks=range(len(components)), yticklabels=components)
    chosen = np.asarray([_steps(one, run, alphas) for one in trials for run in range(len(one["paths"]))])
    shares = [(chosen == k).mean(0) for k in components]
    shades = [f"{grey:.2f}" for grey in np.linspace(0.92, 0.15, len(components))]
    shades[place[TRUE]] = COLOURS[1]
    axes[1].stackplot(alphas, shares, labels=[f"K = {k}" for k in components], colors=shades)
    axes[1].set(ylim=(0, 1))

    titles = (
        ("One data set, five draws (lines set apart)", "components chosen"),
        ("All data sets", "share of runs"),
    )
    for axis, (title, ylabel) in zip(axes, titles):
        axis.set(xscale="log", xlim=(alphas[0], alphas[-1]))
        dress(axis, title, "weight of the penalty, alpha", ylabel)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=4, frameon=False, fontsize="small")
    return figure


def _steps(one: dict[str, Any], run: int, alphas: NDArray[np.float64]) -> NDArray[np.int64]:
    place = np.searchsorted(one["breakpoints"][run], alphas, side="right")
    return np.asarray(one["paths"][run])[place]


def draw_criteria(trials: list[dict[str, Any]], components: tuple[int, ...]) -> Figure:
    """Share of data sets in which each criterion chooses each K."""
    figure = new_figure(7.6, 4.2)
    axis: Any = figure.subplots()
    place = np.arange(len(components))
    for i, (name, colour) in enumerate(zip(CRITERIA, COLOURS)):
        share = [np.mean([one["chosen"][name] == k for one in trials]) for k in components]
        axis.bar(place + 0.17 * (i - 2), share, 0.15, color=colour, edgecolor=colour, label=name)
    axis.set(xticks=place, xticklabels=components, ylim=(0, 1.02))
    dress(
        axis,
        "Three clusters: what each criterion chooses",
        "number of components chosen",
        "share of data sets",
    )
    figure.legend(*axis.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return figure


def experiment(options: Options) -> Report:
    """Run over many data sets and draws of nodes."""
    n, sets, draws = (300, 5, 5) if options.quick else (500, 50, 20)
    components = (1, 2, 3, 5, 10) if options.quick else (1, 2, 3, 4, 5, 10, 15, 20)
    trials = []
    for i in range(sets):
        options.progress(i, sets, f"data set {i + 1}")
        trials.append(run_data_set(n, components, draws, options.seed + i))
    settings = {
        "data": "synthetic, three clusters",
        "rows": n,
        "data sets": sets,
        "draws of nodes": draws,
        "m": NODES,
        "K": list(components),
        "alpha": f"0 to {LARGEST_ALPHA:g}, exact breakpoints",
        "seed": options.seed,
    }
    figures = {"path": draw_path(trials, components), "criteria": draw_criteria(trials, components)}
    curves = {"data sets": trials}
    title = "The number of components by a moment penalty"
    return Report("mega-path", title, settings, judge(trials, components), curves, figures)
