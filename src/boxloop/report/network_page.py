"""The page of a network with error bars: whether to believe it, beside simple methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from boxloop.criticise import RegressionScores
from boxloop.estimators import NetworkRegressor
from boxloop.numeric import format_number, format_with_error
from boxloop.report.network_judge import LEVEL, NETWORK, WORST, Network, NetworkFindings, measures
from boxloop.report.network_pictures import network_pictures
from boxloop.report.pages import template, versions
from boxloop.report.tables import Table

HEADS = {
    "rmse": "RMSE",
    "log_score": "log score a row",
    "crps": "CRPS",
    "coverage": f"in {LEVEL:.0%} intervals",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "miscalibration": "calibration error",
}
"""What each measure is called in tables."""


def as_page(found: NetworkFindings, command: str, model: str | None) -> str:
    """One page with nothing to fetch from elsewhere.

    Args:
        found: what to say.
        command: that reproduces it.
        model: name of the model file, where one was written.
    """
    return template("network.html.jinja").render(
        found=found,
        problem=found.problem,
        rows={"fit": int((~found.problem.held).sum()), "held": int(found.problem.held.sum())},
        predictors=predictor_table(found),
        worst=worst_table(found),
        settings=setting_table(found),
        pictures=network_pictures(found),
        command=command,
        model=model,
        versions=versions(),
    )


def predictor_table(found: NetworkFindings) -> Table:
    """The network and simple methods on the rows held out."""
    made = {name: measures(scores) for name, scores in found.scores.items()}
    heads = ["predictor", *(HEADS[name] for name in made[NETWORK]), "network's lead in log score"]
    rows = []
    for name, facts in made.items():
        lead = "" if name == NETWORK else format_with_error(*_pair(found.ahead[name]))
        rows.append([name, *(format_with_error(*pair) for pair in facts.values()), lead])
    return Table(heads, rows, 0, note(found))


def _pair(difference: Any) -> tuple[float, float]:
    return difference.value, difference.standard_error


def note(found: NetworkFindings) -> str:
    """What the scores are."""
    own = found.scores[NETWORK]
    if isinstance(own, RegressionScores):
        return (
            f"Log score: mean log-density of what was observed, higher is better. The error of a coverage is that of "
            f"a predictor that is right: {LEVEL:.0%} are expected inside."
        )
    chance = own.reliability
    return (
        "Log score: mean log-probability of the right class, higher is better. Chance alone gives the network a "
        f"calibration error of {format_number(chance.chance, 2)}, up to {format_number(chance.chance_high, 2)}."
    )


def worst_rows(found: NetworkFindings) -> list[dict[str, Any]]:
    """The rows held out that surprised the network most."""
    scores = np.ravel(found.scores[NETWORK].log_score)
    places = np.flatnonzero(found.problem.held)
    _, seen = found.problem.judged
    lines = []
    for i in np.argsort(scores, kind="stable")[:WORST].tolist():
        line: dict[str, Any] = {"row": int(places[i]), "log_score": scores[i], "observed": seen[i]}
        if isinstance(found.scores[NETWORK], RegressionScores):
            line |= {
                "predicted": found.found.mean[i],
                "std": found.found.std[i],
                "epistemic_std": found.found.epistemic_std[i],
            }
        else:
            share, classes = found.found.probability[i], found.network.classes_
            line |= {
                "predicted": classes[int(share.argmax())],
                "probability": share.max(),
                "probability_of_observed": float(np.exp(scores[i])),
            }
        lines.append(line)
    return lines


def worst_table(found: NetworkFindings) -> Table:
    """The same as text."""
    numbers = isinstance(found.scores[NETWORK], RegressionScores)
    rows = []
    for line in worst_rows(found):
        cells = [f"row {line['row']}"]
        if numbers:
            off = (line["observed"] - line["predicted"]) / line["std"]
            cells += [
                format_number(line["observed"]),
                format_with_error(line["predicted"], line["std"]),
            ]
            cells += [f"{off:+.1f}", format_number(line["epistemic_std"], 2)]
        else:
            cells += [str(line["observed"]), format_number(line["probability_of_observed"], 2)]
            cells += [str(line["predicted"]), format_number(line["probability"], 2)]
        rows.append(cells)
    if numbers:
        return Table(
            ["", "observed", "predicted ± deviation", "deviations apart", "deviation due to weights"], rows
        )
    return Table(["", "observed", "was given", "predicted", "with probability"], rows)


def chosen(fit: Network) -> dict[str, Any]:
    """How a network was made, and what its fit chose."""
    parts = fit.posterior_.components()
    told = (
        {"noise": fit.noise_.tolist()}
        if isinstance(fit, NetworkRegressor)
        else {"temperature": fit.temperature_}
    )
    return {
        "hidden": [int(width) for width in fit.hidden],
        "members": len(parts),
        "weights": parts[0].distribution.size,
        "rank": parts[0].distribution.rank,
        "epochs": fit.n_iter_,
        "prior_precision": fit.prior_precision,
        "weight_decay": fit.weight_decay_,
        "collect_rate": fit.collect_rate_,
        "scale": fit.scale_,
        **told,
    }


def setting_table(found: NetworkFindings) -> Table:
    """The same as text."""
    return Table(["", ""], [list(line) for line in spoken(chosen(found.network))])


def spoken(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts as lines of two cells.

    Example:
        >>> spoken({"weight_decay": 0.0251, "hidden": [50, 50]})
        [('weight decay', '0.0251'), ('hidden', '50, 50')]
    """
    lines = []
    for name, value in facts.items():
        several = value if isinstance(value, list) else [value]
        said = [format_number(one, 3) if isinstance(one, float) else str(one) for one in several]
        lines.append((name.replace("_", " "), ", ".join(said)))
    return lines


def network_facts(found: NetworkFindings) -> dict[str, Any]:
    """All numbers, for programs."""
    lead = found.ahead
    predictors = []
    for name, scores in found.scores.items():
        line: dict[str, Any] = {"name": name}
        for key, (value, error) in measures(scores).items():
            line |= {key: value, f"{key}_error": error}
        if name in lead:
            line |= {"lead": lead[name].value, "lead_error": lead[name].standard_error}
        predictors.append(line)
    return {
        "target": found.problem.target,
        "columns": list(found.problem.names),
        "left_out": dict(found.problem.left_out),
        "kind": found.problem.kind,
        "why": found.problem.told,
        "rows": {"fit": int((~found.problem.held).sum()), "held_out": int(found.problem.held.sum())},
        "seed": found.seed,
        "predictors": predictors,
        "worries": [asdict(worry) for worry in found.worries],
        "level": found.audit.level,
        "assumptions": list(found.audit.assumptions),
        "worst_rows": worst_rows(found),
        "settings": {"estimator": type(found.network).__name__, **chosen(found.network)},
        "events": found.events,
    }
