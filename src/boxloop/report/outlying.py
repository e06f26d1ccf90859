"""Rows that the chosen model finds hard to believe, and the columns that make them so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats

from boxloop.criticise import draw_rows
from boxloop.estimators import VariationalAutoencoder
from boxloop.models import Mixture
from boxloop.numeric import generator
from boxloop.report.codes import given_others
from boxloop.report.columns import Array
from boxloop.report.findings import Findings
from boxloop.report.in_use import without_small
from boxloop.select import conditional_log_densities

Density = Callable[[Array], Array]

RATE = 0.05
SHOWN = 20
REASONS = 3
MOST_DRAWN = 200_000
USUAL = 500
"""Rows that tell what is usual in a column."""


@dataclass(frozen=True)
class Strange:
    """One row.

    Args:
        place: in the file, counted from 0.
        score: its log-density under the model.
        p_value: how often a row of the model itself has so low a density.
        flagged: whether it counts as an outlier.
        reasons: columns, their values, and the drop in log-density that each accounts for, largest first.
    """

    place: int
    score: float
    p_value: float
    flagged: bool
    reasons: tuple[tuple[str, float, float], ...]


@dataclass(frozen=True, eq=False)
class Outlying:
    """The rows of lowest density.

    Args:
        rows: the strangest, worst first.
        flagged: how many of all rows count as outliers.
        scores: log-density of every row, NaN where it has a missing value.
        threshold: rows below it are flagged; -inf where none is.
    """

    rows: tuple[Strange, ...]
    flagged: int
    scores: Array
    threshold: float


def outlying(found: Findings) -> Outlying:
    """Rank all rows by density under the chosen model.

    A row is flagged where its log-density is too low for the model itself: among as many rows drawn from the model,
    fewer than one in twenty of those flagged would be there by chance (Benjamini and Hochberg 1995). Components of a
    mixture that hold a handful of rows are left out here.

    Args:
        found: what :func:`boxloop.report.examine.examine` gave.
    """
    table, names = found.table, found.table.names
    law = without_small(found.model.estimator, len(found.first))
    density = found.density if law is None else _density(law)
    scores = density(table.rows)
    n = min(max(20_000, 20 * len(scores)), MOST_DRAWN)
    drawn = found.drawn(n) if law is None else draw_rows(law, n, generator(found.seed)).numpy()
    usual = np.sort(density(drawn))
    complete = ~np.isnan(table.rows).any(1)  # a row with holes has another scale of log-density
    chance = (1.0 + np.searchsorted(usual, scores, side="right")) / (len(usual) + 1.0)
    chance = np.where(complete, chance, 1.0)
    flagged = stats.false_discovery_control(chance) <= RATE
    order = np.lexsort((scores, chance))[:SHOWN]
    strange = [
        Strange(
            int(table.places[i]),
            float(scores[i]),
            float(chance[i]),
            bool(flagged[i]),
            _reasons(names, drop, row),
        )
        for i, drop, row in zip(
            order, _drops(found, density, table.rows[order]), table.rows[order], strict=True
        )
    ]
    threshold = float(np.nextafter(scores[flagged].max(), np.inf)) if flagged.any() else -np.inf
    return Outlying(tuple(strange), int(flagged.sum()), np.where(complete, scores, np.nan), threshold)


def _reasons(names: Sequence[str], drop: Array, row: Array) -> tuple[tuple[str, float, float], ...]:
    worst = [j for j in np.argsort(-drop, kind="stable")[:REASONS] if drop[j] > 0.0]
    return tuple((names[j], float(row[j]), float(drop[j])) for j in worst)


def _density(law: Mixture[Any]) -> Density:
    def density(rows: Array) -> Array:
        each = law.family.log_prob(torch.from_numpy(np.ascontiguousarray(rows)))
        at: Array = (each + law.log_weight[:, None]).logsumexp(0).numpy()
        return at

    return density


def _drops(found: Findings, density: Density, rows: Array) -> Array:
    """How much each value lowers the log-density of its row, beyond what is usual in its column, (m, d)."""
    if rows.shape[1] == 1:
        return np.ones(rows.shape)
    every = found.table.rows
    some = every[np.linspace(0, len(every) - 1, min(len(every), USUAL)).astype(int)]
    level = np.nanmedian(_given_others(found, density, some), axis=0)
    return np.nan_to_num(level - _given_others(found, density, rows), nan=0.0)


def _given_others(found: Findings, density: Density, rows: Array) -> Array:
    """Log-density of each value given the others of its row, (m, d)."""
    estimator = found.model.estimator
    if isinstance(estimator, VariationalAutoencoder):
        return given_others(estimator.model_, rows, found.seed)
    return conditional_log_densities(density, rows)
