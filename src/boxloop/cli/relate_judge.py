"""What a fit of two views is worth on rows that took no part in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from scipy import stats

from boxloop.cli.relate_read import Side
from boxloop.estimators import Array, Direction, RelevantFeatures, to_numpy
from boxloop.twoview import Significance, to_values

LOADINGS = 3
"""Columns that are named for a variable of each view; JSON has all."""

DIRECTIONS: dict[str, Direction] = {"y": "y_given_x", "x": "x_given_y"}


def judge(
    estimator: RelevantFeatures, X: Any, Y: Any, ways: Sequence[str], permutations: int, rate: float
) -> tuple[dict[str, Any], Significance]:
    """All that is told of a fit.

    Args:
        estimator: the fit.
        X: rows set apart, of the first view.
        Y: of the second.
        ways: the views to infer from the other, ``x`` and ``y``.
        permutations: random orders behind the p-values.
        rate: false-discovery rate at which something is called significant.
    """
    found = estimator.significance(X, Y, permutations=permutations, level=rate)
    x, y = (
        _rows(edge.open(rows, torch.device("cpu")))
        for edge, rows in ((estimator.x_schema_, X), (estimator.y_schema_, Y))
    )
    columns, labels = inferred(estimator, x, y, ways, rate)
    diagnoses = {way: estimator.diagnose(DIRECTIONS[way]) for way in ways}
    told = {
        "variables": variables(estimator, found, X, Y),
        "total": found.total,
        "total_error": found.total_error,
        "columns": columns,
        "labels": labels,
        "verdict": verdict(estimator, found),
        "overfitted": found.overfitted,
        "worries": worries({way: one.concerns for way, one in diagnoses.items()}),
        "diagnosis": {DIRECTIONS[way]: asdict(one) for way, one in diagnoses.items()},
    }
    return told, found


def worries(said: dict[str, tuple[str, ...]]) -> list[str]:
    """What to worry about, and in which direction where it is not both.

    Example:
        >>> worries({"y": ("few rows", "rough tails"), "x": ("few rows",)})
        ['few rows', 'y inferred from x: rough tails']
    """
    found: list[str] = []
    for way, lines in said.items():
        given = "x" if way == "y" else "y"
        for line in lines:
            shared = len(said) > 1 and all(line in others for others in said.values())
            found.append(line if shared else f"{way} inferred from {given}: {line}")
    return list(dict.fromkeys(found))


def _rows(source: Any) -> torch.Tensor:
    return torch.cat([rows for rows, _ in source.chunks()])


def variables(estimator: RelevantFeatures, found: Significance, X: Any, Y: Any) -> list[dict[str, Any]]:
    """One entry a pair of variables, with the loadings of all columns, largest first."""
    sides = dict(zip("xy", estimator.loadings(X, Y)))
    names = {"x": estimator.x_schema_.labels, "y": estimator.y_schema_.labels}
    return [
        {
            "variable": i + 1,
            "relevance": found.relevance[i],
            "relevance_error": found.relevance_error[i],
            "fit_relevance": found.training_correlation[i] ** 2,
            "correlation": found.correlation[i],
            "correlation_error": found.standard_error[i],
            "p_value": found.p_value[i],
            "adjusted": found.adjusted_p_value[i],
            "significant": bool(found.significant[i]),
            **{side: _ordered(names[side], loading[:, i]) for side, loading in sides.items()},
        }
        for i in range(len(found.correlation))
    ]


def _ordered(names: list[str], loading: Array) -> list[dict[str, Any]]:
    order = np.argsort(-np.abs(loading), kind="stable")
    return [{"column": names[j], "loading": loading[j]} for j in order]


def inferred(
    estimator: RelevantFeatures, x: torch.Tensor, y: torch.Tensor, ways: Sequence[str], rate: float
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """How much of each column, and how often a label, can be told from the other view."""
    fit, pair = estimator.fit_, estimator.model_.pair
    made = {
        "y": (estimator.y_schema_, pair.right, y, fit.infer_right, x),
        "x": (estimator.x_schema_, pair.left, x, fit.infer_left, y),
    }
    columns: list[dict[str, Any]] = []
    labels: list[dict[str, Any]] = []
    device = fit.left.device
    for way in ways:
        edge, view, own, infer, given = made[way]
        with torch.no_grad():
            truth = to_numpy(to_values(view, own.to(device)))
            guess = to_numpy(infer(given.to(device)))
        share, error = explained(truth, guess)
        lines = zip(edge.labels, share, error)
        columns += [{"view": way, "column": name, "share": s, "error": e} for name, s, e in lines]
        if edge.values is not None:
            labels.append({"view": way, "column": edge.names[0], **told_right(truth, guess)})
    chance = [_above_zero(line["share"], line["error"], len(x)) for line in columns]
    adjusted = stats.false_discovery_control(chance)
    for line, p, q in zip(columns, chance, adjusted, strict=True):
        line |= {"p_value": p, "adjusted": q, "significant": bool(q <= rate)}
    return columns, labels


def explained(truth: Array, guess: Array) -> tuple[Array, Array]:
    r"""Share of the variance of each column that is inferred, with its standard error; NaN for a constant column.

    .. math:: R^2 = 1 - \frac{\overline{e^2}}{\overline{d^2}}, \qquad
        \mathrm{se}^2 = \frac{1}{n (n - 1)} \sum_n \frac{\left(e_n^2 - (1 - R^2) \, d_n^2\right)^2}{(\overline{d^2})^2}

    with e the error of the guess and d the distance from the mean (delta method). Negative where the mean is the better
    guess.

    Args:
        truth: (n, d).
        guess: (n, d), made from other rows.

    Example:
        >>> share, error = explained(np.array([[1.0], [2.0], [3.0], [4.0]]), np.array([[1.0], [2.0], [3.0], [3.0]]))
        >>> float(share[0]), float(error[0].round(3))
        (0.8, 0.165)
    """
    n = len(truth)
    missed, spread = (truth - guess) ** 2, (truth - truth.mean(0)) ** 2
    size = spread.mean(0)
    size = np.where(size > 1e-24 * (truth**2).mean(0), size, np.nan)
    share = 1.0 - missed.mean(0) / size
    influence = (missed - (1.0 - share) * spread) / size
    return share, np.sqrt((influence**2).sum(0) / (n * (n - 1)))


def told_right(truth: Array, guess: Array) -> dict[str, float]:
    """How often the label that is given most weight is the right one, beside always naming the most common."""
    right = truth.argmax(1) == guess.argmax(1)
    rate = float(right.mean())
    error = math.sqrt(rate * (1.0 - rate) / max(len(right) - 1, 1))
    return {"right": rate, "right_error": error, "most_common": float(truth.mean(0).max())}


def _above_zero(share: float, error: float, n: int) -> float:
    """Chance of so large a share where there is none to infer; 1 where nothing can be said."""
    if not share > 0.0:
        return 1.0
    return float(stats.t.sf(share / error, n - 1)) if error > 0.0 else 0.0


def verdict(estimator: RelevantFeatures, found: Significance) -> str:
    """How many variables are real, and whether there may be more, in options of this command."""
    r, real = len(found.correlation), found.n_significant
    said = f"{real} of {r} pairs of variables {'is' if real == 1 else 'are'} significant"
    if real == 0:
        return f"{said}: nothing is seen that one view tells of the other"
    most = most_variables(estimator)
    if found.sufficient:
        return f"{said}: -k {r} is enough"
    if r >= most or r < estimator.n_features:
        return f"{said}: there can be no more, with these features"
    return f"{said}, the last one too: there may be more, raise -k"


def most_variables(estimator: RelevantFeatures) -> float:
    """How many pairs the features of both views allow; without limit where networks learn as many as wanted."""
    edges = (estimator.x_schema_, estimator.y_schema_)
    kinds = (estimator.x_features, estimator.y_features)
    return min(_most(kind, edge.values, len(edge.names)) for edge, kind in zip(edges, kinds))


def allowed(side: Side, kind: str) -> float:
    """How many variables one view can have."""
    return _most(kind, None if side.labels is None else range(side.n_values), len(side.names))


def _most(kind: str, values: Sequence[Any] | None, columns: int) -> float:
    if values is not None:
        return len(values) - 1
    return columns if kind == "linear" else math.inf
