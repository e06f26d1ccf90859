r"""Bayesian factor analysis with automatic relevance, by coordinate-ascent variational inference.

.. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I_k), \quad \epsilon_j \sim N(0, 1 / \tau_j)

with the prior of :class:`boxloop.models.relevance.RelevancePrior`. The law over everything unknown is the best of the
form :math:`q(\alpha) \prod_j q(f_j, \tau_j) \prod_i q(z_i)`. With :math:`f_j` the loadings and the mean of column j,
:math:`\mu_j = (0, c^0_j)` their prior mean, :math:`P = \mathrm{diag}(E[\alpha], \beta)` their prior precision in units
of the noise's, u = (z, 1), and each part of q at its best for the others,

.. math:: q(f_j, \tau_j) = N(f_j; m_j, V_j / \tau_j)\, \mathrm{Gamma}(\tau_j; a_j, b_j), \qquad
          V_j^{-1} = P + \sum_{i \text{ sees } j} E[u_i u_i^\top], \quad
          m_j = V_j \Big( P \mu_j + \sum_i x_{ij} E[u_i] \Big)

.. math:: a_j = a + \tfrac12 n_j, \qquad
          b_j = b + \tfrac12 \Big( \sum_i E (x_{ij} - m_j^\top u_i)^2 + (m_j - \mu_j)^\top P (m_j - \mu_j) \Big), \qquad
          q(\alpha_l) = \mathrm{Gamma}\Big(a_0 + \tfrac d2,\; b_0 + \tfrac12 \sum_j E[\tau_j F_{jl}^2]\Big)

Document 002, sections 3.1 and 3.2; Bishop (1999), Ghahramani and Beal (2000), Zhao and Yu (2009). All complete columns
share one V, so that a sweep costs O(d^2 k) from second moments, whatever the number of rows. Each ``solve`` ends with
the change of factors that raises the bound most (:func:`boxloop.models.relevance.best_turn`).

Deviation: Bishop's prior of loadings does not know the noise; here it is in units of the noise, which is conjugate, and
makes the relevance of a factor its mean squared signal-to-noise ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from boxloop.distributions import InverseGamma
from boxloop.models.asymptotic import FactorErrors, factor_errors
from boxloop.models.factor_law import FactorLaw
from boxloop.models.linear import LOG_2PI, LinearStatistics
from boxloop.models.predictive_density import predictive_density
from boxloop.models.relevance import RelevancePrior, best_turn
from boxloop.types import Expected


@dataclass(frozen=True)
class VariationalFactor(FactorLaw):
    r"""A law over the parameters of factor analysis.

    Args:
        coefficients: m, loadings and last the mean of each column, (d, k + 1).
        spread: V, (d, k + 1, k + 1), or (1, ...) where all columns share it.
        shape: a, of the noise precisions, (d,) or (1,).
        rate: b, of the noise precisions, (d,).
        relevance_rate: rates of the laws of alpha, (k,).
        prior_law: what the law was before any row.
        total: weight of all rows, by which averaged statistics are multiplied.
        expand: end each ``solve`` with the best change of factors; ``False`` is plain coordinate ascent.

    Example:
        >>> import torch
        >>> prior = RelevancePrior.around(torch.zeros(3).double(), torch.ones(3).double())
        >>> model = VariationalFactor.vague(prior, 1, total=100.0)
        >>> model.loadings.shape, float(model.precision[0])
        (torch.Size([3, 1]), 1.0)
    """

    relevance_rate: Tensor
    prior_law: RelevancePrior
    total: float
    expand: bool = True

    @classmethod
    def vague(cls, prior: RelevancePrior, k: int, total: float) -> Self:
        """The prior's law of means and noise, no loadings, every relevance precision expected at one."""
        centre = prior.centre
        coefficients = torch.cat([centre.new_zeros(len(centre), k), centre[:, None]], dim=1)
        relevance_rate = centre.new_full((k,), prior.shape(len(centre)))
        spread = torch.diag(torch.cat([centre.new_ones(k), centre.new_full((1,), 1.0 / prior.strength)]))[
            None
        ]
        shape = torch.full_like(centre[:1], prior.noise_shape)
        return cls(coefficients, spread, shape, prior.noise_rate, relevance_rate, prior, total)

    @property
    def precision(self) -> Tensor:
        r"""Expected :math:`\alpha`, (k,)."""
        return self.prior_law.shape(len(self.rate)) / self.relevance_rate

    @property
    def signal(self) -> Tensor:
        r"""Mean squared signal-to-noise ratio of the loadings, :math:`\frac1d \sum_j \bar\tau_j m_{jl}^2`, (k,)."""
        return self.noise_precision @ self.loadings.square() / len(self.rate)

    @property
    def doubt(self) -> Tensor:
        r"""The same of what is not known of the loadings, :math:`\frac1d \sum_j (V_j)_{ll}`, (k,)."""
        return self.spread.diagonal(dim1=-2, dim2=-1).mean(0)[:-1]

    @property
    def used(self) -> Tensor:
        """Which factors are in use, (k,): those whose loadings are, in mean square, more than their own deviation."""
        return self.signal > self.doubt

    def present(self) -> Tensor:
        """Weight of the values of each column, (d,)."""
        return (2.0 * (self.shape - self.prior_law.noise_shape)).expand_as(self.rate)

    def errors(self) -> FactorErrors:
        """Standard errors of mean, loadings (d, k) and log-noise; q's own for loadings of factors out of use.

        q takes factors and parameters for independent, and so is narrower than the posterior, however many rows
        there are.
        """
        used = self.used
        found = factor_errors(self.loadings[:, used], self.noise, self.present(), self.prior_law.noise_rate)
        loadings = self.deviations()["components"].mT.clone()
        loadings[:, used] = found.loadings
        return found._replace(loadings=loadings)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """The best laws of the factors: their statistics, and what the rows add to the bound."""
        return self.expected().expect(rows, weight)

    def repair(self, statistics: LinearStatistics) -> tuple[LinearStatistics, tuple[str, ...]]:
        """Nothing can go wrong under a proper prior."""
        return statistics, ()

    def solve(self, statistics: LinearStatistics) -> Self:
        """Laws of coefficients and noise given those of the factors; the best change of factors; relevances."""
        known = statistics * (self.total / statistics.latent[-1, -1])
        fitted = self._regressed(known)
        if self.expand:
            turn = best_turn(known.latent, fitted._energy(), len(self.rate), self.prior_law)
            coefficients = fitted.coefficients @ turn.back
            fitted = replace(
                fitted, coefficients=coefficients, spread=turn.back.mT @ fitted.spread @ turn.back
            )
        energy = fitted._energy().diagonal()[:-1]
        return replace(fitted, relevance_rate=self.prior_law.relevance_rate + 0.5 * energy)

    def _prior_precision(self) -> Tensor:
        """Of coefficients, in units of the noise precision, (k + 1,)."""
        return torch.cat([self.precision, self.precision.new_full((1,), self.prior_law.strength)])

    def _regressed(self, known: LinearStatistics) -> Self:
        """Normal-gamma posterior of every column, given summed statistics."""
        before, k = self._prior_precision(), self.loadings.shape[1]
        inner = known.latent - known.absent + torch.diag(before)
        factor = torch.linalg.cholesky(inner)
        pulled = known.cross.clone()
        pulled[:, k] += before[k] * self.prior_law.centre
        if len(inner) == 1:
            coefficients = torch.cholesky_solve(pulled.mT, factor[0]).mT
        else:
            coefficients = torch.cholesky_solve(pulled[..., None], factor)[..., 0]
        away = coefficients.clone()
        away[:, k] -= self.prior_law.centre
        apart = known.residual(coefficients) + away.square() @ before
        shape = self.prior_law.noise_shape + 0.5 * known.present
        rate = self.prior_law.noise_rate + 0.5 * apart.clamp(min=0.0)
        return replace(
            self, coefficients=coefficients, spread=torch.cholesky_inverse(factor), shape=shape, rate=rate
        )

    def _energy(self) -> Tensor:
        r""":math:`\sum_j E[\tau_j f_j f_j^\top]` of coefficients less their prior means, (k + 1, k + 1)."""
        away = self.coefficients.clone()
        away[:, -1] -= self.prior_law.centre
        whole: Tensor = (away.mT * self.noise_precision) @ away
        return whole + self.spread.mean(0) * len(self.rate)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log of the predictive density of each row, (n,); the factors out of use are a part of the noise."""
        used = self.used
        kept = torch.cat([torch.nonzero(used)[:, 0], torch.tensor([len(used)], device=used.device)])
        lost = self.noise_precision[:, None] * self.loadings[:, ~used].square()
        more = 1.0 + (lost + self.spread.diagonal(dim1=-2, dim2=-1)[:, :-1][:, ~used]).sum(1)
        spread = self.spread[:, kept][:, :, kept] / more[:, None, None]
        return predictive_density(
            FactorLaw(self.coefficients[:, kept], spread, self.shape, self.rate * more), rows
        )

    def divergence(self) -> Tensor:
        r"""Kullback-Leibler divergence of q from the prior: coefficients given noise, noise, relevances.

        .. math:: \sum_j \tfrac12 \Big( \mathrm{tr} P V_j + \bar\tau_j (m_j - \mu_j)^\top P (m_j - \mu_j) - k - 1
                  - \log |V_j| - \sum_l E[\log \alpha_l] - \log \beta \Big) + KL(q(\tau)) + KL(q(\alpha))
        """
        d, law = len(self.rate), self.prior_law
        shape = self.relevance_rate.new_full((1,), law.shape(d))
        log_before = torch.digamma(shape) - self.relevance_rate.log()
        level = log_before.sum() + math.log(law.strength) + len(log_before) + 1.0
        factor = torch.linalg.cholesky(self.spread)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).mean()
        coefficients = 0.5 * (self._energy().diagonal() @ self._prior_precision() - d * (level + log_det))
        # A gamma law of precisions is as far from another as the inverse gamma laws of the variances are.
        noise = InverseGamma(self.shape, self.rate).divergence(law.noise_law())
        relevance = InverseGamma(shape, self.relevance_rate).divergence(law.relevance_law())
        return coefficients + noise.sum() + relevance.sum()

    def complete(self, statistics: LinearStatistics) -> Tensor:
        """Expected log-likelihood of rows and factors under q, up to the prior of the factors."""
        inner = statistics.latent - statistics.absent
        spread = (self.spread * inner).sum((-2, -1))
        apart = self.noise_precision * statistics.residual(self.coefficients) + spread
        level = torch.digamma(self.shape) - self.rate.log() - LOG_2PI
        return 0.5 * (statistics.present * level - apart).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The law of the models of ``origin + scale * x``: exact, since loadings are in units of the noise."""
        coefficients = scale[:, None] * self.coefficients
        coefficients[:, -1] += origin
        prior_law = self.prior_law.affine(origin, scale)
        return replace(self, coefficients=coefficients, rate=scale.square() * self.rate, prior_law=prior_law)

    def canonical(self) -> Self:
        """The same law, most relevant factors first, the largest loading of each (in units of noise) positive."""
        order = torch.argsort(self.relevance_rate, descending=True, stable=True)
        whole = torch.cat([order, order.new_tensor([len(order)])])
        scaled = self.loadings[:, order] * self.noise_precision.sqrt()[:, None]
        sign = torch.sign(scaled.gather(0, scaled.abs().argmax(0, keepdim=True))[0])
        sign = torch.cat([torch.where(sign == 0.0, 1.0, sign), sign.new_ones(1)])
        coefficients = self.coefficients[:, whole] * sign
        spread = self.spread[:, whole][:, :, whole] * sign[:, None] * sign
        return replace(
            self, coefficients=coefficients, spread=spread, relevance_rate=self.relevance_rate[order]
        )

    def emptied(self, factor: int) -> Self:
        r"""The law without one of its factors: no loadings, and the relevance that such a factor comes to.

        There :math:`V_{ll} = 1 / (\alpha + n)` and :math:`\alpha = (a_0 + d/2) / (b_0 + d V_{ll} / 2)`, a quadratic.
        """
        d, law = len(self.rate), self.prior_law
        shape, rate, n = law.relevance_shape, law.relevance_rate, self.total
        lean = rate * n - shape  # rate precision^2 + lean precision = (shape + d / 2) n
        precision = (math.sqrt(lean * lean + 4.0 * rate * law.shape(d) * n) - lean) / (2.0 * rate)
        coefficients, spread = self.coefficients.clone(), self.spread.clone()
        coefficients[:, factor] = 0.0
        spread[:, factor] = 0.0
        spread[:, :, factor] = 0.0
        spread[:, factor, factor] = 1.0 / (precision + n)
        relevance_rate = self.relevance_rate.clone()
        relevance_rate[factor] = law.shape(d) / precision
        return replace(self, coefficients=coefficients, spread=spread, relevance_rate=relevance_rate)

    def floored(self) -> Tensor:
        """No column: the prior keeps noise from vanishing, (d,)."""
        return torch.zeros_like(self.rate, dtype=torch.bool)

    def free(self) -> dict[str, Tensor]:
        """What any values of are a law of the same width: coefficients, log-rates of the noise."""
        return {"coefficients": self.coefficients, "log_rate": self.rate.log()}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The law at other values of them."""
        return replace(self, coefficients=free["coefficients"], rate=free["log_rate"].exp())
