r"""Gaussian rows with holes, grouped by which values are missing.

For a pattern with observed columns o and missing ones m, :math:`L L^\top = \Sigma_{oo}`,
:math:`y = L^{-1}(x_o - \mu_o)` and :math:`U = L^{-1}\Sigma_{om}`: the missing values have conditional mean
:math:`\mu_m + U^\top y` and covariance :math:`\Sigma_{mm} - U^\top U`. Both enter the expected statistics exactly
(Little and Rubin, chapter 11).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.laws.sums import Sums
from boxloop.numeric import pack, safe_cholesky


@dataclass(frozen=True)
class _Group:
    """Rows that miss the same columns."""

    rows: Tensor
    observed: Tensor
    missing: Tensor
    filled: Tensor
    conditional: Tensor


class PatternView:
    """A tile with missing values under k Gaussians with covariances (k, d, d)."""

    def __init__(self, mean: Tensor, covariance: Tensor, columns: Tensor) -> None:
        columns = columns.to(mean.dtype)
        self.log_density = mean.new_empty(mean.shape[0], columns.shape[1])
        patterns, member = torch.unique(torch.isnan(columns), dim=1, return_inverse=True)
        order = torch.argsort(member, stable=True)
        sizes = torch.bincount(member, minlength=patterns.shape[1]).tolist()
        self.groups = [
            self._group(mean, covariance, columns, pattern, rows)
            for pattern, rows in zip(patterns.mT, order.split(sizes), strict=True)
        ]

    def _group(
        self, mean: Tensor, covariance: Tensor, columns: Tensor, pattern: Tensor, rows: Tensor
    ) -> _Group:
        o, m = torch.nonzero(~pattern)[:, 0], torch.nonzero(pattern)[:, 0]
        factor = safe_cholesky(covariance[:, o][:, :, o], "the covariance of component")
        centred = columns[:, rows][o] - mean[:, o, None]
        y = torch.linalg.solve_triangular(factor, centred, upper=False)
        u = torch.linalg.solve_triangular(factor, covariance[:, o][:, :, m], upper=False)
        log_det = factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        self.log_density[:, rows] = (
            -0.5 * (y.square().sum(1) + len(o) * math.log(2 * math.pi)) - log_det[:, None]
        )
        filled = columns[:, rows].expand(mean.shape[0], -1, -1).clone()
        filled[:, m] = mean[:, m, None] + u.mT @ y
        return _Group(rows, o, m, filled, covariance[:, m][:, :, m] - u.mT @ u)

    def joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        return self.log_density + offset[:, None]

    def summarise(self, share: Tensor) -> Sums:
        """Expected (1, x, x_i x_j) given the values present, weighted by ``share``."""
        k, d = share.shape[0], self.groups[0].filled.shape[1]
        share = share.to(self.log_density.dtype)
        first, second = share.new_zeros(k, d), share.new_zeros(k, d, d)
        for g in self.groups:
            weighted = g.filled * share[:, None, g.rows]
            first += weighted.sum(2)
            second += weighted @ g.filled.mT
            if len(g.missing):
                block = share[:, g.rows].sum(1)[:, None, None] * g.conditional
                second[:, g.missing[:, None], g.missing] += block
        return Sums(torch.cat([share.sum(1, keepdim=True), first, pack(second)], dim=1))
