"""Rows that belong to groups: sorted by group, so that sums over a group are one pass without a Python loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class GroupedRows(Tree):
    """Responses with two sets of columns, sorted by group.

    Args:
        response: (n,).
        fixed: columns whose coefficients all groups share, (n, p).
        random: columns whose coefficients each group has for itself, (n, q).
        group: number of each row's group, 0 to g - 1, ascending, (n,).
        offset: known part of the linear predictor, (n,).
        weight: of each row; whole numbers count as repetitions within the group, (n,).
        n_groups: g.

    Example:
        >>> import torch
        >>> one = torch.ones(3, 1)
        >>> rows = GroupedRows.of(torch.tensor([5.0, 6.0, 7.0]), one, one, torch.tensor([1, 0, 1]))
        >>> rows.response, rows.group
        (tensor([6., 5., 7.], dtype=torch.float64), tensor([0, 1, 1]))
        >>> rows.total(rows.response)
        tensor([ 6., 12.], dtype=torch.float64)
    """

    response: Tensor
    fixed: Tensor
    random: Tensor
    group: Tensor
    offset: Tensor
    weight: Tensor
    n_groups: int

    @classmethod
    def of(
        cls,
        response: Tensor,
        fixed: Tensor,
        random: Tensor,
        group: Tensor,
        offset: Tensor | None = None,
        weight: Tensor | None = None,
    ) -> Self:
        """Sort rows by group.

        Args:
            response: (n,).
            fixed: (n, p).
            random: (n, q).
            group: (n,) whole numbers from 0 to g - 1, each of them at least once.
            offset: (n,); zeros when omitted.
            weight: (n,); ones when omitted.

        Returns:
            The rows in float64; those of a group keep their order.
        """
        n = len(response)
        order = torch.argsort(group, stable=True)
        count = torch.bincount(group)
        if bool((count == 0).any()):
            raise ValueError(
                f"group {int((count == 0).nonzero()[0])} has no rows: number groups without gaps"
            )
        zero, one = response.new_zeros(n), response.new_ones(n)
        values = (
            response,
            fixed,
            random,
            zero if offset is None else offset,
            one if weight is None else weight,
        )
        y, x, w, o, weights = (value[order].double() for value in values)
        return cls(y, x, w, group[order], o, weights, len(count))

    def total(self, values: Tensor) -> Tensor:
        """Sums of ``values`` (n, ...) over the rows of each group, (g, ...)."""
        return values.new_zeros((self.n_groups, *values.shape[1:])).index_add(0, self.group, values)
