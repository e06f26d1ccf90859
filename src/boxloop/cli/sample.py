"""``boxloop sample``: rows drawn from a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from boxloop.cli.options import (
    json_option,
    model_argument,
    output_option,
    seed_option,
    threads_option,
    with_examples,
)


@with_examples(
    "boxloop sample model.boxloop -n 1000 -o draws.csv",
    "boxloop sample model.boxloop -n 5 --seed 1",
)
@model_argument
@click.option("-n", "--rows", required=True, type=click.IntRange(min=1), help="How many rows.")
@seed_option
@threads_option
@output_option("The rows: .csv or .parquet; CSV on standard output if omitted.")
@json_option
def command(model: Path, rows: int, seed: int, output: Path | None, json_to: str | None) -> None:
    """Draw rows from a model.

    The same seed gives the same rows. Those of a mixture come component by component.
    """
    from boxloop.cli.describe import column_names, counts, load_model
    from boxloop.cli.output import check_outputs, check_table, tell
    from boxloop.data import write_table, write_text

    check_outputs([output, json_to], model)
    check_table(output)
    estimator = load_model(model).set_params(random_state=seed)
    drawn, _ = estimator.sample(rows)
    if counts(estimator):
        drawn = drawn.astype("int64")
    columns = dict(zip(column_names(estimator), drawn.T, strict=True))
    if output is not None:
        write_table(output, columns)
    found = {"model": model, "rows": rows, "seed": seed, "columns": list(columns), "output": output}
    values = None if output is not None else columns
    tell({**found, "values": values}, json_to, lambda: write_text(sys.stdout, columns), output is not None)
