"""``boxloop score``: how well a model explains each row of a table."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from boxloop.data import ArraySource
    from boxloop.estimators.base import Array, LatentEstimator


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@click.argument("data")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="One line for each row: .csv or .parquet."
)
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
def command(model: Path, data: str, output: Path | None, as_json: bool) -> None:
    """Log-density of each row, with its component or its factors.

    The columns of DATA are found by the names that the model was fitted to; others are left alone. With -o each
    row gets its log-density and, from a mixture, its most probable component with that probability; from a factor
    model, each factor with its standard deviation.
    """
    from boxloop.cli.describe import load_model
    from boxloop.cli.output import check_output, echo_json
    from boxloop.cli.tally import Tally, tiles
    from boxloop.data import open_table, table_writer

    if output is not None:
        check_output(output, data, model)
    estimator = load_model(model)
    named = vars(estimator).get("feature_names_in_")
    source = open_table(data, columns=None if named is None else list(named))
    tally = Tally()
    with nullcontext() if output is None else table_writer(output) as write:
        for tile, _ in tiles(source):
            density = estimator.score_samples(tile)
            tally = tally.add(density)
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
    if as_json:
        echo_json(found)
    else:
        show(found)


def latent(estimator: LatentEstimator, rows: ArraySource) -> dict[str, np.ndarray]:
    """What the model makes of each row: its component and how sure that is, or its factors and their spread."""
    import numpy as np

    from boxloop.estimators.linear import LinearEstimator
    from boxloop.estimators.mixture import MixtureEstimator

    if isinstance(estimator, MixtureEstimator):
        share: Array = estimator.predict_proba(rows)
        return {"component": share.argmax(1), "probability": share.max(1)}
    assert isinstance(estimator, LinearEstimator)
    mean, spread = estimator.posterior(rows)
    deviation = np.sqrt(np.diagonal(spread, axis1=1, axis2=2))
    columns = {}
    for k in range(mean.shape[1]):
        columns[f"factor_{k}"], columns[f"factor_{k}_sd"] = mean[:, k], deviation[:, k]
    return columns


def show(found: dict[str, Any]) -> None:
    """Print the summary as a table."""
    from boxloop.cli.output import echo_facts
    from boxloop.report.numbers import number, with_error

    worst = "\n".join(f"row {low['row']}: {number(low['log_density'])}" for low in found["least_likely"])
    lines = [
        ("rows", str(found["rows"])),
        ("log-likelihood per row", with_error(found["log_likelihood"], found["standard_error"])),
        ("least likely (first row: 0)", worst),
    ]
    if found["output"] is not None:
        lines.append(("written to", str(found["output"])))
    echo_facts(f"{found['data']} under {found['model']}", lines)
