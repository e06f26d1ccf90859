"""Contracts of distributions that models are made of, and the sufficient statistics that refit them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Distribution

S = TypeVar("S", bound=Tree)
S_co = TypeVar("S_co", bound=Tree, covariant=True)


class View(Protocol[S_co]):
    """A tile of rows as one family sees it: what its log-density and its statistics share."""

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset[:, None]`` + log-density of each member at each row, (k, n), less the base measure."""

    def summarise(self, share: Tensor) -> S_co:
        """Sufficient statistics of the rows, weighted by ``share`` (k, n) and summed over rows."""


class Family(Distribution, Protocol[S]):
    """An exponential family, k members at once."""

    def view(self, rows: Tensor) -> View[S]:
        """Prepare a tile of rows (n, d) for the two products of an EM iteration."""

    def log_base(self, rows: Tensor) -> Tensor | None:
        """Log base measure of each row, (n,), where there is one: no parameter enters it, so EM leaves it out."""

    def fit_statistics(self, statistics: S) -> Self:
        """Maximum-likelihood members given summed statistics, within the family's floors."""

    def expected_log_likelihood(self, statistics: S) -> Tensor:
        """Expected log-density of summed statistics, less the base measure; differentiable."""

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged features (pieces, p) of distinct parts of a member, for re-seeding empty ones."""

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``; a family of counts refuses."""

    def free_parameters(self) -> dict[str, Tensor]:
        """Parameters that may take any value."""

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other values of them; differentiable."""

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""

    def is_floored(self) -> Tensor:
        """Which members are at a floor, (k,), where that deserves a warning."""


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

    def replace_members(self, members: Tensor, rows: Tensor) -> Sums:
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

    def replace_members(self, members: Tensor, rows: Tensor) -> PooledSums:
        """The same sums with those of ``members`` set to ``rows``; the scatter within members is unchanged."""
        features = self.features.clone()
        features[members] = rows
        second = self.second + _between_scatter(features) - _between_scatter(self.features)
        return PooledSums(features, second)


def _between_scatter(features: Tensor) -> Tensor:
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


TILE = 1 << 22
"""Values (members x rows x columns) in memory at once."""


def log_prob_by_tiles(entries: Callable[[Tensor, Tensor], Tensor], parameter: Tensor, rows: Tensor) -> Tensor:
    """Log-density of every row (n, d) under every member, (m, n), a tile of members at a time; missing values are
    left out. ``entries`` maps parameters (b, 1, p) and rows to the log-density of each value, (b, n, d)."""
    missing = torch.isnan(rows)
    known = torch.where(missing, 0.0, rows)
    step = max(1, TILE // max(1, len(rows) * parameter.shape[1]))
    parts = [
        entries(part[:, None], known).masked_fill(missing, 0.0).sum(-1) for part in parameter.split(step)
    ]
    return torch.cat(parts)
