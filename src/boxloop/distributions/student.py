"""Student t distributions: what Gaussians with unknown mean and covariance predict."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.numeric import covariance as forms, normal
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


def radial_log_prob(square: Tensor, level: Tensor, seen: Tensor, dof: Tensor) -> Tensor:
    """Log-density of t distributions from that of Gaussians at their centres, ``level``, and squared distances in
    units of the scale, both (k, n), over ``seen`` columns, (n,) or (1,)."""
    half = 0.5 * (dof + seen)
    constant = torch.lgamma(half) - torch.lgamma(0.5 * dof) - 0.5 * seen * (0.5 * dof).log()
    return constant + level - half * torch.log1p(square / dof)


def variance_inflation(dof: Tensor) -> Tensor:
    """Variance of t distributions in units of their squared scale; infinite for two degrees of freedom and less."""
    return torch.where(dof > 2.0, dof / (dof - 2.0), torch.inf)


@dataclass(frozen=True)
class StudentT(Tree):
    r"""k multivariate t distributions, :math:`p(x) \propto ( 1 + \frac1v |L^{-1} (x - m)|^2 )^{-(v + d)/2}`.
    ``mean`` is the centre also where there is no mean (v of 1 and less)."""

    mean: Tensor  # m, (k, d)
    factor: Tensor  # L, lower, (k, d, d)
    dof: Tensor  # v, (k,)

    @cached_property
    def _gaussian(self) -> FullGaussian:
        return FullGaussian(self.mean, self.factor)

    def covariance(self) -> forms.Dense:
        """(k, d, d)."""
        scale = self.factor @ self.factor.mT
        ratio = variance_inflation(self.dof)[:, None, None]
        return forms.Dense(torch.where(torch.isinf(ratio), torch.inf, scale * ratio))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n); missing values are integrated out."""
        density = self._gaussian.log_prob(rows)
        missing = torch.isnan(rows)
        if bool(missing.any()):
            patterns, which = torch.unique(missing, dim=0, return_inverse=True)
            centred = FullGaussian(torch.zeros_like(self.mean), self.factor)
            blank = torch.where(patterns, torch.nan, rows.new_zeros(()))
            level = centred.log_prob(blank)[:, which]
            seen = (~missing).sum(1, dtype=density.dtype)
        else:
            level, seen = self._gaussian.log_constant[:, None], density.new_full((1,), rows.shape[1])
        square = (2.0 * (level - density)).clamp(min=0.0)
        return radial_log_prob(square, level, seen, self.dof[:, None])

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        noise = normal((k, n, d), generator, self.mean.dtype) @ self.factor.mT
        return (
            self.mean[:, None]
            + noise * draw_scale_ratio(self.dof[:, None].expand(k, n), generator)[..., None]
        )

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The distributions of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale[:, None] * self.factor, self.dof)


def draw_scale_ratio(dof: Tensor, generator: Generator) -> Tensor:
    r""":math:`\sqrt{v / \chi^2_v}`: what makes a normal draw one of Student's."""
    return (0.5 * dof / torch._standard_gamma(0.5 * dof, generator=generator)).sqrt()


@dataclass(frozen=True)
class ProductStudentT(Tree):
    r"""k products of t distributions, one for each column: :math:`\prod_j t_v(x_j; m_j, s_j)`.
    Unlike in a multivariate t distribution, an outlying value in one column says nothing about the others."""

    mean: Tensor  # m, (k, d)
    scale: Tensor  # squared scales s, (k, d)
    dof: Tensor  # v, (k,)

    def covariance(self) -> forms.Diagonal:
        """Variances, (k, d)."""
        return forms.Diagonal(self.scale * variance_inflation(self.dof)[:, None])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n); missing values are integrated out."""
        one = self.mean.new_ones(1)
        log_probs = []
        for mean, scale, dof in zip(self.mean, self.scale, self.dof, strict=True):
            square = (rows - mean).square() / scale
            each = radial_log_prob(square, -0.5 * (LOG_2PI + scale.log()), one, dof)
            log_probs.append(torch.nan_to_num(each, nan=0.0).sum(1))
        return torch.stack(log_probs)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        noise = normal((k, n, d), generator, self.mean.dtype) * self.scale.sqrt()[:, None]
        stretch = draw_scale_ratio(self.dof[:, None, None].expand(k, n, d), generator)
        return self.mean[:, None] + noise * stretch

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The distributions of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale.square() * self.scale, self.dof)


@dataclass(frozen=True)
class SphericalStudentT(Tree):
    """k multivariate t distributions with squared scale :math:`s I`."""

    mean: Tensor  # (k, d)
    scale: Tensor  # squared scales s, (k, 1)
    dof: Tensor  # v, (k,)

    def covariance(self) -> forms.Diagonal:
        """Variances, (k, d)."""
        return forms.Diagonal((self.scale * variance_inflation(self.dof)[:, None]).expand_as(self.mean))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n); missing values are integrated out."""
        seen = (~torch.isnan(rows)).sum(1, dtype=self.mean.dtype)
        square = torch.stack([torch.nan_to_num(rows - m, nan=0.0).square().sum(1) for m in self.mean])
        level = -0.5 * seen * (LOG_2PI + self.scale.log())
        return radial_log_prob(square / self.scale, level, seen, self.dof[:, None])

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        noise = normal((k, n, d), generator, self.mean.dtype) * self.scale.sqrt()[:, None]
        return (
            self.mean[:, None]
            + noise * draw_scale_ratio(self.dof[:, None].expand(k, n), generator)[..., None]
        )

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The distributions of ``origin + scale * x``, where all columns share one scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical distribution stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, scale[0].square() * self.scale, self.dof)
