"""Priors of whole models, with defaults that follow the rows; those of mixtures are posteriors too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions.conjugate_gaussian import (
    NormalInverseGamma,
    NormalInverseWishart,
    SphericalNormalInverseGamma,
    TiedInverseWishart,
)
from boxloop.distributions.dirichlet import Dirichlet
from boxloop.distributions.factor_prior import FactorPrior
from boxloop.distributions.gaussian_diagonal import DiagonalGaussian
from boxloop.distributions.gaussian_full import FullGaussian
from boxloop.tree import Tree
from boxloop.types import Law

__all__ = ["Component", "ComponentLaw", "CovarianceType", "FactorPrior", "MixturePrior", "WeightLaw"]

Component = FullGaussian | DiagonalGaussian
CovarianceType = Literal["full", "tied", "diag", "spherical"]

STRENGTH = 0.01
"""Rows that the prior mean of a component is worth."""

SHRUNK = 0.01
"""How far the prior scale of covariances is drawn to its diagonal, so that collinear columns have a proper prior."""


class WeightLaw(Protocol):
    """A law of weights that stays of its kind when components are counted."""

    @property
    def n_components(self) -> int:
        """k."""

    def posterior(self, count: Tensor) -> Self:
        """After components were seen ``count`` times."""

    def counts(self, prior: Any) -> Tensor:
        """How often each component was seen since ``prior``."""

    def draw(self, stream: Generator) -> Tensor:
        """Logs of weights."""

    def log_prob(self, log_weight: Tensor) -> Tensor:
        """Log-density over the first k - 1 weights."""

    def expected_log(self) -> Tensor:
        """E[log pi], (k,)."""

    def mean(self) -> Tensor:
        """E[pi], (k,)."""

    def variance(self) -> Tensor:
        """Var[pi], (k,)."""

    def divergence(self, prior: Any) -> Tensor:
        """Kullback-Leibler divergence from a prior."""

    def is_proper(self) -> bool:
        """Whether the parameters are those of a law."""

    def map(self, function: Any) -> Self:
        """Apply ``function`` to each tensor."""


class ComponentLaw(Protocol):
    """A law of the parameters of components that stays of its kind when rows are seen."""

    @property
    def mean(self) -> Tensor:
        """What the parameters say of a row in the mean, (k, d)."""

    def after(self, statistics: Any) -> Self:
        """After rows with these summed statistics."""

    def families(self, c: int, stream: Generator) -> list[Any]:
        """c draws of all k members, each a family."""

    def plug_in(self) -> tuple[Any, Tensor]:
        """A family g and numbers o, (k,), such that E[log p(x)] = log g(x) + o."""

    def divergence(self, prior: Any) -> Tensor:
        """Kullback-Leibler divergence of each member from a prior, one for all or one for each, (k,)."""

    def predictive(self) -> Law:
        """The law of the next row of each member."""

    def expanded(self, k: int) -> Self:
        """One law for each of k members."""

    def select(self, index: Tensor) -> Self:
        """The members at ``index``."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The law for ``origin + scale * x``; one of counts refuses."""

    def is_proper(self) -> bool:
        """Whether the parameters are those of a law."""


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
        >>> prior = MixturePrior.around(torch.zeros(2), torch.eye(2), 3)
        >>> log_weight, family = prior.draw(5, generator(0))
        >>> log_weight.shape, family.mean.shape, prior.log_prob(log_weight, family).shape
        (torch.Size([5, 3]), torch.Size([15, 2]), torch.Size([5]))
    """

    weights: Any
    components: Any

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
        r"""The weakly informative default of full or diagonal covariances; see :func:`weak_components`.

        Args:
            mean: of the rows, (d,).
            covariance: of the rows, S, (d, d).
            n_components: k.
            diagonal: whether components have diagonal covariances.
            concentration: of the Dirichlet, for every component; 1 is uniform, less empties components.
        """
        weights = Dirichlet(mean.new_full((n_components,), concentration))
        return cls(weights, weak_components(mean, covariance, n_components, "diag" if diagonal else "full"))

    @property
    def n_components(self) -> int:
        """k."""
        weights: WeightLaw = self.weights
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
        weights: WeightLaw = self.weights
        return weights.log_prob(log_weight) + each.reshape(log_weight.shape).sum(-1)

    def after(self, statistics: Any) -> Self:
        """The posterior after rows with these summed statistics."""
        components: ComponentLaw = self.components
        return type(self)(self.weights.posterior(statistics.count), components.after(statistics))

    def divergence(self, prior: MixturePrior) -> Tensor:
        """Kullback-Leibler divergence from a prior of the same form, a number."""
        each: Tensor = self.components.divergence(prior.components)
        return each.sum() + self.weights.divergence(prior.weights)

    def expanded(self) -> Self:
        """One law for each component."""
        return type(self)(self.weights, self.components.expanded(self.n_components))

    def is_proper(self) -> bool:
        """Whether the parameters are those of laws."""
        return bool(self.weights.is_proper()) and bool(self.components.is_proper())

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the mixtures of ``origin + scale * x``."""
        return type(self)(self.weights, self.components.affine(origin, scale))


def weak_components(
    mean: Tensor, covariance: Tensor, n_components: int, covariance_type: CovarianceType = "full"
) -> NormalInverseWishart | TiedInverseWishart | NormalInverseGamma | SphericalNormalInverseGamma:
    r"""A weakly informative prior of components, after Fraley and Raftery (2007, *Journal of Classification* 24).

    .. math:: m = \bar x, \quad \kappa = 0.01, \quad \nu = d + 2, \quad \Psi = S / k^{2/d}

    so that a component is expected to fill a k-th of the volume of the rows: :math:`E[\Sigma] = \Psi`. With diagonal
    covariances each column has the prior of one column, :math:`\nu = 3`; spherical ones have :math:`\nu = 3` and the
    mean variance of the columns. S is drawn to its diagonal by one part in a hundred.

    Args:
        mean: of the rows, (d,).
        covariance: of the rows, S, (d, d).
        n_components: k.
        covariance_type: ``full``, ``tied``, ``diag`` or ``spherical``.

    Example:
        >>> import torch
        >>> weak_components(torch.zeros(2), torch.eye(2), 4, "spherical").scale
        tensor([[0.2500]])
    """
    d = mean.shape[0]
    one = mean.new_ones(1)
    share = n_components ** (-2.0 / d)
    spread = covariance.diagonal()
    centre, strength = mean[None], STRENGTH * one
    if covariance_type == "diag":
        return NormalInverseGamma(centre, strength, 3.0 * one, share * spread[None])
    if covariance_type == "spherical":
        return SphericalNormalInverseGamma(centre, strength, 3.0 * one, share * spread.mean()[None, None])
    scale = share * torch.lerp(covariance, torch.diag(spread), SHRUNK)
    if covariance_type == "tied":
        return TiedInverseWishart(centre, strength, (d + 2) * one[0], scale)
    return NormalInverseWishart(centre, strength, (d + 2) * one, scale[None])
