"""Model files of networks: what ``show`` and ``score`` make of them."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from boxloop.cli.describe import Networks, column_names, fitted_columns
from boxloop.cli.output import check_table, echo_facts, echo_table, tell
from boxloop.cli.tally import tiles
from boxloop.cli.watch import watched
from boxloop.data import open_table, table_writer
from boxloop.data.frames import make_frame
from boxloop.estimators.base import Array
from boxloop.estimators.network_classifier import NetworkClassifier
from boxloop.numeric.written import number
from boxloop.report.network_page import chosen, spoken

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
    model: Path,
    network: Networks,
    data: str,
    watch: bool,
    output: Path | None,
    json_to: str | None,
    quiet: bool,
) -> None:
    """What the network predicts for each row, and how surely.

    Args:
        model: the file.
        network: what it holds.
        data: rows, whose columns are found by their names.
        watch: whether to show progress.
        output: table to write, one line a row.
        json_to: where JSON goes.
        quiet: whether to print nothing.
    """
    check_table(output)
    source = open_table(data, columns=fitted_columns(network))
    seen: dict[str, Array] = {}
    count = 0
    with (
        nullcontext() if output is None else table_writer(output) as write,
        watched("rows", watch) as moved,
    ):
        for tile in tiles(source):
            lines = predicted(network, tile.rows.numpy())
            count += len(next(iter(lines.values())))
            seen = _seen(seen, lines)
            moved(count, source.n_rows, "rows")
            if write is not None:
                write(lines)
    summary = [
        {"what": name, "mean": total / count, "lowest": low, "highest": high}
        for name, (total, low, high) in seen.items()
    ]
    facts = {"model": model, "data": data, "rows": count, "summary": summary, "output": output}

    def show() -> None:
        heads = ["", "mean", "lowest", "highest"]
        lines = [[line["what"], *(number(line[head]) for head in heads[1:])] for line in summary]
        echo_table(f"{count} rows of {data} by {model}", heads, lines)
        if output is not None:
            echo_facts("", [("written to", str(output))])

    tell(facts, json_to, show, quiet)


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


def _seen(before: dict[str, Array], lines: dict[str, Any]) -> dict[str, Array]:
    """Sum, smallest and largest of every column of numbers, with more rows."""
    found = {}
    for name, values in lines.items():
        if values.dtype == object:
            continue
        total, low, high = before.get(name, np.array([0.0, np.inf, -np.inf]))
        found[name] = np.array([total + values.sum(), min(low, values.min()), max(high, values.max())])
    return found
