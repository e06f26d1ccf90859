"""From the cells of a search to one line a candidate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from boxloop.select.cells import Cell, Criterion
from boxloop.select.grouped import Grouped, behind
from boxloop.select.scores import Array, information

NAN = float("nan")


@dataclass(frozen=True, eq=False)
class Judged:
    """One candidate over all folds.

    Args:
        held_out: log-densities of rows under fits without them, averaged where a row was held out more than once.
        scores: the criterion on each fold, where it is a function.
        whole: log-densities of all rows under the fit to all rows.
        n_parameters: of that fit.
    """

    held_out: Grouped
    scores: Grouped
    whole: Grouped
    n_parameters: float

    @classmethod
    def of(cls, cells: Sequence[Cell]) -> Judged | None:
        """Put the cells of one candidate together, the first being that of all rows; None where one failed."""
        density = [cell.density for cell in cells if cell.density is not None]
        if len(density) < len(cells):
            return None
        scores = np.array([cell.score for cell in cells[1:]])
        folds = Grouped.of(scores, np.arange(len(scores)), len(scores))
        return cls(reduce(add, density[1:]), folds, density[0], cells[0].n_parameters)

    def values(self, criterion: str | Criterion) -> Grouped:
        """The criterion as a mean of these values, higher being better: of rows, or of folds for a function."""
        n = self.whole.n_rows
        match criterion:
            case "log_likelihood":
                return self.held_out
            case "aic":
                return self.whole.less(self.n_parameters / n)
            case "bic":
                return self.whole.less(self.n_parameters * float(np.log(n)) / (2.0 * n))
            case _:
                return self.scores


def label(params: Mapping[str, Any]) -> str:
    """Parameters in one line."""
    return ", ".join(f"{name}={value}" for name, value in params.items()) or "as given"


def results(
    grid: Sequence[Mapping[str, Any]], cells: Sequence[Sequence[Cell]], criterion: str | Criterion
) -> dict[str, Any]:
    """All criteria of all candidates, one column each; NaN for a candidate that failed.

    Args:
        grid: parameters of each candidate.
        cells: what its fits gave, first that to all rows, then one for each fold.
        criterion: the one that decides.

    Returns:
        Columns by name, as ``Select.results_`` describes them.

    Raises:
        ValueError: every candidate failed, or none has a finite score.
    """
    judged = [Judged.of(line) for line in cells]
    failure = [next((cell.failure for cell in line if cell.failure), "") for line in cells]
    if all(failure):
        raise ValueError(f"no candidate could be fitted: {'; '.join(dict.fromkeys(failure))}")
    density = [None if one is None else one.held_out for one in judged]
    values = [None if one is None else one.values(criterion) for one in judged]
    means = np.array([(NAN, NAN) if rows is None else rows.mean_error() for rows in density])
    score = np.array([NAN if rows is None else rows.mean for rows in values])
    lag, lag_error = _gaps(density)
    gap, gap_error = _gaps(values)
    if not (gap == 0.0).any():
        raise ValueError(
            f"no candidate has a finite {criterion if isinstance(criterion, str) else 'score'}: "
            "each gives some row a density of zero, or its number of parameters is unknown"
        )
    counts = [NAN if one is None else one.n_parameters for one in judged]
    both = np.array(
        [
            (NAN, NAN) if one is None else information(one.whole.sum, one.whole.n_rows, one.n_parameters)
            for one in judged
        ]
    )
    return {
        "parameters": [dict(params) for params in grid],
        "n_parameters": np.array(counts),
        "log_likelihood": means[:, 0],
        "log_likelihood_error": means[:, 1],
        "difference": 0.0 - lag,
        "difference_error": lag_error,
        "aic": both[:, 0],
        "bic": both[:, 1],
        "score": score,
        "gap": gap,
        "gap_error": gap_error,
        "failure": failure,
        "warnings": [tuple(dict.fromkeys(said for cell in line for said in cell.warnings)) for line in cells],
    }


def _gaps(values: Sequence[Grouped | None]) -> tuple[Array, Array]:
    """How far each candidate is behind the best, with paired errors; NaN where one failed or none is finite."""
    mean = np.array([NAN if rows is None else rows.mean for rows in values])
    mean[np.isnan(mean)] = -np.inf
    gap, error = np.full(len(mean), NAN), np.full(len(mean), NAN)
    if np.isfinite(mean).any():
        alive = [j for j, rows in enumerate(values) if rows is not None]
        kept = [rows for rows in values if rows is not None]
        gap[alive], error[alive] = behind(kept, alive.index(int(mean.argmax())))
    return gap, error
