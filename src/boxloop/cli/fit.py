"""``boxloop fit``: a model of a table, in a file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from boxloop.estimators.base import LatentEstimator
    from boxloop.types import Source

MODELS = {
    "gaussian-mixture": "GaussianMixture",
    "factor-analysis": "FactorAnalysis",
    "probabilistic-pca": "ProbabilisticPCA",
    "multinomial-mixture": "MultinomialMixture",
    "poisson-mixture": "PoissonMixture",
    "bernoulli-mixture": "BernoulliMixture",
}
STARTS = ("auto", "kmeans", "whitened", "projection", "pursuit", "k-means++", "random_from_data", "random")
FLAGS = {
    "n_components": "--components",
    "covariance_type": "--covariance",
    "init_params": "--init",
    "random_state": "--seed",
}
"""Options whose name is not that of the estimator's parameter."""

_count = click.IntRange(min=1)


@click.command()
@click.argument("data")
@click.option(
    "--model", required=True, type=click.Choice(list(MODELS)), metavar="NAME", help=", ".join(MODELS) + "."
)
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(path_type=Path),
    help="The model file, by custom *.boxloop.",
)
@click.option(
    "-k",
    "--components",
    "n_components",
    type=_count,
    help="Components or factors; 1, or all factors, if omitted.",
)
@click.option(
    "--covariance",
    "covariance_type",
    type=click.Choice(["full", "tied", "diag", "spherical"]),
    help="Shape of Gaussian components.",
)
@click.option("--rotation", type=click.Choice(["varimax", "quartimax"]), help="Rotation of factor loadings.")
@click.option("--method", type=click.Choice(["em", "online", "gradient"]), help="How to fit.")
@click.option("--tol", type=click.FloatRange(min=0.0), help="Stop when a round gains less than this per row.")
@click.option("--max-iter", type=click.IntRange(min=0), help="Most rounds of EM, or passes over the rows.")
@click.option("--batch-size", type=_count, help="Rows of a mini-batch (online, gradient).")
@click.option("--n-init", type=_count, help="How often the starts of a mixture are drawn.")
@click.option(
    "--init",
    "init_params",
    type=click.Choice(STARTS),
    metavar="KIND",
    help=f"Start of a mixture: {', '.join(STARTS)}.",
)
@click.option(
    "--seed", "random_state", type=click.IntRange(min=0), default=0, show_default=True, help="Random seed."
)
@click.option("--weights", metavar="COLUMN", help="Column that holds the weight of each row.")
@click.option("--columns", metavar="A,B,...", help="Columns to use; all if omitted.")
@click.option("--drop", metavar="COLUMN", multiple=True, help="Column to leave out; may be repeated.")
@click.option("--dtype", type=click.Choice(["float64", "float32"]), help="Precision of passes over the rows.")
@click.option("--device", help="cpu, cuda, cuda:1 or auto.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="File that keeps progress; continued from if it is there.",
)
@click.option("-q", "--quiet", is_flag=True, help="No progress and no summary.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(
    data: str,
    model: str,
    output: Path,
    weights: str | None,
    columns: str | None,
    drop: tuple[str, ...],
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Fit a model to a table and write it to a file.

    DATA is a CSV, Parquet or .npy file, a folder of such files, or a bundled data set: iris, wine, digits,
    breast_cancer, diabetes. Empty cells are missing values, and are fitted as such.

    Ctrl-C keeps the last complete round. With --checkpoint, the same command continues a fit that was stopped.
    """
    from boxloop.cli.output import check_output
    from boxloop.data import open_table

    given = {name: value for name, value in options.items() if value is not None}
    estimator = make_estimator(model, given)
    check_output(output, data)
    if "checkpoint" in given:
        check_output(given["checkpoint"], data, output)
    source = open_table(data, weights, None if columns is None else columns.split(","), drop)
    show = not quiet and sys.stderr.isatty()
    seconds = run_fit(estimator.set_params(verbose=int(show)), source, output)
    if as_json or not quiet:
        report(estimator, source, output, seconds, as_json)


def make_estimator(model: str, given: Mapping[str, Any]) -> LatentEstimator:
    """The estimator with the options that were given; one that it does not have is wrong usage."""
    from boxloop.estimators.files import ESTIMATORS

    kind = ESTIMATORS[MODELS[model]]
    for name in given:
        if name not in kind().get_params():
            raise click.UsageError(f"{model} has no option {_flag(name)}")
    if "batch_size" in given and given.get("method", "em") == "em":
        raise click.UsageError("--batch-size needs --method online or --method gradient")
    if "checkpoint" in given:
        given = {**given, "checkpoint": str(given["checkpoint"])}
    return kind(**given)


def run_fit(estimator: LatentEstimator, source: Source, output: Path) -> float:
    """Fit and save; after Ctrl-C save the last complete round, then pass the interruption on.

    Returns:
        Seconds that the fit took.
    """
    checkpoint = estimator.checkpoint
    if checkpoint is not None and Path(checkpoint).exists():
        click.echo(f"Continuing from {checkpoint}.", err=True)
    begun = time.perf_counter()
    try:
        estimator.fit(source)
    except SystemExit:
        if checkpoint is not None and Path(checkpoint).exists():
            click.echo(f"Stopped; the same command continues from {checkpoint}.", err=True)
        raise
    seconds = time.perf_counter() - begun
    # Who watched and where progress was kept is no part of the model.
    estimator.set_params(verbose=0, checkpoint=None).save(output)
    if estimator.interrupted_:
        click.echo(f"The model after round {estimator.n_iter_} is kept in {output}.", err=True)
        raise KeyboardInterrupt
    return seconds


def report(estimator: LatentEstimator, source: Source, output: Path, seconds: float, as_json: bool) -> None:
    """Print how the fit went and what it found."""
    from boxloop.cli.describe import facts, parameters, readable
    from boxloop.cli.output import echo_facts, echo_json, echo_table
    from boxloop.report.numbers import number, with_error

    quality = judge(estimator, source)
    if as_json:
        table = {"rows": source.n_rows, "columns": list(source.names)}
        kind = type(estimator).__name__
        how = {**facts(estimator), "seconds": seconds}
        echo_json(
            {"model": output, "estimator": kind, "data": table, **quality, **how, **parameters(estimator)}
        )
        return
    ended = "yes" if estimator.converged_ else "no"
    echo_facts(
        f"{type(estimator).__name__} of {source.n_rows} rows, {source.n_columns} columns",
        [
            ("log-likelihood per row", with_error(quality["log_likelihood"], quality["standard_error"])),
            ("AIC", number(quality["aic"], 6)),
            ("BIC", number(quality["bic"], 6)),
            ("rounds", str(estimator.n_iter_)),
            ("converged", ended),
            ("time", f"{seconds:.2f} s"),
            ("model file", str(output)),
        ],
    )
    echo_table(*readable(estimator))


def judge(estimator: LatentEstimator, source: Source) -> dict[str, float]:
    """Mean log-likelihood of a row with its standard error, and information criteria; weights count as rows."""
    from boxloop.cli.tally import Tally, tiles

    tally = Tally()
    for tile, weight in tiles(source):
        tally = tally.add(estimator.score_samples(tile), weight)
    size = estimator._n_parameters()
    return {
        "log_likelihood": tally.mean,
        "standard_error": tally.error,
        "n_parameters": size,
        "aic": 2.0 * size - 2.0 * tally.total,
        "bic": size * math.log(tally.weight) - 2.0 * tally.total,
    }


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")
