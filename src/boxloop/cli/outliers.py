"""``boxloop outliers``: rows that a model finds unlikely, and why."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.cluster import cluster_options, on_cluster
from boxloop.cli.names import MODELS, complete_data, complete_model
from boxloop.cli.options import (
    column_options,
    components_help,
    compute_options,
    covariance_choice,
    data_argument,
    json_option,
    output_option,
    safe_csv_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)
from boxloop.cli.output import check_outputs, check_table, echo_table, echo_text, tell

if TYPE_CHECKING:
    from boxloop.cli.describe import Fitted
    from boxloop.select import OutlierDetector
    from boxloop.types import Source

DEFAULT_LEVEL = 0.05
NEARLY_ALL = 0.999
"""Share of the rows that calibrate a model which needs none to be fitted."""


@with_examples(
    "boxloop outliers planted_outliers --level 0.02",
    "boxloop outliers new.csv --train ordinary.csv --model gaussian-mixture -k 3 -o judged.csv",
    "boxloop outliers new.csv --train ordinary.csv --model model.boxloop --contamination 0.01",
    "boxloop outliers folder/ --level 0.001 -o judged.parquet --workers 4",
)
@data_argument
@click.option(
    "--train",
    shell_complete=complete_data,
    help="Ordinary rows, which the detector learns from; DATA themselves if omitted.",
)
@click.option(
    "--model",
    default="gaussian-mixture",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=complete_model,
    help=f"What to fit ({', '.join(MODELS)}), or a model file, used as it is.",
)
@click.option("-k", "--components", "n_components", type=click.IntRange(min=1), help=components_help)
@click.option("--covariance", "covariance_type", type=covariance_choice, help="Shape of Gaussian components.")
@click.option(
    "--level",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="Most false alarms among ordinary rows, whatever the model: conformal p-values.  [default: 0.05]",
)
@click.option(
    "--contamination",
    type=click.FloatRange(0.0, 0.5, min_open=True),
    help="Instead of a level: the share of the rows learnt from that is flagged.",
)
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(min=1), help="How many rows to show."
)
@column_options
@seed_option
@compute_options
@threads_option
@cluster_options
@watch_options
@output_option("One line for each row of DATA: .csv or .parquet.")
@safe_csv_option
@json_option
def command(
    data: str,
    train: str | None,
    model: str,
    level: float | None,
    contamination: float | None,
    top: int,
    columns: list[str] | None,
    drop: tuple[str, ...],
    seed: int,
    workers: int | None,
    cluster: str | None,
    quiet: bool,
    progress: bool | None,
    output: Path | None,
    json_to: str | None,
    **options: Any,
) -> None:
    """Rows that a model finds unlikely, and the columns that make them so.

    With a level, half of the rows fit the model and the others calibrate it: a new ordinary row is flagged with at most
    that chance. The promise is for rows not learnt from, so give ordinary rows with --train where there are any; rows
    that judge themselves are ranked by the same rule.

    A model file is not fitted again, and all rows learnt from calibrate it: they should not be those that it was fitted
    to. The columns are then those of the model.
    """
    from boxloop.cli.making import make_estimator
    from boxloop.cli.outliers_judge import judge
    from boxloop.data import open_table

    check_outputs([output, json_to], *(place for place in (data, train, model) if place is not None))
    check_table(output)
    show = watching(quiet, progress)
    rule = _rule(level, contamination)
    if model in MODELS:
        options |= {"random_state": seed, "verbose": int(show)}
        detector = _detector(_checked(make_estimator(model, options), model), rule, calibration=0.5)
    else:
        detector, columns = _fitted(model, {**options, "columns": columns, "drop": drop or None}, rule)
    with on_cluster(workers, cluster) as there:
        rows = learnt = open_table(
            data if train is None else train, columns=columns, drop=drop, cluster=there
        )
        if train is not None:
            rows = open_table(data, columns=learnt.names, cluster=there)
        _learn(detector.set_params(random_state=seed), learnt, there and show)
        judged = judge(detector, rows, top, output, show)
    found: dict[str, Any] = {"data": data, "train": train, "model": model, **rule}
    found |= {"rows": judged.least.rows, "flagged": judged.least.flagged, "outliers": judged.lines()}
    found |= {"threshold": judged.threshold, "output": output}
    tell(found, json_to, lambda: _show(found), quiet)


def _learn(detector: OutlierDetector, learnt: Source, watch: bool) -> None:
    """Fit the detector, showing passes over a cluster that take long where that is wanted."""
    from boxloop.progress import passes

    with passes() if watch else nullcontext():
        estimator = detector.fit(learnt).estimator_
    if vars(estimator).get("interrupted_", False):
        raise KeyboardInterrupt  # half a fit is no judge


def _rule(level: float | None, contamination: float | None) -> dict[str, float | None]:
    """One of the two rules, the other None."""
    if level is not None and contamination is not None:
        raise click.UsageError("--level and --contamination exclude each other: give one")
    if contamination is not None:
        return {"level": None, "contamination": contamination}
    return {"level": DEFAULT_LEVEL if level is None else level, "contamination": None}


def _detector(estimator: Any, rule: Mapping[str, float | None], calibration: float) -> OutlierDetector:
    from boxloop.select import OutlierDetector

    if rule["level"] is None:
        return OutlierDetector(estimator, contamination=rule["contamination"])
    return OutlierDetector(estimator, level=rule["level"], calibration=calibration)


def _fitted(
    model: str, options: Mapping[str, Any], rule: Mapping[str, float | None]
) -> tuple[OutlierDetector, list[str] | None]:
    """A detector around a model file, and the columns that it wants."""
    from sklearn.frozen import FrozenEstimator

    from boxloop.cli.describe import fitted_columns, load_model
    from boxloop.cli.making import flag
    from boxloop.data import suggest_names

    if not Path(model).exists() and not Path(model).suffix:
        near = suggest_names(model, MODELS)
        raise click.UsageError(
            f"--model {model}: no such file, nor a model{near}; there are {', '.join(MODELS)}"
        )
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(
                f"{flag(name)} is for a model that is fitted here; {model} is used as it is"
            )
    estimator = _checked(load_model(Path(model)), model)
    return _detector(FrozenEstimator(estimator), rule, calibration=NEARLY_ALL), fitted_columns(estimator)


def _checked(estimator: Fitted, model: str) -> Fitted:
    """The estimator, unless it needs whole rows: reasons are found by leaving out values."""
    from boxloop.cli.describe import is_bound

    if is_bound(estimator):
        raise click.UsageError(f"--model {model}: an autoencoder cannot leave out a value, to find reasons")
    return estimator


def _show(found: Mapping[str, Any]) -> None:
    from boxloop.numeric import format_number

    heads = ["row", "log-density", "p", "", "because of"]
    rows = [
        [
            str(one["row"]),
            format_number(one["log_density"]),
            "-" if one["p_value"] is None else format_number(one["p_value"], 2),
            "outlier" if one["flagged"] else "",
            "; ".join(
                f"{c['column']} = {format_number(c['value'])} (-{format_number(c['drop'], 2)})"
                for c in one["columns"]
            ),
        ]
        for one in found["outliers"]
    ]
    title = f"Least likely rows of {found['data']} under {found['model']} (first row: 0), with the drop of each column"
    echo_table(title, heads, rows, words=heads[-2:])
    rule = f"level {found['level']:g}" if found["level"] is not None else f"share {found['contamination']:g}"
    echo_text(f"{found['flagged']} of {found['rows']} rows are flagged, at {rule}.")
    if found["level"] is not None and found["train"] is None:
        echo_text("The rows judged themselves; with --train ORDINARY the level is a promise.")
    if found["output"] is not None:
        echo_text(f"Written: {found['output']}")
