"""``boxloop sample``: rows drawn from a model."""

from __future__ import annotations

import sys
from pathlib import Path

import click


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.option("-n", "--rows", required=True, type=click.IntRange(min=1), help="How many rows.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help=".csv or .parquet; CSV on stdout if omitted."
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed.")
def command(model: Path, rows: int, output: Path | None, seed: int) -> None:
    """Draw rows from a model.

    The same seed gives the same rows. Those of a mixture come component by component.
    """
    from boxloop.cli.describe import column_names, load_model
    from boxloop.cli.output import check_output
    from boxloop.data import write_table, write_text
    from boxloop.estimators.counts import CountMixture

    if output is not None:
        check_output(output, model)
    estimator = load_model(model).set_params(random_state=seed)
    drawn, _ = estimator.sample(rows)
    if isinstance(estimator, CountMixture):
        drawn = drawn.astype("int64")
    columns = dict(zip(column_names(estimator), drawn.T, strict=True))
    if output is None:
        write_text(sys.stdout, columns)
    else:
        write_table(output, columns)
