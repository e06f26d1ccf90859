"""``boxloop outliers``: rows of low density under a model, and the columns that explain them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from boxloop.cli import console, shared
from boxloop.cli.cluster import cluster_options, open_cluster
from boxloop.cli.names import MODELS, complete_data, complete_model

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from boxloop.cli.models import Fitted
    from boxloop.cli.sums import LowestRows, PartialSum
    from boxloop.estimators import Array
    from boxloop.select import OutlierDetector
    from boxloop.types import Source

DEFAULT_LEVEL = 0.05
ALL_BUT_ONE = 0.999
"""Share of the rows that calibrate a model from a file, which is not fitted again."""
MAX_REASONS = 3
"""Most columns that explain a row."""


@shared.with_examples(
    "boxloop outliers planted_outliers --level 0.02",
    "boxloop outliers new.csv --train ordinary.csv --model gaussian-mixture -k 3 -o scored.csv",
    "boxloop outliers new.csv --train ordinary.csv --model model.boxloop --contamination 0.01",
    "boxloop outliers folder/ --level 0.001 -o scored.parquet --workers 4",
)
@shared.data_argument
@click.option(
    "--train",
    shell_complete=complete_data,
    help="Ordinary rows to fit and calibrate the detector; DATA themselves if omitted.",
)
@click.option(
    "--model",
    default="gaussian-mixture",
    show_default=True,
    metavar="NAME|FILE",
    shell_complete=complete_model,
    help=f"What to fit ({', '.join(MODELS)}), or a model file, used as it is.",
)
@click.option("-k", "--components", "n_components", type=click.IntRange(min=1), help=shared.components_help)
@click.option(
    "--covariance", "covariance_type", type=shared.covariance_choice, help="Shape of Gaussian components."
)
@click.option(
    "--level",
    type=click.FloatRange(0.0, 1.0, min_open=True, max_open=True),
    help="False-alarm rate among ordinary rows, by conformal p-values.  [default: 0.05]",
)
@click.option(
    "--contamination",
    type=click.FloatRange(0.0, 0.5, min_open=True),
    help="Instead of a level: the share of the training rows that is flagged.",
)
@click.option(
    "--top", default=10, show_default=True, type=click.IntRange(min=1), help="How many rows to show."
)
@shared.column_options
@shared.seed_option
@shared.compute_options
@shared.threads_option
@cluster_options
@shared.watch_options
@shared.output_option("One line for each row of DATA: .csv or .parquet.")
@shared.safe_csv_option
@shared.json_option
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
    """Rows of low density under a model, and the columns that explain them.

    With a level, half of the rows fit the model and the others calibrate it: a new ordinary row is flagged with at most
    that probability. The guarantee is for rows that are not among those, so give ordinary rows with --train where there
    are any; without --train, DATA are ranked by the same rule.

    A model file is not fitted again, and all rows of --train calibrate it: they should not be those that it was fitted
    to. The columns are then those of the model.
    """
    from boxloop.cli.models import make_estimator
    from boxloop.data import open_table

    console.check_outputs([output, json_to], *(place for place in (data, train, model) if place is not None))
    console.check_table_name(output)
    show = shared.is_progress_shown(quiet, progress)
    rule = _choose_rule(level, contamination)
    if model in MODELS:
        options |= {"random_state": seed, "verbose": int(show)}
        detector = _make_detector(
            _require_missing_values(make_estimator(model, options), model), rule, calibration=0.5
        )
    else:
        detector, columns = _load_detector(model, {**options, "columns": columns, "drop": drop or None}, rule)
    with open_cluster(workers, cluster) as there:
        rows = training = open_table(
            data if train is None else train, columns=columns, drop=drop, cluster=there
        )
        if train is not None:
            rows = open_table(data, columns=training.names, cluster=there)
        _fit_detector(detector.set_params(random_state=seed), training, there and show)
        scored = score_rows(detector, rows, top, output, show)
    found: dict[str, Any] = {"data": data, "train": train, "model": model, **rule}
    found |= {"rows": scored.lowest.rows, "flagged": scored.lowest.flagged, "outliers": scored.to_records()}
    found |= {"threshold": scored.threshold, "output": output}
    console.write_findings(found, json_to, lambda: _print_outliers(found), quiet)


def _fit_detector(detector: OutlierDetector, rows: Source, watch: bool) -> None:
    """Fit the detector, with progress of passes over a cluster."""
    from boxloop.progress import passes

    with passes() if watch else nullcontext():
        estimator = detector.fit(rows).estimator_
    if vars(estimator).get("interrupted_", False):
        raise KeyboardInterrupt  # the fit is not complete


def _choose_rule(level: float | None, contamination: float | None) -> dict[str, float | None]:
    """One of the two rules, the other None."""
    if level is not None and contamination is not None:
        raise click.UsageError("--level and --contamination exclude each other: give one")
    if contamination is not None:
        return {"level": None, "contamination": contamination}
    return {"level": DEFAULT_LEVEL if level is None else level, "contamination": None}


def _make_detector(estimator: Any, rule: Mapping[str, float | None], calibration: float) -> OutlierDetector:
    from boxloop.select import OutlierDetector

    if rule["level"] is None:
        return OutlierDetector(estimator, contamination=rule["contamination"])
    return OutlierDetector(estimator, level=rule["level"], calibration=calibration)


def _load_detector(
    model: str, options: Mapping[str, Any], rule: Mapping[str, float | None]
) -> tuple[OutlierDetector, list[str] | None]:
    """A detector around a model file, and the columns of the model."""
    from sklearn.frozen import FrozenEstimator

    from boxloop.cli.models import get_fitted_columns, load_model, option_name
    from boxloop.data import suggest_names

    if not Path(model).exists() and not Path(model).suffix:
        near = suggest_names(model, MODELS)
        raise click.UsageError(
            f"--model {model}: no such file, nor a model{near}; there are {', '.join(MODELS)}"
        )
    for name, value in options.items():
        if value is not None:
            raise click.UsageError(
                f"{option_name(name)} is for a model that is fitted here; {model} is used as it is"
            )
    estimator = _require_missing_values(load_model(Path(model)), model)
    return _make_detector(FrozenEstimator(estimator), rule, calibration=ALL_BUT_ONE), get_fitted_columns(
        estimator
    )


def _require_missing_values(estimator: Fitted, model: str) -> Fitted:
    """The estimator, if it takes missing values: reasons are found by leaving out values."""
    from boxloop.cli.models import has_lower_bound_scores

    if has_lower_bound_scores(estimator):
        raise click.UsageError(
            f"--model {model}: an autoencoder does not take missing values, which reasons need"
        )
    return estimator


@dataclass(frozen=True)
class ScoredRows:
    """The rows of a table that a detector finds least likely."""

    lowest: LowestRows
    threshold: float
    p_value: Array | None
    names: tuple[str, ...]
    reasons: Any

    def to_records(self) -> list[dict[str, Any]]:
        """The rows to show, each with the columns that explain it, by decreasing drop in log-density."""
        lines = []
        for i, density in enumerate(self.lowest.density):
            reason, row = self.reasons.loc[i], dict(zip(self.names, self.lowest.values[i], strict=True))
            pairs = [(reason[f"column {j + 1}"], reason[f"drop {j + 1}"]) for j in range(len(reason) // 2)]
            lines.append(
                {
                    "row": int(self.lowest.places[i]),
                    "log_density": density,
                    "p_value": None if self.p_value is None else self.p_value[i],
                    "flagged": bool(density < self.threshold),
                    "columns": [
                        {"column": name, "value": row[name], "drop": drop}
                        for name, drop in pairs
                        if drop > 0.0
                    ],
                }
            )
        return lines


def score_rows(
    detector: OutlierDetector, source: Source, top: int, output: Path | None, watch: bool
) -> ScoredRows:
    """Find the rows of lowest density with reasons, and write a line for each row.

    The lines have reasons for the rows to show, which are known after a first pass: writing takes a second one.
    """
    import numpy as np
    import torch

    from boxloop.cli.sums import sum_parts
    from boxloop.data import ArraySource

    names, n = source.names, source.n_rows
    lowest = sum_parts(source.map_tiles(_tile_scores(detector, names, top)), n, None, watch)
    shown = ArraySource(torch.from_numpy(lowest.values), None, names)
    # Before lines are written: the medians of columns are computed once, and travel with the detector.
    reasons = detector.reasons(shown, top=min(MAX_REASONS, len(names)))
    if output is not None:
        score_tile = _tile_scores(detector, names, top, np.sort(lowest.places))
        sum_parts(source.map_tiles(score_tile), n, output, watch)
    return ScoredRows(lowest, detector.offset_, _p_values(detector, lowest.density), names, reasons)


def _tile_scores(
    detector: OutlierDetector, names: tuple[str, ...], top: int, shown: NDArray[np.int64] | None = None
) -> Callable[[Tensor, Tensor, int], PartialSum[LowestRows]]:
    """Scores of a tile; with a line for each row where the rows to show are known."""
    import numpy as np

    from boxloop.cli.sums import LowestRows, PartialSum
    from boxloop.data import ArraySource

    def score_tile(rows: Tensor, weight: Tensor, start: int) -> PartialSum[LowestRows]:
        n, values = len(rows), rows.numpy()
        density = detector.score_samples(ArraySource(rows, None, names))
        flagged = density < detector.offset_
        lowest = LowestRows.from_tile(density, values, int(flagged.sum()), start, top)
        if shown is None:
            return PartialSum(n, lowest)
        explained = flagged.copy()
        explained[shown[slice(*np.searchsorted(shown, [start, start + n]))] - start] = True
        p_value = _p_values(detector, density)
        columns = {
            "row": start + np.arange(n),
            "log_density": density,
            **({} if p_value is None else {"p_value": p_value}),
            "outlier": flagged.astype(int),
            **_reason_columns(detector, rows, names, explained),
        }
        return PartialSum(n, lowest, (columns,))

    return score_tile


def _reason_columns(
    detector: OutlierDetector, rows: Tensor, names: tuple[str, ...], explained: NDArray[np.bool_]
) -> dict[str, Any]:
    """The columns that explain these rows and the drop of each; empty cells elsewhere."""
    import numpy as np
    import torch

    from boxloop.data import ArraySource

    cells: dict[str, Any] = {}
    for j in range(min(MAX_REASONS, len(names))):
        cells |= {
            f"column_{j + 1}": np.full(len(explained), "", object),
            f"drop_{j + 1}": np.full(len(explained), np.nan),
        }
    if explained.any():
        table = ArraySource(rows[torch.from_numpy(explained)], None, names)
        for name, values in detector.reasons(table, top=len(cells) // 2).items():
            cells[name.replace(" ", "_")][explained] = ["" if value is None else value for value in values]
    return cells


def _p_values(detector: OutlierDetector, density: Array) -> Array | None:
    """Conformal p-values of rows by their log-densities; None where the detector is not calibrated."""
    from boxloop.select import conformal_p_values

    if detector.contamination != "auto":
        return None
    return conformal_p_values(detector.calibration_scores_, density)


def _print_outliers(found: Mapping[str, Any]) -> None:
    from boxloop.numeric import format_number

    heads = ["row", "log-density", "p-value", "", "columns (drop in log-density)"]
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
    title = (
        f"Rows of {found['data']} with the lowest density under {found['model']} (rows are counted from 0)"
    )
    console.echo_table(title, heads, rows, words=heads[-2:])
    rule = (
        f"level {found['level']:g}"
        if found["level"] is not None
        else f"contamination {found['contamination']:g}"
    )
    console.echo_text(f"{found['flagged']} of {found['rows']} rows are flagged ({rule}).")
    if found["level"] is not None and found["train"] is None:
        console.echo_text(
            "DATA are also the training rows: the level is guaranteed only for new rows, with --train ORDINARY."
        )
    console.echo_written(found["output"])
