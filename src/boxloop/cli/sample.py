"""``boxloop sample``: rows drawn from a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from boxloop.cli.options import (
    json_option,
    model_argument,
    output_option,
    safe_csv_option,
    seed_option,
    threads_option,
    with_examples,
)
from boxloop.cli.output import check_outputs, check_table, for_spreadsheets, tell


@with_examples(
    "boxloop sample model.boxloop -n 1000 -o draws.csv",
    "boxloop sample model.boxloop -n 5 --seed 1",
)
@model_argument
@click.option("-n", "--rows", required=True, type=click.IntRange(min=1), help="How many rows.")
@seed_option
@threads_option
@output_option("The rows: .csv or .parquet; CSV on standard output if omitted.")
@safe_csv_option
@json_option
def command(model: Path, rows: int, seed: int, output: Path | None, json_to: str | None) -> None:
    """Draw rows from a model.

    The same seed gives the same rows. Those of a mixture come component by component.
    """
    from boxloop.cli.describe import column_names, counts, load_model
    from boxloop.data import write_table

    check_outputs([output, json_to], model)
    check_table(output)
    estimator = load_model(model).set_params(random_state=seed)
    drawn, _ = estimator.sample(rows)
    if counts(estimator):
        drawn = drawn.astype("int64")
    columns = dict(zip(column_names(estimator), drawn.T, strict=True))
    if output is not None:
        write_table(output, for_spreadsheets(output, columns))
    found = {"model": model, "rows": rows, "seed": seed, "columns": list(columns), "output": output}
    values = None if output is not None else columns
    tell({**found, "values": values}, json_to, lambda: _print(columns), output is not None)


def _print(columns: dict[str, Any]) -> None:
    """Rows as CSV on standard output; on a terminal the names do not steer it."""
    from boxloop.data import write_text
    from boxloop.report import escape_controls

    if sys.stdout.isatty():
        columns = {escape_controls(name): values for name, values in columns.items()}
    write_text(sys.stdout, for_spreadsheets(None, columns))
