r"""Gaussians with a full covariance each.

Two ways to the same numbers. *Quadratic*: features :math:`(1, x, x_i x_j)`, so an iteration is two matrix products;
best for few columns. *Whitened*: :math:`y = L_k^{-1}(x - \mu_k)` member by member; best for many columns, and the
accurate one in float32 or when a member is ill-conditioned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import QUADRATIC_CONDITION, Sums
from boxloop.distributions.missing import PatternView
from boxloop.numeric import (
    covariance as forms,
    floor_covariance,
    from_log_factor,
    has_missing,
    log_factor,
    lower_norms,
    normal,
    pack,
    product,
    safe_cholesky,
    scatter,
    unpack,
)
from boxloop.tree import Tree

QUADRATIC_COLUMNS = 12
QUADRATIC_COLUMNS_GPU = 64
"""A GPU multiplies quicker than it moves: all members share one set of products, however many."""
NEGLIGIBLE = 1e-14
LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class FullGaussian(Tree):
    r"""k Gaussians :math:`N(\mu_k, L_k L_k^\top)`.

    Args:
        mean: (k, d).
        factor: lower Cholesky factors of the covariances, (k, d, d).
        floor: smallest eigenvalue that ``fit_statistics`` may return.

    Example:
        >>> import torch
        >>> distribution = FullGaussian(torch.zeros(1, 2), torch.eye(2)[None])
        >>> distribution.log_prob(torch.zeros(1, 2))
        tensor([[-1.8379]])
    """

    mean: Tensor
    factor: Tensor
    floor: float = 0.0

    @cached_property
    def whitener(self) -> Tensor:
        """Inverse Cholesky factors, (k, d, d), lower."""
        eye = torch.eye(self.mean.shape[1], dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor, eye.expand_as(self.factor), upper=False)

    @cached_property
    def log_constant(self) -> Tensor:
        """-d log(2 pi) / 2 - log|L_k|, (k,)."""
        return -0.5 * self.mean.shape[1] * LOG_2PI - self.factor.diagonal(dim1=-2, dim2=-1).log().sum(1)

    @cached_property
    def natural_parameters(self) -> Tensor:
        """Weights of the quadratic features (1, x, x_i x_j for i <= j), (k, 1 + d + d(d+1)/2)."""
        precision = self.whitener.mT @ self.whitener
        linear = (precision @ self.mean[..., None])[..., 0]
        constant = self.log_constant - 0.5 * (linear * self.mean).sum(1)
        double = precision * (
            1.0 - 0.5 * torch.eye(self.mean.shape[1], dtype=precision.dtype, device=precision.device)
        )
        return torch.cat([constant[:, None], linear, -pack(double)], dim=1)

    @cached_property
    def _uses_quadratic_features(self) -> bool:
        k, d = self.mean.shape
        most = QUADRATIC_COLUMNS if self.mean.device.type == "cpu" else min(4 * k, QUADRATIC_COLUMNS_GPU)
        if d > max(most, QUADRATIC_COLUMNS):
            return False
        whitener, mean = self.whitener.detach(), self.mean.detach()
        steep, far = whitener.abs().max(), (whitener @ mean[..., None]).abs().max()
        return bool(torch.maximum(steep, far).square() < QUADRATIC_CONDITION)

    def view(self, rows: Tensor) -> QuadraticView | WhitenedView | PatternView:
        """Features of a tile, by the method that suits the columns, the precision and the gaps."""
        columns = rows.mT.contiguous()
        if has_missing(columns):
            return PatternView(self.mean, self.factor @ self.factor.mT, columns)
        if columns.dtype == torch.float64 and self._uses_quadratic_features:
            return QuadraticView(self.natural_parameters, columns)
        return WhitenedView(self, columns)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n)."""
        return self.view(rows).log_joint(self.mean.new_zeros(self.mean.shape[0]))

    def log_base(self, rows: Tensor) -> None:
        """None: the constant is in the log-density."""

    def fit_statistics(self, statistics: Sums) -> Self:
        """Weighted means and covariances, eigenvalues at least ``floor`` (the exact constrained maximum)."""
        d = self.mean.shape[1]
        averaged = statistics.features / statistics.features[:, :1]
        mean = averaged[:, 1 : 1 + d]
        covariance = unpack(averaged[:, 1 + d :], d) - mean[:, :, None] * mean[:, None, :]
        return self.from_covariance(mean, covariance, self.floor)

    @classmethod
    def from_covariance(cls, mean: Tensor, covariance: Tensor, floor: float = 0.0) -> Self:
        """From means (k, d) and covariances (k, d, d)."""
        if floor > 0.0:
            covariance, _ = floor_covariance(covariance, floor)
        return cls(mean, safe_cholesky(covariance, "the covariance of component"), floor)

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged features of parts spread over one standard deviation along the main axis."""
        spread, axes = torch.linalg.eigh(self.factor[member] @ self.factor[member].mT)
        shift = 0.5 * spread[-1].sqrt() * axes[:, -1]
        steps = torch.linspace(1.0, -1.0, pieces, dtype=shift.dtype, device=shift.device)
        means = self.mean[member] + steps[:, None] * shift
        second = (axes * spread) @ axes.mT + means[:, :, None] * means[:, None, :]
        return torch.cat([means.new_ones(pieces, 1), means, pack(second)], dim=1)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return type(self)(self.mean[index], self.factor[index], self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale[:, None] * self.factor, self.floor)

    def covariance(self) -> forms.Dense:
        """(k, d, d)."""
        return forms.Dense(self.factor @ self.factor.mT)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return self.mean[:, None] + normal((k, n, d), generator, self.mean.dtype) @ self.factor.mT

    def expected_log_likelihood(self, statistics: Sums) -> Tensor:
        """Expected log-density of the statistics, summed over members."""
        return (self.natural_parameters * statistics.features).sum()

    def free_parameters(self) -> dict[str, Tensor]:
        """Means and Cholesky factors with log-diagonals: any values of them are valid."""
        return {"mean": self.mean, "factor": log_factor(self.factor)}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other free parameters."""
        return type(self)(free["mean"], from_log_factor(free["factor"], self.mean.shape[1]), self.floor)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"means": self.mean, "covariances": self.factor @ self.factor.mT}

    def is_floored(self) -> Tensor:
        """Which members have a variance at the floor, (k,)."""
        return torch.linalg.eigvalsh(self.factor @ self.factor.mT)[:, 0] <= self.floor * (1 + 1e-6)


