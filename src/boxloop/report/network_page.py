"""The page of a network with error bars: whether to believe it, beside simple methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boxloop import figures
from boxloop.criticise import ClassificationScores, RegressionScores
from boxloop.estimators import Array, NetworkRegressor
from boxloop.networks import RegressionPrediction
from boxloop.numeric import format_number, format_with_error
from boxloop.report.network_findings import LEVEL, NETWORK, WORST, Network, NetworkFindings, summarise_scores
from boxloop.report.pages import TextTable, list_versions, load_template
from boxloop.report.pictures import PAGE_DPI, Picture

HEADS = {
    "rmse": "RMSE",
    "log_score": "log score per row",
    "crps": "CRPS",
    "coverage": f"in {LEVEL:.0%} intervals",
    "accuracy": "accuracy",
    "brier": "Brier score",
    "miscalibration": "calibration error",
}
"""What each measure is called in tables."""


def render_network_page(found: NetworkFindings, command: str, model: str | None) -> str:
    """One page with nothing to fetch from elsewhere; ``model`` names the model file, where one was written."""
    return load_template("network.html.jinja").render(
        found=found,
        table=found.table,
        rows={"fit": int((~found.table.held_out).sum()), "held": int(found.table.held_out.sum())},
        predictors=tabulate_predictors(found),
        worst=tabulate_worst_rows(found),
        settings=TextTable(["", ""], format_settings(list_settings(found.network))),
        pictures={picture.key: picture for picture in (*_draw_predictions(found), *_draw_posterior(found))},
        command=command,
        model=model,
        versions=list_versions(),
    )


def tabulate_predictors(found: NetworkFindings) -> TextTable:
    """The network and simple methods on the held-out rows."""
    made = {name: summarise_scores(scores) for name, scores in found.scores.items()}
    heads = ["predictor", *(HEADS[name] for name in made[NETWORK]), "network's lead in log score"]
    rows = []
    for name, facts in made.items():
        lead = ""
        if name != NETWORK:
            ahead = found.leads[name]
            lead = format_with_error(ahead.value, ahead.standard_error)
        rows.append([name, *(format_with_error(*pair) for pair in facts.values()), lead])
    return TextTable(heads, rows, 0, explain_scores(found))


def explain_scores(found: NetworkFindings) -> str:
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


def list_worst_rows(found: NetworkFindings) -> list[dict[str, Any]]:
    """The held-out rows of lowest log score."""
    scores = np.ravel(found.scores[NETWORK].log_score)
    places = np.flatnonzero(found.table.held_out)
    _, seen = found.table.held_out_data
    lines = []
    for i in np.argsort(scores, kind="stable")[:WORST].tolist():
        line: dict[str, Any] = {"row": int(places[i]), "log_score": scores[i], "observed": seen[i]}
        if isinstance(found.scores[NETWORK], RegressionScores):
            line |= {
                "predicted": found.predictions.mean[i],
                "std": found.predictions.std[i],
                "epistemic_std": found.predictions.epistemic_std[i],
            }
        else:
            share, classes = found.predictions.probability[i], found.network.classes_
            line |= {
                "predicted": classes[int(share.argmax())],
                "probability": share.max(),
                "probability_of_observed": float(np.exp(scores[i])),
            }
        lines.append(line)
    return lines


def tabulate_worst_rows(found: NetworkFindings) -> TextTable:
    """The same as text."""
    numbers = isinstance(found.scores[NETWORK], RegressionScores)
    rows = []
    for line in list_worst_rows(found):
        cells = [f"row {line['row']}"]
        if numbers:
            off = (line["observed"] - line["predicted"]) / line["std"]
            cells += [format_number(line["observed"]), format_with_error(line["predicted"], line["std"])]
            cells += [f"{off:+.1f}", format_number(line["epistemic_std"], 2)]
        else:
            cells += [str(line["observed"]), format_number(line["probability_of_observed"], 2)]
            cells += [str(line["predicted"]), format_number(line["probability"], 2)]
        rows.append(cells)
    if numbers:
        return TextTable(["", "observed", "predicted ± std", "z", "std due to weights"], rows)
    return TextTable(["", "observed", "its probability", "predicted", "with probability"], rows)


def list_settings(fit: Network) -> dict[str, Any]:
    """How a network was made, and what its fit chose."""
    parts = fit.posterior_.components()
    calibration = (
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
        **calibration,
    }


def format_settings(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Facts as lines of two cells.

    Example:
        >>> format_settings({"weight_decay": 0.0251, "hidden": [50, 50]})
        [('weight decay', '0.0251'), ('hidden', '50, 50')]
    """
    lines = []
    for name, value in facts.items():
        several = value if isinstance(value, list) else [value]
        texts = [format_number(one, 3) if isinstance(one, float) else str(one) for one in several]
        lines.append((name.replace("_", " "), ", ".join(texts)))
    return lines


