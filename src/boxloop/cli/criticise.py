"""``boxloop criticise``: the moments of a table in which a model fails, with standard errors and p-values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster
from boxloop.cli.names import complete_data

if TYPE_CHECKING:
    from boxloop.cli.models import Fitted
    from boxloop.criticise import Mega, TestFunction
    from boxloop.types import Source

FUNCTIONS = ("first", "second", "third", "fourth", "fourier", "below")


@shared.with_examples(
    "boxloop criticise model.boxloop held.csv --train data.csv --figure gaps.png",
    "boxloop criticise model.boxloop wine --train wine --test second -o gaps.csv",
)
@shared.model_argument
@shared.data_argument
@click.option(
    "--train",
    shell_complete=complete_data,
    help="Training rows of the model, so that p-values account for the error of its parameters.",
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
    help="Simulated tables for each p-value; 0: no p-values.",
)
@click.option(
    "--rate",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0.0, 1.0),
    help="False-discovery rate of the list of moments that differ.",
)
@shared.weights_option
@shared.seed_option
@shared.watch_options
@shared.threads_option
@cluster_options
@shared.output_option("One line for each moment: .csv or .parquet.")
@shared.safe_csv_option
@shared.figure_option
@shared.json_option
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
    """Test where a model fails: moments of the data minus those of the model, with p-values.

    DATA should be held-out rows: a warning says when they are the training rows. Give the training rows with --train,
    and p-values account for the estimation error of the parameters. Without it they do not, and a correct model is
    rejected too often, unless it was fitted to many more rows than DATA has. --train accepts only the rows of the fit;
    if the fit used --weights, repeat that option here.

    For Bayesian models and autoencoders the parameter error cannot be computed, and --train is refused. A Bayesian
    Gaussian mixture is tested at the posterior means of its active components. Columns are matched by name.
    """
    from boxloop.cli.models import has_parameter_errors, load_model
    from boxloop.data import write_table
    from boxloop.report import draw_criticism

    console.check_outputs([output, figure, json_to], data, model, *([] if train is None else [train]))
    console.check_table_name(output)
    estimator = load_model(model)
    if train is not None and not has_parameter_errors(estimator):
        raise click.UsageError(
            f"--train: the parameter error of {type(estimator).__name__} cannot be computed from training rows; leave "
            "--train out"
        )
    with (
        open_cluster(workers, cluster) as there,
        console.show_progress("criticise", shared.is_progress_shown(quiet, progress)),
    ):
        result = _measure_gaps(estimator, data, train, weights, tests, draws, seed, there)
    if output is not None:
        columns = {name: column.to_numpy() for name, column in result.table().items()}
        write_table(output, console.escape_csv_formulas(output, columns))
    console.write_figure(figure, lambda: draw_criticism(result))
    found = {"model": model, "data": data, **_gaps_to_dict(result, rate), "output": output, "figure": figure}
    console.write_findings(found, json_to, lambda: _print_gaps(found), quiet)


def _measure_gaps(
    estimator: Fitted,
    data: str,
    train: str | None,
    weights: str | None,
    tests: tuple[str, ...],
    draws: int,
    seed: int,
    on_workers: bool,
) -> Mega:
    """Moment gaps, of rows in memory or on a cluster."""
    from boxloop.cli.models import get_fitted_columns
    from boxloop.criticise import mega
    from boxloop.data import open_table
    from boxloop.report import ActiveComponents, select_criticised_part

    def open_rows(place: str) -> Source:
        return open_table(place, weights, columns=get_fitted_columns(estimator), cluster=on_workers)

    rows = open_rows(data)
    fitted = None if train is None else (rows if train == data else open_rows(train))
    functions = [_make_test_function(name) for name in tests or FUNCTIONS[:4]]
    model: Any = select_criticised_part(estimator)
    if model is not estimator:
        model = ActiveComponents(model, vars(estimator).get("training_digest_"))
    return mega(model, rows, functions=functions, train=fitted, draws=draws, random_state=seed)


def _make_test_function(name: str) -> TestFunction:
    from boxloop.criticise import Below, First, Fourier, Power, Second

    functions: dict[str, TestFunction] = {
        "first": First(),
        "second": Second(),
        "third": Power(3),
        "fourth": Power(4),
        "fourier": Fourier(),
        "below": Below(),
    }
    return functions[name]


def _gaps_to_dict(result: Mega, rate: float) -> dict[str, Any]:
    tests = [
        {
            "test": g.name,
            "entries": len(g.labels),
            "norm": g.norm(),
            "expected_norm": g.expected_norm,
            "p_value": g.p_value,
        }
        for g in result.gaps
    ]
    return {
        "rows": result.n_rows,
        "parameter_error": result.parameter_error,
        "p_value": result.p_value,
        "tests": tests,
        "misfits": result.misfits(rate).to_dict("records"),
        "rate": rate,
    }


PARAMETER_ERROR = {
    "included": "The error of the fitted parameters is included.",
    "left out": "The error of the fitted parameters is left out, so p-values are too small; --train TABLE includes it.",
    "training rows": "DATA are the training rows: moments that the fit matches have no gap and are not tested.",
    "training rows, left out": "DATA are the training rows, and the parameter error is left out: p-values "
    "are too large.",
}


def _print_gaps(found: dict[str, Any]) -> None:
    from boxloop.numeric import count_significant_digits, format_number, format_with_error
    from boxloop.report import format_p_value

    def format_or_dash(value: float | None) -> str:
        return "-" if value is None else format_number(value)

    heads = ["test", "moments", "norm of gap", "expected norm", "p-value"]
    lines = [
        [
            t["test"],
            str(t["entries"]),
            format_or_dash(t["norm"]),
            format_or_dash(t["expected_norm"]),
            format_p_value(t["p_value"]),
        ]
        for t in found["tests"]
    ]
    console.echo_table(
        f"Moments of {found['data']} ({found['rows']} rows) minus those of {found['model']}", heads, lines
    )
    if found["p_value"] is not None:
        against = (
            "the data contradict the model" if found["p_value"] <= 0.05 else "no evidence against the model"
        )
        console.echo_text(f"All tests together: p-value {found['p_value']:.2g}, {against} at the 5% level.")
    console.echo_text(PARAMETER_ERROR[found["parameter_error"]])
    misfits = found["misfits"]
    if not misfits:
        console.echo_text(f"No moment differs significantly (false-discovery rate {found['rate']:g}).")
        return
    rows = [
        [
            f"{m['function']}: {m['entry']}",
            *(
                format_number(m[side], count_significant_digits(m[side], m["gap"]))
                for side in ("data", "model")
            ),
            format_with_error(m["gap"], m["error"]),
            f"{m['z']:.1f}",
        ]
        for m in misfits[:15]
    ]
    differ = "1 moment differs" if len(misfits) == 1 else f"{len(misfits)} moments differ"
    title = f"{differ} significantly (false-discovery rate {found['rate']:g}), largest z-score first"
    console.echo_table(title, ["moment", "data", "model", "gap", "z"], rows)
