"""``boxloop outliers``: rows that a model finds unlikely, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli.names import MODELS, complete_data, complete_model
from boxloop.cli.options import (
    column_options,
    components_help,
    compute_options,
    covariance_choice,
    data_argument,
    json_option,
    output_option,
    seed_option,
    threads_option,
    watch_options,
    watching,
    with_examples,
)

if TYPE_CHECKING:
    import numpy as np

    from boxloop.cli.describe import Fitted
    from boxloop.select import OutlierDetector

REASONS = 3
"""How many columns are named for a row."""
DEFAULT_LEVEL = 0.05
NEARLY_ALL = 0.999
"""Share of the rows that calibrate a model which needs none to be fitted."""


@with_examples(
    "boxloop outliers planted_outliers --level 0.02",
    "boxloop outliers new.csv --train ordinary.csv --model gaussian-mixture -k 3 -o judged.csv",
    "boxloop outliers new.csv --train ordinary.csv --model model.boxloop --contamination 0.01",
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
@watch_options
@output_option("One line for each row of DATA: .csv or .parquet.")
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
    from boxloop.cli.making import make_estimator, rows_with_names
    from boxloop.cli.output import check_outputs, check_table, tell
    from boxloop.cli.watch import watched
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
    rows = rows_with_names(open_table(data, columns=columns, drop=drop))
    learnt = rows if train is None else rows_with_names(open_table(train, columns=columns, drop=drop))
    detector.set_params(random_state=seed).fit(learnt)
    if model in MODELS and detector.estimator_.interrupted_:
        raise KeyboardInterrupt  # half a fit is no judge
    with watched("rows", show):
        judged = judge(detector, rows, top)
    if output is not None:
        _write(judged, output)
    found: dict[str, Any] = {"data": data, "train": train, "model": model, **rule}
    found |= {"rows": len(rows), "flagged": int(judged.flagged.sum()), "outliers": judged.lines()}
    found |= {"threshold": detector.offset_, "output": output}
    tell(found, json_to, lambda: _show(found), quiet)


@dataclass(frozen=True)
class Judged:
    """What a detector makes of rows.

    Args:
        rows: the frame.
        density: log-density of each row, (n,).
        p_value: of each row, where the detector is calibrated.
        flagged: which rows are outliers, (n,).
        lowest: places of the rows to show, by rising density.
        reasons: the columns to blame, for the rows to show and the outliers, by place.
    """

    rows: Any
    density: np.ndarray
    p_value: np.ndarray | None
    flagged: np.ndarray
    lowest: np.ndarray
    reasons: Any

    def lines(self) -> list[dict[str, Any]]:
        """The rows to show, each with the columns that make it unlikely."""
        return [
            {
                "row": int(i),
                "log_density": self.density[i],
                "p_value": None if self.p_value is None else self.p_value[i],
                "flagged": bool(self.flagged[i]),
                "columns": self.blamed(i),
            }
            for i in self.lowest
        ]

    def blamed(self, row: int) -> list[dict[str, Any]]:
        """Columns of a row by falling drop in log-density; those that are no less likely than usual are left out."""
        told = self.reasons.loc[row]
        pairs = [(told[f"column {j + 1}"], told[f"drop {j + 1}"]) for j in range(len(told) // 2)]
        return [
            {"column": name, "value": self.rows[name].iloc[row], "drop": drop}
            for name, drop in pairs
            if drop > 0.0
        ]


def judge(detector: OutlierDetector, rows: Any, top: int) -> Judged:
    """Score all rows, and find reasons for the outliers and for the least likely ones."""
    import numpy as np

    density = detector.score_samples(rows)
    flagged = density < detector.offset_
    lowest = np.argsort(density, kind="stable")[:top]
    told = np.union1d(lowest, np.flatnonzero(flagged))
    return Judged(
        rows,
        density,
        detector.p_values(rows) if detector.contamination == "auto" else None,
        flagged,
        lowest,
        detector.reasons(rows.iloc[told], top=min(REASONS, rows.shape[1])),
    )


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
    from boxloop.data.checks import near_misses

    if not Path(model).exists() and not Path(model).suffix:
        near = near_misses(model, MODELS)
        raise click.UsageError(
            f"--model {model}: no such file, nor a model{near}; there are {', '.join(MODELS)}"
        )
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(
                f"{flag(name)} is for a model that is fitted here; {model} is used as it is"
            )
    estimator = _checked(load_model(Path(model)), model)
    columns = fitted_columns(estimator)
    if columns is not None:
        del estimator.feature_names_in_  # the detector matches names, and hands on bare arrays
    return _detector(FrozenEstimator(estimator), rule, calibration=NEARLY_ALL), columns


def _checked(estimator: Fitted, model: str) -> Fitted:
    """The estimator, unless it needs whole rows: reasons are found by leaving out values."""
    from boxloop.cli.describe import is_bound

    if is_bound(estimator):
        raise click.UsageError(f"--model {model}: an autoencoder cannot leave out a value, to find reasons")
    return estimator


def _write(judged: Judged, output: Path) -> None:
    import numpy as np

    from boxloop.data import write_table

    n = len(judged.density)
    columns: dict[str, np.ndarray] = {"row": np.arange(n), "log_density": judged.density}
    if judged.p_value is not None:
        columns["p_value"] = judged.p_value
    columns["outlier"] = judged.flagged.astype(int)
    told = judged.reasons.reindex(range(n))
    for name in told.columns:
        words = name.startswith("column")
        columns[name.replace(" ", "_")] = (
            told[name].fillna("").to_numpy(str) if words else told[name].to_numpy()
        )
    write_table(output, columns)


def _show(found: Mapping[str, Any]) -> None:
    from boxloop.cli.output import echo_table
    from boxloop.numeric.written import number

    heads = ["row", "log-density", "p", "", "because of"]
    rows = [
        [
            str(one["row"]),
            number(one["log_density"]),
            "-" if one["p_value"] is None else number(one["p_value"], 2),
            "outlier" if one["flagged"] else "",
            "; ".join(
                f"{c['column']} = {number(c['value'])} (-{number(c['drop'], 2)})" for c in one["columns"]
            ),
        ]
        for one in found["outliers"]
    ]
    title = f"Least likely rows of {found['data']} under {found['model']} (first row: 0), with the drop of each column"
    echo_table(title, heads, rows, words=heads[-2:])
    rule = f"level {found['level']:g}" if found["level"] is not None else f"share {found['contamination']:g}"
    click.echo(f"{found['flagged']} of {found['rows']} rows are flagged, at {rule}.")
    if found["level"] is not None and found["train"] is None:
        click.echo("The rows judged themselves; with --train ORDINARY the level is a promise.")
    if found["output"] is not None:
        click.echo(f"Written: {found['output']}")
