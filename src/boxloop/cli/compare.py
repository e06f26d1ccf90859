"""``boxloop compare``: models side by side on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.cluster import cluster_options, on_cluster
from boxloop.cli.options import (
    data_argument,
    figure_option,
    json_option,
    output_option,
    safe_csv_option,
    threads_option,
    watch_options,
    watching,
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
    from boxloop.select import Comparison


@with_examples(
    "boxloop compare a.boxloop b.boxloop held.csv",
    "boxloop compare a.boxloop b.boxloop wine -o table.csv --figure table.png",
)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@data_argument
@watch_options
@threads_option
@cluster_options
@output_option("The table: .csv or .parquet.")
@safe_csv_option
@figure_option
@json_option
def command(
    models: tuple[Path, ...],
    data: str,
    quiet: bool,
    progress: bool | None,
    workers: int | None,
    cluster: str | None,
    output: Path | None,
    figure: Path | None,
    json_to: str | None,
) -> None:
    """Models side by side on the same held-out rows.

    Give one or more model files, then DATA. A model is called best only where it is more than two standard errors ahead
    of every other one, by paired differences on the same rows.
    """
    from boxloop.cli.describe import fitted_columns, is_bound, load_model
    from boxloop.cli.watch import watched
    from boxloop.data import open_table, write_table
    from boxloop.select import compare

    check_outputs([output, figure, json_to], data, *models)
    check_table(output)
    fitted = {str(path): load_model(path) for path in models}
    bounds = [name for name, estimator in fitted.items() if is_bound(estimator)]
    columns = [fitted_columns(estimator) for estimator in fitted.values()]
    if any(names != columns[0] for names in columns):
        raise ValueError("the models were fitted to different columns: their likelihoods cannot be compared")
    with on_cluster(workers, cluster) as there, watched("compare", watching(quiet, progress)):
        result = compare(fitted, open_table(data, columns=columns[0], cluster=there))
    if output is not None:
        lines = {name: column.to_numpy() for name, column in _table(result, bounds).items()}
        write_table(output, for_spreadsheets(output, lines))
    write_figure(figure, lambda: result.plot())
    table = _table(result, bounds).to_dict("records")
    found = {"data": data, "rows": result.n_rows, "best": result.best, "models": table, "output": output}
    tell({**found, "figure": figure}, json_to, lambda: _show(result, data, bounds), quiet)


def _table(result: Comparison, bounds: list[str]) -> Any:
    """The comparison as a frame with names without spaces; lower bounds have no information criteria."""
    table = result.table().rename(columns=lambda name: name.replace(" ", "_"))
    table.loc[bounds, ["aic", "bic"]] = float("nan")
    return table.rename_axis("model").reset_index()


def _show(result: Comparison, data: str, bounds: list[str]) -> None:
    from boxloop.numeric import format_number, format_with_error

    heads = ["model", "log-likelihood", "minus the best", "AIC", "BIC"]
    rows = [
        [
            name,
            format_with_error(result.log_likelihood[j], result.error[j]),
            format_with_error(result.difference[j], result.difference_error[j]) if j else "",
            *("-" if name in bounds else format_number(value[j], 6) for value in (result.aic, result.bic)),
        ]
        for j, name in enumerate(result.names)
    ]
    echo_table(f"Log-likelihood per row of {data}", heads, rows)
    echo_text(f"On {result.n_rows:g} rows: {result.verdict}.")
    if bounds:
        echo_text(f"Lower bounds of log-likelihoods: {', '.join(bounds)}.")
