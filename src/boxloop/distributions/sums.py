"""Sufficient statistics of a family: weighted sums of features over rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.tree import Tree

QUADRATIC_CONDITION = 1e5
"""Where squares about the origin keep enough digits in float64: largest precision of a member, and largest square
of its mean in units of its own deviation. The first speaks of standard coordinates, the second of any others."""


@dataclass(frozen=True)
class Sums(Tree):
    """Summed features, (k, p); feature 0 is the constant 1, so column 0 is each member's weight."""

    features: Tensor

    @property
    def count(self) -> Tensor:
        """Total weight of each member, (k,)."""
        return self.features[:, 0]

    def replaced(self, members: Tensor, rows: Tensor) -> Sums:
        """The same sums with those of ``members`` set to ``rows``."""
        features = self.features.clone()
        features[members] = rows
        return Sums(features)


@dataclass(frozen=True)
class PooledSums(Tree):
    """Summed (1, x), (k, 1 + d), with one second moment shared by all members, (d, d)."""

    features: Tensor
    second: Tensor

    @property
    def count(self) -> Tensor:
        """Total weight of each member, (k,)."""
        return self.features[:, 0]

    def replaced(self, members: Tensor, rows: Tensor) -> PooledSums:
        """The same sums with those of ``members`` set to ``rows``; the scatter within members is unchanged."""
        features = self.features.clone()
        features[members] = rows
        second = self.second + _between(features) - _between(self.features)
        return PooledSums(features, second)


def _between(features: Tensor) -> Tensor:
    mean = features[:, 1:] / features[:, :1].clamp(min=1e-300)
    return features[:, 1:].mT @ mean


def log_factorials(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Sum of x and of log x! over each row of counts, dense or sparse CSR; NaN counts as nothing. Both (n,)."""
    if counts.layout == torch.strided:
        known = torch.nan_to_num(counts, nan=0.0)
        return known.sum(1), torch.lgamma(known + 1.0).sum(1)
    values = torch.nan_to_num(counts.values(), nan=0.0)
    row = torch.arange(counts.shape[0], device=values.device).repeat_interleave(counts.crow_indices().diff())
    zero = values.new_zeros(counts.shape[0])
    return zero.index_add(0, row, values), zero.index_add(0, row, torch.lgamma(values + 1.0))


def columns_of(rows: Tensor) -> Tensor:
    """Rows (n, d) as contiguous columns (d, n): free for tiles that were standardised."""
    return rows.mT.contiguous()


def has_missing(columns: Tensor) -> bool:
    """Whether any value is NaN; one pass, no temporary of the size of the tile."""
    return bool(torch.isnan(columns.sum()))