def network_to_dict(found: NetworkFindings) -> dict[str, Any]:
    """All numbers, for programs."""
    lead = found.leads
    predictors = []
    for name, scores in found.scores.items():
        line: dict[str, Any] = {"name": name}
        for key, (value, error) in summarise_scores(scores).items():
            line |= {key: value, f"{key}_error": error}
        if name in lead:
            line |= {"lead": lead[name].value, "lead_error": lead[name].standard_error}
        predictors.append(line)
    return {
        "target": found.table.target,
        "columns": list(found.table.names),
        "left_out": dict(found.table.left_out),
        "kind": found.table.kind,
        "kind_reason": found.table.kind_reason,
        "rows": {"fit": int((~found.table.held_out).sum()), "held_out": int(found.table.held_out.sum())},
        "seed": found.seed,
        "predictors": predictors,
        "concerns": [asdict(concern) for concern in found.concerns],
        "level": found.audit.level,
        "assumptions": list(found.audit.assumptions),
        "worst_rows": list_worst_rows(found),
        "settings": {"estimator": type(found.network).__name__, **list_settings(found.network)},
        "events": found.events,
    }


SHOWN = 150
"""Most rows that have bars of their own."""


def _draw_predictions(found: NetworkFindings) -> Iterator[Picture]:
    rows = int(found.table.held_out.sum())
    if isinstance(found.predictions, RegressionPrediction):
        axes = plot_intervals(found.predictions, found.table.held_out_data[1], found.table.target)
        caption = (
            f"Held-out rows; bars hold {LEVEL:.0%} of what the network expects. Orange lies outside its bar."
        )
        description = (
            f"Observed against predicted {found.table.target} for {rows} held-out rows, with intervals."
        )
        calibration = "How many held-out rows lie in intervals of each probability; the band is chance."
        yield Picture("predictions", _render_png(axes), caption, description)
    else:
        axes = plot_accuracy_by_share(found)
        caption = (
            "Accuracy where only the rows are answered that the network is surest of, as a share of all."
        )
        yield Picture(
            "predictions", _render_png(axes), caption, f"Accuracy by share of {rows} rows answered."
        )
        calibration = "How often the likeliest class was right, by the probability it was given."
    alt = "Coverage or reliability of the network and of its mean network alone."
    yield Picture("calibration", _render_png(found.audit.held_out.plot()), calibration, alt)


