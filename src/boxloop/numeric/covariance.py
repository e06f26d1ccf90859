"""Covariances in their cheapest form (dense, diagonal, low rank plus diagonal), and distances between Gaussians."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.tree import Tree
from boxloop.types import Covariance


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
    """One covariance that m members share: stored once, however many they are."""

    one: Dense | Diagonal | LowRank
    members: int

    def dense(self) -> Tensor:
        """(m, d, d), in the memory of one."""
        return self.one.dense().expand(self.members, -1, -1)

    def diagonal(self) -> Tensor:
        """Variances, (m, d), in the memory of one."""
        return self.one.diagonal().expand(self.members, -1)


def projected_variance(covariance: Covariance, directions: Tensor) -> Tensor:
    """Variance of the projections on (p, d) directions under each of m distributions, (m, p)."""
    if isinstance(covariance, Shared):
        return projected_variance(covariance.one, directions).expand(covariance.members, -1)
    if isinstance(covariance, Diagonal):
        return covariance.variance @ directions.square().mT
    if isinstance(covariance, LowRank):
        along = torch.einsum("pd,mdk->mpk", directions, covariance.loadings)
        return along.square().sum(-1) + covariance.noise @ directions.square().mT
    return torch.einsum("pi,mij,pj->mp", directions, covariance.dense(), directions)


def average_covariance(covariance: Covariance, weight: Tensor) -> Tensor:
    """Weighted sum of m covariances as one matrix (d, d), never (m, d, d) unless they are stored so."""
    if isinstance(covariance, Shared):
        return average_covariance(covariance.one, weight.sum()[None])
    if isinstance(covariance, Diagonal):
        return torch.diag(weight @ covariance.variance)
    if isinstance(covariance, LowRank):
        m, d, k = covariance.loadings.shape
        wide = (covariance.loadings * weight[:, None, None]).permute(1, 0, 2).reshape(d, m * k)
        low = wide @ covariance.loadings.permute(1, 0, 2).reshape(d, m * k).mT
        return low + torch.diag(weight @ covariance.noise)
    return torch.einsum("m,mij->ij", weight, covariance.dense())


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    r"""Frobenius norm of the difference over that of the truth (Brownlie 2021, figure 5.1)."""
    return float((estimate - truth).norm() / truth.norm())


def wasserstein_distance(
    covariance: Tensor, other: Tensor, mean: Tensor | None = None, other_mean: Tensor | None = None
) -> float:
    r"""2-Wasserstein distance: :math:`W^2 = |\mu - \nu|^2 + \mathrm{tr}(A + B - 2 (A^{1/2} B A^{1/2})^{1/2})`."""
    values, vectors = torch.linalg.eigh(covariance)
    half = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
    inner = torch.linalg.eigvalsh(half @ other @ half).clamp(min=0.0).sqrt().sum()
    square = covariance.trace() + other.trace() - 2.0 * inner
    if mean is not None and other_mean is not None:
        square = square + (mean - other_mean).square().sum()
    return float(square.clamp(min=0.0).sqrt())
