"""``boxloop network``: predict a column by a network with error bars; ``show`` and ``score`` of its file."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from boxloop.cli import console, shared

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from boxloop.cli.columns import SelectedColumns
    from boxloop.cli.models import Networks
    from boxloop.estimators import Array
    from boxloop.report import Network, NetworkFindings, SupervisedTable

METHODS = ("factor", "gradient", "swag", "swa", "full")
KINDS = ("auto", "regression", "classification")
OUTPUT_OPTIONS = ("output", "page", "figure", "json_to", "quiet", "progress")
"""Options that do not affect the findings."""
MIN_ROWS, MIN_HELD_OUT = 40, 8
"""Fewest rows of a table, and fewest held-out rows."""
MAX_CLASSES = 20
"""Distinct values up to which numbers might be classes, which a hint says."""
COLOURS = {"good": "green", "doubtful": "yellow", "bad": "red", "not run": "none"}

_count = click.IntRange(min=1)


@shared.with_examples(
    "boxloop network diabetes --target target -o network.boxloop --page network.html",
    "boxloop network wine --target target --members 5",
    "boxloop network data.csv --target price --drop id --hidden 64,64 --json",
)
@shared.data_argument
@click.option("--target", required=True, metavar="COLUMN", help="Column to predict: numbers or labels.")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default="auto",
    show_default=True,
    help="Kind of the target; auto takes text, and integers with two values, for classes.",
)
@shared.column_options
@click.option(
    "--held-out",
    "share",
    type=click.FloatRange(0.0, 0.9, min_open=True),
    default=0.2,
    show_default=True,
    help="Share of the rows held out for evaluation.",
)
@click.option(
    "--hidden",
    metavar="N,N,...",
    callback=shared.parse_widths,
    help="Widths of the hidden layers; 50 by default.",
)
@click.option("--members", type=_count, help="Networks with different initial weights; 1 by default.")
@click.option(
    "--method",
    type=click.Choice(METHODS),
    help="Posterior over the weights: factor by default; swa is the mean alone.",
)
@click.option("--rank", type=_count, help="Rank of the covariance of the weights; 10 by default.")
@click.option("--draws", "n_draws", type=_count, help="Networks drawn for the predictions; 30 by default.")
@click.option("--epochs", type=_count, help="Epochs of Adam; about 2000 steps by default.")
@click.option(
    "--collect",
    type=_count,
    help="Epochs of SGD that give the distribution over weights; half of --epochs by default.",
)
@click.option(
    "--prior-precision",
    type=click.FloatRange(0.0, min_open=True),
    help="Prior precision of each weight, for standardised data; it determines the weight decay.",
)
@click.option(
    "--chains",
    type=click.IntRange(min=0),
    help="Hamiltonian Monte Carlo chains over all weights, for comparison; by default 16 for small networks.",
)
@shared.seed_option
@shared.compute_options
@shared.threads_option
@shared.watch_options
@shared.output_option("Model file; its usual suffix is .boxloop.")
@click.option("--page", type=click.Path(path_type=Path), help="Page with the findings: .html.")
@shared.figure_option
@shared.json_option
def command(
    data: str,
    target: str,
    kind: str,
    columns: list[str] | None,
    drop: tuple[str, ...],
    share: float,
    chains: int | None,
    seed: int,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    page: Path | None,
    figure: Path | None,
    json_to: str | None,
    **options: Any,
) -> None:
    """Predict a column with a neural network and error bars, and audit the error bars.

    The network is trained on four fifths of the rows. A Gaussian distribution is fitted to its weights over the last
    epochs; networks drawn from this distribution give the error bars. Predictions for the held-out rows are compared
    with those of the mean network, of a linear or logistic regression, and of a constant. The audit tests how well
    the distribution approximates the posterior over the weights.

    For bundled data, --target target is the class or the response. Text columns are not used as inputs. Missing
    values are refused.
    """
    from boxloop.report import judge_network, network_to_dict

    console.check_outputs([output, page, figure, json_to], data)
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise click.UsageError(f"--page must end in .html, got {page}")
    problem = read_supervised_table(data, target, columns, drop, kind, share, seed)
    start = time.perf_counter()
    network = fit_network(
        problem, {**options, "random_state": seed}, shared.is_progress_shown(quiet, progress)
    )
    findings = judge_network(problem, network, chains=chains, seed=seed)
    seconds = time.perf_counter() - start
    write_files(findings, output, page, figure)
    facts = {"data": data, **network_to_dict(findings), "seconds": seconds}
    facts |= {"output": output, "page": page, "figure": figure}
    console.write_findings(facts, json_to, lambda: print_findings(findings, facts), quiet)


def read_supervised_table(
    data: str,
    target: str,
    columns: Sequence[str] | None,
    drop: Sequence[str],
    kind: str,
    share: float,
    seed: int,
) -> SupervisedTable:
    """Read a table and hold rows out."""
    import numpy as np
    import torch

    from boxloop.cli.columns import read_columns
    from boxloop.data import open_table
    from boxloop.report import SupervisedTable, fingerprint_table

    side = read_columns(data, [target], (), "--target")
    names, left_out = choose_inputs(data, target, columns, drop)
    X: Array = torch.cat([rows for rows, _ in open_table(data, columns=names).chunks()]).double().numpy()
    reason, kind, y = choose_kind(side, kind)
    _check_complete(data, X, names)
    if side.labels is None:
        _check_complete(data, _read_numbers(side)[:, None], (target,))
    if len(X) < MIN_ROWS:
        raise ValueError(f"{data}: at least {MIN_ROWS} rows are needed, got {len(X)}")
    held = hold_out_rows(y, kind, share, seed)
    if held.sum() < MIN_HELD_OUT:
        raise ValueError(
            f"{data}: --held-out {share:g} leaves fewer than {MIN_HELD_OUT} held-out rows: raise it, or add rows"
        )
    digest = fingerprint_table(data, np.column_stack([X, _encode(y)]))
    return SupervisedTable(data, names, target, X, y, kind, reason, left_out, digest, held)


def choose_inputs(
    data: str, target: str, columns: Sequence[str] | None, drop: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The input columns, and columns left out because they hold no numbers; a column named by the user must."""
    from boxloop.data import choose_columns, open_named_reader

    reader = open_named_reader(data)
    choose_columns(reader.names, [*(columns or ()), *drop], None, reader.label)
    if target in (columns or ()):
        raise click.UsageError(f"--columns must not name the target, {target!r}")
    selected = [name for name in columns or reader.names if name not in drop and name != target]
    text = {name: what for name, what in reader.non_numeric.items() if name in selected}
    if text and columns is not None:
        name, what = next(iter(text.items()))
        raise ValueError(f"{reader.label}: column {name!r} holds no numbers ({what}): leave it out")
    names = tuple(name for name in selected if name not in text)
    if not names:
        raise ValueError(f"{reader.label}: no column of numbers is left to predict from")
    return choose_columns(names, None, None, reader.label), text