class QuadraticView:
    """Features (1, x, x_i x_j): log-densities and statistics are one matrix product each."""

    def __init__(self, natural: Tensor, columns: Tensor) -> None:
        d, n = columns.shape
        self.natural_parameters = natural
        if torch.is_grad_enabled() and columns.requires_grad:
            pairs = [columns[i:] * columns[i] for i in range(d)]
            self.features: Tensor = torch.cat([columns.new_ones(1, n), columns, *pairs])
            return
        self.features = columns.new_empty(1 + d + d * (d + 1) // 2, n)
        self.features[0] = 1.0
        self.features[1 : 1 + d] = columns
        start = 1 + d
        for i in range(d):
            torch.mul(columns[i:], columns[i], out=self.features[start : start + d - i])
            start += d - i

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density, (k, n)."""
        weight = self.natural_parameters.clone()
        weight[:, 0] += offset
        return product(weight, self.features)

    def summarise(self, share: Tensor) -> Sums:
        """Features weighted by ``share`` and summed over rows."""
        return Sums(product(share, self.features.mT))


@dataclass(frozen=True)
class WhitenedView:
    """Member by member; second moments about the current means, from the rows that matter."""

    family: FullGaussian
    columns: Tensor

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density, (k, n)."""
        family, columns = self.family, self.columns
        shift = -(family.whitener @ family.mean[..., None])
        whitener = torch.cat([shift, family.whitener], dim=2).to(columns.dtype)
        augmented = torch.cat([columns.new_ones(1, columns.shape[1]), columns])
        length = lower_norms(whitener, augmented)
        return torch.sub((offset + family.log_constant).to(length.dtype)[:, None], length, alpha=0.5)

    def summarise(self, share: Tensor) -> Sums:
        """Packed second moments about zero, accumulated about each member's mean over the rows that matter."""
        centre = self.family.mean.to(share.dtype)
        first, second = scatter(self.columns.mT, centre, share, NEGLIGIBLE)
        mean = centre.double()  # as this tile's precision knows it
        count = share.sum(1, keepdim=True, dtype=torch.float64)
        half = first.double() + 0.5 * count * mean
        cross = half[:, :, None] * mean[:, None, :]
        total = second.double() + cross + cross.mT
        return Sums(torch.cat([count, first.double() + count * mean, pack(total)], dim=1))
