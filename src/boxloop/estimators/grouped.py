"""What a model of groups needs before it can be fitted: checked rows, standard coordinates, a start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import column_or_1d
from torch import Tensor

from boxloop.data import to_labels, to_vector
from boxloop.models import GroupedRows, RandomEffects, Response
from boxloop.numeric import ConditionError
from boxloop.tree import Tree

Array = NDArray[np.float64]

SEPARATED = 100.0
"""A coefficient of a standardised column whose odds or rates differ by more than exp of this has no maximum."""


@dataclass(frozen=True)
class Units(Tree):
    """Standard coordinates of the columns, and the way back.

    Args:
        origin: means of the columns, (d,).
        scale: their standard deviations, (d,).
        slopes: columns whose coefficients vary between groups.
    """

    origin: Tensor
    scale: Tensor
    slopes: tuple[int, ...]

    def columns(self, X: Array) -> tuple[Tensor, Tensor]:
        """Fixed columns (n, 1 + d) and random columns (n, 1 + slopes), standardised, the constant first."""
        table = (torch.from_numpy(X) - self.origin) / self.scale
        fixed = torch.cat([torch.ones(len(X), 1, dtype=torch.float64), table], 1)
        return fixed, fixed[:, list(self.shared)]

    @property
    def shared(self) -> tuple[int, ...]:
        """The fixed column that each random one is."""
        return (0, *(1 + j for j in self.slopes))

    def turn(self) -> Tensor:
        """From effects in standard coordinates to those of the data, (q, q)."""
        index = list(self.slopes)
        matrix = torch.diag(torch.cat([self.scale.new_ones(1), 1.0 / self.scale[index]]))
        matrix[0, 1:] = -self.origin[index] / self.scale[index]
        return matrix

    def named(self, model: RandomEffects) -> dict[str, Tensor]:
        """Parameters in the data's coordinates."""
        coef = model.coefficients[1:] / self.scale
        turn = self.turn()
        return {
            "intercept": model.coefficients[0] - coef @ self.origin,
            "coef": coef,
            "covariance": turn @ model.covariance @ turn.mT,
        }


def finite(X: Array, names: list[str]) -> None:
    """Refuse what is not a number, naming its column."""
    bad = ~np.isfinite(X).all(0)
    if bad.any():
        column = names[int(np.flatnonzero(bad)[0])]
        what = "NaN" if np.isnan(X[:, bad]).any() else "infinity"
        raise ValueError(
            f"Input X contains {what} in column {column!r}: a model of groups takes complete rows"
        )


def vector(value: Any, n: int, name: str, least: float = -np.inf) -> Tensor | None:
    """One finite number a row, or None as it is."""
    if value is None:
        return None
    array = to_vector(value, name)
    if array.shape != (n,):
        raise ValueError(f"{name} has the shape {array.shape}, but there are {n} rows")
    if not np.isfinite(array).all() or (array < least).any():
        raise ValueError(f"{name} must be finite" + (f" and at least {least:g}" if least > -np.inf else ""))
    return torch.from_numpy(array)


def column(y: Any) -> NDArray[Any]:
    """Responses as one column without holes."""
    if y is None:
        raise ValueError("a model of groups requires y to be passed, but the target y is None")
    values = to_labels(y, "y")
    if values.ndim == 2 and values.shape[1] == 1:
        values = column_or_1d(values, warn=True)
    if values.ndim != 1:
        raise ValueError(f"y must be one column, got the shape {values.shape}")
    if values.dtype.kind == "c":
        raise ValueError("y must hold counts or labels, not complex numbers")
    if values.dtype.kind == "f" and np.isnan(values).any():
        raise ValueError("Input y contains NaN.")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ValueError("y must hold counts or labels, and holds an infinite value")
    return values


def units(X: Array, slopes: tuple[int, ...], names: list[str], weight: Tensor | None = None) -> Units:
    """Standard coordinates of weighted rows; a constant column is refused, as the intercept is one."""
    share = None if weight is None else weight.numpy()
    origin = np.average(X, 0, share)
    scale = np.sqrt(np.average((X - origin) ** 2, 0, share))
    flat = scale <= 1e-12 * np.abs(X).max(0, initial=0.0)
    if flat.any():
        column = names[int(np.flatnonzero(flat)[0])]
        raise ValueError(f"column {column!r} is constant: leave it out, the intercept is always fitted")
    return Units(torch.from_numpy(origin), torch.from_numpy(scale), slopes)


def numbered(groups: Any, n: int) -> tuple[NDArray[Any], Tensor]:
    """Labels of groups, and the number of each row's group."""
    if groups is None:
        raise ValueError("groups are needed: one label a row, equal for the rows of a group")
    labels = to_labels(groups, "groups")
    if labels.shape != (n,):
        raise ValueError(f"groups has the shape {labels.shape}, but there are {n} rows")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise ValueError("groups holds a label that is not finite")
    found, index = np.unique(labels, return_inverse=True)
    if len(found) < 2:
        raise ValueError("there is one group only: how groups differ cannot be learnt from it")
    return found, torch.from_numpy(index.reshape(-1))


def pooled(rows: GroupedRows, response: Response, shared: tuple[int, ...]) -> RandomEffects:
    """Where a fit starts: the coefficients that fit best without effects, and effects of unit variance.

    Newton's method is the model's own M step at effects of zero.
    """
    p, q = rows.fixed.shape[1], rows.random.shape[1]
    eye = torch.eye(q, dtype=torch.float64)
    model = RandomEffects(torch.zeros(p, dtype=torch.float64), eye, response)
    none = torch.zeros(rows.n_groups, q, dtype=torch.float64)
    level = float(model.log_joint(rows, none).sum())
    for _ in range(100):
        try:
            there = model.solve(model.statistics(rows, none)).coefficients
        except ConditionError:
            raise ValueError(
                "the columns are collinear, or tell the responses apart without error: no maximum"
            ) from None
        move = there - model.coefficients
        while not float((raised := _at(model, there)).log_joint(rows, none).sum()) >= level - 1e-9 * abs(
            level
        ):
            move = 0.5 * move
            there = model.coefficients + move
        model, level = raised, float(raised.log_joint(rows, none).sum())
        if float(model.coefficients.abs().max()) > SEPARATED:
            break
        if float(move.abs().max()) < 1e-6:
            return replace(model, shared=shared)
    raise ValueError("the columns tell the responses apart without error: the likelihood has no maximum")


def _at(model: RandomEffects, coefficients: Tensor) -> RandomEffects:
    return replace(model, coefficients=coefficients)
