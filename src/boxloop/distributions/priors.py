"""Priors of mixtures and of factor analysis, with defaults from the data; those of mixtures are posteriors too."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.conjugate_gaussian import (
    NormalInverseGamma,
    NormalInverseWishart,
    SphericalNormalInverseGamma,
    TiedInverseWishart,
)
from boxloop.distributions.dirichlet import Dirichlet, StickBreaking, WordDirichlet
from boxloop.distributions.gamma import InverseGamma
from boxloop.distributions.gaussian_diagonal import DiagonalGaussian
from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.numeric import normal
from boxloop.tree import Tree

Component = FullGaussian | DiagonalGaussian
CovarianceType = Literal["full", "tied", "diag", "spherical"]

STRENGTH = 0.01
"""Rows that the prior mean of a component is worth."""

SHRUNK = 0.01
"""How far the prior scale of covariances is drawn to its diagonal, so that collinear columns have a proper prior."""


Weights = Dirichlet | StickBreaking
"""Distributions of weights, which stay of their kind when components are counted."""

ComponentDistribution = (
    NormalInverseWishart
    | TiedInverseWishart
    | NormalInverseGamma
    | SphericalNormalInverseGamma
    | WordDirichlet
)
"""Distributions of the parameters of components, which stay of their kind when rows are seen."""


@dataclass(frozen=True)
class MixturePrior(Tree):
    r"""Prior of a mixture; after rows were seen, its posterior has the same form.

    .. math:: \pi \sim \mathrm{Dirichlet}(a) \text{ or stick-breaking}, \qquad
              (\mu_k, \Sigma_k) \sim \text{normal-inverse-Wishart, or normal-inverse-gamma for each column}

    Args:
        weights: one Dirichlet, concentration (k,), or a stick broken k - 1 times.
        components: one prior for all components, mean (1, d), or one for each, mean (k, d). Its type says which
            covariances they have: full, tied, diagonal, spherical; or that rows are documents.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> prior = MixturePrior.from_moments(torch.zeros(2), torch.eye(2), 3)
        >>> log_weight, family = prior.draw(5, generator(0))
        >>> log_weight.shape, family.mean.shape, prior.log_prob(log_weight, family).shape
        (torch.Size([5, 3]), torch.Size([15, 2]), torch.Size([5]))
    """

    weights: Any
    components: Any

    @classmethod
    def from_moments(
        cls,
        mean: Tensor,
        covariance: Tensor,
        n_components: int,
        *,
        diagonal: bool = False,
        concentration: float = 1.0,
    ) -> Self:
        r"""The weakly informative default of full or diagonal covariances; see :func:`weakly_informative_components`.

        Args:
            mean: of the rows, (d,).
            covariance: of the rows, S, (d, d).
            n_components: k.
            diagonal: whether components have diagonal covariances.
            concentration: of the Dirichlet, for every component; 1 is uniform, less empties components.
        """
        weights = Dirichlet(mean.new_full((n_components,), concentration))
        return cls(
            weights,
            weakly_informative_components(mean, covariance, n_components, "diag" if diagonal else "full"),
        )

    @property
    def n_components(self) -> int:
        """k."""
        weights: Weights = self.weights
        return weights.n_components

    def draw(self, c: int, stream: Generator) -> tuple[Tensor, Component]:
        """Log-weights (c, k) and components, c k of them, full or diagonal, of c mixtures."""
        k = self.n_components
        weights = self.weights.map(lambda leaf: leaf.expand(c, *leaf.shape))
        components = self.components.map(lambda leaf: leaf.expand(c, k, *leaf.shape[1:]))
        return weights.draw(stream), components.draw(stream)

    def log_prob(self, log_weight: Tensor, family: Component) -> Tensor:
        """Log-density over weights, means and covariances, full or diagonal, of c mixtures, (c,)."""
        each: Tensor = self.components.log_prob(family)
        weights: Weights = self.weights
        return weights.log_prob(log_weight) + each.reshape(log_weight.shape).sum(-1)

    def update(self, statistics: Any) -> Self:
        """The posterior after rows with these summed statistics."""
        components: ComponentDistribution = self.components
        return type(self)(self.weights.posterior(statistics.count), components.update(statistics))

    def divergence(self, prior: MixturePrior) -> Tensor:
        """Kullback-Leibler divergence from a prior of the same form, a number."""
        each: Tensor = self.components.divergence(prior.components)
        return each.sum() + self.weights.divergence(prior.weights)

    def expand_members(self) -> Self:
        """One distribution for each component."""
        return type(self)(self.weights, self.components.expand_members(self.n_components))

    def is_proper(self) -> bool:
        """Whether the parameters are valid."""
        return bool(self.weights.is_proper()) and bool(self.components.is_proper())

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the mixtures of ``origin + scale * x``."""
        return type(self)(self.weights, self.components.affine(origin, scale))


