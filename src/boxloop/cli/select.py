"""``boxloop select``: choose a model of a table by cross-validation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from boxloop.cli.fit import MODELS


@click.command()
@click.argument("data")
@click.option(
    "--model", default="gaussian-mixture", show_default=True, type=click.Choice(list(MODELS)), metavar="NAME"
)
@click.option("-k", "--components", default="1-6", show_default=True, help="Numbers to try: 1-6 or 2,4,8.")
@click.option("--covariance", default=None, help="Shapes to try, for Gaussian mixtures: full,diag,...")
@click.option(
    "--folds", default=5, show_default=True, type=click.IntRange(min=2), help="Of cross-validation."
)
@click.option(
    "--rule",
    default="one_standard_error",
    show_default=True,
    type=click.Choice(["one_standard_error", "best"]),
    help="The smallest model within one standard error of the best, or the best.",
)
@click.option(
    "--criterion",
    default="log_likelihood",
    show_default=True,
    type=click.Choice(["log_likelihood", "aic", "bic"]),
)
@click.option("--jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed.")
@click.option("--drop", metavar="COLUMN", multiple=True, help="Column to leave out; may be repeated.")
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), help="Folder that keeps finished fits; continued from."
)
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The chosen model, fitted to all rows.")
@click.option("--figure", type=click.Path(path_type=Path), help="Picture of the candidates: .png.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(
    data: str,
    model: str,
    components: str,
    covariance: str | None,
    folds: int,
    rule: str,
    criterion: str,
    jobs: int,
    seed: int,
    drop: tuple[str, ...],
    checkpoint: Path | None,
    output: Path | None,
    figure: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Choose a model by cross-validation.

    Every candidate is judged by the log-likelihood of rows that it was not fitted to, with the standard error of its
    distance from the best on the same rows.
    """
    import boxloop.estimators as room
    from boxloop.cli.output import check_output, echo_json
    from boxloop.select import Select

    for path in (output, figure):
        if path is not None:
            check_output(path, data)
    rows = _rows(data, drop)
    grid: dict[str, list[Any]] = {"n_components": numbers(components)}
    if covariance is not None:
        grid["covariance_type"] = covariance.split(",")
    estimator = getattr(room, MODELS[model])(random_state=seed)
    search = Select(
        estimator,
        grid,
        cv=folds,
        rule=rule,
        criterion=criterion,
        n_jobs=jobs,
        random_state=seed,
        verbose=not quiet and not as_json,
        checkpoint=checkpoint,
    ).fit(rows)
    if output is not None:
        search.best_estimator_.save(output)
    if figure is not None:
        figure.write_bytes(_picture(search))
    echo_json(_found(search, data, output)) if as_json else _show(search, data, output)


def _picture(search: Any) -> bytes:
    from boxloop.report.choice import choice_picture

    table = search.table()
    parts = (list(table[name]) for name in ("difference", "difference_error", "chosen"))
    return choice_picture([str(name) for name in table.index], *parts)


def _found(search: Any, data: str, output: Path | None) -> dict[str, Any]:
    table = search.table()
    rows = zip(table.index, table.to_dict("records"), strict=True)
    lines = [{"candidate": str(name), **row} for name, row in rows]
    return {"data": data, "chosen": search.best_params_, "candidates": lines, "output": output}


def numbers(text: str) -> list[int]:
    """The numbers that ``1-6`` or ``2,4,8`` stand for.

    Example:
        >>> numbers("1-3,8")
        [1, 2, 3, 8]
    """
    found: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise click.UsageError(f"cannot read {part!r}: numbers are given as 1-6 or 2,4,8")
        found += range(int(low), int(high if dash else low) + 1)
    if not found or min(found) < 1:
        raise click.UsageError(f"no number of components in {text!r}")
    return found


def _rows(data: str, drop: tuple[str, ...]) -> Any:
    """The table as a frame with names: cross-validation takes rows in and out."""
    import torch

    from boxloop.data import open_table
    from boxloop.data.frames import make_frame

    source = open_table(data, drop=drop)
    values = torch.cat([rows for rows, _ in source.chunks()])
    return make_frame({name: values[:, j].tolist() for j, name in enumerate(source.names)})


def _show(search: Any, data: str, output: Path | None) -> None:
    from boxloop.cli.output import echo_table
    from boxloop.report.numbers import number, with_error

    table = search.table()
    names = list(search.results_["parameters"][0])
    heads = [" ".join(names), "parameters", "held out", "below the best", "AIC", "BIC", ""]
    rows = [
        [
            " ".join(str(params[name]) for name in names),
            f"{row['n_parameters']:.0f}",
            with_error(row["log_likelihood"], row["log_likelihood_error"]),
            with_error(row["difference"], row["difference_error"]),
            number(row["aic"]),
            number(row["bic"]),
            "chosen" if row["chosen"] else "",
        ]
        for params, row in zip(search.results_["parameters"], table.to_dict("records"), strict=True)
    ]
    echo_table(f"log-likelihood of a row of {data}", heads, rows)
    chosen = ", ".join(f"{name} = {value}" for name, value in search.best_params_.items())
    click.echo(f"Chosen: {chosen}.")
    if output is not None:
        click.echo(f"Written to {output}.")
