"""``boxloop score``: how well a model explains each row of a table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from boxloop.cli.models import Fitted
    from boxloop.cli.sums import LogDensitySums, PartialSum
    from boxloop.data import ArraySource
    from boxloop.estimators import Array


@shared.with_examples(
    "boxloop score model.boxloop wine",
    "boxloop score model.boxloop new.parquet -o scores.csv",
    "boxloop score model.boxloop folder/ -o scores.parquet --workers 4",
)
@shared.model_argument
@shared.data_argument
@shared.watch_options
@shared.threads_option
@cluster_options
@shared.output_option("One line for each row: .csv or .parquet.")
@shared.safe_csv_option
@shared.json_option
def command(
    model: Path,
    data: str,
    quiet: bool,
    progress: bool | None,
    workers: int | None,
    cluster: str | None,
    output: Path | None,
    json_to: str | None,
) -> None:
    """Log-density of each row, with its component, factors or codes.

    The columns of DATA are found by the names that the model was fitted to; others are left alone. With -o each
    row gets its log-density and, from a mixture, its most probable component with that probability; from a factor
    model, each factor with its standard deviation; from an autoencoder, each code with its own. The log-density of an
    autoencoder is a lower bound. Two views have no density: each row of the first gets its variables, and what they
    predict of the second. From a network each row gets what it predicts, with its error bars.

    With --workers or --cluster rows stay where they are read; with -o their lines come back, in the order of the rows.
    """
    from boxloop.cli.models import Networks, TwoViews, load_any

    console.check_outputs([output, json_to], data, model)
    console.check_table_name(output)
    estimator, watch = load_any(model), shared.is_progress_shown(quiet, progress)
    if isinstance(estimator, TwoViews):
        from boxloop.cli.two_views import check_shared, score_views

        check_shared(model, estimator, workers is not None or cluster is not None)
    with open_cluster(workers, cluster) as there:
        if isinstance(estimator, TwoViews):
            found, show = score_views(model, estimator, data, there, output, watch)
        elif isinstance(estimator, Networks):
            from boxloop.cli.network import score_network

            found, show = score_network(model, estimator, data, there, output, watch)
        else:
            found, show = score_rows(model, estimator, data, there, output, watch)
    console.write_findings(found, json_to, show, quiet)


def score_rows(
    model: Path, estimator: Fitted, data: str, on_workers: bool, output: Path | None, watch: bool
) -> tuple[dict[str, Any], Callable[[], None]]:
    """The log-densities of rows under a model."""
    from boxloop.cli.models import get_fitted_columns, name_likelihood
    from boxloop.cli.sums import LogDensitySums, PartialSum, sum_parts
    from boxloop.data import ArraySource, open_table

    source = open_table(data, columns=get_fitted_columns(estimator), cluster=on_workers)
    names, written = source.names, output is not None

    def score_tile(rows: Tensor, weight: Tensor, start: int) -> PartialSum[LogDensitySums]:
        tile = ArraySource(rows, None, names)
        density = estimator.score_samples(tile)
        lines = ({"log_density": density, **infer_latent(estimator, tile)},) if written else ()
        return PartialSum(len(density), LogDensitySums.from_tile(density, start=start), lines)

    sums = sum_parts(source.map_tiles(score_tile), source.n_rows, output, watch)
    found = {
        "model": model,
        "data": data,
        "rows": sums.rows,
        "log_likelihood": sums.mean,
        "standard_error": sums.error,
        "least_likely": [{"row": row, "log_density": value} for value, row in sums.lowest],
        "output": output,
    }
    return found, lambda: _print_scores(found, name_likelihood(estimator))


def infer_latent(estimator: Fitted, rows: ArraySource) -> dict[str, np.ndarray]:
    """What the model makes of each row: its component and how sure that is, or its factors or codes."""
    import numpy as np

    from boxloop.estimators import LinearEstimator, MixtureEstimator, VariationalAutoencoder

    if isinstance(estimator, MixtureEstimator):
        share: Array = estimator.predict_proba(rows)
        return {"component": share.argmax(1), "probability": share.max(1)}
    if isinstance(estimator, VariationalAutoencoder):
        word, (mean, deviation) = "code", estimator.posterior(rows)
    else:
        assert isinstance(estimator, LinearEstimator)
        word, (mean, covariance) = "factor", estimator.posterior(rows)
        deviation = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    columns = {}
    for k in range(mean.shape[1]):
        columns[f"{word}_{k}"], columns[f"{word}_{k}_sd"] = mean[:, k], deviation[:, k]
    return columns


def _print_scores(found: dict[str, Any], word: str) -> None:
    """Print the summary as a table."""
    from boxloop.numeric import format_number, format_with_error

    worst = "\n".join(
        f"row {low['row']}: {format_number(low['log_density'])}" for low in found["least_likely"]
    )
    lines = [
        ("rows", str(found["rows"])),
        (word, format_with_error(found["log_likelihood"], found["standard_error"])),
        ("least likely (first row: 0)", worst),
    ]
    if found["output"] is not None:
        lines.append(("written to", str(found["output"])))
    console.echo_facts(f"{found['data']} under {found['model']}", lines)
