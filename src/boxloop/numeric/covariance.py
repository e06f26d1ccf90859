"""Covariances in their cheapest form (dense, diagonal, low rank plus diagonal), and distances between Gaussians."""

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
    """One covariance that m members share: stored once, however many they are.

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


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    r"""Frobenius norm of the difference over that of the truth (Brownlie 2021, figure 5.1)."""
    return float((estimate - truth).norm() / truth.norm())


def wasserstein(
    covariance: Tensor, other: Tensor, mean: Tensor | None = None, other_mean: Tensor | None = None
) -> float:
    r"""2-Wasserstein distance between two Gaussians.

    .. math:: W_2^2 = |\mu - \nu|^2 + \mathrm{tr}\left(A + B - 2 (A^{1/2} B A^{1/2})^{1/2}\right)

    Args:
        covariance: A, (d, d).
        other: B, (d, d).
        mean: mu, (d,); left out together with ``other_mean`` when only covariances are compared.
        other_mean: nu, (d,).
    """
    values, vectors = torch.linalg.eigh(covariance)
    half = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
    inner = torch.linalg.eigvalsh(half @ other @ half).clamp(min=0.0).sqrt().sum()
    square = covariance.trace() + other.trace() - 2.0 * inner
    if mean is not None and other_mean is not None:
        square = square + (mean - other_mean).square().sum()
    return float(square.clamp(min=0.0).sqrt())
