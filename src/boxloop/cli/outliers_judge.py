"""Rows judged where they live: the least likely of them, with the columns to blame, and a line for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from boxloop.cli.lines import Columns, Found, passed
from boxloop.data import ArraySource
from boxloop.estimators import Array
from boxloop.select import OutlierDetector, conformal
from boxloop.tree import Tree
from boxloop.types import Source

REASONS = 3
"""How many columns are named for a row."""


@dataclass(frozen=True)
class Least(Tree):
    """The least likely of some rows, and how many of them are outliers; those of parts add up.

    Args:
        most: how many are remembered.
        rows: how many there are.
        flagged: how many are outliers.
        density: log-densities of those remembered, rising, (m,).
        places: their numbers, counted from 0, (m,).
        values: their columns, (m, d).

    Example:
        >>> parts = [Least.of(np.array([-9.0, 0.0, -1.0]), np.zeros((3, 2)), 1, start, most=2) for start in (0, 3)]
        >>> (parts[0] + parts[1]).places.tolist(), parts[0].places.tolist()
        ([0, 3], [0, 2])
    """

    most: int
    rows: int
    flagged: int
    density: Array
    places: NDArray[np.int64]
    values: Array

    @classmethod
    def of(cls, density: Array, values: Array, flagged: int, start: int, most: int) -> Least:
        """Of some rows, of which the first has the number ``start``."""
        order = np.argsort(density, kind="stable")[:most]
        return cls(most, len(density), flagged, density[order], start + order, values[order])

    def __add__(self, other: Least) -> Least:
        density = np.concatenate([self.density, other.density])
        places = np.concatenate([self.places, other.places])
        order = np.lexsort((places, density))[: self.most]
        values = np.concatenate([self.values, other.values])[order]
        count, flagged = self.rows + other.rows, self.flagged + other.flagged
        return Least(self.most, count, flagged, density[order], places[order], values)


@dataclass(frozen=True)
class Judged:
    """What a detector makes of rows.

    Args:
        least: the rows to show.
        threshold: rows of a lower log-density are outliers.
        p_value: of each row to show, where the detector is calibrated.
        names: of the columns.
        reasons: the columns to blame for each row to show.
    """

    least: Least
    threshold: float
    p_value: Array | None
    names: tuple[str, ...]
    reasons: Any

    def lines(self) -> list[dict[str, Any]]:
        """The rows to show, each with the columns that make it unlikely."""
        return [
            {
                "row": int(self.least.places[i]),
                "log_density": density,
                "p_value": None if self.p_value is None else self.p_value[i],
                "flagged": bool(density < self.threshold),
                "columns": self.blamed(i),
            }
            for i, density in enumerate(self.least.density)
        ]

    def blamed(self, i: int) -> list[dict[str, Any]]:
        """Columns of a row by falling drop in log-density; those that are no less likely than usual are left out."""
        told, row = self.reasons.loc[i], dict(zip(self.names, self.least.values[i], strict=True))
        pairs = [(told[f"column {j + 1}"], told[f"drop {j + 1}"]) for j in range(len(told) // 2)]
        return [{"column": name, "value": row[name], "drop": drop} for name, drop in pairs if drop > 0.0]


def judge(detector: OutlierDetector, source: Source, top: int, output: Path | None, watch: bool) -> Judged:
    """Find the least likely rows with reasons, and write a line for each row.

    The lines say why the rows shown are unlikely, and which these are is known after a first pass: a table takes two.

    Args:
        detector: fitted.
        source: rows, whose densities and reasons are found where they live.
        top: how many rows to show.
        output: table to write, or None.
        watch: whether to show progress.
    """
    names, n = source.names, source.n_rows
    least = passed(source.in_turn(_look(detector, names, top)), n, None, watch)
    shown = ArraySource(torch.from_numpy(least.values), None, names)
    # Asked for before lines are written: what is usual in each column is found once, and travels with the detector.
    reasons = detector.reasons(shown, top=min(REASONS, len(names)))
    if output is not None:
        look = _look(detector, names, top, np.sort(least.places))
        passed(source.in_turn(look), n, output, watch)
    return Judged(least, detector.offset_, _p_values(detector, least.density), names, reasons)


def _look(
    detector: OutlierDetector, names: tuple[str, ...], top: int, shown: NDArray[np.int64] | None = None
) -> Callable[[Tensor, Tensor, int], Found[Least]]:
    """What a tile comes to; with a line for each row where it is known which rows are shown."""

    def look(rows: Tensor, weight: Tensor, start: int) -> Found[Least]:
        n, values = len(rows), rows.numpy()
        density = detector.score_samples(ArraySource(rows, None, names))
        flagged = density < detector.offset_
        least = Least.of(density, values, int(flagged.sum()), start, top)
        if shown is None:
            return Found(n, least)
        told = flagged.copy()
        told[shown[slice(*np.searchsorted(shown, [start, start + n]))] - start] = True
        chance = _p_values(detector, density)
        columns = {
            "row": start + np.arange(n),
            "log_density": density,
            **({} if chance is None else {"p_value": chance}),
            "outlier": flagged.astype(int),
            **_reasons(detector, rows, names, told),
        }
        return Found(n, least, (columns,))

    return look


def _reasons(
    detector: OutlierDetector, rows: Tensor, names: tuple[str, ...], told: NDArray[np.bool_]
) -> Columns:
    """The columns to blame and the drop of each, where they are told; empty cells elsewhere."""
    found: dict[str, Any] = {}
    for j in range(min(REASONS, len(names))):
        found |= {
            f"column_{j + 1}": np.full(len(told), "", object),
            f"drop_{j + 1}": np.full(len(told), np.nan),
        }
    if told.any():
        some = ArraySource(rows[torch.from_numpy(told)], None, names)
        for name, cells in detector.reasons(some, top=len(found) // 2).items():
            found[name.replace(" ", "_")][told] = ["" if cell is None else cell for cell in cells]
    return found


def _p_values(detector: OutlierDetector, density: Array) -> Array | None:
    """Conformal p-values of rows by their log-densities; None where the detector is not calibrated."""
    if detector.contamination != "auto":
        return None
    return conformal(detector.calibration_scores_, density)
