"""Covariances in the form that was cheapest to hold: dense, diagonal, low rank plus diagonal."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class Dense(Tree):
    """A full matrix a member, (m, d, d)."""

    matrix: Tensor

    def dense(self) -> Tensor:
        """The matrices themselves."""
        return self.matrix

    def diagonal(self) -> Tensor:
        """Variances, (m, d)."""
        return self.matrix.diagonal(dim1=-2, dim2=-1)


@dataclass(frozen=True)
class Diagonal(Tree):
    """Independent columns: variances (m, d)."""

    variance: Tensor

    def dense(self) -> Tensor:
        """(m, d, d)."""
        return torch.diag_embed(self.variance)

    def diagonal(self) -> Tensor:
        """Variances, (m, d)."""
        return self.variance


@dataclass(frozen=True)
class LowRank(Tree):
    r""":math:`F F^\top + \mathrm{diag}(\psi)` with F (m, d, k) and psi (m, d)."""

    loadings: Tensor
    noise: Tensor

    def dense(self) -> Tensor:
        """(m, d, d)."""
        return self.loadings @ self.loadings.mT + torch.diag_embed(self.noise)

    def diagonal(self) -> Tensor:
        """Variances, (m, d)."""
        return self.loadings.square().sum(-1) + self.noise


@dataclass(frozen=True)
class Shared(Tree):
    """One covariance that m members share: held once, however many they are.

    Args:
        one: of a single member.
        members: m.
    """

    one: Dense | Diagonal | LowRank
    members: int

    def dense(self) -> Tensor:
        """(m, d, d), in the memory of one."""
        return self.one.dense().expand(self.members, -1, -1)

    def diagonal(self) -> Tensor:
        """Variances, (m, d), in the memory of one."""
        return self.one.diagonal().expand(self.members, -1)
