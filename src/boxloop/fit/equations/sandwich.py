"""The sandwich: covariance of the root of estimated equations, for independent rows and for groups of them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from boxloop.caller import warn_caller
from boxloop.data import ConcatenatedRows, column_index
from boxloop.fit.equations.faults import EstimateWarning
from boxloop.types import Source


def sandwich(slope: Tensor, meat: Tensor, weight: float, whiten: Tensor) -> Tensor:
    r"""Covariance of a root, or of the least squares of whitened equations.

    .. math:: \frac{1}{n} G B G^\top, \qquad G = (A^\top C^\top C A)^{-1} A^\top C^\top C

    With as many equations as parameters :math:`G = A^{-1}`, whatever C (Huber 1967; van der Vaart 1998, theorem 5.21).

    Args:
        slope: A, derivative of the mean equations, (q, p), of full rank.
        meat: B, covariance of the equations of one row, (q, q).
        weight: n.
        whiten: C, (q, q).
    """
    rows = whiten @ slope
    length = rows.norm(dim=0)
    turned, triangle = torch.linalg.qr(rows / length)
    solve = torch.linalg.solve_triangular(triangle, turned.mT @ whiten, upper=True) / length[:, None]
    found = solve @ meat @ solve.mT / weight
    return 0.5 * (found + found.mT)


def read_groups(groups: object, source: Source, p: int) -> tuple[Tensor, int]:
    """The number of each row's group, (n,), and how many there are.

    Args:
        groups: one label a row, or the name of a column that holds them.
        source: the rows.
        p: number of parameters; as few groups are doubted with a warning.
    """
    if isinstance(groups, str):
        place = column_index(source.names, groups)
        labels = (
            source.reduce(lambda rows, weight: ConcatenatedRows.of(rows[:, place].cpu()))
            .concatenate()
            .numpy()
        )
    else:
        labels = np.asarray(groups.cpu() if isinstance(groups, Tensor) else groups)
    if labels.shape != (source.n_rows,):
        raise ValueError(
            f"groups must have one label a row: shape ({source.n_rows},) is needed, {labels.shape} was given"
        )
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise ValueError(f"the group of row {int(np.isnan(labels).argmax())} (counted from 0) is missing")
    found, place_of = np.unique(labels, return_inverse=True)
    if len(found) <= p:
        warn_caller(
            f"{len(found)} groups for {p} parameters: errors from so few groups are not to be trusted",
            EstimateWarning,
        )
    return torch.from_numpy(np.asarray(place_of, dtype=np.int64)), len(found)


def small_sample(weight: float, p: int, n_groups: int | None) -> float:
    """n / (n - p), and with groups G / (G - 1) x (n - 1) / (n - p): what takes p fitted parameters into account."""
    if weight <= p or n_groups == 1:
        raise ValueError(
            "the small-sample correction needs more rows than parameters, and more than one group"
        )
    if n_groups is None:
        return weight / (weight - p)
    return n_groups / (n_groups - 1) * (weight - 1) / (weight - p)
