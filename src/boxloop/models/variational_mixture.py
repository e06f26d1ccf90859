r"""Bayesian mixtures by variational inference: a distribution over parameters in the place of parameters.

.. math:: q(\theta) \prod_i q(z_i), \qquad q(\theta) = q(\pi) \prod_k q(\theta_k)

For a conjugate posterior :math:`E_q[\log p(x \mid \theta_k)]` is the log-density of a *plug-in* member of the same
family and a number. So the E step is that of an ordinary mixture whose log-weights are :math:`E[\log \pi_k]` plus these
numbers, with all its speed and its missing values, and the M step adds the statistics to the prior. Le Corff,
section 3.2; Bishop, *Pattern Recognition and Machine Learning*, section 10.2; Blei and Jordan (2006).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Generic, Self, TypeVar

import torch
from torch import Generator, Tensor

from boxloop.distributions import Categorical, MixturePrior, PooledSums, StickBreaking, Sums
from boxloop.models.mixture import Mixture
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree
from boxloop.types import Distribution, Expected

S = TypeVar("S", Sums, PooledSums)


@dataclass(frozen=True)
class VariationalMixture(Tree, Generic[S]):
    r"""The distribution :math:`q(\theta)` of a mixture's parameters, and the prior it came from.

    A missing value is one more variable of the mean field, :math:`q(x_m, z)`: its plug-in Gaussian given the values
    seen. It counts as a row towards the posterior of parameters, which is therefore too narrow where much is
    missing.
    """

    parameter_prior: MixturePrior  # one distribution for all components, or one for each
    parameter_posterior: MixturePrior  # the distribution of each of the k components
    total: float  # weight of all rows, whose statistics ``solve`` adds to the prior

    @classmethod
    def from_responsibilities(
        cls, prior: MixturePrior, rows: Tensor, share: Tensor, total: float | None = None
    ) -> Self:
        """After rows (n, d) that belong to components by ``share`` (k, n), weights included.
        ``total`` is the weight of all rows, where these are but some of them."""
        weight = float(share.sum())
        start = cls(prior, prior.expand_members(), weight if total is None else total)
        return start.solve(start.plug_in_mixture.family.view(rows).summarise(share))

    @property
    def n_components(self) -> int:
        """k; how many of them are in use is for the rows to say."""
        return self.parameter_prior.n_components

    @cached_property
    def plug_in_mixture(self) -> Mixture[S]:
        """The mixture whose E step is that of this model; its weights do not sum to one."""
        family, offset = self.parameter_posterior.components.plug_in()
        return Mixture(self.parameter_posterior.weights.expected_log() + offset, family)

    @property
    def family(self) -> Any:
        """Components at the plug-in parameters."""
        return self.plug_in_mixture.family

    @property
    def log_weight(self) -> Tensor:
        """Logs of the expected weights, (k,)."""
        mean: Tensor = self.parameter_posterior.weights.mean()
        return mean.log()

    @cached_property
    def predictive(self) -> Mixture[Any]:
        """The next row: the predictive distributions of components by the expected weights."""
        return Mixture(self.log_weight, self.parameter_posterior.components.predictive())

    @property
    def component_counts(self) -> Tensor:
        """Expected weight of the rows of each component, (k,)."""
        if self.n_components == 1:
            return self.log_weight.new_full((1,), self.total)
        counts: Tensor = self.parameter_posterior.weights.counts_since(self.parameter_prior.weights)
        return counts

    def prior(self) -> Categorical:
        """The distribution of the component of the next row."""
        return self.predictive.prior()

    def emission(self, z: Tensor) -> Distribution:
        """The predictive distributions of the components at indices z, (m,) or (m, 1)."""
        return self.predictive.emission(z)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[S]:
        r"""E step: responsibilities at their best for :math:`q(\theta)`, and their part of the evidence bound."""
        return self.plug_in_mixture.expect(rows, weight)

    def repair_statistics(self, statistics: S) -> tuple[S, tuple[str, ...]]:
        """Nothing to do: an empty component has its prior."""
        return statistics, ()

    def solve(self, statistics: S) -> Self:
        """The posterior given expected statistics, which are made to stand for the weight of all rows."""
        whole = statistics * (self.total / statistics.count.sum())
        return type(self)(self.parameter_prior, self.parameter_prior.update(whole), self.total)

    def expected_log_likelihood(self, statistics: S) -> Tensor:
        """The part of the evidence bound that parameters enter, at statistics of any model: ``solve`` is its peak."""
        whole = statistics * (self.total / statistics.count.sum())
        return self.plug_in_mixture.expected_log_likelihood(whole) - self.divergence()

    def divergence(self) -> Tensor:
        """Kullback-Leibler divergence of the distribution over parameters from their prior, a number."""
        return self.parameter_posterior.divergence(self.parameter_prior)

    def with_total(self, total: float) -> Self:
        """The same distribution where the rows weigh ``total`` in all: the next ``solve`` takes note of it."""
        return replace(self, total=total)

    def log_base(self, rows: Tensor) -> Tensor | None:
        """The family's base measure."""
        base: Tensor | None = self.family.log_base(rows)
        return base

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log posterior predictive density of each row, (n,)."""
        family: Distribution = self.predictive.family
        return (family.log_prob(rows) + self.log_weight[:, None]).logsumexp(0)

    def posterior(self, rows: Tensor) -> Tensor:
        """Responsibilities of each component for each row, (n, k)."""
        return self.plug_in_mixture.posterior(rows)

    def moments(self) -> tuple[Tensor, forms.Dense]:
        """Mean (d,) and covariance (1, d, d) of the next row; infinite where a component has no second moment."""
        return self.predictive.moments()

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) of the posterior predictive with their components (n,), grouped by component."""
        return self.predictive.sample(n, generator)

    def draw(self, n: int, generator: Generator) -> list[Mixture[Any]]:
        """n mixtures with parameters drawn from their distribution."""
        weights = self.parameter_posterior.weights.map(lambda leaf: leaf.expand(n, *leaf.shape))
        families = self.parameter_posterior.components.draw_families(n, generator)
        return [Mixture(w, f) for w, f in zip(weights.draw(generator), families, strict=True)]

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``; one of counts refuses."""
        return type(self)(
            self.parameter_prior.affine(origin, scale),
            self.parameter_posterior.affine(origin, scale),
            self.total,
        )

    def free_parameters(self) -> dict[str, Tensor]:
        """Refused: no likelihood is at its maximum here, and no information says how it errs."""
        raise TypeError("A posterior over parameters has no free parameters: it states their errors itself.")

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """Refuses, as ``free`` does."""
        raise TypeError("A posterior over parameters has no free parameters: it states their errors itself.")

    def named_parameters(self) -> dict[str, Tensor]:
        """Expected weights, and components at the plug-in parameters, under their public names."""
        return {"weights": self.parameter_posterior.weights.mean(), **self.family.named_parameters()}

    def is_finite(self) -> bool:
        """Whether this is a distribution at all: an extrapolation may leave the space of parameters."""
        return self.parameter_posterior.is_finite() and self.parameter_posterior.is_proper()

    def order_components(self) -> tuple[Self, Tensor, float]:
        """Components by falling size where that raises the evidence bound, under sticks with one prior for all:
        the model, the place that each component had before, (k,), and the gain of the bound."""
        same = torch.arange(self.n_components, device=self.log_weight.device)
        sticks = self.parameter_prior.weights
        alike = self.parameter_prior.components.mean.shape[0] == 1
        if not isinstance(sticks, StickBreaking) or self.n_components == 1 or not alike:
            return self, same, 0.0
        count = self.component_counts
        order = torch.argsort(count, descending=True, stable=True)
        gain = float(sticks.log_evidence(count[order]) - sticks.log_evidence(count))
        if not gain > 0.0:
            return self, same, 0.0
        posterior = MixturePrior(
            sticks.posterior(count[order]), self.parameter_posterior.components.select(order)
        )
        return type(self)(self.parameter_prior, posterior, self.total), order, gain
