"""Gaussians with low-rank-plus-diagonal covariances, in time and memory linear in the number of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import TILE
from boxloop.numeric import covariance as forms, has_missing, normal, woodbury
from boxloop.tree import Tree


@dataclass(frozen=True)
class LowRankGaussian(Tree):
    r""":math:`N(c, F F^\top + \mathrm{diag}(\psi))`, one member. Brownlie (2021), eq. 2.3.

    .. math:: \log p(x) = -\tfrac12 \left( d^\top \Psi^{-1} d - |R^{-1} F^\top \Psi^{-1} d|^2
              + \log|\Sigma| + D \log 2\pi \right)

    with d = x - c and :math:`R R^\top = I + F^\top \Psi^{-1} F` (Woodbury).

    Args:
        centre: c, (d,).
        loadings: F, (d, k).
        noise: psi, (d,), positive.

    Example:
        >>> import torch
        >>> distribution = LowRankGaussian(torch.zeros(3), torch.zeros(3, 1), torch.ones(3))
        >>> distribution.log_prob(torch.zeros(1, 3))
        tensor([[-2.7568]])
    """

    centre: Tensor
    loadings: Tensor
    noise: Tensor

    @property
    def mean(self) -> Tensor:
        """(1, d)."""
        return self.centre[None]

    def covariance(self) -> forms.LowRank:
        """Low rank plus diagonal."""
        return forms.LowRank(self.loadings[None], self.noise[None])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (1, n); missing values are marginalised row by row."""
        deviation = rows - self.centre
        if has_missing(deviation):
            return self._log_prob_seen(deviation)
        factor, log_det = woodbury(self.loadings, self.noise)
        scaled = deviation / self.noise
        inner = torch.linalg.solve_triangular(factor, self.loadings.mT @ scaled.mT, upper=False)
        quadratic = (scaled * deviation).sum(1) - inner.square().sum(0)
        return -0.5 * (quadratic + log_det + rows.shape[1] * math.log(2 * math.pi))[None]

    def _log_prob_seen(self, deviation: Tensor) -> Tensor:
        seen = (~torch.isnan(deviation)).to(self.noise.dtype)
        deviation = torch.nan_to_num(deviation, nan=0.0)
        factor = torch.linalg.cholesky(observed_precision(self.loadings, self.noise, seen))
        scaled = deviation / self.noise
        inner = torch.linalg.solve_triangular(factor, (scaled @ self.loadings)[..., None], upper=False)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1) + seen @ self.noise.log()
        quadratic = (scaled * deviation).sum(1) - inner.square().sum((1, 2))
        return -0.5 * (quadratic + log_det + seen.sum(1) * math.log(2 * math.pi))[None]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(1, n, d)."""
        d, k = self.loadings.shape
        factors = normal((n, k), generator, self.noise.dtype)
        noise = normal((n, d), generator, self.noise.dtype)
        return (self.centre + factors @ self.loadings.mT + self.noise.sqrt() * noise)[None]


def observed_precision(loadings: Tensor, noise: Tensor, seen: Tensor) -> Tensor:
    r""":math:`I + \sum_{j \text{ seen}} f_j f_j^\top / \psi_j` for each row, (n, k, k): one matrix product."""
    d, k = loadings.shape
    outer = (loadings[:, :, None] * (loadings / noise[:, None])[:, None, :]).reshape(d, k * k)
    precision = (seen @ outer).reshape(-1, k, k)
    precision.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return precision


@dataclass(frozen=True)
class TiedLowRankGaussian(Tree):
    r""":math:`N(\mu_i, F F^\top + \mathrm{diag}(\psi))`, m members.

    .. math:: \log p_i(x) = -\tfrac12 \left( |\Psi^{-1/2} (d - F z)|^2 + |z|^2 + \log|\Sigma| + D \log 2\pi \right),
              \qquad z = (I + F^\top \Psi^{-1} F)^{-1} F^\top \Psi^{-1} d

    with :math:`d = x - \mu_i`. The two squares are those of the most probable factors z and of what they leave: both
    positive, so that nothing cancels where the noise is small (Woodbury's difference loses those digits in float32).

    Args:
        mean: mu, (m, d).
        loadings: F, (d, k).
        noise: psi, (d,), positive.

    Example:
        >>> import torch
        >>> distribution = TiedLowRankGaussian(torch.zeros(2, 3), torch.zeros(3, 1), torch.ones(3))
        >>> distribution.paired_log_prob(torch.zeros(2, 3))
        tensor([-2.7568, -2.7568])
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    def covariance(self) -> forms.Shared:
        """Low rank plus diagonal, the same for all members."""
        return forms.Shared(forms.LowRank(self.loadings[None], self.noise[None]), len(self.mean))

    def _log_density(self, deviation: Tensor) -> Tensor:
        """Log-density of deviations from a mean, (..., d) -> (...)."""
        scaled = (self.loadings / self.noise[:, None]).mT
        inner = scaled @ self.loadings
        inner = inner + torch.eye(len(inner), dtype=inner.dtype, device=inner.device)
        factor = torch.linalg.cholesky_ex(
            inner
        ).L  # at least the unit matrix; no check, so no wait for the device
        flat = deviation.reshape(-1, deviation.shape[-1])
        z = torch.cholesky_solve(scaled @ flat.mT, factor).mT
        left = ((flat - z @ self.loadings.mT).square() / self.noise).sum(1)
        log_det = 2.0 * factor.diagonal().log().sum() + self.noise.log().sum()
        constant = log_det + flat.shape[1] * math.log(2 * math.pi)
        return (-0.5 * (left + z.square().sum(1) + constant)).reshape(deviation.shape[:-1])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of every row under every member, (m, n); missing values are marginalised."""
        if has_missing(rows):
            members = [LowRankGaussian(mean, self.loadings, self.noise) for mean in self.mean]
            return torch.cat([member.log_prob(rows) for member in members])
        step = max(1, TILE // max(1, rows.numel()))
        return torch.cat([self._log_density(rows - part[:, None]) for part in self.mean.split(step)])

    def paired_log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of row i under member i, (m,)."""
        return self._log_density(rows - self.mean)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d)."""
        m, d = self.mean.shape
        factors = normal((m, n, self.loadings.shape[1]), generator, self.mean.dtype)
        noise = normal((m, n, d), generator, self.mean.dtype)
        return self.mean[:, None] + factors @ self.loadings.mT + self.noise.sqrt() * noise

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The distributions of ``origin + scale * x``."""
        return type(self)(
            origin + scale * self.mean, scale[:, None] * self.loadings, scale.square() * self.noise
        )
