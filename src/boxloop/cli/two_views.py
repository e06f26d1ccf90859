"""Two views on the command line: reading them, findings on held-out rows, and what ``show`` and ``score`` print."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from scipy import stats
from torch import Tensor

from boxloop.cli import console
from boxloop.cli.columns import SelectedColumns, read_columns
from boxloop.cli.models import TwoViews, join_first, summarise_fit
from boxloop.cli.parts import MOST_COLUMNS, MOST_ROWS
from boxloop.cli.sums import ColumnSummary, PartialSum, sum_parts
from boxloop.data import ArraySource, open_table
from boxloop.estimators import Array, Direction, RelevantFeatures, ViewSchema, to_numpy
from boxloop.numeric import format_number, format_with_error, generator
from boxloop.twoview import FiniteView, Significance, to_columns_or_indicators

LOADINGS = 3
"""Columns that are named for a variable of each view; JSON has all."""

MOST_LINES = 20
"""Largest number of variables or columns in a table."""

DIRECTIONS: dict[str, Direction] = {"y": "y_given_x", "x": "x_given_y"}


def read_views(
    data: str, other: str | None, x: Sequence[str] | None, y: Sequence[str] | None, drop: Sequence[str]
) -> tuple[SelectedColumns, SelectedColumns]:
    """Open both views."""
    if other is not None:
        left, right = read_columns(data, x, drop, "--x"), read_columns(other, y, drop, "--y")
        if left.n_rows != right.n_rows:
            raise ValueError(
                f"{data} has {left.n_rows} rows and {other} has {right.n_rows}: row i of one must belong to row i "
                "of the other"
            )
        return left, right
    if y is None:
        raise click.UsageError(
            "the columns of the second view are missing. Name them with --y A,B, or give a second table"
        )
    both = [name for name in y if name in (x or ())]
    if both:
        raise click.UsageError(f"--x and --y both name {', '.join(map(repr, both))}: a column has one place")
    right = read_columns(data, y, drop, "--y")
    return read_columns(data, x, [*drop, *y], "--x"), right


def hold_out_rows(
    left: SelectedColumns, right: SelectedColumns, share: float, most: int, seed: int
) -> Tensor:
    """Mask of a random sample of rows to hold out, (n,); the only row of a label stays in the fit."""
    n = left.n_rows
    order = torch.randperm(n, generator=generator(seed))
    mask = torch.zeros(n, dtype=torch.bool)
    mask[order[: min(most, round(share * n))]] = True
    for side in (left, right):
        if side.labels is not None:
            fitted = set(side.labels[(~mask).numpy()].tolist())
            mask &= torch.tensor([label in fitted for label in side.labels.tolist()])
    return mask


def assess_on_held_out(
    estimator: RelevantFeatures, X: Any, Y: Any, ways: Sequence[str], permutations: int, rate: float
) -> tuple[dict[str, Any], Significance]:
    """The findings on held-out rows, as plain data, and the test of significance."""
    significance = estimator.significance(X, Y, permutations=permutations, level=rate)
    x, y = (
        torch.cat([tile for tile, _ in schema.open(rows, torch.device("cpu")).chunks()])
        for schema, rows in ((estimator.x_schema_, X), (estimator.y_schema_, Y))
    )
    columns, labels = explain_columns(estimator, x, y, ways, rate)
    diagnoses = {way: estimator.diagnose(DIRECTIONS[way]) for way in ways}
    findings = {
        "variables": describe_variables(estimator, significance, X, Y),
        "total": significance.total,
        "total_error": significance.total_error,
        "columns": columns,
        "labels": labels,
        "verdict": describe_verdict(estimator, significance),
        "overfitted": significance.overfitted,
        "concerns": merge_concerns({way: one.concerns for way, one in diagnoses.items()}),
        "diagnosis": {DIRECTIONS[way]: asdict(one) for way, one in diagnoses.items()},
    }
    return findings, significance


def merge_concerns(concerns: dict[str, tuple[str, ...]]) -> list[str]:
    """The concerns of both directions, with the direction of those that hold in one.

    Example:
        >>> merge_concerns({"y": ("few rows", "inaccurate tails"), "x": ("few rows",)})
        ['few rows', 'y inferred from x: inaccurate tails']
    """
    merged: list[str] = []
    for way, lines in concerns.items():
        given = "x" if way == "y" else "y"
        for line in lines:
            shared = len(concerns) > 1 and all(line in others for others in concerns.values())
            merged.append(line if shared else f"{way} inferred from {given}: {line}")
    return list(dict.fromkeys(merged))


def describe_variables(
    estimator: RelevantFeatures, significance: Significance, X: Any, Y: Any
) -> list[dict[str, Any]]:
    """One entry per pair of variables, with the loadings of all columns, largest first."""
    sides = dict(zip("xy", estimator.loadings(X, Y)))
    names = {"x": estimator.x_schema_.labels, "y": estimator.y_schema_.labels}
    return [
        {
            "variable": i + 1,
            "relevance": significance.relevance[i],
            "relevance_error": significance.relevance_error[i],
            "fit_relevance": significance.training_correlation[i] ** 2,
            "correlation": significance.correlation[i],
            "correlation_error": significance.standard_error[i],
            "p_value": significance.p_value[i],
            "adjusted_p_value": significance.adjusted_p_value[i],
            "significant": bool(significance.significant[i]),
            **{side: _sort_loadings(names[side], loading[:, i]) for side, loading in sides.items()},
        }
        for i in range(len(significance.correlation))
    ]


def _sort_loadings(names: list[str], loading: Array) -> list[dict[str, Any]]:
    order = np.argsort(-np.abs(loading), kind="stable")
    return [{"column": names[j], "loading": loading[j]} for j in order]


def explain_columns(
    estimator: RelevantFeatures, x: torch.Tensor, y: torch.Tensor, ways: Sequence[str], rate: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The share of each column that the other view explains, and how often a label is predicted correctly."""
    fit, pair = estimator.fit_, estimator.model_.pair
    views = {
        "y": (estimator.y_schema_, pair.right, y, fit.infer_right, x),
        "x": (estimator.x_schema_, pair.left, x, fit.infer_left, y),
    }
    columns: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    device = fit.left.device
    for way in ways:
        schema, view, own, infer, given = views[way]
        with torch.no_grad():
            truth = to_numpy(to_columns_or_indicators(view, own.to(device)))
            guess = to_numpy(infer(given.to(device)))
        share, error = explained_share(truth, guess)
        lines = zip(schema.labels, share, error)
        columns += [{"view": way, "column": name, "share": s, "error": e} for name, s, e in lines]
        if schema.values is not None:
            labels.append({"view": way, "column": schema.names[0], **label_accuracy(truth, guess)})
    p_values = [_share_p_value(line["share"], line["error"], len(x)) for line in columns]
    adjusted = stats.false_discovery_control(p_values)
    for line, p, q in zip(columns, p_values, adjusted, strict=True):
        line |= {"p_value": p, "adjusted_p_value": q, "significant": bool(q <= rate)}
    return columns, labels


