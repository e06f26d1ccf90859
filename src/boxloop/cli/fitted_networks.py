"""Networks from model files: what ``show`` and ``score`` print of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from boxloop.cli.describe import Networks, column_names, fitted_columns
from boxloop.cli.lines import Found, Summary, passed
from boxloop.cli.output import echo_facts, echo_table, tell
from boxloop.data import make_frame, open_table
from boxloop.estimators import NetworkClassifier
from boxloop.numeric import format_number
from boxloop.report import chosen, spoken

MOST_NAMES = 16


def show_network(model: Path, network: Networks, json_to: str | None) -> None:
    """Print what the file of a network holds."""
    names = column_names(network)
    held = {
        "model": model,
        "estimator": type(network).__name__,
        "options": network.get_params(deep=False),
        "columns": names,
        "classes": network.classes_ if isinstance(network, NetworkClassifier) else None,
        **chosen(network),
        "interrupted": network.interrupted_,
        "events": network.events_,
    }

    def show() -> None:
        echo_facts(f"{model}: {held['estimator']}", _lines(network, names))

    tell(held, json_to, show)


def _lines(network: Networks, names: list[str]) -> list[tuple[str, str]]:
    usual: dict[str, Any] = type(network)().get_params(deep=False)
    options = [f"{k}={v!r}" for k, v in network.get_params(deep=False).items() if v != usual[k]]
    found = [
        ("options", ", ".join(options) or "as usual"),
        (
            f"{len(names)} columns",
            ", ".join(names[:MOST_NAMES]) + (", ..." if len(names) > MOST_NAMES else ""),
        ),
    ]
    if isinstance(network, NetworkClassifier):
        labels = [str(label) for label in network.classes_]
        more = ", ..." if len(labels) > MOST_NAMES else ""
        found.append((f"{len(labels)} classes", ", ".join(labels[:MOST_NAMES]) + more))
    return found + spoken(chosen(network)) + [("note", event) for event in network.events_]


def score_network(
    model: Path, network: Networks, data: str, on_workers: bool, output: Path | None, watch: bool
) -> tuple[dict[str, Any], Callable[[], None]]:
    """What the network predicts for each row, and how surely.

    Args:
        model: the file.
        network: what it holds.
        data: rows, whose columns are found by their names.
        on_workers: whether the workers of a cluster read them.
        output: table to write, one line a row.
        watch: whether to show progress.

    Returns:
        What is said of all rows, and how it is printed.
    """
    source = open_table(data, columns=fitted_columns(network), cluster=on_workers)
    written = output is not None

    def scored(rows: Tensor, weight: Tensor, start: int) -> Found[Summary]:
        lines = predicted(network, rows.numpy())
        return Found(len(rows), Summary.of(lines), (lines,) if written else ())

    seen = passed(source.in_turn(scored), source.n_rows, output, watch)
    summary = [
        {"what": name, "mean": mean, "lowest": low, "highest": high}
        for name, mean, low, high in zip(seen.names, seen.mean, seen.low, seen.high, strict=True)
    ]
    facts = {"model": model, "data": data, "rows": seen.rows, "summary": summary, "output": output}

    def show() -> None:
        heads = ["", "mean", "lowest", "highest"]
        lines = [[line["what"], *(format_number(line[head]) for head in heads[1:])] for line in summary]
        echo_table(f"{seen.rows} rows of {data} by {model}", heads, lines)
        if output is not None:
            echo_facts("", [("written to", str(output))])

    return facts, show


def predicted(network: Networks, rows: Any) -> dict[str, Any]:
    """Columns of the table that ``score`` writes, for rows in the order of the fit's columns."""
    names = fitted_columns(network)
    X = rows if names is None else make_frame({name: rows[:, j] for j, name in enumerate(names)})
    found: Any = network.predict_distribution(X)
    if isinstance(network, NetworkClassifier):
        share = found.probability
        return {
            "class": network.classes_[share.argmax(1)].astype(object),
            "probability": share.max(1),
            "entropy": found.entropy,
            "mutual_information": found.mutual_information,
            **{f"probability_{label}": share[:, j] for j, label in enumerate(network.classes_)},
        }
    low, high = found.interval(0.9)
    return {
        "predicted": found.mean,
        "deviation": found.deviation,
        "deviation_weights": found.spread,
        "low": low,
        "high": high,
    }