def choose_kind(side: SelectedColumns, kind: str) -> tuple[str, str, NDArray[Any]]:
    """Why the target is numbers or classes, which of the two, and its values."""
    import numpy as np

    if side.labels is not None:
        if kind == "regression":
            raise click.UsageError(f"--kind regression needs numbers, but {side.names[0]!r} holds labels")
        return f"{side.n_labels} classes, as it holds labels", "classification", side.labels
    values = _read_numbers(side)
    distinct = np.unique(values[np.isfinite(values)])
    integers = bool((distinct == np.round(distinct)).all())
    count = len(distinct)
    if kind == "classification" or (kind == "auto" and integers and count == 2):
        reason = (
            "by --kind" if kind != "auto" else "as it has two values; --kind regression treats it as numbers"
        )
        return (
            f"{count} classes, {reason}",
            "classification",
            values.astype(np.int64) if integers else values,
        )
    if kind == "regression":
        return "numbers, by --kind", "regression", values
    hint = f"; --kind classification treats its {count} values as classes"
    return f"numbers{hint if integers and count <= MAX_CLASSES else ''}", "regression", values


def _read_numbers(side: SelectedColumns) -> Array:
    import torch

    assert side.source is not None
    values: Array = torch.cat([rows[:, 0] for rows, _ in side.source.chunks()]).double().numpy()
    return values


def _check_complete(data: str, table: Array, names: Sequence[str]) -> None:
    import numpy as np

    empty = np.argwhere(np.isnan(table))
    if len(empty):
        row, column = empty[0].tolist()
        raise ValueError(
            f"{data}: column {names[column]!r} has an empty cell in row {row} (counted from 0): a network needs "
            "complete rows; remove such rows, or leave the column out by --drop"
        )