def explained_share(truth: Array, guess: Array) -> tuple[Array, Array]:
    r"""Share of the variance of each column that a guess explains, with its standard error; NaN for a constant column.

    .. math:: R^2 = 1 - \frac{\overline{e^2}}{\overline{d^2}}, \qquad
        \mathrm{se}^2 = \frac{1}{n (n - 1)} \sum_n \frac{\left(e_n^2 - (1 - R^2) \, d_n^2\right)^2}{(\overline{d^2})^2}

    with e the error of the guess and d the distance from the mean (delta method). Negative where the mean is better.

    Example:
        >>> truth, guess = np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([[1.0], [2.0], [3.0], [3.0]])
        >>> share, error = explained_share(truth, guess)
        >>> float(share[0]), float(error[0].round(3))
        (0.8, 0.165)
    """
    n = len(truth)
    residual, centred = (truth - guess) ** 2, (truth - truth.mean(0)) ** 2
    size = centred.mean(0)
    size = np.where(size > 1e-24 * (truth**2).mean(0), size, np.nan)
    share = 1.0 - residual.mean(0) / size
    influence = (residual - (1.0 - share) * centred) / size
    return share, np.sqrt((influence**2).sum(0) / (n * (n - 1)))


def label_accuracy(truth: Array, guess: Array) -> dict[str, float]:
    """Accuracy of the label of largest weight with its standard error, and that of always the most common label."""
    correct = truth.argmax(1) == guess.argmax(1)
    rate = float(correct.mean())
    error = math.sqrt(rate * (1.0 - rate) / max(len(correct) - 1, 1))
    return {"accuracy": rate, "accuracy_error": error, "most_common": float(truth.mean(0).max())}


