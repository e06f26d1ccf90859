"""``boxloop fit``: a model of a table, in a file."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.cluster import cluster_options, on_cluster
from boxloop.cli.names import MODELS
from boxloop.cli.options import (
    checkpoint_option,
    column_options,
    components_help,
    compute_options,
    covariance_choice,
    data_argument,
    json_option,
    kind_choice,
    output_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    weights_option,
    widths,
    with_examples,
)
from boxloop.cli.output import check_outputs, echo_facts, echo_table, echo_text, tell

if TYPE_CHECKING:
    from boxloop.cli.describe import Fitted
    from boxloop.types import Source

STARTS = (
    "auto",
    "kmeans",
    "whitened",
    "projection",
    "pursuit",
    "k-means++",
    "random_from_data",
    "random",
    "spectral",
)

LIKELIHOODS = ("gaussian", "bernoulli", "poisson", "categorical")

_count = click.IntRange(min=1)


@with_examples(
    "boxloop fit wine --model gaussian-mixture -k 3 -o model.boxloop",
    "boxloop fit data.csv --model factor-analysis -k 2 --rotation varimax -o factors.boxloop",
    "boxloop fit data.csv --model autoencoder -k 4 --hidden 64,64 --max-iter 100 -o codes.boxloop",
    "boxloop fit folder/ --model gaussian-mixture -k 8 -o m.boxloop --checkpoint c.boxloop",
    "boxloop fit folder/ --model gaussian-mixture -k 8 -o m.boxloop --workers 4",
)
@data_argument
@click.option("--model", required=True, type=kind_choice, metavar="NAME", help=", ".join(MODELS) + ".")
@click.option("-k", "--components", "n_components", type=_count, help=components_help)
@click.option("--covariance", "covariance_type", type=covariance_choice, help="Shape of Gaussian components.")
@click.option("--binarize", type=float, help="Of a Bernoulli mixture: larger values count as one.")
@click.option("--rotation", type=click.Choice(["varimax", "quartimax"]), help="Rotation of factor loadings.")
@click.option(
    "--method",
    type=click.Choice(["em", "online", "gradient", "spectral"]),
    help="How to fit; spectral is for documents.",
)
@click.option("--tol", type=click.FloatRange(min=0.0), help="Stop when a round gains less than this per row.")
@click.option("--max-iter", type=click.IntRange(min=0), help="Most rounds of EM, or passes over the rows.")
@click.option("--batch-size", type=_count, help="Rows of a mini-batch (online, gradient, autoencoder).")
@click.option("--n-init", type=_count, help="How often the starts of a mixture are drawn.")
@click.option(
    "--init",
    "init_params",
    type=click.Choice(STARTS),
    metavar="KIND",
    help=f"Start of a mixture: {', '.join(STARTS)}.",
)
@click.option(
    "--likelihood", type=click.Choice(LIKELIHOODS), help="Of an autoencoder's columns: gaussian if omitted."
)
@click.option(
    "--hidden",
    metavar="N,N,...",
    callback=widths,
    help="Widths of an autoencoder's layers: 128,128 if omitted.",
)
@click.option("--learning-rate", type=click.FloatRange(0.0, min_open=True), help="Of an autoencoder.")
@click.option(
    "--schedule",
    type=click.Choice(["constant", "cosine"]),
    help="Of its learning rate: cosine ends at --max-iter.",
)
@weights_option
@column_options
@seed_option
@compute_options
@threads_option
@cluster_options
@checkpoint_option
@watch_options
@output_option("The model file, by custom *.boxloop.", required=True)
@json_option
def command(
    data: str,
    model: str,
    weights: str | None,
    columns: list[str] | None,
    drop: tuple[str, ...],
    seed: int,
    workers: int | None,
    cluster: str | None,
    checkpoint: Path | None,
    quiet: bool,
    progress: bool | None,
    output: Path,
    json_to: str | None,
    **options: Any,
) -> None:
    """Fit a model to a table and write it to a file.

    DATA is a CSV, Parquet or .npy file, a folder of such files, the URL of Parquet files, or a bundled data set (see
    boxloop datasets). Empty cells are missing values, and are fitted as such; an autoencoder needs whole rows.

    Ctrl-C keeps the last complete round. With --checkpoint, the same command continues a fit that was stopped. With
    --workers or --cluster each process reads its own part of the files, and rows stay where they are read.
    """
    from boxloop.cli.making import make_estimator
    from boxloop.data import open_table
    from boxloop.progress import passes

    if model == "autoencoder" and (workers is not None or cluster is not None):
        raise click.UsageError(
            "--workers and --cluster share passes over rows; an autoencoder learns from mini-batches, in one process"
        )
    kept = None if checkpoint is None else str(checkpoint)
    estimator = make_estimator(model, {**options, "random_state": seed, "checkpoint": kept})
    check_outputs([output, checkpoint, json_to], data)
    show, tells = watching(quiet, progress), json_to is not None or not quiet
    with on_cluster(workers, cluster) as there, passes() if there and show else nullcontext():
        source = open_table(data, weights, columns, drop, cluster=there)
        seconds = run_fit(estimator.set_params(verbose=int(show)), source, output)
        quality = judge(estimator, source) if tells else {}
    if tells:
        report(estimator, source, output, {**quality, "seconds": seconds}, json_to, quiet)


def run_fit(estimator: Fitted, source: Source, output: Path) -> float:
    """Fit and save; after Ctrl-C save the last complete round, then pass the interruption on.

    Returns:
        Seconds that the fit took.
    """
    from boxloop.cli.errors import continued

    begun = time.perf_counter()
    with continued(estimator.checkpoint):
        estimator.fit(source)
    seconds = time.perf_counter() - begun
    # Who watched and where progress was kept is no part of the model.
    estimator.set_params(verbose=0, checkpoint=None).save(output)
    if estimator.interrupted_:
        echo_text(f"The model after round {estimator.n_iter_} is kept in {output}.", err=True)
        raise KeyboardInterrupt
    return seconds


def report(
    estimator: Fitted,
    source: Source,
    output: Path,
    quality: dict[str, float],
    json_to: str | None,
    quiet: bool,
) -> None:
    """Say how the fit went and what it found."""
    from boxloop.cli.describe import facts
    from boxloop.cli.parts import parameters

    found = {
        "model": output,
        "estimator": type(estimator).__name__,
        "data": {"rows": source.n_rows, "columns": list(source.names)},
        **quality,
        **facts(estimator),
        **parameters(estimator),
    }
    tell(found, json_to, lambda: show(estimator, found), quiet)


def show(estimator: Fitted, found: dict[str, Any]) -> None:
    """Print the summary as tables."""
    from boxloop.cli.describe import likelihood_word
    from boxloop.cli.parts import readable
    from boxloop.numeric import format_number, format_with_error

    table = found["data"]
    echo_facts(
        f"{found['estimator']} of {table['rows']} rows, {len(table['columns'])} columns",
        [
            (likelihood_word(estimator), format_with_error(found["log_likelihood"], found["standard_error"])),
            ("AIC", format_number(found["aic"], 6)),
            ("BIC", format_number(found["bic"], 6)),
            ("iterations", str(found["iterations"])),
            ("converged", "yes" if found["converged"] else "no"),
            ("time", f"{found['seconds']:.2f} s"),
            ("model file", str(found["model"])),
        ],
    )
    echo_table(*readable(estimator))


def judge(estimator: Fitted, source: Source) -> dict[str, float]:
    """Mean log-likelihood of a row with its standard error, and information criteria; weights count as rows.

    Of an autoencoder a lower bound, which has no criteria: they are NaN.
    """
    from boxloop.cli.describe import is_bound, size
    from boxloop.cli.log_densities import sum_log_densities

    tally = sum_log_densities(estimator, source)
    count = size(estimator)
    price = math.nan if is_bound(estimator) else count
    return {
        "log_likelihood": tally.mean,
        "standard_error": tally.error,
        "n_parameters": count,
        "aic": 2.0 * price - 2.0 * tally.total,
        "bic": price * math.log(tally.weight) - 2.0 * tally.total,
    }
