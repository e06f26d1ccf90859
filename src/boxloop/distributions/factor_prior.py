"""Prior of factor analysis, with a default that follows the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.gamma import InverseGamma
from boxloop.numeric import normal
from boxloop.tree import Tree

FAR = 100.0
"""Prior variance of a factor model's mean, in units of each column's variance."""


@dataclass(frozen=True)
class FactorPrior(Tree):
    r"""Prior of factor analysis, :math:`x = c + F z + \epsilon`, independent over columns j.

    .. math:: c_j \sim N(m_j, s_j), \qquad F_{jl} \sim N(0, t_j), \qquad \psi_j \sim \mathrm{IG}(a_j, b_j)

    It does not change when factors are rotated.

    Args:
        centre: m, (d,).
        spread: s, variances (d,); infinite for a flat prior, from which nothing can be drawn.
        loading: t, variances (d,).
        noise: inverse gammas of the noise variances, (d,).
        n_factors: k.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> prior = FactorPrior.around(torch.zeros(4), torch.ones(4), 2)
        >>> mean, loadings, noise = prior.draw(5, generator(0), torch.float32)
        >>> loadings.shape, prior.log_prob(mean, loadings, noise).shape
        (torch.Size([5, 4, 2]), torch.Size([5]))
    """

    centre: Tensor
    spread: Tensor
    loading: Tensor
    noise: InverseGamma
    n_factors: int

    @classmethod
    def around(cls, mean: Tensor, variance: Tensor, n_factors: int) -> Self:
        r"""The weakly informative default, in units of each column's variance v.

        .. math:: c_j \sim N(\bar x_j, 100 v_j), \quad F_{jl} \sim N(0, v_j), \quad \psi_j \sim \mathrm{IG}(3/2, v_j/4)

        Noise has its prior mean at half of a column's variance and its mode at a tenth; the density is zero at zero,
        so that no noise variance collapses (no Heywood cases).

        Args:
            mean: of the rows, (d,).
            variance: of the rows, v, (d,).
            n_factors: k.
        """
        noise = InverseGamma(torch.full_like(variance, 1.5), 0.25 * variance)
        return cls(mean, FAR * variance, variance, noise, n_factors)

    def draw(
        self, c: int, stream: Generator, dtype: torch.dtype = torch.float64
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Means (c, d), loadings (c, d, k) and noise variances (c, d) of c models."""
        d, k = self.centre.shape[0], self.n_factors
        mean = self.centre + self.spread.sqrt() * normal((c, d), stream, dtype)
        loadings = self.loading.sqrt()[:, None] * normal((c, d, k), stream, dtype)
        return mean, loadings, self.noise.map(lambda leaf: leaf.expand(c, d)).draw(stream)

    def log_prob(self, mean: Tensor, loadings: Tensor, noise: Tensor) -> Tensor:
        """Log-density over means, loadings and noise variances of c models, (c,); a flat prior of means adds none."""
        size = (
            loadings.square().sum(-1) / self.loading + self.n_factors * (2.0 * math.pi * self.loading).log()
        )
        far = (mean - self.centre).square() / self.spread
        far = torch.where(torch.isinf(self.spread), 0.0, far + (2.0 * math.pi * self.spread).log())
        return (self.noise.log_prob(noise) - 0.5 * (size + far)).sum(-1)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the models of ``origin + scale * x``."""
        square = scale.square()
        noise = InverseGamma(self.noise.shape, square * self.noise.rate)
        centre = origin + scale * self.centre
        return type(self)(centre, square * self.spread, square * self.loading, noise, self.n_factors)