def _draw_posterior(found: NetworkFindings) -> Iterator[Picture]:
    audit = found.audit
    if audit.trajectory is not None:
        caption = "Autocorrelation of the weights by lag; independent posterior draws would have none."
        size = f"effective sample size {audit.trajectory.median_ess:.0f}"
        alt = f"Autocorrelation of {audit.trajectory.n_vectors} vectors; {size}."
        yield Picture("iterates", _render_png(audit.trajectory.plot()), caption, alt)
    if audit.last_layer is not None:
        caption = "Each point is a weight of the last layer: its standard deviation relative to the exact posterior's."
        alt = f"Outputs have {audit.last_layer.output_ratio:.2g} times the variance of the exact posterior."
        yield Picture("last", _render_png(audit.last_layer.plot()), caption, alt)
    losses = found.network.history_["loss"]
    axes = figures.trace(losses, title="Training, then collecting", up="loss", label="the last")
    axes.set_xlabel("epoch")
    yield Picture(
        "loss", _render_png(axes), "The mean loss of each epoch.", f"Loss over {len(losses)} epochs."
    )
    tuning = found.network.predictor_.tuning
    if tuning is not None:
        caption = "The scale of the covariance, chosen by rows that the fit held out."
        yield Picture(
            "scale", _render_png(tuning.plot()), caption, f"The best scale is {found.network.scale_:.3g}."
        )


def plot_intervals(found: RegressionPrediction, seen: Array, name: str) -> Any:
    """Observed against predicted, with intervals around the prediction."""
    axes = figures.new_axes(6.6, 4.6)
    figures.dress(axes, "Predicted and observed", f"predicted {figures.short(name, 30)}", "observed")
    few = np.unique(np.linspace(0, len(seen) - 1, min(len(seen), SHOWN)).round().astype(int))
    low, high = (end.reshape(-1)[few] for end in found.interval(LEVEL))
    mean, seen = found.mean.reshape(-1)[few], seen[few]
    out = (seen < low) | (seen > high)
    axes.vlines(mean, low, high, color=figures.COLOURS[0], alpha=0.3, linewidth=1.2)
    ends = [float(mean.min()), float(mean.max())]
    axes.plot(ends, ends, color=figures.INK, linewidth=0.9)
    for mask, shade, shape, side in (
        (~out, figures.COLOURS[0], "o", "inside"),
        (out, figures.COLOURS[1], "D", "outside"),
    ):
        axes.plot(mean[mask], seen[mask], shape, color=shade, markersize=4.0, label=f"{side}: {mask.sum()}")
    figures.add_legend(axes, "upper left")
    return axes


def plot_accuracy_by_share(found: NetworkFindings) -> Any:
    """Accuracy over the share of rows answered, surest first by probability, and by how much networks agree."""
    scores = found.scores[NETWORK]
    assert isinstance(scores, ClassificationScores)
    axes = figures.new_axes(6.6, 4.6)
    figures.dress(axes, "Rows it is surest of", "share of rows answered", "accuracy on these")
    orders = {
        "by probability": -found.predictions.probability.max(1),
        "by agreement of networks": found.predictions.mutual_information,
    }
    for place, (name, doubt) in enumerate(orders.items()):
        share, right = accuracy_by_share(scores.correct, doubt)
        axes.plot(share, right, color=figures.COLOURS[place], linewidth=1.6, label=name)
    axes.axhline(scores.accuracy, color=figures.FAINT, linewidth=0.9, linestyle=(0, (4, 3)), label="all rows")
    axes.set_xlim(0.0, 1.02)
    low, high = axes.get_ylim()
    axes.set_ylim(
        max(min(low, scores.accuracy - 0.05), 0.0) - 0.005, min(max(high, scores.accuracy), 1.0) + 0.005
    )
    figures.add_legend(axes, "lower left")
    return axes


def accuracy_by_share(right: NDArray[np.bool_], doubt: Array) -> tuple[Array, Array]:
    """Share of rows answered, and accuracy on these, as rows of more and more doubt are let in; ties together.

    Example:
        >>> accuracy_by_share(np.array([True, False, True]), np.array([0.1, 0.3, 0.1]))
        (array([0.66666667, 1.        ]), array([1.        , 0.66666667]))
    """
    order = np.argsort(doubt, kind="stable")
    total, n = np.cumsum(right[order]), np.arange(1, len(order) + 1)
    last = np.append(np.diff(doubt[order]) > 0.0, True)
    return (n / len(order))[last], (total / n)[last]


def _render_png(axes: Any) -> bytes:
    return figures.png(axes, PAGE_DPI)
