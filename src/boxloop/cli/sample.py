"""``boxloop sample``: rows drawn from a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from boxloop.cli import console, shared


@shared.with_examples(
    "boxloop sample model.boxloop -n 1000 -o draws.csv", "boxloop sample model.boxloop -n 5 --seed 1"
)
@shared.model_argument
@click.option("-n", "--rows", required=True, type=click.IntRange(min=1), help="How many rows.")
@shared.seed_option
@shared.threads_option
@shared.output_option("The rows: .csv or .parquet; CSV on standard output if omitted.")
@shared.safe_csv_option
@shared.json_option
def command(model: Path, rows: int, seed: int, output: Path | None, json_to: str | None) -> None:
    """Draw rows from a model.

    The same seed gives the same rows. Those of a mixture come component by component.
    """
    from boxloop.cli.models import get_column_names, has_integer_rows, load_model
    from boxloop.data import write_table

    console.check_outputs([output, json_to], model)
    console.check_table_name(output)
    estimator = load_model(model).set_params(random_state=seed)
    drawn, _ = estimator.sample(rows)
    if has_integer_rows(estimator):
        drawn = drawn.astype("int64")
    columns = dict(zip(get_column_names(estimator), drawn.T, strict=True))
    if output is not None:
        write_table(output, console.escape_csv_formulas(output, columns))
    found = {"model": model, "rows": rows, "seed": seed, "columns": list(columns), "output": output}
    values = None if output is not None else columns
    console.write_findings(
        {**found, "values": values}, json_to, lambda: _print_rows(columns), output is not None
    )


def _print_rows(columns: dict[str, Any]) -> None:
    """Rows as CSV on standard output; on a terminal the names do not steer it."""
    from boxloop.data import write_text
    from boxloop.report import escape_controls

    if sys.stdout.isatty():
        columns = {escape_controls(name): values for name, values in columns.items()}
    write_text(sys.stdout, console.escape_csv_formulas(None, columns))
