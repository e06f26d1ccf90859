"""Student t laws without a full scale: independent columns, or one scale for all of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.student import draw_stretch, inflation, radial_log_prob
from boxloop.numeric import covariance as forms, normal
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class ProductStudentT(Tree):
    r"""k products of t laws, one for each column: :math:`\prod_j t_v(x_j; m_j, s_j)`.

    Unlike in a multivariate t law, a far value in one column tells nothing of the others.

    Args:
        mean: m, (k, d).
        scale: squared scales s, (k, d).
        dof: v, (k,).

    Example:
        >>> import torch
        >>> law = ProductStudentT(torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1))
        >>> law.log_prob(torch.tensor([[1.0, torch.nan]])).exp() * 2 * torch.pi
        tensor([[1.0000]])
    """

    mean: Tensor
    scale: Tensor
    dof: Tensor

    def covariance(self) -> forms.Diagonal:
        """Variances, (k, d)."""
        return forms.Diagonal(self.scale * inflation(self.dof)[:, None])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (k, n); missing values are integrated out."""
        one = self.mean.new_ones(1)
        found = []
        for mean, scale, dof in zip(self.mean, self.scale, self.dof, strict=True):
            square = (rows - mean).square() / scale
            each = radial_log_prob(square, -0.5 * (LOG_2PI + scale.log()), one, dof)
            found.append(torch.nan_to_num(each, nan=0.0).sum(1))
        return torch.stack(found)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(k, n, d)."""
        k, d = self.mean.shape
        noise = normal((k, n, d), generator, self.mean.dtype) * self.scale.sqrt()[:, None]
        stretch = draw_stretch(self.dof[:, None, None].expand(k, n, d), generator)
        return self.mean[:, None] + noise * stretch

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The laws of ``origin + scale * x``."""
        return type(self)(origin + scale * self.mean, scale.square() * self.scale, self.dof)


@dataclass(frozen=True)
class SphericalStudentT(Tree):
    r"""k multivariate t laws with squared scale :math:`s I`.

    Args:
        mean: (k, d).
        scale: squared scales s, (k, 1).
        dof: v, (k,).

    Example:
        >>> import torch
        >>> law = SphericalStudentT(torch.zeros(1, 2), torch.ones(1, 1), torch.full((1,), 4.0))
        >>> law.covariance().diagonal()
        tensor([[2., 2.]])
    """

    mean: Tensor
    scale: Tensor
    dof: Tensor

    def covariance(self) -> forms.Diagonal:
        """Variances, (k, d)."""
        return forms.Diagonal((self.scale * inflation(self.dof)[:, None]).expand_as(self.mean))

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
        return self.mean[:, None] + noise * draw_stretch(self.dof[:, None].expand(k, n), generator)[..., None]

    def select(self, index: Tensor) -> Self:
        """The members at ``index``, as a new batch."""
        return self.map(lambda leaf: leaf[index])

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The laws of ``origin + scale * x``, where all columns share one scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("a spherical law stays spherical only when all columns share one scale")
        return type(self)(origin + scale * self.mean, scale[0].square() * self.scale, self.dof)
