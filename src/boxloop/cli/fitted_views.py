"""Features of two views from model files: what ``show`` and ``score`` print of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np
from torch import Tensor

from boxloop.cli.describe import TwoViews
from boxloop.cli.lines import Found, Summary, passed
from boxloop.cli.output import echo_facts, echo_table, tell
from boxloop.cli.parts import MOST_COLUMNS, MOST_ROWS
from boxloop.cli.relate_read import read_side
from boxloop.data import ArraySource, open_table
from boxloop.estimators import Array, RelevantFeatures, ViewSchema, to_numpy
from boxloop.numeric import format_number
from boxloop.twoview import FiniteView, View

MOST_NAMES = 16


def show_views(model: Path, estimator: TwoViews, json_to: str | None) -> None:
    """Print what a file of two views holds."""
    edges = {"x": estimator.x_schema_, "y": estimator.y_schema_}
    moves = {"x": _moves(estimator, "x"), "y": _moves(estimator, "y")}
    held = {
        "model": model,
        "estimator": type(estimator).__name__,
        "options": estimator.get_params(deep=False),
        "columns": [name for edge in edges.values() for name in edge.names],
        **{word: {"columns": edge.names, "labels": edge.values} for word, edge in edges.items()},
        "rounds": estimator.n_iter_,
        "converged": estimator.converged_,
        "interrupted": estimator.interrupted_,
        "events": estimator.events_,
        "relevance": estimator.relevance_,
        "moves": {word: dict(zip(edge.labels, moves[word])) for word, edge in edges.items()},
    }

    def show() -> None:
        echo_facts(f"{model}: {held['estimator']}", _lines(estimator))
        _echo_moves(estimator.relevance_, edges, moves)

    tell(held, json_to, show)


def _lines(estimator: TwoViews) -> list[tuple[str, str]]:
    usual: dict[str, Any] = type(estimator)().get_params(deep=False)
    chosen = estimator.get_params(deep=False)
    options = [f"{name}={value!r}" for name, value in chosen.items() if value != usual[name]]
    ended = (
        "interrupted" if estimator.interrupted_ else "converged" if estimator.converged_ else "not converged"
    )
    found = [
        ("options", ", ".join(options) or "as usual"),
        ("x", _named(estimator.x_schema_)),
        ("y", _named(estimator.y_schema_)),
        ("relevance in the fit", f"{format_number(float(estimator.relevance_.sum()), 3)} in all"),
        ("rounds", f"{estimator.n_iter_}, {ended}"),
    ]
    return found + [("note", event) for event in estimator.events_]


def _named(edge: ViewSchema) -> str:
    labels = edge.labels
    what = f"{len(labels)} columns: " if edge.values is None else f"{edge.names[0]}, {len(labels)} labels: "
    return what + ", ".join(labels[:MOST_NAMES]) + (", ..." if len(labels) > MOST_NAMES else "")


def _moves(estimator: TwoViews, word: str) -> Array:
    """How far each column, or the share of each label, moves with each variable of its own view, in deviations."""
    fit, pair = estimator.fit_, estimator.model_.pair
    mean, view = (fit.left, pair.left) if word == "x" else (fit.right, pair.right)
    found: Array = to_numpy(mean[1:] / _deviation(view, mean[0])).T
    return found


def _deviation(view: View, middle: Any) -> Any:
    if isinstance(view, FiniteView):
        return (middle * (1.0 - middle)).clamp(min=1e-300).sqrt()
    return view.scale  # type: ignore[attr-defined]  # all other views stand in standard units


def _echo_moves(relevance: Array, edges: dict[str, ViewSchema], moves: dict[str, Array]) -> None:
    shown = range(min(len(relevance), MOST_COLUMNS))
    rows = [["relevance in the fit", *(format_number(relevance[i], 2) for i in shown)]]
    cut = ""
    for word, edge in edges.items():
        size = np.abs(moves[word]).max(1, initial=0.0)
        kept = np.sort(np.argsort(-size, kind="stable")[:MOST_ROWS])
        rows += [[f"{word}: {edge.labels[j]}", *(f"{moves[word][j, i]:+.2f}" for i in shown)] for j in kept]
        if len(kept) < len(size):
            cut += f"; of {word} the {len(kept)} of {len(size)} that move most"
    if len(shown) < len(relevance):
        cut += f"; the first {len(shown)} of {len(relevance)} variables"
    title = "How far each column moves, in its deviations, with each variable of its view"
    echo_table(title + cut, ["variable", *(str(i + 1) for i in shown)], rows)


def check_shared(model: Path, estimator: TwoViews, shared: bool) -> None:
    """Refuse workers for a first view of labels, which are words and read at once."""
    if shared and estimator.x_schema_.values is not None:
        raise click.UsageError(
            f"--workers and --cluster share passes over numbers; {model} takes labels, which are read in one process: "
            "leave both out"
        )


def score_views(
    model: Path, estimator: TwoViews, data: str, on_workers: bool, output: Path | None, watch: bool
) -> tuple[dict[str, Any], Callable[[], None]]:
    """The variables of each row of the first view, and what they tell of the second.

    Args:
        model: the file.
        estimator: what it holds.
        data: rows of the first view, found by their names.
        on_workers: whether the workers of a cluster read them.
        output: table to write, one line a row.
        watch: whether to show progress.

    Returns:
        What is said of all rows, and how it is printed.
    """
    written = output is not None

    def scored(rows: Any) -> Found[Summary]:
        found = {f"variable_{i + 1}": column for i, column in enumerate(estimator.transform(rows).T)}
        summary = Summary.of(found)
        return Found(summary.rows, summary, ({**found, **_inferred(estimator, rows)},) if written else ())

    seen = passed(*_parts(estimator.x_schema_, data, on_workers, scored), output, watch)
    mean, deviation = seen.mean, seen.deviation
    facts = {
        "model": model,
        "data": data,
        "rows": seen.rows,
        "variables": [{"variable": i + 1, "mean": mean[i], "sd": deviation[i]} for i in range(len(mean))],
        "output": output,
    }

    def show() -> None:
        lines = [
            [str(i + 1), format_number(mean[i], 3), format_number(deviation[i], 3)] for i in range(len(mean))
        ]
        title = (
            f"{seen.rows} rows of {data} by {model}; on the rows of the fit the mean is 0, the deviation 1"
        )
        echo_table(title, ["variable", "mean", "deviation"], lines)
        if output is not None:
            echo_facts("", [("written to", str(output))])

    return facts, show


def _parts(
    edge: ViewSchema, data: str, on_workers: bool, scored: Callable[[Any], Found[Summary]]
) -> tuple[Iterable[Found[Summary]], int]:
    """What rows of the first view come to, part after part, and how many they are; labels are one part."""
    if edge.values is not None:
        labels = read_side(data, edge.names, (), "the labels").as_labels("the labels").labels
        return [scored(labels)], len(labels)
    plain = edge.names == tuple(f"x{j}" for j in range(len(edge.names)))
    source = open_table(data, columns=None if plain else edge.names, cluster=on_workers)
    names = source.names

    def tile(rows: Tensor, weight: Tensor, start: int) -> Found[Summary]:
        return scored(ArraySource(rows, None, names))

    return source.in_turn(tile), source.n_rows


def _inferred(estimator: TwoViews, rows: Any) -> dict[str, Any]:
    """What is expected of the second view: its columns, the weight of each label, or a class."""
    if not isinstance(estimator, RelevantFeatures):
        share = estimator.predict_proba(rows)
        return {"class": estimator.classes_[share.argmax(1)], "probability": share.max(1)}
    edge, guess = estimator.y_schema_, estimator.predict(rows)
    table = guess.reshape(len(guess), -1)
    word = "inferred" if edge.values is None else "weight"
    return {f"{word}_{name}": table[:, j] for j, name in enumerate(edge.labels)}
