r"""Gaussians that share one low-rank-plus-diagonal covariance, in time and memory linear in the number of columns."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.family import TILE, has_missing
from boxloop.distributions.lowrank import LowRankGaussian
from boxloop.numeric import covariance as forms, normal
from boxloop.tree import Tree


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
        >>> law = TiedLowRankGaussian(torch.zeros(2, 3), torch.zeros(3, 1), torch.ones(3))
        >>> law.paired(torch.zeros(2, 3))
        tensor([-2.7568, -2.7568])
    """

    mean: Tensor
    loadings: Tensor
    noise: Tensor

    def covariance(self) -> forms.Shared:
        """Low rank plus diagonal, the same for all members."""
        return forms.Shared(forms.LowRank(self.loadings[None], self.noise[None]), len(self.mean))

    def _density(self, deviation: Tensor) -> Tensor:
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
        return torch.cat([self._density(rows - part[:, None]) for part in self.mean.split(step)])

    def paired(self, rows: Tensor) -> Tensor:
        """Log-density of row i under member i, (m,)."""
        return self._density(rows - self.mean)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d)."""
        m, d = self.mean.shape
        factors = normal((m, n, self.loadings.shape[1]), generator, self.mean.dtype)
        noise = normal((m, n, d), generator, self.mean.dtype)
        return self.mean[:, None] + factors @ self.loadings.mT + self.noise.sqrt() * noise

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The laws of ``origin + scale * x``."""
        return type(self)(
            origin + scale * self.mean, scale[:, None] * self.loadings, scale.square() * self.noise
        )
