"""Additive sums of a test function: over rows, and over the nodes of a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class MomentSums(Tree):
    """Weighted sums over rows of a test function g; missing values are left out entry by entry.

    Args:
        count: weight of the rows in which each entry is present.
        first: sum of g.
        square: sum of g squared.
        squared_weight: sum of squared weights of the rows in which each entry is present.
    """

    count: Tensor
    first: Tensor
    square: Tensor
    squared_weight: Tensor

    @property
    def mean(self) -> Tensor:
        """Weighted mean of g; NaN where no row has it."""
        return torch.where(self.count > 0, self.first / self.count.clamp(min=1e-300), torch.nan)

    @property
    def variance(self) -> Tensor:
        """Variance of g over rows, by the divisor count - 1 for unit weights."""
        rows = self.count.square() / self.squared_weight.clamp(min=1e-300)
        between = (self.square / self.count.clamp(min=1e-300) - self.mean.square()).clamp(min=0.0)
        return torch.where(rows > 1, between * rows / (rows - 1).clamp(min=1e-300), torch.nan)

    @property
    def error(self) -> Tensor:
        """Standard error of the mean, for independent rows with known weights."""
        share = self.squared_weight / self.count.clamp(min=1e-300).square()
        return (self.variance * share).sqrt()


def sum_values(values: Tensor, weight: Tensor) -> MomentSums:
    """The sums of values (n, p), NaN where missing.

    Args:
        values: (n, p), or B sets of rows (B, n, p).
        weight: (n,), or B sets of weights (B, n).
    """
    weight = weight[..., : values.shape[-2]]

    def add(part: Tensor, by: Tensor) -> Tensor:
        return by @ part if part.dim() == 2 else (by[..., None, :] @ part)[..., 0, :]

    seen = ~torch.isnan(values)
    known = torch.nan_to_num(values, nan=0.0)
    if bool(seen.all()):
        one = torch.ones_like(values[..., 0, :])
        count, squared = one * weight.sum(-1, keepdim=True), one * weight.square().sum(-1, keepdim=True)
    else:
        present = seen.to(values.dtype)
        count, squared = add(present, weight), add(present, weight.square())
    return MomentSums(count, add(known, weight), add(known.square(), weight), squared)


@dataclass(frozen=True)
class NodeSums(Tree):
    r"""Weighted sums over nodes of :math:`v_j = E[g(x) \mid z_j]`: its mean, and how much single nodes contribute.

    Args:
        value: :math:`\sum_j w_j v_j`.
        square: :math:`\sum_j w_j^2 (v_j - a)^2` about a point a near the mean.
        fourth: :math:`\sum_j w_j^4 (v_j - a)^4`.
    """

    value: Tensor
    square: Tensor
    fourth: Tensor

    @staticmethod
    def of(values: Tensor, weight: Tensor, about: Tensor | None) -> NodeSums:
        """Of values (m, p), about their own mean where no point is given."""
        value, by = weight @ values, weight.detach().square()
        near = value.detach() / weight.detach().sum() if about is None else about
        apart = (values.detach() - near).square()
        return NodeSums(value, by @ apart, by.square() @ apart.square())