def _share_p_value(share: float, error: float, n: int) -> float:
    """P-value of a share against 0, one-sided; 1 where it cannot be tested."""
    if not share > 0.0:
        return 1.0
    return float(stats.t.sf(share / error, n - 1)) if error > 0.0 else 0.0


def describe_verdict(estimator: RelevantFeatures, significance: Significance) -> str:
    """How many variables are significant, and whether there may be more, in options of this command."""
    r, count = len(significance.correlation), significance.n_significant
    words = f"{count} of {r} pairs of variables {'is' if count == 1 else 'are'} significant"
    if count == 0:
        return f"{words}: no dependence between the views was found"
    schemas = (estimator.x_schema_, estimator.y_schema_)
    kinds = (estimator.x_features, estimator.y_features)
    most = min(max_variables(kind, one.values, len(one.names)) for one, kind in zip(schemas, kinds))
    if significance.sufficient:
        return f"{words}: -k {r} is enough"
    if r >= most or r < estimator.n_features:
        return f"{words}: these features have no more"
    return f"{words}, the last one too: there may be more, raise -k"


def max_variables(kind: str, values: Collection[Any] | None, columns: int) -> float:
    """Largest number of variables of one view by its features; infinite for networks and kernels."""
    if values is not None:
        return len(values) - 1
    return columns if kind == "linear" else math.inf


def print_findings(findings: Mapping[str, Any]) -> None:
    """Print the findings of ``boxloop relate``."""
    rows = findings["rows"]
    other = "" if findings["other"] is None else f" and {findings['other']}"
    console.echo_text(f"x: {_describe_view(findings['x'])}\ny: {_describe_view(findings['y'])}")
    console.echo_text(
        f"of {findings['data']}{other}: {rows['fit']} rows of the fit, {rows['held_out']} held out to test it\n"
    )
    _print_variables(findings)
    _print_columns(findings)
    console.echo_text(
        "Relevance: squared correlation of a pair. Share: of the variance; negative where the mean is a better guess."
    )
    console.echo_text(
        f"Both on the held-out rows, with p adjusted for their number (false-discovery rate {findings['rate']:g})."
    )
    for one in findings["labels"]:
        accuracy = format_with_error(100.0 * one["accuracy"], 100.0 * one["accuracy_error"])
        console.echo_text(
            f"{one['column']} is predicted correctly in {accuracy}% of the rows; always the most common label: "
            f"{100.0 * one['most_common']:.0f}%."
        )
    console.echo_text(
        f"Relevance of all pairs: {format_with_error(findings['total'], findings['total_error'])}."
    )
    console.echo_text(f"{findings['verdict'][0].upper()}{findings['verdict'][1:]}.")
    if findings["overfitted"]:
        trained = format_number(sum(one["fit_relevance"] for one in findings["variables"]), 3)
        console.echo_text(
            f"The fit is overfitted: on its own rows the relevance is {trained}. More rows, a smaller -k or simpler "
            "--features help."
        )
    console.echo_written(findings["output"], findings["figure"])
    if findings["concerns"]:
        console.echo_text("\n".join(["Concerns:", *(f"- {line}" for line in findings["concerns"])]))


def _describe_view(view: Mapping[str, Any]) -> str:
    names = view["columns"]
    if view["labels"] is not None:
        labels = list(map(str, view["labels"]))
        return f"{names[0]}, {len(labels)} labels ({join_first(labels, 4)})"
    count = f"{len(names)} columns" if len(names) > 1 else "1 column"
    return f"{count} ({join_first(names, 4)}), {view['features']} features"


