"""Predictions of linear models by SGD, SWA and factor analysis of the trajectory (004, section 6.2 and figure 6.3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from papers.experiment import Options, Report
from papers.uci_linear_figures import draw
from papers.uci_linear_findings import Errors, judge
from papers.uci_linear_trials import (
    DECAY,
    DRAWS,
    FOLDS,
    METHODS,
    RANK,
    WARMUP,
    errors,
    folded,
    tables,
    trained,
)

FULL, QUICK = (3, FOLDS), (1, 4)
"""Times that the rows are shuffled and cut into ten folds, and how many of these are used; the document: once, all."""


def experiment(options: Options) -> Report:
    """Every set, shuffle and fold."""
    sets, real = tables(options.data)
    repeats, most = QUICK if options.quick else FULL
    parts: dict[str, dict[str, list[Any]]] = {t.name: {method: [] for method in METHODS} for t in sets}
    failed: dict[str, int] = {}
    jobs = [(table, repeat) for table in sets for repeat in range(repeats)]
    for done, (table, repeat) in enumerate(jobs):
        options.progress(done, len(jobs), f"{table.name}, shuffle {repeat + 1}")
        folds = folded(table, options.seed + repeat, most)
        found = trained(folds, options.seed + repeat)
        for method, weights in found.weights.items():
            parts[table.name][method].append(errors(folds, weights))
        for method, count in found.failed.items():
            failed[method] = failed.get(method, 0) + count
    whole: Errors = {
        name: {method: np.concatenate(values) for method, values in each.items()}
        for name, each in parts.items()
    }
    settings = {
        "data": "the document's four sets"
        if real
        else "scikit-learn's diabetes, as --data has no file of the four",
        "folds": f"{most} of {FOLDS}",
        "shuffles": repeats,
        "factors": RANK,
        "warm-up": WARMUP,
        "draws": DRAWS,
        "decay": DECAY,
        "folds in which a law could not be learned": sum(failed.values()),
        "first seed": options.seed,
    }
    curves = {
        name: {method: values.tolist() for method, values in each.items()} for name, each in whole.items()
    }
    title = "Predictions of linear models by SGD and laws of its trajectory"
    return Report("uci-linear", title, settings, judge(whole, real), curves, {"errors": draw(whole)})
