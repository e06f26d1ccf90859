"""Posteriors over the weights of networks of 50 units on the tables of UCI: SWAG, factor analysis, ensembles."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from papers.experiment import Options, Report
from papers.uci_networks_data import Table, tables
from papers.uci_networks_figures import against_sgd, coverage
from papers.uci_networks_findings import judge
from papers.uci_networks_training import Setting
from papers.uci_networks_trials import SCALES, Facts, Trial, tried

FULL = Trial(20, 5, 100, Setting())
SMALL = Trial(3, 3, 20, Setting(units=20, burn_in=300, steps=200, every=5, rank=5))
FEW = 300
"""Rows of a table, in the small size."""


def experiment(options: Options) -> Report:
    """Train networks on random splits of every table, and judge what eleven methods make of their trajectories."""
    trial = SMALL if options.quick else FULL
    found = tables(options.data, FEW if options.quick else None, options.seed)
    results: dict[str, Facts] = {}
    for place, table in enumerate(found):
        options.progress(place, len(found), table.name)
        results[table.name] = tried(table, trial, options.seed)
    options.progress(len(found), len(found), "done")
    return Report(
        "uci-networks",
        "Posteriors over the weights of small networks, against SGD and ensembles",
        _settings(options, trial, found),
        judge(results),
        {"results": results},
        {
            "likelihood": against_sgd(results, "nll", "NLL less SGD's, nats a row"),
            "errors": against_sgd(results, "rmse", "RMSE against SGD's"),
            "coverage": coverage(results),
        },
    )


def _settings(options: Options, trial: Trial, found: list[Table]) -> dict[str, Any]:
    setting = asdict(trial.setting)
    rows = {table.name: list(table.x.shape) for table in found}
    return {
        "tables": rows,
        "splits (90% to train, 10% to test)": trial.splits,
        "share of training rows to tune noise and scale with, for every method": 0.1,
        "runs": trial.runs,
        "draws": trial.draws,
        "law of a prediction": "normal, with the mean and variance of the draws and the noise",
        "least noise": "what mean networks leave of training rows",
        "scales tried": [round(scale, 4) for scale in SCALES],
        **{key.replace("_", " "): value for key, value in setting.items()},
        "weight decay": "2 alpha / (beta N), of the prior above",
        "seed": options.seed,
    }
