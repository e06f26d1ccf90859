"""``boxloop compare``: models side by side on the same rows."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.argument("data")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The table: .csv or .parquet.")
@click.option("--figure", type=click.Path(path_type=Path), help="Picture of the table: .png.")
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
def command(
    models: tuple[Path, ...], data: str, output: Path | None, figure: Path | None, as_json: bool
) -> None:
    """Models side by side on the same held-out rows.

    Give one or more model files, then the DATA. The best is marked only where its lead over every other model exceeds
    two standard errors of their difference on the same rows.
    """
    import numpy as np

    from boxloop.cli.describe import load_model
    from boxloop.cli.output import check_output, echo_json
    from boxloop.data import open_table, write_table
    from boxloop.report.choice import choice_picture
    from boxloop.select import compare

    for path in (output, figure):
        if path is not None:
            check_output(path, data, *models)
    fitted = {str(path): load_model(path) for path in models}
    columns = {tuple(vars(estimator).get("feature_names_in_", ())) for estimator in fitted.values()}
    if len(columns) > 1:
        raise ValueError("the models were fitted to different columns, and have no likelihood in common")
    named = next(iter(columns))
    result = compare(fitted, open_table(data, columns=list(named) or None))
    if output is not None:
        table = result.table()
        write_table(
            output,
            {"model": np.array(result.names), **{name: table[name].to_numpy() for name in table.columns}},
        )
    if figure is not None:
        marked = [name == result.best for name in result.names]
        behind = [float(value) for value in result.difference]
        figure.write_bytes(choice_picture(result.names, behind, list(result.difference_error), marked))
    if as_json:
        lines = [
            {"model": name, **row}
            for name, row in zip(result.names, result.table().to_dict("records"), strict=True)
        ]
        echo_json({"data": data, "rows": result.n_rows, "best": result.best, "models": lines})
    else:
        click.echo(str(result))
