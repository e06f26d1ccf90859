"""Means of windows of SGD as draws from the posterior (004, section 6.1 and figure 6.2)."""

from __future__ import annotations

from typing import Any

from papers.experiment import Finding, Options, Report
from papers.sgd_posterior_trials import Array, Distances, Problem, drawn, means_of_ten
from papers.window_averaging_figures import draw
from papers.window_averaging_trials import (
    BATCH,
    DECAY,
    EPOCHS,
    FEW,
    OTHERS,
    RATE,
    WINDOW,
    WINDOWS,
    Walk,
    descents,
    memory,
    others,
    rule,
    walked,
)

FULL, QUICK = 100, 20
"""Trials."""
SHOWN = 3


def experiment(options: Options) -> Report:
    """Collect with rows shuffled and drawn anew, cut into windows of many lengths, and judge."""
    options.progress(0, 4, "pre-training")
    problem = drawn(QUICK if options.quick else FULL, options.seed)
    walks, paths = {}, {}
    for done, (name, how) in enumerate(descents().items(), start=1):
        options.progress(done, 4, f"rows {name}")
        walks[name], paths[name] = walked(problem, how, WINDOWS)
    options.progress(3, 4, "other rates and batches")
    rest = others(problem, FEW if options.quick else OTHERS)
    findings = [*_document(walks["shuffled"]), *_rule(walks), *(_other(walk, problem) for walk in rest)]
    settings = {
        "trials": len(problem.start),
        "batch": BATCH,
        "rate": RATE,
        "decay": DECAY,
        "epochs": EPOCHS,
        "first seed": options.seed,
    }
    curves = {name: _plain(walk) for name, walk in walks.items()}
    curves["others"] = {_name(walk): _plain(walk) for walk in rest}
    return Report(
        "window-averaging",
        "Means of windows of SGD beside the posterior of a linear model",
        settings,
        findings,
        curves,
        {"windows": draw(problem, walks, paths, SHOWN)},
    )


def _document(walk: Walk) -> list[Finding]:
    """Figure 6.2: one picture there, numbers here."""
    window, raw = walk.found[WINDOW].covariance, walk.found[1].covariance
    ten, bare = means_of_ten(window), means_of_ten(raw)
    better = bool((ten < 0.3).mean() > 0.95 and (bare > 0.7).mean() > 0.95)
    return [
        Finding(
            f"batch {BATCH}, window {WINDOW}, rows shuffled: relative error of the covariance",
            "a much better representation of the posterior (a picture)",
            f"{window.mean():.3f}",
            _error(window),
            "reproduced in distribution" if better else "not reproduced",
            f"Below 0.3 in {(ten < 0.3).mean():.0%} of means over ten trials; vectors as they come are "
            f"{raw.mean():.1f} away, above 0.7 in {(bare > 0.7).mean():.0%}.",
        )
    ]


def _rule(walks: dict[str, Walk]) -> list[Finding]:
    """What the window owes to shuffling, and what it is without."""
    shuffled, anew = walks["shuffled"].found, walks["drawn anew"].found
    best = min(WINDOWS, key=lambda w: float(shuffled[w].covariance.mean()))
    free = min(WINDOWS, key=lambda w: float(anew[w].covariance.mean()))
    whole = rule(BATCH, True)
    return [
        Finding(
            "window and batch need tuning, which no theory without the posterior's eigenvalues gives",
            "significant tuning of both",
            f"best windows: {best} shuffled, {free} drawn anew",
            None,
            "target met" if (best, free) == (rule(BATCH, False), whole) else "target missed",
            "Half an epoch of shuffled rows, N / (2 b), or one epoch of rows drawn anew, N / b, by the variance of a "
            "mean of rows. Curvature enters as a condition: a window must be several times SGD's memory, which the "
            "autocorrelation of its vectors shows.",
        ),
        Finding(
            f"the same window of {WINDOW}, rows drawn anew",
            "not in the document",
            f"{anew[WINDOW].covariance.mean():.2f}",
            _error(anew[WINDOW].covariance),
            "target met" if anew[WINDOW].covariance.mean() > 0.5 else "target missed",
            f"Variances are {anew[WINDOW].size.mean():.2f} times the posterior's: half the rows of an epoch have twice "
            "the variance of all.",
        ),
        Finding(
            f"a window of {whole}, one epoch: shuffled against drawn anew",
            "not in the document",
            f"{shuffled[whole].covariance.mean():.2f} against {anew[whole].covariance.mean():.2f}",
            _error(anew[whole].covariance),
            "target met"
            if shuffled[whole].covariance.mean() > 0.8 and anew[whole].covariance.mean() < 0.3
            else "target missed",
            f"An epoch of shuffled rows holds every row once: {shuffled[whole].size.mean():.2f} of the variance is "
            "left.",
        ),
    ]


def _other(walk: Walk, problem: Problem) -> Finding:
    """The rule at other rates and batches; it needs a window much longer than SGD's memory."""
    ((window, found),) = walk.found.items()
    steps = memory(problem, walk.how.rate)
    long = window >= 4.0 * steps
    good = found.covariance.mean() < 0.3
    return Finding(
        f"{_name(walk)}: window {window} by the rule is {'right' if long else 'too short'}, as its length tells",
        "not in the document",
        f"variances {found.size.mean():.2f} of the posterior's, error {found.covariance.mean():.2f}",
        _error(found.covariance),
        "target met" if good == long else "target missed",
        f"The window is {window / steps:.1f} times the {steps:.0f} steps that SGD remembers: "
        + (
            "long enough."
            if long
            else "too short, so that means of windows hang together and the error is large."
        ),
    )


def _name(walk: Walk) -> str:
    rows = "drawn anew" if walk.how.replacement else "shuffled"
    return f"rate {walk.how.rate:g}, batch {walk.how.batch}, rows {rows}"


def _plain(walk: Walk) -> dict[str, Any]:
    return {str(window): _line(found) for window, found in walk.found.items()}


def _line(found: Distances) -> dict[str, float]:
    return {
        "covariance": float(found.covariance.mean()),
        "error": _error(found.covariance),
        "mean": float(found.mean.mean()),
        "size": float(found.size.mean()),
        "squared wasserstein": float((found.wasserstein**2).mean()),
    }


def _error(values: Array) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)
