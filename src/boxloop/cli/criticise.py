"""``boxloop criticise``: where a model fails on a table, with error bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.cluster import cluster_options, on_cluster
from boxloop.cli.names import complete_data
from boxloop.cli.options import (
    data_argument,
    figure_option,
    json_option,
    model_argument,
    output_option,
    safe_csv_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    weights_option,
    with_examples,
)
from boxloop.cli.output import (
    check_outputs,
    check_table,
    echo_table,
    echo_text,
    for_spreadsheets,
    tell,
    write_figure,
)

if TYPE_CHECKING:
    from boxloop.cli.describe import Fitted
    from boxloop.criticise import Mega, TestFunction
    from boxloop.types import Source

FUNCTIONS = ("first", "second", "third", "fourth", "fourier", "below")


@with_examples(
    "boxloop criticise model.boxloop held.csv --train data.csv --figure gaps.png",
    "boxloop criticise model.boxloop wine --train wine --test second -o gaps.csv",
)
@model_argument
@data_argument
@click.option(
    "--train",
    shell_complete=complete_data,
    help="The table that the model was fitted to: its error then counts, and p-values are right.",
)
@click.option(
    "--test",
    "tests",
    multiple=True,
    type=click.Choice(FUNCTIONS),
    help="Test functions; first to fourth by default.",
)
@click.option(
    "--draws",
    default=999,
    show_default=True,
    type=click.IntRange(min=0),
    help="Draws from the law of the gaps if the model is true.",
)
@click.option(
    "--rate",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0.0, 1.0),
    help="False-discovery rate of the misfits that are named.",
)
@weights_option
@seed_option
@watch_options
@threads_option
@cluster_options
@output_option("One line for each moment: .csv or .parquet.")
@safe_csv_option
@figure_option
@json_option
def command(
    model: Path,
    data: str,
    train: str | None,
    tests: tuple[str, ...],
    draws: int,
    rate: float,
    weights: str | None,
    seed: int,
    quiet: bool,
    progress: bool | None,
    workers: int | None,
    cluster: str | None,
    output: Path | None,
    figure: Path | None,
    json_to: str | None,
) -> None:
    """Where a model fails: moment gaps with errors and p-values, by name.

    DATA are rows that the model has not seen. Without --train the error of the fitted parameters is left out, and a
    true model is rejected too often unless it was fitted to many more rows than it is judged by. Rows of the fit are
    known again: given as DATA they are warned of, and --train refuses any others. A model that was fitted with
    --weights takes them here, too. Of Bayesian models and autoencoders that error is not known, and --train is refused;
    of a Bayesian Gaussian mixture the components in use are judged, at their expected parameters. The columns are found
    by the names that the model was fitted to.
    """
    from boxloop.cli.describe import errs_by_rows, load_model
    from boxloop.cli.watch import watched
    from boxloop.data import write_table
    from boxloop.report import gap_picture

    check_outputs([output, figure, json_to], data, model, *([] if train is None else [train]))
    check_table(output)
    estimator = load_model(model)
    if train is not None and not errs_by_rows(estimator):
        raise click.UsageError(
            f"--train: how {type(estimator).__name__} errs does not follow from its rows; leave it out"
        )
    with on_cluster(workers, cluster) as there, watched("criticise", watching(quiet, progress)):
        result = _judged(estimator, data, train, weights, tests, draws, seed, there)
    if output is not None:
        columns = {name: column.to_numpy() for name, column in result.table().items()}
        write_table(output, for_spreadsheets(output, columns))
    write_figure(figure, lambda: gap_picture(result))
    found = {"model": model, "data": data, **_found(result, rate), "output": output, "figure": figure}
    tell(found, json_to, lambda: _show(found), quiet)


def _judged(
    estimator: Fitted,
    data: str,
    train: str | None,
    weights: str | None,
    tests: tuple[str, ...],
    draws: int,
    seed: int,
    on_workers: bool,
) -> Mega:
    """The gaps, of rows that are here or on a cluster."""
    from boxloop.cli.describe import fitted_columns
    from boxloop.criticise import mega
    from boxloop.data import open_table
    from boxloop.report import ComponentsInUse, criticised

    def opened(place: str) -> Source:
        return open_table(place, weights, columns=fitted_columns(estimator), cluster=on_workers)

    rows = opened(data)
    fitted = None if train is None else (rows if train == data else opened(train))
    wanted = [_function(name) for name in tests or FUNCTIONS[:4]]
    model: Any = criticised(estimator)
    if model is not estimator:
        model = ComponentsInUse(model, vars(estimator).get("training_digest_"))
    return mega(model, rows, functions=wanted, train=fitted, draws=draws, random_state=seed)


def _function(name: str) -> TestFunction:
    from boxloop.criticise import Below, First, Fourier, Power, Second

    made: dict[str, TestFunction] = {
        "first": First(),
        "second": Second(),
        "third": Power(3),
        "fourth": Power(4),
        "fourier": Fourier(),
        "below": Below(),
    }
    return made[name]


def _found(result: Mega, rate: float) -> dict[str, Any]:
    wrong = result.misfits(rate)
    tests = [
        {
            "test": g.name,
            "entries": len(g.labels),
            "norm": g.norm(),
            "norm_if_true": g.norm_null,
            "p_value": g.p_value,
        }
        for g in result.gaps
    ]
    return {
        "rows": result.n_rows,
        "training_error": result.training,
        "p_value": result.p_value,
        "tests": tests,
        "misfits": wrong.to_dict("records"),
        "rate": rate,
    }


def _show(found: dict[str, Any]) -> None:
    from boxloop.numeric import format_number, format_with_error, significant_digits

    heads = ["test", "moments", "norm of gap", "if true", "p"]
    lines = [
        [
            t["test"],
            str(t["entries"]),
            format_number(t["norm"]),
            _or_dash(t["norm_if_true"]),
            _or_dash(t["p_value"]),
        ]
        for t in found["tests"]
    ]
    echo_table(f"{found['data']} under {found['model']}, {found['rows']} rows", heads, lines)
    for_all = (
        "" if found["p_value"] is None else f"All tests together: p = {format_number(found['p_value'])}. "
    )
    echo_text(f"{for_all}Error of the fitted parameters: {found['training_error']}.")
    wrong = found["misfits"]
    if not wrong:
        echo_text(f"No moment stands out at a false-discovery rate of {found['rate']:g}.")
        return
    rows = [
        [
            f"{w['function']}: {w['entry']}",
            *(format_number(w[side], significant_digits(w[side], w["gap"])) for side in ("data", "model")),
            format_with_error(w["gap"], w["error"]),
            f"{w['z']:.1f}",
        ]
        for w in wrong[:15]
    ]
    moments = "1 moment misfits" if len(wrong) == 1 else f"{len(wrong)} moments misfit"
    title = f"{moments} at a false-discovery rate of {found['rate']:g}, worst first"
    echo_table(title, ["moment", "data", "model", "gap", "z"], rows)


def _or_dash(value: float | None) -> str:
    from boxloop.numeric import format_number

    return "-" if value is None else format_number(value)
