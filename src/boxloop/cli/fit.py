"""``boxloop fit``: a model of a table, in a file."""

from __future__ import annotations

import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster
from boxloop.cli.names import MODELS

if TYPE_CHECKING:
    from boxloop.cli.models import Fitted
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


@shared.with_examples(
    "boxloop fit wine --model gaussian-mixture -k 3 -o model.boxloop",
    "boxloop fit data.csv --model factor-analysis -k 2 --rotation varimax -o factors.boxloop",
    "boxloop fit data.csv --model autoencoder -k 4 --hidden 64,64 --max-iter 100 -o codes.boxloop",
    "boxloop fit folder/ --model gaussian-mixture -k 8 -o m.boxloop --checkpoint c.boxloop",
    "boxloop fit folder/ --model gaussian-mixture -k 8 -o m.boxloop --workers 4",
)
@shared.data_argument
@click.option("--model", required=True, type=shared.kind_choice, metavar="NAME", help=", ".join(MODELS) + ".")
@click.option("-k", "--components", "n_components", type=_count, help=shared.components_help)
@click.option(
    "--covariance", "covariance_type", type=shared.covariance_choice, help="Shape of Gaussian components."
)
@click.option("--binarize", type=float, help="Of a Bernoulli mixture: larger values count as one.")
@click.option("--rotation", type=click.Choice(["varimax", "quartimax"]), help="Rotation of factor loadings.")
@click.option(
    "--method",
    type=click.Choice(["em", "online", "gradient", "spectral"]),
    help="How to fit; spectral is for documents.",
)
@click.option(
    "--tol", type=click.FloatRange(min=0.0), help="Stop when an iteration gains less than this per row."
)
@click.option(
    "--max-iter", type=click.IntRange(min=0), help="Most iterations of EM, or passes over the rows."
)
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
    callback=shared.parse_widths,
    help="Widths of an autoencoder's layers: 128,128 if omitted.",
)
@click.option("--learning-rate", type=click.FloatRange(0.0, min_open=True), help="Of an autoencoder.")
@click.option(
    "--schedule",
    type=click.Choice(["constant", "cosine"]),
    help="Of its learning rate: cosine ends at --max-iter.",
)
@shared.weights_option
@shared.column_options
@shared.seed_option
@shared.compute_options
@shared.threads_option
@cluster_options
@shared.checkpoint_option
@shared.watch_options
@shared.output_option("Model file; its usual suffix is .boxloop.", required=True)
@shared.json_option
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
    boxloop datasets). Empty cells are missing values, and are fitted as such; an autoencoder needs complete rows.

    Ctrl-C keeps the last complete iteration. With --checkpoint, the same command continues a fit that was stopped. With
    --workers or --cluster each process reads its own part of the files, and rows stay where they are read.
    """
    from boxloop.cli.models import make_estimator
    from boxloop.data import open_table
    from boxloop.progress import passes

    if model == "autoencoder" and (workers is not None or cluster is not None):
        raise click.UsageError(
            "--workers and --cluster share passes over rows; an autoencoder learns from mini-batches, in one process"
        )
    kept = None if checkpoint is None else str(checkpoint)
    estimator = make_estimator(model, {**options, "random_state": seed, "checkpoint": kept})
    console.check_outputs([output, checkpoint, json_to], data)
    watch, wanted = shared.is_progress_shown(quiet, progress), json_to is not None or not quiet
    with open_cluster(workers, cluster) as there, passes() if there and watch else nullcontext():
        source = open_table(data, weights, columns, drop, cluster=there)
        seconds = run_fit(estimator.set_params(verbose=int(watch)), source, output)
        quality = score_fit(estimator, source) if wanted else {}
    if wanted:
        print_fit(estimator, source, output, {**quality, "seconds": seconds}, json_to, quiet)


def run_fit(estimator: Fitted, source: Source, output: Path) -> float:
    """Fit and save; after Ctrl-C save the last complete iteration, then pass the interruption on."""
    from boxloop.cli.errors import announce_checkpoint

    begun = time.perf_counter()
    with announce_checkpoint(estimator.checkpoint):
        estimator.fit(source)
    seconds = time.perf_counter() - begun
    # Who watched and where progress was kept is no part of the model.
    estimator.set_params(verbose=0, checkpoint=None).save(output)
    if estimator.interrupted_:
        console.echo_text(f"The model after iteration {estimator.n_iter_} is kept in {output}.", err=True)
        raise KeyboardInterrupt
    return seconds


def print_fit(
    estimator: Fitted,
    source: Source,
    output: Path,
    quality: dict[str, float],
    json_to: str | None,
    quiet: bool,
) -> None:
    """Say how the fit went and what it found."""
    from boxloop.cli.models import describe_fit
    from boxloop.cli.parts import list_parameters

    found = {
        "model": output,
        "estimator": type(estimator).__name__,
        "data": {"rows": source.n_rows, "columns": list(source.names)},
        **quality,
        **describe_fit(estimator),
        **list_parameters(estimator),
    }
    console.write_findings(found, json_to, lambda: print_tables(estimator, found), quiet)


def print_tables(estimator: Fitted, found: dict[str, Any]) -> None:
    """Print the summary as tables."""
    from boxloop.cli.models import name_likelihood
    from boxloop.cli.parts import tabulate_parts
    from boxloop.numeric import format_number, format_with_error

    table = found["data"]
    console.echo_facts(
        f"{found['estimator']} of {table['rows']} rows, {len(table['columns'])} columns",
        [
            (name_likelihood(estimator), format_with_error(found["log_likelihood"], found["standard_error"])),
            ("AIC", format_number(found["aic"], 6)),
            ("BIC", format_number(found["bic"], 6)),
            ("iterations", str(found["iterations"])),
            ("converged", "yes" if found["converged"] else "no"),
            ("time", f"{found['seconds']:.2f} s"),
            ("model file", str(found["model"])),
        ],
    )
    console.echo_table(*tabulate_parts(estimator))


def score_fit(estimator: Fitted, source: Source) -> dict[str, float]:
    """Mean log-likelihood per row with its standard error, and information criteria; weights count as rows.

    Of an autoencoder a lower bound, which has no criteria: they are NaN.
    """
    from boxloop.cli.models import count_parameters, has_lower_bound_scores
    from boxloop.cli.sums import sum_log_densities

    sums = sum_log_densities(estimator, source)
    count = count_parameters(estimator)
    price = math.nan if has_lower_bound_scores(estimator) else count
    return {
        "log_likelihood": sums.mean,
        "standard_error": sums.error,
        "n_parameters": count,
        "aic": 2.0 * price - 2.0 * sums.total,
        "bic": price * math.log(sums.weight) - 2.0 * sums.total,
    }
