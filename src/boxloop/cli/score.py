"""``boxloop score``: how well a model explains each row of a table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from boxloop.cli.options import (
    data_argument,
    json_option,
    model_argument,
    output_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)

if TYPE_CHECKING:
    import numpy as np

    from boxloop.cli.describe import Fitted
    from boxloop.data import ArraySource
    from boxloop.estimators.base import Array


@with_examples(
    "boxloop score model.boxloop wine",
    "boxloop score model.boxloop new.parquet -o scores.csv",
)
@model_argument
@data_argument
@watch_options
@threads_option
@output_option("One line for each row: .csv or .parquet.")
@json_option
def command(
    model: Path, data: str, quiet: bool, progress: bool | None, output: Path | None, json_to: str | None
) -> None:
    """Log-density of each row, with its component, factors or codes.

    The columns of DATA are found by the names that the model was fitted to; others are left alone. With -o each
    row gets its log-density and, from a mixture, its most probable component with that probability; from a factor
    model, each factor with its standard deviation; from an autoencoder, each code with its own. The log-density of an
    autoencoder is a lower bound. Two views have no density: each row of the first gets its variables, and what they
    tell of the second. From a network each row gets what it predicts, with its error bars.
    """
    from boxloop.cli.describe import Networks, TwoViews, fitted_columns, likelihood_word, load_any
    from boxloop.cli.output import check_outputs, check_table, tell
    from boxloop.cli.tally import Tally, tiles
    from boxloop.cli.watch import watched
    from boxloop.data import open_table, table_writer

    check_outputs([output, json_to], data, model)
    check_table(output)
    estimator = load_any(model)
    if isinstance(estimator, TwoViews):
        from boxloop.cli.relate_files import score_views

        score_views(model, estimator, data, watching(quiet, progress), output, json_to, quiet)
        return
    if isinstance(estimator, Networks):
        from boxloop.cli.network_files import score_network

        score_network(model, estimator, data, watching(quiet, progress), output, json_to, quiet)
        return
    source = open_table(data, columns=fitted_columns(estimator))
    tally = Tally()
    with (
        nullcontext() if output is None else table_writer(output) as write,
        watched("rows", watching(quiet, progress)) as moved,
    ):
        for tile in tiles(source):
            density = estimator.score_samples(tile)
            tally += Tally.of(density, start=tally.rows)
            moved(tally.rows, source.n_rows, "rows")
            if write is not None:
                write({"log_density": density, **latent(estimator, tile)})
    found = {
        "model": model,
        "data": data,
        "rows": tally.rows,
        "log_likelihood": tally.mean,
        "standard_error": tally.error,
        "least_likely": [{"row": row, "log_density": value} for value, row in tally.lowest],
        "output": output,
    }
    tell(found, json_to, lambda: show(found, likelihood_word(estimator)), quiet)


def latent(estimator: Fitted, rows: ArraySource) -> dict[str, np.ndarray]:
    """What the model makes of each row: its component and how sure that is, or its factors or codes."""
    import numpy as np

    from boxloop.estimators import VariationalAutoencoder
    from boxloop.estimators.linear import LinearEstimator
    from boxloop.estimators.mixture import MixtureEstimator

    if isinstance(estimator, MixtureEstimator):
        share: Array = estimator.predict_proba(rows)
        return {"component": share.argmax(1), "probability": share.max(1)}
    if isinstance(estimator, VariationalAutoencoder):
        word, (mean, deviation) = "code", estimator.posterior(rows)
    else:
        assert isinstance(estimator, LinearEstimator)
        word, (mean, spread) = "factor", estimator.posterior(rows)
        deviation = np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    columns = {}
    for k in range(mean.shape[1]):
        columns[f"{word}_{k}"], columns[f"{word}_{k}_sd"] = mean[:, k], deviation[:, k]
    return columns


def show(found: dict[str, Any], word: str) -> None:
    """Print the summary as a table."""
    from boxloop.cli.output import echo_facts
    from boxloop.numeric.written import number, with_error

    worst = "\n".join(f"row {low['row']}: {number(low['log_density'])}" for low in found["least_likely"])
    lines = [
        ("rows", str(found["rows"])),
        (word, with_error(found["log_likelihood"], found["standard_error"])),
        ("least likely (first row: 0)", worst),
    ]
    if found["output"] is not None:
        lines.append(("written to", str(found["output"])))
    echo_facts(f"{found['data']} under {found['model']}", lines)
