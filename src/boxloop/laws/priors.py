"""Priors of whole models: Gaussian mixtures and factor analysis, with defaults that follow the rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.laws.conjugate import Dirichlet, InverseGamma, NormalInverseGamma, NormalInverseWishart
from boxloop.laws.full import FullGaussian
from boxloop.laws.gaussian import DiagonalGaussian
from boxloop.numeric import normal
from boxloop.tree import Tree

Component = FullGaussian | DiagonalGaussian

STRENGTH = 0.01
"""Rows that the prior mean of a component is worth."""

SHRUNK = 0.01
"""How far the prior scale of covariances is drawn to its diagonal, so that collinear columns have a proper prior."""

FAR = 100.0
"""Prior variance of a factor model's mean, in units of each column's variance."""


@dataclass(frozen=True)
class MixturePrior(Tree):
    r"""Prior of a Gaussian mixture.

    .. math:: \pi \sim \mathrm{Dirichlet}(a), \qquad (\mu_k, \Sigma_k) \sim \text{normal-inverse-Wishart},
              \text{ or normal-inverse-gamma for each column}

    Args:
        weights: one Dirichlet, concentration (k,).
        components: one prior for all components, mean (1, d), or one for each, mean (k, d). Its type says whether
            covariances are full or diagonal.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> prior = MixturePrior.around(torch.zeros(2), torch.eye(2), 3)
        >>> log_weight, family = prior.draw(5, generator(0))
        >>> log_weight.shape, family.mean.shape, prior.log_prob(log_weight, family).shape
        (torch.Size([5, 3]), torch.Size([15, 2]), torch.Size([5]))
    """

    weights: Dirichlet
    components: NormalInverseWishart | NormalInverseGamma

    @classmethod
    def around(
        cls,
        mean: Tensor,
        covariance: Tensor,
        n_components: int,
        *,
        diagonal: bool = False,
        concentration: float = 1.0,
    ) -> Self:
        r"""The weakly informative default, after Fraley and Raftery (2007, *Journal of Classification* 24, table 1).

        .. math:: m = \bar x, \quad \kappa = 0.01, \quad \nu = d + 2, \quad \Psi = S / k^{2/d}

        so that a component is expected to fill a k-th of the volume of the rows: :math:`E[\Sigma] = \Psi`. With
        diagonal covariances each column has the prior of one column, :math:`\nu = 3`. S is drawn to its diagonal by
        one part in a hundred.

        Args:
            mean: of the rows, (d,).
            covariance: of the rows, S, (d, d).
            n_components: k.
            diagonal: whether components have diagonal covariances.
            concentration: of the Dirichlet, for every component; 1 is uniform, less empties components.
        """
        d = mean.shape[0]
        one = mean.new_ones(1)
        share = n_components ** (-2.0 / d)
        weights = Dirichlet(mean.new_full((n_components,), concentration))
        spread = covariance.diagonal()
        if diagonal:
            return cls(
                weights, NormalInverseGamma(mean[None], STRENGTH * one, 3.0 * one, share * spread[None])
            )
        scale = share * torch.lerp(covariance, torch.diag(spread), SHRUNK)
        return cls(weights, NormalInverseWishart(mean[None], STRENGTH * one, (d + 2) * one, scale[None]))

    @property
    def n_components(self) -> int:
        """k."""
        return self.weights.concentration.shape[0]

    def draw(self, c: int, stream: Generator) -> tuple[Tensor, Component]:
        """Log-weights (c, k) and components, c k of them, of c mixtures."""
        k = self.n_components
        weights = self.weights.map(lambda leaf: leaf.expand(c, k))
        components = self.components.map(lambda leaf: leaf.expand(c, k, *leaf.shape[1:]))
        return weights.draw(stream), components.draw(stream)

    def log_prob(self, log_weight: Tensor, family: Component) -> Tensor:
        """Log-density over weights, means and covariances of c mixtures, (c,)."""
        if isinstance(self.components, NormalInverseWishart):
            assert isinstance(family, FullGaussian)
            each = self.components.log_prob(family)
        else:
            assert isinstance(family, DiagonalGaussian)
            each = self.components.log_prob(family)
        return self.weights.log_prob(log_weight) + each.reshape(log_weight.shape).sum(-1)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the mixtures of ``origin + scale * x``."""
        return type(self)(self.weights, self.components.affine(origin, scale))


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
