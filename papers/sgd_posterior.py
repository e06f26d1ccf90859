"""Are vectors of SGD draws from the posterior of a linear model? (004, table 6.1 and figure 6.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from papers.experiment import Finding, Options, Report
from papers.sgd_posterior_figures import clouds
from papers.sgd_posterior_findings import (
    PRINTED,
    Setting,
    covariances,
    measures,
    right_decay,
    table,
    told,
    wasserstein,
)
from papers.sgd_posterior_trials import (
    ALPHA,
    BETA,
    EPOCHS,
    PRETRAINING,
    RIGHT,
    ROWS,
    Distances,
    collected,
    distances,
    drawn,
)

FULL, QUICK = 400, 60
"""Trials; the document has ten."""
SHOWN = 3
"""The trial in the picture."""


def experiment(options: Options) -> Report:
    """Pre-train every trial, collect at every setting, and compare with the exact posteriors."""
    trials = QUICK if options.quick else FULL
    settings: list[Setting] = [*PRINTED, (0.1, RIGHT), (0.01, RIGHT)]
    options.progress(0, len(settings) + 1, "pre-training")
    problem = drawn(trials, options.seed)
    found: dict[Setting, Distances] = {}
    settled: dict[Setting, Distances] = {}
    shown = {}
    for done, setting in enumerate(settings, start=1):
        options.progress(done, len(settings) + 1, told(setting))
        path = collected(problem, *setting)
        found[setting] = distances(problem, path)
        settled[setting] = distances(problem, path[:, path.shape[1] // 2 :])
        shown[f"{told(setting)}{' (right)' if setting[1] == RIGHT else ''}"] = path[SHOWN]
    findings: list[Finding] = [
        *table(found),
        wasserstein(found),
        *right_decay(found),
        *covariances(found, settled),
    ]
    picture = clouds(shown, problem.mean[SHOWN], problem.covariance[SHOWN], problem.start[SHOWN])
    return Report(
        "sgd-posterior",
        "Vectors of SGD beside the posterior of a linear model",
        _settings(options, trials),
        findings,
        {"all epochs": _plain(found), "last half": _plain(settled)},
        {"clouds": picture},
    )


def _settings(options: Options, trials: int) -> dict[str, Any]:
    return {
        "trials": trials,
        "rows": ROWS,
        "alpha": ALPHA,
        "beta": BETA,
        "pre-training": f"{PRETRAINING.epochs} epochs at rate {PRETRAINING.rate:g} without decay",
        "epochs": EPOCHS,
        "first seed": options.seed,
    }


def _plain(found: dict[Setting, Distances]) -> dict[str, Any]:
    names = ("mean", "covariance", "squared wasserstein")
    lines = {}
    for setting, each in found.items():
        columns = {name: _summary(values) for name, values in zip(names, measures(each), strict=True)}
        lines[told(setting)] = {**columns, "size": _summary(each.size), "turn": _summary(each.turn)}
    return lines


def _summary(values: Any) -> dict[str, float]:
    error = float(values.std(ddof=1) / len(values) ** 0.5)
    return {"mean": float(values.mean()), "error": error, "median": float(np.median(values))}