def weakly_informative_components(
    mean: Tensor, covariance: Tensor, n_components: int, covariance_type: CovarianceType = "full"
) -> NormalInverseWishart | TiedInverseWishart | NormalInverseGamma | SphericalNormalInverseGamma:
    r"""A weakly informative prior of components, after Fraley and Raftery (2007, *Journal of Classification* 24).

    .. math:: m = \bar x, \quad \kappa = 0.01, \quad \nu = d + 2, \quad \Psi = S / k^{2/d}

    so that a component is expected to fill a k-th of the volume of the rows: :math:`E[\Sigma] = \Psi`. With diagonal
    covariances each column has the prior of one column, :math:`\nu = 3`; spherical ones have :math:`\nu = 3` and the
    mean variance of the columns. S is drawn to its diagonal by one part in a hundred.
    """
    d = mean.shape[0]
    one = mean.new_ones(1)
    share = n_components ** (-2.0 / d)
    variance = covariance.diagonal()
    centre, strength = mean[None], STRENGTH * one
    if covariance_type == "diag":
        return NormalInverseGamma(centre, strength, 3.0 * one, share * variance[None])
    if covariance_type == "spherical":
        return SphericalNormalInverseGamma(centre, strength, 3.0 * one, share * variance.mean()[None, None])
    scale = share * torch.lerp(covariance, torch.diag(variance), SHRUNK)
    if covariance_type == "tied":
        return TiedInverseWishart(centre, strength, (d + 2) * one[0], scale)
    return NormalInverseWishart(centre, strength, (d + 2) * one, scale[None])


FAR = 100.0
"""Prior variance of a factor model's mean, in units of each column's variance."""


@dataclass(frozen=True)
class FactorPrior(Tree):
    r"""Prior of factor analysis, :math:`x = c + F z + \epsilon`, independent over columns j.

    .. math:: c_j \sim N(m_j, s_j), \qquad F_{jl} \sim N(0, t_j), \qquad \psi_j \sim \mathrm{IG}(a_j, b_j)

    It does not change when factors are rotated.

    Args:
        centre: m, (d,).
        mean_variance: s, (d,); infinite for a flat prior, from which nothing can be drawn.
        loading: t, variances (d,).
        noise: inverse gammas of the noise variances, (d,).
        n_factors: k.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> prior = FactorPrior.from_moments(torch.zeros(4), torch.ones(4), 2)
        >>> mean, loadings, noise = prior.draw(5, generator(0), torch.float32)
        >>> loadings.shape, prior.log_prob(mean, loadings, noise).shape
        (torch.Size([5, 4, 2]), torch.Size([5]))
    """

    centre: Tensor
    mean_variance: Tensor
    loading: Tensor
    noise: InverseGamma
    n_factors: int

    @classmethod
    def from_moments(cls, mean: Tensor, variance: Tensor, n_factors: int) -> Self:
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
        mean = self.centre + self.mean_variance.sqrt() * normal((c, d), stream, dtype)
        loadings = self.loading.sqrt()[:, None] * normal((c, d, k), stream, dtype)
        return mean, loadings, self.noise.map(lambda leaf: leaf.expand(c, d)).draw(stream)

    def log_prob(self, mean: Tensor, loadings: Tensor, noise: Tensor) -> Tensor:
        """Log-density over means, loadings and noise variances of c models, (c,); a flat prior of means adds none."""
        size = (
            loadings.square().sum(-1) / self.loading + self.n_factors * (2.0 * math.pi * self.loading).log()
        )
        far = (mean - self.centre).square() / self.mean_variance
        far = torch.where(
            torch.isinf(self.mean_variance), 0.0, far + (2.0 * math.pi * self.mean_variance).log()
        )
        return (self.noise.log_prob(noise) - 0.5 * (size + far)).sum(-1)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the models of ``origin + scale * x``."""
        square = scale.square()
        noise = InverseGamma(self.noise.shape, square * self.noise.rate)
        centre = origin + scale * self.centre
        return type(self)(centre, square * self.mean_variance, square * self.loading, noise, self.n_factors)
