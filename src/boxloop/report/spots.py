"""Places on a picture that have something to say when a reader points at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from boxloop.criticise import Gap, Mega
from boxloop.numeric import format_number, format_with_error
from boxloop.report.findings import Findings
from boxloop.report.outlying import Outlying

Spot = tuple[float, float, str]
"""Share of the width from the left, share of the height from the top, words."""

MOST = 600
"""Spots of one picture: more would make the page heavy and could not be told apart by pointing."""


def spots(axes: Any, x: ArrayLike, y: ArrayLike, words: Sequence[str]) -> tuple[Spot, ...]:
    """Where points of a picture lie on it, once it has been drawn; those outside its axes are left out.

    Args:
        axes: matplotlib axes whose figure has been saved, so that nothing moves any more.
        x: of the points, in the axes' coordinates.
        y: of the points.
        words: of the points, the most telling first.
    """
    points = np.column_stack([np.asarray(x, dtype=float), np.asarray(y, dtype=float)])
    figure = axes.get_figure(root=True)
    shares = axes.transData.transform(points) / figure.bbox.size
    inside = axes.transAxes.inverted().transform(shares * figure.bbox.size)
    kept = np.flatnonzero(((inside >= -1e-6) & (inside <= 1 + 1e-6)).all(1))[:MOST]
    return tuple((round(float(shares[i, 0]), 4), round(1.0 - float(shares[i, 1]), 4), words[i]) for i in kept)


def curve_spots(found: Findings, axes: Any) -> tuple[Spot, ...]:
    """Every candidate on the curve of held-out likelihoods."""
    sizes = [trial.candidate.place for trial in found.trials]
    words = [
        f"{trial.candidate.name}: {format_with_error(-behind, error)}"
        f"{', set aside' if place in found.set_aside else ''}"
        for place, (trial, (behind, error)) in enumerate(zip(found.trials, found.behind, strict=True))
    ]
    return spots(axes, sizes, -found.behind[:, 0], words)


def worst_spots(criticism: Mega, axes: Any) -> tuple[Spot, ...]:
    """The moments of the picture of the worst."""
    table = criticism.table()[: len(axes.get_yticks())]
    return spots(axes, table["z"], range(len(table)), [_gap_words(row) for row in table.to_dict("records")])


def heat_spots(gap: Gap, axes: Any) -> tuple[Spot, ...]:
    """Every pair of columns, on both sides of the diagonal, the worst first."""
    i, j = np.triu_indices(len(gap.statistic.frame.names))
    z, data, model = (gap.z, gap.statistic.flat(gap.data), gap.statistic.flat(gap.model))
    rows = zip(gap.labels, z.tolist(), data.tolist(), model.tolist(), strict=True)
    words = [_gap_words({"entry": e, "z": s, "data": x, "model": y}) for e, s, x, y in rows]
    order = np.argsort(-np.abs(z.numpy()), kind="stable")
    twice = np.concatenate([order, order[i[order] != j[order]]])
    below = np.arange(len(twice)) >= len(order)
    x, y = np.where(below, i[twice], j[twice]), np.where(below, j[twice], i[twice])
    return spots(axes, x, y, [words[p] for p in twice.tolist()])


def outlier_spots(found: Findings, outlying: Outlying, axes: Any) -> tuple[Spot, ...]:
    """The least likely rows."""
    order = np.argsort(outlying.scores, kind="stable")
    order = order[np.isfinite(outlying.scores[order])]
    words = [
        f"row {found.table.places[p]}: log-density {format_number(float(outlying.scores[p]))}" for p in order
    ]
    return spots(axes, found.table.places[order], outlying.scores[order], words)


def _gap_words(row: dict[str, Any]) -> str:
    kind = f"{row['function']}, " if "function" in row else ""
    value, model = format_number(row["data"], 3), format_number(row["model"], 3)
    return f"{kind}{row['entry']}: data {value}, model {model}, z {row['z']:.1f}"