def _print_variables(findings: Mapping[str, Any]) -> None:
    heads = ["pair", "relevance", "in the fit", "p", "columns, by their correlation with it"]
    shown = findings["variables"][:MOST_LINES]
    rows = [
        [
            str(one["variable"]),
            format_with_error(one["relevance"], one["relevance_error"]),
            format_number(one["fit_relevance"], 2),
            _format_p_value(one["adjusted_p_value"]),
            "\n".join(f"{side}: {_list_loadings(one[side][:LOADINGS])}" for side in "xy"),
        ]
        for one in shown
    ]
    title = "Pairs of variables, one of each view"
    if len(shown) < len(findings["variables"]):
        title += f"; the first {len(shown)} of {len(findings['variables'])}, --json has all"
    console.echo_table(title, heads, rows, words=heads[-1:], lines=True)


def _list_loadings(columns: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{one['column']} {one['loading']:+.2f}" for one in columns)


def _print_columns(findings: Mapping[str, Any]) -> None:
    for way, given in (("y", "x"), ("x", "y")):
        lines = [line for line in findings["columns"] if line["view"] == way]
        if not lines:
            continue
        best = sorted(lines, key=lambda line: -line["share"] if line["share"] == line["share"] else 2.0)
        rows = [
            [
                line["column"],
                "constant"
                if line["share"] != line["share"]
                else format_with_error(line["share"], line["error"]),
                _format_p_value(line["adjusted_p_value"]),
                "" if line["significant"] else "not significant",
            ]
            for line in best[:MOST_LINES]
        ]
        title = f"Share of {way} explained by {given}"
        if len(rows) < len(lines):
            title += f"; the first {len(rows)} of {len(lines)}"
        heads = ["column", "share", "p", ""]
        console.echo_table(title, heads, rows, words=heads[-1:])


def _format_p_value(value: float) -> str:
    return format_number(value, 2) if value >= 1e-4 else "< 0.0001"


def show_views(model: Path, estimator: TwoViews, json_to: str | None) -> None:
    """Print the contents of a model file of two views."""
    schemas = {"x": estimator.x_schema_, "y": estimator.y_schema_}
    loadings = {word: _fitted_loadings(estimator, word) for word in schemas}
    content = {
        "model": model,
        "estimator": type(estimator).__name__,
        "options": estimator.get_params(deep=False),
        "columns": [name for schema in schemas.values() for name in schema.names],
        **{word: {"columns": one.names, "labels": one.values} for word, one in schemas.items()},
        "iterations": estimator.n_iter_,
        "converged": estimator.converged_,
        "interrupted": estimator.interrupted_,
        "events": estimator.events_,
        "relevance": estimator.relevance_,
        "loadings": {word: dict(zip(one.labels, loadings[word])) for word, one in schemas.items()},
    }

    def show() -> None:
        relevance = f"{format_number(float(estimator.relevance_.sum()), 3)} in all"
        lines = []
        for word, schema in schemas.items():
            n = len(schema.labels)
            what = f"{n} columns" if schema.values is None else f"{schema.names[0]}, {n} labels"
            lines.append((word, f"{what}: {join_first(schema.labels)}"))
        lines.append(("relevance in the fit", relevance))
        console.echo_facts(f"{model}: {content['estimator']}", summarise_fit(estimator, lines))
        _echo_loadings(estimator.relevance_, schemas, loadings)

    console.write_findings(content, json_to, show)


def _fitted_loadings(estimator: TwoViews, word: str) -> Array:
    """Correlations of each column, or of the indicator of each label, with each variable of its own view in the fit."""
    fit, pair = estimator.fit_, estimator.model_.pair
    mean, view = (fit.left, pair.left) if word == "x" else (fit.right, pair.right)
    share: Any = mean[0]
    scaled: Any = view  # the scale of all other views is the standard deviation of the columns
    finite = isinstance(view, FiniteView)
    deviation = (share * (1.0 - share)).clamp(min=1e-300).sqrt() if finite else scaled.scale
    loadings: Array = to_numpy(mean[1:] / deviation).T
    return loadings


def _echo_loadings(relevance: Array, schemas: dict[str, ViewSchema], loadings: dict[str, Array]) -> None:
    shown = range(min(len(relevance), MOST_COLUMNS))
    rows = [["relevance in the fit", *(format_number(relevance[i], 2) for i in shown)]]
    cut = ""
    for word, schema in schemas.items():
        size = np.abs(loadings[word]).max(1, initial=0.0)
        largest = np.sort(np.argsort(-size, kind="stable")[:MOST_ROWS])
        rows += [
            [f"{word}: {schema.labels[j]}", *(f"{loadings[word][j, i]:+.2f}" for i in shown)] for j in largest
        ]
        if len(largest) < len(size):
            cut += f"; of {word} the {len(largest)} largest of {len(size)}"
    if len(shown) < len(relevance):
        cut += f"; the first {len(shown)} of {len(relevance)} variables"
    title = "Loadings: correlation of each column with each variable of its view, in the fit"
    console.echo_table(title + cut, ["variable", *(str(i + 1) for i in shown)], rows)


def check_shared(model: Path, estimator: TwoViews, shared: bool) -> None:
    """Refuse workers for a first view of labels, which one process reads."""
    if shared and estimator.x_schema_.values is not None:
        raise click.UsageError(
            f"--workers and --cluster share passes over numbers; {model} takes labels, which one process reads: leave "
            "both out"
        )


def score_views(
    model: Path, estimator: TwoViews, data: str, on_workers: bool, output: Path | None, watch: bool
) -> tuple[dict[str, Any], Callable[[], None]]:
    """The variables of each row of the first view, and the second view inferred from them."""
    written = output is not None

    def score_part(rows: Any) -> PartialSum[ColumnSummary]:
        columns = {f"variable_{i + 1}": column for i, column in enumerate(estimator.transform(rows).T)}
        summary = ColumnSummary.from_columns(columns)
        return PartialSum(
            summary.rows, summary, ({**columns, **_infer_second_view(estimator, rows)},) if written else ()
        )

    total = sum_parts(*_open_parts(estimator.x_schema_, data, on_workers, score_part), output, watch)
    mean, deviation = total.mean, total.deviation
    facts = {
        "model": model,
        "data": data,
        "rows": total.rows,
        "variables": [{"variable": i + 1, "mean": mean[i], "sd": deviation[i]} for i in range(len(mean))],
        "output": output,
    }

    def show() -> None:
        lines = [
            [str(i + 1), format_number(mean[i], 3), format_number(deviation[i], 3)] for i in range(len(mean))
        ]
        title = f"{total.rows} rows of {data} by {model}; on the rows of the fit means are 0, standard deviations 1"
        console.echo_table(title, ["variable", "mean", "sd"], lines)
        if output is not None:
            console.echo_facts("", [("written to", str(output))])

    return facts, show


def _open_parts(
    schema: ViewSchema, data: str, on_workers: bool, score_part: Callable[[Any], PartialSum[ColumnSummary]]
) -> tuple[Iterable[PartialSum[ColumnSummary]], int]:
    """The scores of rows of the first view, part after part, and the number of rows; labels are one part."""
    if schema.values is not None:
        labels = read_columns(data, schema.names, (), "the labels").to_labels("the labels").labels
        return [score_part(labels)], len(labels)
    unnamed = schema.names == tuple(f"x{j}" for j in range(len(schema.names)))
    source = open_table(data, columns=None if unnamed else schema.names, cluster=on_workers)
    names = source.names

    def score_tile(rows: Tensor, weight: Tensor, start: int) -> PartialSum[ColumnSummary]:
        return score_part(ArraySource(rows, None, names))

    return source.map_tiles(score_tile), source.n_rows


def _infer_second_view(estimator: TwoViews, rows: Any) -> dict[str, Any]:
    """Expected columns of the second view, the weight of each label, or the class with its probability."""
    if not isinstance(estimator, RelevantFeatures):
        share = estimator.predict_proba(rows)
        return {"class": estimator.classes_[share.argmax(1)], "probability": share.max(1)}
    schema, guess = estimator.y_schema_, estimator.predict(rows)
    table = guess.reshape(len(guess), -1)
    word = "inferred" if schema.values is None else "weight"
    return {f"{word}_{name}": table[:, j] for j, name in enumerate(schema.labels)}
