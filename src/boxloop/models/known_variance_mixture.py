r"""The Bayesian mixture of document 002, section 3.3: unit variance, known weights, unknown means.

.. math:: \mu_k \sim N(0, \sigma^2), \qquad c_i \sim \mathrm{Cat}(\omega), \qquad x_i \mid c_i, \mu \sim N(\mu_{c_i}, 1)

Algorithm 4 (Blei, Kucukelbir and McAuliffe 2017) is coordinate ascent for
:math:`q(\mu, c) = \prod_k N(\mu_k; m_k, s_k) \prod_i \mathrm{Cat}(c_i; \phi_i)`:

.. math:: \phi_i(k) \propto \omega_k \exp\left(m_k x_i - \frac{m_k^2 + s_k}{2}\right), \qquad
          m_k = \frac{\sum_i \phi_i(k) x_i}{1/\sigma^2 + \sum_i \phi_i(k)}, \qquad
          s_k = \frac{1}{1/\sigma^2 + \sum_i \phi_i(k)} .

The first is ``expect``, the others are ``solve`` from :math:`(\sum_i \phi_i(k), \sum_i \phi_i(k) x_i)`: the algorithm
is ``em(source, elbo)``. Rows may have d columns; the document has one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions import Categorical, SphericalGaussian, Sums
from boxloop.models.mixture import Mixture
from boxloop.numeric import covariance as forms
from boxloop.tree import Tree
from boxloop.types import Expected

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class CountSum(Tree):
    """Expected number of rows of each component, (k,), and their sum, (k, d)."""

    count: Tensor
    sum: Tensor


@dataclass(frozen=True)
class KnownVarianceMixture(Tree):
    """A law over the means of a mixture whose weights and unit variances are known.

    Args:
        mean: m, (k, d).
        variance: s, of each column of each mean, (k,).
        log_weight: log of the known weights, (k,).
        prior_variance: sigma squared.
        total: weight of all rows, by which averaged statistics are multiplied.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.fit.em import EMState, em
        >>> from boxloop.fit.variational import elbo
        >>> from boxloop.loop import run
        >>> rows = torch.tensor([[-2.0], [-1.8], [2.1], [1.9]]).double()
        >>> start = KnownVarianceMixture.at(torch.tensor([[-1.0], [1.0]]), torch.tensor([0.5, 0.5]), 25.0, len(rows))
        >>> outcome = run(em(ArraySource(rows), elbo), EMState(start), max_iter=50, tol=1e-12, monotone=True)
        >>> outcome.state.model.mean[:, 0], outcome.state.model.variance
        (tensor([-1.8604,  1.9584], dtype=torch.float64), tensor([0.4902, 0.4902], dtype=torch.float64))
    """

    mean: Tensor
    variance: Tensor
    log_weight: Tensor
    prior_variance: float
    total: float

    @classmethod
    def at(cls, mean: Tensor, weight: Tensor, prior_variance: float, total: float) -> Self:
        """A law around given means, as wide as the prior of unit variance allows: s = 1 / (1 + 1 / sigma^2)."""
        if not prior_variance > 0:
            raise ValueError(f"the prior variance must be positive, got {prior_variance}")
        if not bool((weight > 0).all()) or abs(float(weight.sum()) - 1.0) > 1e-6:
            raise ValueError(f"weights must be positive and add up to one, got {weight.tolist()}")
        spread = torch.full((len(mean),), 1.0 / (1.0 + 1.0 / prior_variance), dtype=torch.float64)
        return cls(mean.double(), spread, weight.double().log(), prior_variance, total)

    def prior(self) -> Categorical:
        """The law of the component index."""
        return Categorical(self.log_weight[None])

    def emission(self, z: Tensor) -> SphericalGaussian:
        """The laws of rows of the components at indices z, the means integrated out: variance 1 + s."""
        return self.predictive().emission(z)  # type: ignore[return-value]

    def predictive(self) -> Mixture[Sums]:
        """The law of a new row under q."""
        return Mixture(self.log_weight, SphericalGaussian(self.mean, 1.0 + self.variance[:, None]))

    def log_shares(self, rows: Tensor) -> Tensor:
        r""":math:`\log \omega_k + E_q[\log N(x_i; \mu_k, I)]`, (n, k)."""
        d = rows.shape[1]
        level = self.log_weight - 0.5 * (self.mean.square().sum(1) + d * (self.variance + LOG_2PI))
        return rows @ self.mean.mT + level - 0.5 * rows.square().sum(1, keepdim=True)

    def posterior(self, rows: Tensor) -> Tensor:
        r""":math:`\phi_i(k)`, (n, k)."""
        return self.log_shares(rows).softmax(1)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[CountSum]:
        """The best labels: their statistics, and what the rows add to the bound."""
        joint = self.log_shares(rows)
        share = joint.softmax(1) * weight[:, None]
        return Expected(CountSum(share.sum(0), share.mT @ rows), joint.logsumexp(1) @ weight, weight.sum())

    def repair(self, statistics: CountSum) -> tuple[CountSum, tuple[str, ...]]:
        """Nothing can go wrong under a proper prior: an empty component has the prior's law."""
        return statistics, ()

    def solve(self, statistics: CountSum) -> Self:
        """Prior and statistics: the law of the means."""
        known = statistics * (self.total / statistics.count.sum())
        precision = 1.0 / self.prior_variance + known.count
        return replace(self, mean=known.sum / precision[:, None], variance=1.0 / precision)

    def divergence(self) -> Tensor:
        r""":math:`\sum_k \frac12 \left( \frac{|m_k|^2 + d s_k}{\sigma^2} - d - d \log \frac{s_k}{\sigma^2} \right)`."""
        d = self.mean.shape[1]
        ratio = self.variance / self.prior_variance
        return 0.5 * (self.mean.square().sum() / self.prior_variance + d * (ratio - 1.0 - ratio.log()).sum())

    def complete(self, statistics: CountSum) -> Tensor:
        """Expected log-likelihood of rows and labels under q, less what no parameter enters."""
        d = self.mean.shape[1]
        level = self.log_weight - 0.5 * (self.mean.square().sum(1) + d * self.variance)
        return statistics.count @ level + (statistics.sum * self.mean).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row under the predictive law, (n,)."""
        return self.predictive().log_prob(rows)

    def moments(self) -> tuple[Tensor, forms.Dense]:
        """Mean and covariance of a row under the predictive law."""
        return self.predictive().moments()

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows from the predictive law with their components."""
        return self.predictive().sample(n, generator)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """Refused, unless nothing changes: the prior has mean zero and the rows unit variance."""
        if bool((origin != 0).any()) or bool((scale != 1).any()):
            raise ValueError("rows of known variance about a prior at zero have their units already")
        return self

    def free(self) -> dict[str, Tensor]:
        """Means and log-variances: any values of them are a law."""
        return {"mean": self.mean, "log_variance": self.variance.log()}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The law at other values of them."""
        return replace(self, mean=free["mean"], variance=free["log_variance"].exp())

    def named(self) -> dict[str, Any]:
        """Parameters under their public names."""
        return {
            "weights": self.log_weight.exp(),
            "means": self.mean,
            "mean_errors": self.variance.sqrt()[:, None].expand_as(self.mean),
        }
