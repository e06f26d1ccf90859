"""``boxloop compare``: models side by side on the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster

if TYPE_CHECKING:
    from boxloop.select import Comparison


@shared.with_examples(
    "boxloop compare a.boxloop b.boxloop held.csv",
    "boxloop compare a.boxloop b.boxloop wine -o table.csv --figure table.png",
)
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@shared.data_argument
@shared.watch_options
@shared.threads_option
@cluster_options
@shared.output_option("The table: .csv or .parquet.")
@shared.safe_csv_option
@shared.figure_option
@shared.json_option
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
    from boxloop.cli.models import get_fitted_columns, has_lower_bound_scores, load_model
    from boxloop.data import open_table, write_table
    from boxloop.select import compare

    console.check_outputs([output, figure, json_to], data, *models)
    console.check_table_name(output)
    fitted = {str(path): load_model(path) for path in models}
    bounds = [name for name, estimator in fitted.items() if has_lower_bound_scores(estimator)]
    columns = [get_fitted_columns(estimator) for estimator in fitted.values()]
    if any(names != columns[0] for names in columns):
        raise ValueError("the models were fitted to different columns: their likelihoods cannot be compared")
    with (
        open_cluster(workers, cluster) as there,
        console.show_progress("compare", shared.is_progress_shown(quiet, progress)),
    ):
        result = compare(fitted, open_table(data, columns=columns[0], cluster=there))
    if output is not None:
        lines = {name: column.to_numpy() for name, column in _comparison_frame(result, bounds).items()}
        write_table(output, console.escape_csv_formulas(output, lines))
    console.write_figure(figure, lambda: result.plot())
    table = _comparison_frame(result, bounds).to_dict("records")
    found = {"data": data, "rows": result.n_rows, "best": result.best, "models": table, "output": output}
    console.write_findings(
        {**found, "figure": figure}, json_to, lambda: _print_comparison(result, data, bounds), quiet
    )


def _comparison_frame(result: Comparison, bounds: list[str]) -> Any:
    """The comparison as a frame with names without spaces; lower bounds have no information criteria."""
    table = result.table().rename(columns=lambda name: name.replace(" ", "_"))
    table.loc[bounds, ["aic", "bic"]] = float("nan")
    return table.rename_axis("model").reset_index()


def _print_comparison(result: Comparison, data: str, bounds: list[str]) -> None:
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
    console.echo_table(f"Log-likelihood per row of {data}", heads, rows)
    console.echo_text(f"On {result.n_rows:g} rows: {result.verdict}.")
    if bounds:
        console.echo_text(f"Lower bounds of log-likelihoods: {', '.join(bounds)}.")
