r"""Means of windows of SGD as draws from the posterior; Brownlie (2021), section 6.1 and figure 6.2.

How long must a window be? Near the optimum of a mean loss with Hessian H, the mean of w successive iterates has error

.. math:: \bar\theta - \hat\theta \approx -H^{-1} \, \frac1w \sum_{t=1}^{w} \epsilon_t

where :math:`\epsilon_t` is the noise of a gradient from b of N rows, as long as w is several times the memory of SGD,
:math:`1 / (\eta \lambda_{\min}(H))` steps. The learning rate drops out. With rows drawn anew the w b rows of a
window have a mean gradient of variance C / (w b), and the posterior that of C / N: **w = N / b**, one epoch. Shuffled
rows are a sample without replacement, whose variance is smaller by 1 - w b / N: solving gives **w = N / (2 b)**, half
an epoch; a whole epoch leaves almost no variance. The paper's window of 50, with batches of 10 of 1000 rows, is this
half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from boxloop.figures import COLOURS, INK, MARKERS, dress, new_figure
from boxloop.networks import window_length
from papers.experiment import Finding, Options, Report
from papers.sgd_linear import (
    ROWS,
    Descent,
    Distances,
    Problem,
    descend,
    draw_cloud,
    draw_problem,
    measure_distances,
    resample_means,
)
from papers.verdicts import judge_claim, judge_target, standard_error

FULL, QUICK = 100, 20
"""Trials."""

SHOWN = 3

BATCH, WINDOW, RATE, DECAY, EPOCHS = 10, 50, 0.1, 0.001, 100

WINDOWS = (1, 5, 10, 25, 50, 100, 200, 500)

OTHER_SETTINGS = ((0.1, 5), (0.1, 20), (0.1, 50), (0.05, 10), (0.02, 10), (0.01, 10))
"""Other learning rates and batches, at the windows that the rule gives."""

QUICK_SETTINGS = ((0.1, 20), (0.02, 10))
"""The same for a quick run."""


@dataclass(frozen=True)
class Walk:
    """Iterates of one setting of SGD.

    Args:
        settings: rate, batch and replacement.
        distances: of the window means from the posterior, by length of window.
    """

    settings: Descent
    distances: dict[int, Distances]


def choose_window(batch: int, replacement: bool) -> int:
    """The length of a window whose means have the variance of the posterior."""
    return window_length(ROWS, batch, replacement)


def average_windows(path: Tensor, window: int) -> Tensor:
    """Means of disjoint windows, (s, t, d) -> (s, t // window, d)."""
    s, t, d = path.shape
    return path[:, : t // window * window].reshape(s, t // window, window, d).mean(2)


def run_walk(problem: Problem, settings: Descent, windows: tuple[int, ...]) -> tuple[Walk, Tensor]:
    """Run SGD once and cut the iterates into windows of all lengths; also the iterates."""
    _, path = descend(problem.tables, problem.start, settings, problem.streams)
    return Walk(settings, {w: measure_distances(problem, average_windows(path, w)) for w in windows}), path


def list_descents() -> dict[str, Descent]:
    """The paper's setting, and the same with rows drawn with replacement."""
    return {
        "shuffled": Descent(RATE, DECAY, BATCH, EPOCHS),
        "drawn anew": Descent(RATE, DECAY, BATCH, EPOCHS, replacement=True),
    }


def run_other_settings(problem: Problem, pairs: tuple[tuple[float, int], ...] = OTHER_SETTINGS) -> list[Walk]:
    """Other rates and batches, shuffled and with replacement, each at its window."""
    walks = []
    for rate, batch in pairs:
        for replacement in (False, True):
            settings = Descent(rate, DECAY, batch, EPOCHS, replacement)
            walks.append(run_walk(problem, settings, (choose_window(batch, replacement),))[0])
    return walks


def compute_memory(problem: Problem, rate: float) -> float:
    """Memory of SGD in steps in the slowest direction, the mean over trials."""
    x = problem.tables.x
    slowest = torch.linalg.eigvalsh(x.mT @ x / x.shape[1])[:, 0]
    return float((1.0 / (2.0 * rate * slowest)).mean())


def _judge_paper(walk: Walk) -> Finding:
    """Figure 6.2, by numbers."""
    window, raw = walk.distances[WINDOW].covariance, walk.distances[1].covariance
    ten, bare = resample_means(window), resample_means(raw)
    better = bool((ten < 0.3).mean() > 0.95 and (bare > 0.7).mean() > 0.95)
    return Finding(
        f"batch {BATCH}, window {WINDOW}, rows shuffled: relative error of the covariance",
        "a much better representation of the posterior (a picture)",
        f"{window.mean():.3f}",
        standard_error(window),
        judge_claim(better),
        f"Below 0.3 in {(ten < 0.3).mean():.0%} of means over ten trials; vectors as they come are "
        f"{raw.mean():.1f} away, above 0.7 in {(bare > 0.7).mean():.0%}.",
    )


def _judge_rule(walks: dict[str, Walk]) -> list[Finding]:
    """The best window with shuffled rows and with replacement."""
    shuffled, anew = walks["shuffled"].distances, walks["drawn anew"].distances
    best = min(WINDOWS, key=lambda w: float(shuffled[w].covariance.mean()))
    free = min(WINDOWS, key=lambda w: float(anew[w].covariance.mean()))
    epoch = choose_window(BATCH, True)
    return [
        Finding(
            "window and batch need tuning, which no theory without the posterior's eigenvalues gives",
            "significant tuning of both",
            f"best windows: {best} shuffled, {free} drawn anew",
            None,
            judge_target((best, free) == (choose_window(BATCH, False), epoch)),
            "Half an epoch of shuffled rows, N / (2 b), or one epoch of rows drawn anew, N / b, by the variance of a "
            "mean of rows. Curvature enters as a condition: a window must be several times SGD's memory, which the "
            "autocorrelation of its vectors shows.",
        ),
        Finding(
            f"the same window of {WINDOW}, rows drawn anew",
            "not in the document",
            f"{anew[WINDOW].covariance.mean():.2f}",
            standard_error(anew[WINDOW].covariance),
            judge_target(bool(anew[WINDOW].covariance.mean() > 0.5)),
            f"Variances are {anew[WINDOW].size.mean():.2f} times the posterior's: half the rows of an epoch have twice "
            "the variance of all.",
        ),
        Finding(
            f"a window of {epoch}, one epoch: shuffled against drawn anew",
            "not in the document",
            f"{shuffled[epoch].covariance.mean():.2f} against {anew[epoch].covariance.mean():.2f}",
            standard_error(anew[epoch].covariance),
            judge_target(
                bool(shuffled[epoch].covariance.mean() > 0.8 and anew[epoch].covariance.mean() < 0.3)
            ),
            f"An epoch of shuffled rows holds every row once: {shuffled[epoch].size.mean():.2f} of the variance is "
            "left.",
        ),
    ]


def _judge_other(walk: Walk, problem: Problem) -> Finding:
    """The rule at other rates and batches; it holds for windows much longer than SGD's memory."""

    ((window, distances),) = walk.distances.items()
    steps = compute_memory(problem, walk.settings.rate)
    long = window >= 4.0 * steps
    good = distances.covariance.mean() < 0.3
    return Finding(
        f"{_describe(walk)}: window {window} by the rule is {'right' if long else 'too short'}, as its length tells",
        "not in the document",
        f"variances {distances.size.mean():.2f} of the posterior's, error {distances.covariance.mean():.2f}",
        standard_error(distances.covariance),
        judge_target(bool(good == long)),
        f"The window is {window / steps:.1f} times the {steps:.0f} steps that SGD remembers: "
        + (
            "long enough."
            if long
            else "too short, so that means of windows hang together and the error is large."
        ),
    )


def _describe(walk: Walk) -> str:
    rows = "drawn anew" if walk.settings.replacement else "shuffled"
    return f"rate {walk.settings.rate:g}, batch {walk.settings.batch}, rows {rows}"


def draw(problem: Problem, walks: dict[str, Walk], paths: dict[str, Tensor], trial: int) -> Figure:
    """Iterates, window means of both kinds, and the error by the length of a window."""
    figure = new_figure(10.4, 9.0)
    axes: Any = figure.subplots(2, 2)
    shuffled, anew = paths["shuffled"][trial : trial + 1], paths["drawn anew"][trial : trial + 1]
    batch = walks["shuffled"].settings.batch
    half_epoch, epoch = choose_window(batch, False), choose_window(batch, True)
    shown = (
        (axes[0, 0], "Vectors as they come, every 10th", shuffled[:, ::10]),
        (axes[0, 1], f"Means of {half_epoch}, rows shuffled", average_windows(shuffled, half_epoch)),
        (axes[1, 0], f"Means of {epoch}, rows drawn anew", average_windows(anew, epoch)),
    )
    for panel, title, path in shown:
        draw_cloud(panel, path[0], problem.mean[trial], problem.covariance[trial], problem.start[trial])
        dress(panel, title, "first weight", "second weight")
    _errors(axes[1, 1], walks)
    handles, names = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, markerscale=1.3)
    return figure


def _errors(axes: Any, walks: dict[str, Walk]) -> None:
    dress(axes, "How long must a window be?", "vectors in a window", "relative error of the covariance")
    for j, (name, walk) in enumerate(walks.items()):
        windows = sorted(walk.distances)
        values = [walk.distances[w].covariance for w in windows]
        axes.errorbar(
            windows,
            [v.mean() for v in values],
            yerr=[2.0 * v.std(ddof=1) / len(v) ** 0.5 for v in values],
            fmt=MARKERS[j] + "-",
            color=COLOURS[2 * j],
            label=f"rows {name}",
            lw=1.5,
            markersize=5.5,
        )
        best = choose_window(walk.settings.batch, walk.settings.replacement)
        axes.axvline(best, color=COLOURS[2 * j], lw=1.0, ls=":")
    axes.axhline(1.0, color=INK, lw=0.8, ls="--")
    axes.text(1.0, 1.04, "no spread at all", fontsize=9, va="bottom", color=INK)
    axes.set(xscale="log", yscale="log")
    ticks = np.array([1, 5, 10, 25, 50, 100, 200, 500])
    axes.set_xticks(ticks, [str(t) for t in ticks])
    axes.minorticks_off()
    axes.set_yticks([0.1, 0.2, 0.5, 1.0, 2.0, 5.0], ["0.1", "0.2", "0.5", "1", "2", "5"])
    axes.legend(frameon=False, fontsize=9)


def experiment(options: Options) -> Report:
    """Run SGD with rows shuffled and drawn with replacement, and average windows of many lengths."""
    options.progress(0, 4, "pre-training")
    problem = draw_problem(QUICK if options.quick else FULL, options.seed)
    walks, paths = {}, {}
    for done, (name, descent) in enumerate(list_descents().items(), start=1):
        options.progress(done, 4, f"rows {name}")
        walks[name], paths[name] = run_walk(problem, descent, WINDOWS)
    options.progress(3, 4, "other rates and batches")
    other_walks = run_other_settings(problem, QUICK_SETTINGS if options.quick else OTHER_SETTINGS)
    findings = [
        _judge_paper(walks["shuffled"]),
        *_judge_rule(walks),
        *(_judge_other(walk, problem) for walk in other_walks),
    ]
    settings = {
        "trials": len(problem.start),
        "batch": BATCH,
        "rate": RATE,
        "decay": DECAY,
        "epochs": EPOCHS,
        "first seed": options.seed,
    }
    curves = {name: _list_curves(walk) for name, walk in walks.items()}
    curves["others"] = {_describe(walk): _list_curves(walk) for walk in other_walks}
    return Report(
        "window-averaging",
        "Means of windows of SGD beside the posterior of a linear model",
        settings,
        findings,
        curves,
        {"windows": draw(problem, walks, paths, SHOWN)},
    )


def _list_curves(walk: Walk) -> dict[str, Any]:
    return {
        str(window): _summarise(measure_distances) for window, measure_distances in walk.distances.items()
    }


def _summarise(distances: Distances) -> dict[str, float]:
    return {
        "covariance": float(distances.covariance.mean()),
        "error": standard_error(distances.covariance),
        "mean": float(distances.mean.mean()),
        "size": float(distances.size.mean()),
        "squared wasserstein": float((distances.wasserstein**2).mean()),
    }
