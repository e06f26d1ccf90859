"""Sufficient statistics of a family: weighted sums of features over rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.tree import Tree


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
        """The same sums with those of ``members`` set to ``rows``; the pooled moment is unchanged."""
        features = self.features.clone()
        features[members] = rows
        return PooledSums(features, self.second)


def columns_of(rows: Tensor) -> Tensor:
    """Rows (n, d) as contiguous columns (d, n): free for tiles that were standardised."""
    return rows.mT.contiguous()


def has_missing(columns: Tensor) -> bool:
    """Whether any value is NaN; one pass, no temporary of the size of the tile."""
    return bool(torch.isnan(columns.sum()))