def hold_out_rows(y: NDArray[Any], kind: str, share: float, seed: int) -> NDArray[Any]:
    """Which rows are held out, (n,): at random, and the same share of each class, rounded down."""
    import numpy as np
    import torch

    from boxloop.numeric import generator, spawn

    # the first streams of the seed are the estimator's
    order = torch.randperm(len(y), generator=spawn(generator(seed), 4)[3]).numpy()
    codes = _encode(y)[order] if kind == "classification" else np.zeros(len(y), dtype=np.int64)
    mask = np.zeros(len(y), dtype=bool)
    for code in np.unique(codes):
        group = order[codes == code]
        mask[group[: int(share * len(group) + 1e-9)]] = True
    return mask


def _encode(y: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    return np.unique(y, return_inverse=True)[1].astype(np.int64)


def fit_network(problem: SupervisedTable, options: dict[str, Any], watch: bool) -> Network:
    """Fit the network of the options to the rows that are not held out."""
    from boxloop.estimators import NetworkClassifier, NetworkRegressor

    given = {name: value for name, value in options.items() if value is not None}
    kind: Any = NetworkRegressor if problem.kind == "regression" else NetworkClassifier
    network: Network = kind(**given, verbose=int(watch))
    network.fit(*problem.fit_data)
    if network.interrupted_:
        raise KeyboardInterrupt  # an incomplete fit is not evaluated
    network.set_params(verbose=0)  # the progress bar is no part of the model
    return network


def write_files(
    findings: NetworkFindings, output: Path | None, page: Path | None, figure: Path | None
) -> None:
    """Write the model, the page and the figure."""
    from boxloop.persist import write_atomic
    from boxloop.report import render_network_page

    if output is not None:
        findings.network.save(output)
    if page is not None:
        call = spell_call(click.get_current_context())
        write_atomic(
            page, render_network_page(findings, call, None if output is None else str(output)).encode()
        )
    console.write_figure(figure, lambda: findings.audit.plot()[0, 0])


def spell_call(context: click.Context) -> str:
    """The command line, without options that do not affect the findings."""
    words = ["boxloop", "network", str(context.params["data"])]
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if (
            isinstance(param, click.Option)
            and source is ParameterSource.COMMANDLINE
            and param.name not in OUTPUT_OPTIONS
        ):
            value = context.params[param.name]
            if param.multiple:
                words += [word for one in value for word in (param.opts[-1], str(one))]
            elif isinstance(value, list | tuple):
                names = [f'"{one}"' if "," in str(one) else str(one) for one in value]
                words += [param.opts[-1], ",".join(names)]
            else:
                words += [param.opts[-1], str(value)]
    return shlex.join(words)


def print_findings(findings: NetworkFindings, facts: Mapping[str, Any]) -> None:
    """Print scores, concerns and files."""
    from boxloop.report import LEVEL, explain_scores

    problem, rows = findings.table, facts["rows"]
    n = len(problem.names)
    console.echo_text(
        f"{problem.target} from {n} column{'' if n == 1 else 's'} of {problem.label}: {problem.kind_reason}"
    )
    console.echo_text(f"{rows['fit']} rows for the fit, {rows['held_out']} held out")
    if problem.left_out:
        console.echo_text(f"Not used, as they hold no numbers: {', '.join(problem.left_out)}")
    console.echo_text()
    heads, lines = score_table(findings)
    console.echo_table("Held-out rows", heads, lines)
    if problem.kind == "regression":
        legend = (
            f"Log score: mean log-density of the observations. In {LEVEL:.0%}: share of rows inside their {LEVEL:.0%} "
            "intervals."
        )
    else:
        legend = explain_scores(findings)
    console.echo_styled("", "none", f"{legend} Lead: difference of log scores, paired by row.")
    console.echo_text()
    for concern in findings.concerns:
        remedy = f" Next: {concern.next}." if concern.next else ""
        label = f"{concern.level}: {concern.what}. "
        console.echo_styled(label, f"bold {COLOURS[concern.level]}", f"{concern.why}.{remedy}")
    for event in findings.events:
        console.echo_styled("", "none", f"Note on the fit: {event}.")
    console.echo_written(facts["output"], facts["page"], facts["figure"])


def score_table(findings: NetworkFindings) -> tuple[list[str], list[list[str]]]:
    """The scores of all predictors, in as many columns as a terminal has room for; JSON and the page have more."""
    from boxloop.numeric import format_number, format_with_error
    from boxloop.report import LEVEL, summarise_scores

    is_regression = findings.table.kind == "regression"
    lines = []
    for name, scores in findings.scores.items():
        found, lead = summarise_scores(scores), findings.leads.get(name)
        if is_regression:
            own = [format_with_error(*found["rmse"]), f"{found['coverage'][0]:.0%}"]
        else:
            percent = format_with_error(*(100.0 * v for v in found["accuracy"]))
            own = [percent, format_number(found["miscalibration"][0], 2)]
        difference = "" if lead is None else format_with_error(lead.value, lead.standard_error)
        lines.append([name, own[0], format_with_error(*found["log_score"]), own[1], difference])
    heads = (
        ["RMSE", "log score", f"in {LEVEL:.0%}"] if is_regression else ["% right", "log score", "calibration"]
    )
    return ["predictor", *heads, "network's lead"], lines


def show_network(model: Path, network: Networks, json_to: str | None) -> None:
    """Print the contents of a network's model file."""
    from boxloop.cli.models import get_column_names, join_first, list_changed_options
    from boxloop.estimators import NetworkClassifier
    from boxloop.report import format_settings, list_settings

    names = get_column_names(network)
    options = network.get_params(deep=False)
    classes = network.classes_ if isinstance(network, NetworkClassifier) else None
    contents = {
        "model": model,
        "estimator": type(network).__name__,
        "options": options,
        "columns": names,
        "classes": classes,
        **list_settings(network),
        "interrupted": network.interrupted_,
        "events": network.events_,
    }

    def show() -> None:
        lines = [("options", list_changed_options(network)), (f"{len(names)} columns", join_first(names))]
        if classes is not None:
            lines.append((f"{len(classes)} classes", join_first([str(label) for label in classes])))
        lines += format_settings(list_settings(network)) + [("note", event) for event in network.events_]
        console.echo_facts(f"{model}: {contents['estimator']}", lines)

    console.write_findings(contents, json_to, show)


def score_network(
    model: Path, network: Networks, data: str, on_workers: bool, output: Path | None, watch: bool
) -> tuple[dict[str, Any], Callable[[], None]]:
    """Predict the rows of a table."""
    from boxloop.cli.models import get_fitted_columns
    from boxloop.cli.sums import ColumnSummary, PartialSum, sum_parts
    from boxloop.data import open_table
    from boxloop.numeric import format_number

    source = open_table(data, columns=get_fitted_columns(network), cluster=on_workers)

    def score_tile(rows: Any, weight: Any, start: int) -> PartialSum[ColumnSummary]:
        lines = predict_columns(network, rows.numpy())
        return PartialSum(len(rows), ColumnSummary.from_columns(lines), () if output is None else (lines,))

    total = sum_parts(source.map_tiles(score_tile), source.n_rows, output, watch)
    summary = [
        {"what": name, "mean": mean, "lowest": low, "highest": high}
        for name, mean, low, high in zip(total.names, total.mean, total.low, total.high, strict=True)
    ]
    facts = {"model": model, "data": data, "rows": total.rows, "summary": summary, "output": output}

    def show() -> None:
        heads = ["", "mean", "lowest", "highest"]
        lines = [[line["what"], *(format_number(line[head]) for head in heads[1:])] for line in summary]
        console.echo_table(f"{total.rows} rows of {data} by {model}", heads, lines)
        if output is not None:
            console.echo_facts("", [("written to", str(output))])

    return facts, show


def predict_columns(network: Networks, rows: Any) -> dict[str, Any]:
    """Columns of the table that ``score`` writes, for rows with the columns of the fit."""
    from boxloop.cli.models import get_fitted_columns
    from boxloop.data import make_frame
    from boxloop.estimators import NetworkClassifier

    names = get_fitted_columns(network)
    X = rows if names is None else make_frame({name: rows[:, j] for j, name in enumerate(names)})
    prediction: Any = network.predict_distribution(X)
    if isinstance(network, NetworkClassifier):
        probability = prediction.probability
        return {
            "class": network.classes_[probability.argmax(1)].astype(object),
            "probability": probability.max(1),
            "entropy": prediction.entropy,
            "mutual_information": prediction.mutual_information,
            **{f"probability_{label}": probability[:, j] for j, label in enumerate(network.classes_)},
        }
    low, high = prediction.interval(0.9)
    return {
        "predicted": prediction.mean,
        "std": prediction.std,
        "epistemic_std": prediction.epistemic_std,
        "low": low,
        "high": high,
    }
