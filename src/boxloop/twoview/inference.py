"""What a fit of two views keeps: variables, and the means of columns by which one view is inferred from the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.numeric import product
from boxloop.tree import Tree
from boxloop.twoview.canonical import RelevanceModel
from boxloop.twoview.views import FiniteView, View
from boxloop.types import Source


@dataclass(frozen=True)
class _Sums(Tree):
    weight: Tensor
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class RelevanceFit(Tree):
    r"""A model with the means of each view's columns under its canonical variables.

    .. math:: E[y \mid x] \approx \sum_{i \ge 0} \eta_i \, u_i(x) \; \overline{v_i y}

    Document 003, eq. 9 and 10, for the columns themselves; a finite view counts as the indicators of its values.

    Args:
        model: the canonical variables.
        left: mean of [1 u(x)]' x, (1 + r, d_x).
        right: mean of [1 v(y)]' y, (1 + r, d_y).
    """

    model: RelevanceModel
    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, model: RelevanceModel, source: Source) -> Self:
        """The means over all rows, in one pass."""

        def sums(rows: Tensor, weight: Tensor) -> _Sums:
            x, y = model.pair.parts(rows)
            mass = weight.double()
            left, right = (with_one(part) * mass[:, None] for part in (model.left(x), model.right(y)))
            left_values, right_values = values(model.pair.left, x), values(model.pair.right, y)
            return _Sums(mass.sum(), product(left.mT, left_values), product(right.mT, right_values))

        with torch.no_grad():
            total = source.reduce(sums)
        return cls(model, total.left / total.weight, total.right / total.weight)

    def infer_right(self, rows: Tensor) -> Tensor:
        """E[y | x] of rows of the first view, (n, d_y)."""
        return with_one(self.model.left(rows) * self.model.canonical.correlation) @ self.right

    def infer_left(self, rows: Tensor) -> Tensor:
        """E[x | y] of rows of the second view, (n, d_x)."""
        return with_one(self.model.right(rows) * self.model.canonical.correlation) @ self.left


def with_one(variables: Tensor) -> Tensor:
    """Variables with the constant before them, (n, 1 + r)."""
    return torch.cat([variables.new_ones(len(variables), 1), variables], 1)


def values(view: View, rows: Tensor) -> Tensor:
    """The columns of a view in float64; of a finite one, the indicators of its values."""
    return (view(rows) if isinstance(view, FiniteView) else rows).double()
