"""``boxloop select``: choose a model of a table by cross-validation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import click

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster
from boxloop.cli.names import MODELS


@shared.with_examples(
    "boxloop select wine -k 1-4 --covariance full,diag -o chosen.boxloop",
    "boxloop select data.csv --model factor-analysis -k 1-8 --criterion bic --json",
)
@shared.data_argument
@click.option(
    "--model",
    default="gaussian-mixture",
    show_default=True,
    type=shared.kind_choice,
    metavar="NAME",
    help=", ".join(MODELS) + ".",
)
@click.option("-k", "--components", default="1-6", show_default=True, help="Numbers to try: 1-6 or 2,4,8.")
@click.option("--covariance", default=None, help="Shapes to try, for Gaussian mixtures: full,diag,...")
@click.option(
    "--folds", "cv", default=5, show_default=True, type=click.IntRange(min=2), help="Of cross-validation."
)
@click.option(
    "--rule",
    default="one_standard_error",
    show_default=True,
    type=click.Choice(["one_standard_error", "best"]),
    help="The simplest model within one standard error of the best, or the best.",
)
@click.option(
    "--criterion",
    default="log_likelihood",
    show_default=True,
    type=click.Choice(["log_likelihood", "aic", "bic"]),
    help="Log-likelihood of held-out rows, or an information criterion of all rows.",
)
@click.option("--jobs", "n_jobs", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
@shared.column_options
@shared.seed_option
@shared.compute_options
@shared.threads_option
@cluster_options
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="Folder for finished fits, from which an interrupted search continues.",
)
@shared.watch_options
@shared.output_option("The chosen model, fitted to all rows.")
@shared.figure_option
@shared.json_option
def command(
    data: str,
    model: str,
    components: str,
    covariance: str | None,
    columns: list[str] | None,
    drop: tuple[str, ...],
    seed: int,
    device: str | None,
    dtype: str | None,
    workers: int | None,
    cluster: str | None,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    figure: Path | None,
    json_to: str | None,
    **how: Any,
) -> None:
    """Choose a model by cross-validation.

    Every candidate is scored by the log-likelihood of held-out rows, with the standard error of its difference to the
    best on the same rows.
    """
    from boxloop.cli.models import make_estimator, read_frame
    from boxloop.data import open_table
    from boxloop.select import ModelSearchCV

    console.check_outputs([output, figure, json_to], data, folders=[how["checkpoint"]])
    grid: dict[str, list[Any]] = {"n_components": parse_numbers(components)}
    if covariance is not None:
        grid["covariance_type"] = covariance.split(",")
    estimator = make_estimator(model, {"random_state": seed, "device": device, "dtype": dtype})
    search = ModelSearchCV(
        estimator, grid, random_state=seed, verbose=shared.is_progress_shown(quiet, progress), **how
    )
    with _open_cluster(search, workers, cluster) as there:
        source = open_table(data, columns=columns, drop=drop, cluster=there)
        if source.n_rows < how["cv"]:
            raise click.UsageError(
                f"--folds {how['cv']}: {data} has only {source.n_rows} rows; give fewer folds"
            )
        search.fit(source if there else read_frame(source))
    if search.best_estimator_.interrupted_:
        raise KeyboardInterrupt  # the last fit, to all rows, is not complete
    if output is not None:
        search.best_estimator_.save(output)
    console.write_figure(figure, lambda: search.plot())
    found = {**_search_to_dict(search, data), "output": output, "figure": figure}
    console.write_findings(found, json_to, lambda: _print_search(search, data, output), quiet)


@contextmanager
def _open_cluster(search: Any, workers: int | None, cluster: str | None) -> Iterator[bool]:
    """The cluster of --workers or --cluster, if any; yields whether there is one."""
    from boxloop.progress import passes

    if search.n_jobs > 1 and (workers is not None or cluster is not None):
        raise click.UsageError(
            "--jobs runs fits in parallel, --workers and --cluster run each fit in parallel: give one of them"
        )
    with open_cluster(workers, cluster) as there, passes() if there and search.verbose else nullcontext():
        yield there


def _search_to_dict(search: Any, data: str) -> dict[str, Any]:
    table = search.table()
    rows = zip(table.index, table.to_dict("records"), strict=True)
    lines = [{"candidate": str(name), **row} for name, row in rows]
    return {"data": data, "chosen": search.best_params_, "candidates": lines}


def parse_numbers(text: str) -> list[int]:
    """The numbers in ``1-6`` or ``2,4,8``.

    Example:
        >>> parse_numbers("1-3,8")
        [1, 2, 3, 8]
    """
    values: list[int] = []
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()):
            raise click.UsageError(f"-k {text}: cannot read {part!r}; give numbers as 1-6 or 2,4,8")
        values += range(int(low), int(high if dash else low) + 1)
    if not values or min(values) < 1:
        raise click.UsageError(f"-k {text}: numbers of components must be at least 1")
    return values


def _print_search(search: Any, data: str, output: Path | None) -> None:
    from boxloop.numeric import format_number, format_with_error

    table = search.table()
    names = list(search.cv_results_["params"][0])
    head = " ".join(name.removeprefix("n_").removesuffix("_type") for name in names)
    heads = [head, "parameters", "held out", "minus the best", "AIC", "BIC"]
    rows = [
        [
            " ".join(str(params[name]) for name in names) + (", chosen" if row["chosen"] else ""),
            f"{row['n_parameters']:.0f}",
            format_with_error(row["log_likelihood"], row["log_likelihood_error"]),
            format_with_error(row["difference"], row["difference_error"]),
            format_number(row["aic"]),
            format_number(row["bic"]),
        ]
        for params, row in zip(search.cv_results_["params"], table.to_dict("records"), strict=True)
    ]
    console.echo_table(f"Cross-validation on {data}: log-likelihood per row", heads, rows)
    chosen = ", ".join(f"{name} = {value}" for name, value in search.best_params_.items())
    console.echo_text(f"Chosen: {chosen}.")
    console.echo_written(output)
