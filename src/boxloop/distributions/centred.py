r"""Independent Gaussian columns, member by member about its own mean.

The features :math:`(x, x^2)` of :mod:`boxloop.distributions.product` lose digits where a member is narrow
beside its distance
from the origin: :math:`x^2/\sigma^2 - 2x\mu/\sigma^2 + \mu^2/\sigma^2` cancels. In float32 that is soon; here nothing
cancels. A missing value adds nothing to the first moment about the mean, and the variance to the second.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from boxloop.distributions.sums import Sums


class CentredView:
    """A tile under k Gaussians with variances (k, d), with or without missing values."""

    def __init__(self, mean: Tensor, variance: Tensor, columns: Tensor) -> None:
        self.mean, self.variance, self.columns = mean, variance, columns
        seen = ~torch.isnan(columns)
        self.seen = None if bool(seen.all()) else seen

    def _deviation(self, member: int) -> Tensor:
        """x - mean of a member, (d, n), zero where missing."""
        z = self.columns - self.mean[member].to(self.columns.dtype)[:, None]
        return z if self.seen is None else torch.where(self.seen, z, 0.0)

    def joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        low = self.columns.dtype
        scale = self.variance.rsqrt().to(low)
        members = range(len(self.mean))
        length = torch.stack([(self._deviation(k) * scale[k][:, None]).square().sum(0) for k in members])
        level = -0.5 * (self.variance.log() + math.log(2 * math.pi))
        if self.seen is None:
            return (offset + level.sum(1)).to(low)[:, None] - 0.5 * length
        return (offset[:, None] + level @ self.seen.to(level.dtype)).to(low) - 0.5 * length

    def summarise(self, share: Tensor) -> Sums:
        """Expected (1, x, x^2), accumulated about each member's mean as this tile's precision knows it."""
        moments = []
        for k, row in enumerate(share):
            z = self._deviation(k)
            moments.append(torch.cat([z @ row, z.square() @ row]))
        first, second = torch.stack(moments).double().chunk(2, dim=1)
        count = share.sum(1, keepdim=True, dtype=torch.float64)
        if self.seen is not None:
            absent = count - share.double() @ self.seen.mT.double()
            second = second + absent * self.variance
        centre = self.mean.to(self.columns.dtype).double()
        about_zero = second + 2.0 * centre * first + count * centre.square()
        return Sums(torch.cat([count, first + count * centre, about_zero], dim=1))
