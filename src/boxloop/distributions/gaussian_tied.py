"""Gaussians that share one covariance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import QUADRATIC_CONDITION, PooledSums
from boxloop.distributions.missing import PatternView
from boxloop.numeric import (
    covariance as forms,
    floor_covariance,
    from_log_factor,
    gram,
    has_missing,
    log_factor,
    lower_product,
    normal,
    product,
    safe_cholesky,
    unpack,
)
from boxloop.tree import Tree


@dataclass(frozen=True)
class TiedGaussian(Tree):
    r"""k Gaussians that share one covariance, :math:`N(\mu_k, L L^\top)`. Le Corff, section 2.5.

    Args:
        mean: (k, d).
        factor: lower Cholesky factor of the common covariance, (d, d).
        floor: smallest eigenvalue that ``fit_statistics`` may return.

    Example:
        >>> import torch
        >>> distribution = TiedGaussian(torch.zeros(3, 2), torch.eye(2))
        >>> distribution.log_prob(torch.zeros(1, 2)).shape
        torch.Size([3, 1])
    """

    mean: Tensor
    factor: Tensor
    floor: float = 0.0

    @cached_property
    def whitener(self) -> Tensor:
        """Inverse Cholesky factor, (d, d), lower."""
        eye = torch.eye(self.mean.shape[1], dtype=self.factor.dtype, device=self.factor.device)
        return torch.linalg.solve_triangular(self.factor, eye, upper=False)

    @cached_property
    def is_ill_conditioned(self) -> bool:
        """Whether squares about the origin would lose digits."""
        whitener, mean = self.whitener.detach(), self.mean.detach()
        steep, far = whitener.abs().max(), (mean @ whitener.mT).abs().max()
        return bool(torch.maximum(steep, far).square() >= QUADRATIC_CONDITION)

    @cached_property
    def log_constant(self) -> Tensor:
        """-d log(2 pi) / 2 - log|L|."""
        return -0.5 * self.mean.shape[1] * math.log(2 * math.pi) - self.factor.diagonal().log().sum()

    @cached_property
    def natural_parameters(self) -> Tensor:
        """Weights of the features (1, y, ``|y|^2``) with y = L^-1 x, (k, 2 + d)."""
        centre = self.mean @ self.whitener.mT
        constant = self.log_constant - 0.5 * centre.square().sum(1, keepdim=True)
        return torch.cat([constant, centre, torch.full_like(constant, -0.5)], dim=1)

    def view(self, rows: Tensor) -> TiedView | TiedPatternView:
        """Features of a tile, whitened once for all members."""
        columns = rows.mT.contiguous()
        return TiedPatternView(self, columns) if has_missing(columns) else TiedView(self, columns)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n)."""
        return self.view(rows).log_joint(self.mean.new_zeros(self.mean.shape[0]))

    def log_base(self, rows: Tensor) -> None:
        """None: the constant is in the log-density."""

    def fit_statistics(self, statistics: PooledSums) -> Self:
        """Weighted means and the pooled covariance, eigenvalues at least ``floor``."""
        count = statistics.count
        mean = statistics.features[:, 1:] / count[:, None]
        covariance = (statistics.second - (count[:, None] * mean).mT @ mean) / count.sum()
        return self.from_covariance(mean, covariance, self.floor)

    @classmethod
    def from_covariance(cls, mean: Tensor, covariance: Tensor, floor: float = 0.0) -> Self:
        """From means (k, d) and the common covariance (d, d)."""
        if floor > 0.0:
            covariance = floor_covariance(covariance[None], floor)[0][0]
        return cls(mean, safe_cholesky(covariance, "the tied covariance"), floor)

    def split(self, member: int, pieces: int) -> Tensor:
        """Averaged (1, x) of parts spread over one standard deviation along the main axis."""
        values, axes = torch.linalg.eigh(self.factor @ self.factor.mT)
        shift = 0.5 * values[-1].sqrt() * axes[:, -1]
        steps = torch.linspace(1.0, -1.0, pieces, dtype=shift.dtype, device=shift.device)
        means = self.mean[member] + steps[:, None] * shift
        return torch.cat([means.new_ones(pieces, 1), means], dim=1)

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return type(self)(self.mean[index], self.factor, self.floor)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The family of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale[:, None] * self.factor, self.floor)

    def covariance(self) -> forms.Dense:
        """(k, d, d)."""
        return forms.Dense((self.factor @ self.factor.mT).expand(self.mean.shape[0], -1, -1))

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        return self.mean[:, None] + normal((k, n, d), generator, self.mean.dtype) @ self.factor.mT

    def expected_log_likelihood(self, statistics: PooledSums) -> Tensor:
        """Expected log-density of the statistics, summed over members."""
        linear = self.natural_parameters[:, :1] * statistics.features[:, :1]
        cross = (self.mean @ self.whitener.mT @ self.whitener) * statistics.features[:, 1:]
        square = (self.whitener @ statistics.second) * self.whitener
        return linear.sum() + cross.sum() - 0.5 * square.sum()

    def free_parameters(self) -> dict[str, Tensor]:
        """Means and the Cholesky factor with log-diagonal: any values of them are valid."""
        return {"mean": self.mean, "factor": log_factor(self.factor)}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The family at other free parameters."""
        return type(self)(free["mean"], from_log_factor(free["factor"], self.mean.shape[1]), self.floor)

    def named_parameters(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"means": self.mean, "covariances": self.factor @ self.factor.mT}

    def is_floored(self) -> Tensor:
        """Whether the common covariance is at the floor, for each member, (k,)."""
        low = torch.linalg.eigvalsh(self.factor @ self.factor.mT)[0] <= self.floor * (1 + 1e-6)
        return low.expand(self.mean.shape[0])


class TiedView:
    """Features (1, y, |y|^2) of whitened rows; statistics (1, x) and one pooled second moment."""

    def __init__(self, family: TiedGaussian, columns: Tensor) -> None:
        self.family = family
        self.columns = columns

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density, (k, n)."""
        n = self.columns.shape[1]
        y = lower_product(self.family.whitener.to(self.columns.dtype), self.columns)
        if y.dtype != torch.float64 or self.family.is_ill_conditioned:
            centre = (self.family.mean @ self.family.whitener.mT).to(y.dtype)
            length = torch.stack([(y - c[:, None]).square().sum(0) for c in centre])
            return (offset + self.family.log_constant).to(y.dtype)[:, None] - 0.5 * length
        features = torch.cat([y.new_ones(1, n), y, y.square().sum(0, keepdim=True)])
        weight = self.family.natural_parameters.clone()
        weight[:, 0] += offset
        return product(weight.to(features.dtype), features)

    def summarise(self, share: Tensor) -> PooledSums:
        """(1, x) weighted by ``share``; the second moment weighted by its sum over members."""
        share, columns = (
            share.double(),
            self.columns.double(),
        )  # the pooled covariance is a difference of these
        first = product(share, columns.mT)
        second = gram(columns.mT, share.sum(0))
        return PooledSums(torch.cat([share.sum(1, keepdim=True), first], dim=1), second)


class TiedPatternView:
    """A tile with missing values: the full family's view, with second moments pooled at the end."""

    def __init__(self, family: TiedGaussian, columns: Tensor) -> None:
        self.d: int = family.mean.shape[1]
        self.inner: PatternView = PatternView(family.mean, (family.factor @ family.factor.mT)[None], columns)

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        return self.inner.log_joint(offset)

    def summarise(self, share: Tensor) -> PooledSums:
        """Expected (1, x) of each member and the pooled expected second moment."""
        features = self.inner.summarise(share).features
        return PooledSums(features[:, : 1 + self.d], unpack(features[:, 1 + self.d :].sum(0), self.d))
