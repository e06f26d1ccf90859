"""From the cells of a search to one line a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from boxloop.select.cells import Cell, Criterion, Fold
from boxloop.select.scores import Array, information, mean_error, paired

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Judged:
    """One candidate over all folds.

    Args:
        held_out: log-density of each row under fits without it, averaged where a row was held out more than once.
        scores: the criterion on each fold, where it is a function.
        whole: the fit to all rows.
        warnings: of all its fits.
        failure: the first one; the other fields then mean nothing.
    """

    held_out: Array
    scores: Array
    whole: Cell
    warnings: tuple[str, ...]
    failure: str

    def values(self, criterion: str | Criterion) -> Array:
        """The criterion as a mean of these values, higher being better: one a row, or one a fold for a function."""
        density, n = self.whole.log_density, len(self.whole.log_density)
        match criterion:
            case "log_likelihood":
                return self.held_out
            case "aic":
                return density - self.whole.n_parameters / n
            case "bic":
                return density - self.whole.n_parameters * np.log(n) / (2.0 * n)
            case _:
                return self.scores


def judge(cells: Sequence[Cell], folds: Sequence[Fold], n_rows: int) -> Judged:
    """Put the cells of one candidate together; the first cell and fold are those of all rows."""
    failure = next((cell.failure for cell in cells if cell.failure), "")
    total, count = np.zeros(n_rows), np.zeros(n_rows)
    for cell, fold in zip(cells[1:], folds[1:]):
        if not failure and fold.test is not None:
            np.add.at(total, fold.test, cell.log_density)
            np.add.at(count, fold.test, 1.0)
    seen = count > 0.0
    return Judged(
        held_out=total[seen] / count[seen],
        scores=np.array([cell.score for cell in cells[1:]]),
        whole=cells[0],
        warnings=tuple(dict.fromkeys(line for cell in cells for line in cell.warnings)),
        failure=failure,
    )


def label(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "as given"


def results(
    grid: Sequence[Mapping[str, Any]], judged: Sequence[Judged], criterion: str | Criterion
) -> dict[str, Any]:
    """All criteria of all candidates, one column each; NaN for a candidate that failed.

    Args:
        grid: parameters of each candidate.
        judged: what its fits gave.
        criterion: the one that decides.

    Returns:
        Columns by name, as ``Select.results_`` describes them.

    Raises:
        ValueError: every candidate failed, or none has a finite score.
    """
    alive = [not one.failure for one in judged]
    if not any(alive):
        reasons = "; ".join(dict.fromkeys(one.failure for one in judged))
        raise ValueError(f"no candidate could be fitted: {reasons}")
    density = [one.held_out if ok else None for one, ok in zip(judged, alive)]
    values = [one.values(criterion) if ok else None for one, ok in zip(judged, alive)]
    means = np.array([(NAN, NAN) if rows is None else mean_error(rows) for rows in density])
    score = np.array([NAN if rows is None else mean_error(rows)[0] for rows in values])
    behind, behind_error = _gaps(density)
    gap, gap_error = _gaps(values)
    if not (gap == 0.0).any():
        raise ValueError(
            f"no candidate has a finite {criterion if isinstance(criterion, str) else 'score'}: "
            "each gives some row a density of zero, or its number of parameters is unknown"
        )
    counts = [one.whole.n_parameters if ok else NAN for one, ok in zip(judged, alive)]
    both = [
        information(o.whole.log_density, c) if ok else (NAN, NAN) for o, c, ok in zip(judged, counts, alive)
    ]
    return {
        "parameters": [dict(params) for params in grid],
        "n_parameters": np.array(counts),
        "log_likelihood": means[:, 0],
        "log_likelihood_error": means[:, 1],
        "difference": 0.0 - behind,
        "difference_error": behind_error,
        "aic": np.array([pair[0] for pair in both]),
        "bic": np.array([pair[1] for pair in both]),
        "score": score,
        "gap": gap,
        "gap_error": gap_error,
        "failure": [one.failure for one in judged],
        "warnings": [one.warnings for one in judged],
    }


def _gaps(values: Sequence[Array | None]) -> tuple[Array, Array]:
    """How far each candidate is behind the best, with paired errors; NaN where one failed or none is finite."""
    mean = np.array([NAN if rows is None else rows.mean() for rows in values])
    mean[np.isnan(mean)] = -np.inf
    gap, error = np.full(len(mean), NAN), np.full(len(mean), NAN)
    if np.isfinite(mean).any():
        alive = [j for j, rows in enumerate(values) if rows is not None]
        kept = [rows for rows in values if rows is not None]
        gap[alive], error[alive] = paired(kept, alive.index(int(mean.argmax())))
    return gap, error
