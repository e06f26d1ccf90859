r"""Bayesian factor analysis with automatic relevance, by coordinate-ascent variational inference.

.. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I_k), \quad \epsilon_j \sim N(0, 1 / \tau_j)

with the prior of :class:`RelevancePrior`. The distribution of everything unknown is the best of the form
:math:`q(\alpha) \prod_j q(f_j, \tau_j) \prod_i q(z_i)`. With :math:`f_j` the loadings and the mean of column j,
:math:`\mu_j = (0, c^0_j)` their prior mean, :math:`P = \mathrm{diag}(E[\alpha], \beta)` their prior precision in units
of the noise's, u = (z, 1), and each part of q at its best for the others,

.. math:: q(f_j, \tau_j) = N(f_j; m_j, V_j / \tau_j)\, \mathrm{Gamma}(\tau_j; a_j, b_j), \qquad
          V_j^{-1} = P + \sum_{i \text{ sees } j} E[u_i u_i^\top], \quad
          m_j = V_j \Big( P \mu_j + \sum_i x_{ij} E[u_i] \Big)

.. math:: a_j = a + \tfrac12 n_j, \qquad
          b_j = b + \tfrac12 \Big( \sum_i E (x_{ij} - m_j^\top u_i)^2 + (m_j - \mu_j)^\top P (m_j - \mu_j) \Big), \qquad
          q(\alpha_l) = \mathrm{Gamma}\Big(a_0 + \tfrac d2,\; b_0 + \tfrac12 \sum_j E[\tau_j F_{jl}^2]\Big)

Le Corff, sections 3.1 and 3.2; Bishop (1999), Ghahramani and Beal (2000), Zhao and Yu (2009). All complete columns
share one V, so that a sweep costs O(d^2 k) from second moments, whatever the number of rows. Each ``solve`` ends with
the change of factors that raises the bound most (:func:`best_transformation`).

Deviation: Bishop's prior of loadings does not know the noise; here it is in units of the noise, which is conjugate, and
makes the relevance of a factor its mean squared signal-to-noise ratio.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from torch import Generator, Tensor

from boxloop.distributions import DiagonalGaussian, InverseGamma
from boxloop.models.information import FactorErrors, factor_standard_errors
from boxloop.models.linear_gaussian import LOG_2PI, FactorEStep, LinearStatistics
from boxloop.numeric import covariance as forms, normal, sobol_points
from boxloop.tree import Tree
from boxloop.types import Expected


@dataclass(frozen=True)
class RelevancePrior(Tree):
    r"""Prior of Bayesian factor analysis with automatic relevance, in units of each column's noise.

    .. math:: \tau_j \sim \mathrm{Gamma}(a, b_j), \qquad \alpha_l \sim \mathrm{Gamma}(a_0, b_0), \qquad
              F_{jl} \mid \tau_j, \alpha_l \sim N\big(0, (\tau_j \alpha_l)^{-1}\big), \qquad
              c_j \mid \tau_j \sim N\big(c^0_j, (\tau_j \beta)^{-1}\big)

    Shape and rate. A factor that the rows do not support has a large :math:`\alpha_l`, and its loadings vanish.
    """

    centre: Tensor  # c^0, prior means of the columns, (d,)
    noise_rate: Tensor  # b, (d,)
    noise_shape: float = 1.5  # a; more than 1, so that noise variances have a mean
    strength: float = 0.01  # beta, how many rows the prior mean of a column is worth
    relevance_shape: float = 1e-3  # a_0
    relevance_rate: float = 1e-3  # b_0

    def __post_init__(self) -> None:
        if self.noise_shape <= 1.0:
            raise ValueError(f"noise_shape must be more than 1, got {self.noise_shape}")
        if min(self.strength, self.relevance_shape, self.relevance_rate) <= 0.0:
            raise ValueError("strength, relevance_shape and relevance_rate must be positive")

    @classmethod
    def from_moments(
        cls, mean: Tensor, variance: Tensor, *, relevance_shape: float = 1e-3, relevance_rate: float = 1e-3
    ) -> Self:
        r"""The default: :math:`\psi_j \sim \mathrm{IG}(3/2, v_j / 4)` for a column of variance v, as in
        :class:`FactorPrior`. The noise has its prior mean at half of the variance of its column, and does not
        vanish."""
        return cls(mean, 0.25 * variance, relevance_shape=relevance_shape, relevance_rate=relevance_rate)

    def shape(self, d: int) -> float:
        """Shape of the distribution of every relevance precision, whatever the rows."""
        return self.relevance_shape + 0.5 * d

    def noise_prior(self) -> InverseGamma:
        """Of noise variances, (d,)."""
        return InverseGamma(torch.full_like(self.noise_rate, self.noise_shape), self.noise_rate)

    def relevance_prior(self) -> InverseGamma:
        r"""Of :math:`1 / \alpha_l`, (1,)."""
        one = torch.ones_like(self.noise_rate[:1])
        return InverseGamma(self.relevance_shape * one, self.relevance_rate * one)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the models of ``origin + scale * x``."""
        return type(self)(
            origin + scale * self.centre,
            scale.square() * self.noise_rate,
            self.noise_shape,
            self.strength,
            self.relevance_shape,
            self.relevance_rate,
        )


class FactorTransformation(NamedTuple):
    """u = (z, 1) becomes T u, coefficients f become T^-T f: ``forward`` is T, ``back`` its inverse, (k + 1, k + 1)."""

    forward: Tensor
    back: Tensor


def best_transformation(inner: Tensor, energy: Tensor, d: int, prior: RelevancePrior) -> FactorTransformation:
    r"""The affine change of factors that raises the evidence bound most, in closed form, factors of most energy first.

    Factors :math:`z \to A (z + b)` with loadings :math:`F \to F A^{-1}` and means :math:`c \to c - F b` leave the fit
    as it is, but not the priors (parameter expansion: Luttinen and Ilin 2010). With the relevances at their best for
    every A, :math:`M = \sum_i E[z z^\top]` about the best b and :math:`G = \sum_j E[\tau_j f_j f_j^\top]`, the bound is

    .. math:: (n - d) \log |A| - \tfrac12 \mathrm{tr}\, A M A^\top
              - (a_0 + \tfrac d2) \sum_l \log\big(b_0 + \tfrac12 (A^{-\top} G A^{-1})_{ll}\big)

    up to a constant. Its maximum makes both matrices diagonal (the sum of logarithms is Schur-concave in the diagonal,
    and convex in log-eigenvalues, so that by Horn's inequality the eigenvectors of both do best together):
    :math:`A = \mathrm{diag}(t)^{1/2} Q^\top R^{-1}` with :math:`M = n R R^\top`,
    :math:`R^\top G R = Q\, \mathrm{diag}(g)\, Q^\top` and t the positive root of
    :math:`2 b_0 n t^2 + (n g - 2 b_0 (n - d)) t = g (n + 2 a_0)`, near 1.
    """
    # inner is the sum of E[u u'], energy that of E[tau f f'] with f less its prior mean: (k + 1, k + 1).
    n, k = inner[-1, -1], len(inner) - 1
    pull = prior.strength * energy[:k, :k]
    pull.diagonal().add_(n)
    shift = torch.linalg.solve(pull, prior.strength * energy[:k, k] - inner[:k, k])
    cross = inner[:k, k][:, None] * shift
    centred = inner[:k, :k] + cross + cross.mT + n * shift[:, None] * shift
    root = torch.linalg.cholesky(centred / n)
    sizes, axes = torch.linalg.eigh(root.mT @ energy[:k, :k] @ root)
    sizes, axes = sizes.flip(0).clamp(min=0.0), axes.flip(1)
    plain = torch.linalg.solve_triangular(root.mT, axes, upper=True).mT
    sign = torch.where(plain.diagonal() < 0.0, -1.0, 1.0)
    stretch = _best_scales(sizes, n, d, prior).sqrt() * sign
    forward, back = (torch.eye(k + 1, dtype=inner.dtype, device=inner.device) for _ in range(2))
    forward[:k, :k] = stretch[:, None] * plain
    forward[:k, k] = forward[:k, :k] @ shift
    back[:k, :k] = root @ axes / stretch
    back[:k, k] = -shift
    return FactorTransformation(forward, back)


def _best_scales(sizes: Tensor, n: Tensor, d: int, prior: RelevancePrior) -> Tensor:
    """Best squared scale of each factor: the positive root of a quadratic, without cancellation."""
    square = 2.0 * prior.relevance_rate * n
    linear = n * sizes - 2.0 * prior.relevance_rate * (n - d)
    constant = sizes * (n + 2.0 * prior.relevance_shape)
    root = (linear.square() + 4.0 * square * constant).sqrt()
    return torch.where(linear > 0.0, 2.0 * constant / (linear + root), (root - linear) / (2.0 * square))


@dataclass(frozen=True)
class NormalGammaFactors(Tree):
    r"""Normal-gamma distribution of each column's coefficients and noise precision, and what it predicts.

    Given its factors a new row has independent Student columns with :math:`2 a_j` degrees of freedom, centre
    :math:`m_j^\top u` and squared scale :math:`(b_j / a_j)(1 + u^\top V_j u)`. So draws are exact, and so are the
    moments of a row: :math:`E[x] = m_c`, :math:`\mathrm{Cov}(x) = M M^\top + \mathrm{diag}(\psi)` with :math:`\psi_j
    = \frac{b_j}{a_j - 1} (1 + \mathrm{tr}\, V_j)`. :func:`predictive_density` approximates the density.
    """

    coefficients: Tensor  # m, loadings and last the mean of each column, (d, k + 1)
    coefficient_covariance: Tensor  # V, (d, k + 1, k + 1), or (1, ...) where all columns share it
    shape: Tensor  # a, of the noise precisions, (d,) or (1,)
    rate: Tensor  # b, of the noise precisions, (d,)

    @property
    def mean(self) -> Tensor:
        """Expected mean of a row, (d,)."""
        return self.coefficients[:, -1]

    @property
    def loadings(self) -> Tensor:
        """Expected loadings, (d, k)."""
        return self.coefficients[:, :-1]

    @property
    def noise(self) -> Tensor:
        """Expected noise variances, (d,)."""
        return self.rate / (self.shape - 1.0)

    @property
    def psi(self) -> Tensor:
        """What expected loadings leave of the variances of a new row, (d,): the noise, and what is not known."""
        return self.noise * (1.0 + self.coefficient_covariance.diagonal(dim1=-2, dim2=-1).sum(-1))

    @property
    def noise_precision(self) -> Tensor:
        """Expected noise precisions, (d,)."""
        return self.shape / self.rate

    def standard_deviations(self) -> dict[str, Tensor]:
        """Those of q: mean (d,), components (k, d), noise_variance (d,). The last may be infinite; see ``errors``."""
        own = self.noise[:, None] * self.coefficient_covariance.diagonal(dim1=-2, dim2=-1)
        excess = (self.shape - 2.0).clamp(min=0.0)
        return {
            "mean": own[:, -1].sqrt(),
            "components": own[:, :-1].mT.sqrt(),
            "noise_variance": self.noise / excess.sqrt(),
        }

    def e_step(self) -> FactorEStep:
        """The E step under this distribution of coefficients and noise."""
        log_precision = torch.digamma(self.shape) - self.rate.log()
        return FactorEStep(
            self.coefficients, self.coefficient_covariance, self.noise_precision, log_precision
        )

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row, under q."""
        return self.e_step().posterior(rows)

    def prior(self) -> DiagonalGaussian:
        """Standard normal factors."""
        zero = self.coefficients.new_zeros(1, self.loadings.shape[1])
        return DiagonalGaussian(zero, zero + 1.0)

    def emission(self, z: Tensor) -> DiagonalGaussian:
        """x given factors z, (m, k): Gaussians with the mean and variance of Student's distribution."""
        mean, variance = self.predict_given_factors(z)
        return DiagonalGaussian(mean, variance * (self.shape / (self.shape - 1.0)))

    def predict_given_factors(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and squared scale of x given factors, both (m, d)."""
        u = torch.cat([z, z.new_ones(len(z), 1)], dim=1)
        if len(self.coefficient_covariance) == 1:
            reach = ((u @ self.coefficient_covariance[0]) * u).sum(1, keepdim=True)
        else:
            reach = (u[:, :, None] * u[:, None, :]).flatten(1) @ self.coefficient_covariance.flatten(1).mT
        return u @ self.coefficients.mT, (1.0 + reach) / self.noise_precision

    def moments(self) -> tuple[Tensor, forms.LowRank]:
        """Exact mean (d,) and covariance of a new row."""
        return self.mean, forms.LowRank(self.loadings[None], self.psi[None])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n new rows (n, d) with their factors (n, k); every row has parameters of its own draw."""
        z = self.prior().draw(n, generator)[0]
        mean, scale = self.predict_given_factors(z)
        precision = self._draw_gamma(n, generator) / self.shape
        return mean + (scale / precision).sqrt() * normal(tuple(mean.shape), generator, mean.dtype), z

    def draw(self, n: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """n draws of the parameters: means (n, d), loadings (n, d, k), noise variances (n, d)."""
        d, size = self.coefficients.shape
        noise = self.rate / self._draw_gamma(n, generator)
        root = torch.linalg.cholesky(self.coefficient_covariance)
        steps = normal((n, d, size), generator, self.rate.dtype)
        steps = steps @ root[0].mT if len(root) == 1 else (root @ steps[..., None])[..., 0]
        drawn = self.coefficients + noise.sqrt()[..., None] * steps
        return drawn[..., -1], drawn[..., :-1], noise

    def _draw_gamma(self, n: int, stream: Generator) -> Tensor:
        """Gamma draws of unit rate, (n, d)."""
        shape = self.shape.expand(n, len(self.rate)).contiguous()
        return torch._standard_gamma(shape, generator=stream)

    def named_parameters(self) -> dict[str, Tensor]:
        """Expected parameters under their public names."""
        return {"mean": self.mean, "components": self.loadings.mT, "noise_variance": self.noise}


NODES = 64
"""Sobol points at which the integrand of a row is evaluated."""

REWEIGHTINGS = 5
"""Iterations that find the peak: each weighs the columns by how far off they are, as Student's density does."""

TILE = 1 << 22
"""Most numbers in a tensor of one precision matrix per row."""


def predictive_density(factors: NormalGammaFactors, rows: Tensor) -> Tensor:
    r"""Logs of the predictive density of rows (n, d), NaN where missing, (n,).

    .. math:: p(x) = \int N(z; 0, I) \prod_{j \text{ seen}} t_{2 a_j}\big(x_j; m_j^\top u, \tfrac{b_j}{a_j}
              (1 + u^\top V_j u)\big) \, dz, \qquad u = (z, 1)

    by importance sampling from a Gaussian about the peak of the integrand of each row. Only the factors are integrated
    by nodes, the columns in closed form: nothing depends on the order of the columns.
    """
    rows = rows.to(factors.rate.dtype)
    k = factors.loadings.shape[1]
    if k == 0:
        return _student_log_prob(factors, rows, ~torch.isnan(rows), rows.new_zeros(len(rows), 0))
    nodes = torch.special.ndtri(sobol_points(NODES, k).clamp(1e-12, 1.0 - 1e-12)).to(rows)
    size = max(1, TILE // max(k * k, rows.shape[1]))
    return torch.cat([_integrate_factors(factors, tile, nodes) for tile in rows.split(size)])


def _integrate_factors(factors: NormalGammaFactors, rows: Tensor, nodes: Tensor) -> Tensor:
    seen = ~torch.isnan(rows)
    rows = torch.where(seen, rows, 0.0)
    z, factor = _find_mode(factors, rows, seen.to(rows.dtype))
    level = factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
    values = []
    for node in nodes:
        step = node.expand(len(rows), -1)[..., None]
        at = z + torch.linalg.solve_triangular(factor.mT, step, upper=True)[..., 0]
        prior = 0.5 * (node.square().sum() - at.square().sum(1))
        values.append(_student_log_prob(factors, rows, seen, at) + prior)
    return torch.logsumexp(torch.stack(values), 0) - level - math.log(len(nodes))


def _student_log_prob(factors: NormalGammaFactors, rows: Tensor, seen: Tensor, z: Tensor) -> Tensor:
    """Log-density of the values seen given the factors, (n,)."""
    centre, scale = factors.predict_given_factors(z)
    half = factors.shape + 0.5
    level = torch.lgamma(half) - torch.lgamma(factors.shape) - 0.5 * (2.0 * math.pi * factors.shape).log()
    away = torch.where(seen, rows - centre, 0.0)
    tail = half * torch.log1p(away.square() / (2.0 * factors.shape * scale))
    return torch.where(seen, level - 0.5 * scale.log() - tail, 0.0).sum(1)


def _find_mode(factors: NormalGammaFactors, rows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Where the integrand of each row is highest (n, k), nearly, and Cholesky factors of its curvature (n, k, k)."""
    d, k = factors.loadings.shape
    deviation = (rows - factors.mean) * seen
    loadings = factors.loadings
    outer = (loadings[:, :, None] * loadings[:, None]).reshape(d, k * k)
    covariance = factors.coefficient_covariance.expand(d, -1, -1)
    unsure, lean = covariance[:, :k, :k].reshape(d, k * k), covariance[:, :k, k]
    z = rows.new_zeros(len(rows), k)
    for _ in range(REWEIGHTINGS):
        centre, scale = factors.predict_given_factors(z)
        degrees = 2.0 * factors.shape
        weight = seen * (degrees + 1.0) / (degrees * scale + (rows - centre).square())
        # 1 + u'Vu in the scale lowers the density far from the middle: to first order as its logarithm does.
        bend = seen / (scale * factors.noise_precision)
        inner = (weight @ outer + bend @ unsure).reshape(-1, k, k)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor = torch.linalg.cholesky(inner)
        score = (weight * deviation) @ loadings - bend @ lean
        z = torch.cholesky_solve(score[..., None], factor)[..., 0]
    return z, factor


@dataclass(frozen=True)
class VariationalFactor(NormalGammaFactors):
    """A distribution over the parameters of factor analysis."""

    relevance_rate: Tensor  # rates of the distributions of alpha, (k,)
    parameter_prior: RelevancePrior
    total: float  # weight of all rows, by which averaged statistics are multiplied
    expand: bool = True  # end ``solve`` with the best change of factors; False is plain coordinate ascent

    @classmethod
    def from_prior(cls, prior: RelevancePrior, k: int, total: float) -> Self:
        """The prior's distribution of means and noise, no loadings, every relevance precision expected at one."""
        centre = prior.centre
        coefficients = torch.cat([centre.new_zeros(len(centre), k), centre[:, None]], dim=1)
        relevance_rate = centre.new_full((k,), prior.shape(len(centre)))
        covariance = torch.diag(torch.cat([centre.new_ones(k), centre.new_full((1,), 1.0 / prior.strength)]))[
            None
        ]
        shape = torch.full_like(centre[:1], prior.noise_shape)
        return cls(coefficients, covariance, shape, prior.noise_rate, relevance_rate, prior, total)

    @property
    def precision(self) -> Tensor:
        r"""Expected :math:`\alpha`, (k,)."""
        return self.parameter_prior.shape(len(self.rate)) / self.relevance_rate

    @property
    def signal_to_noise(self) -> Tensor:
        r"""Mean squared signal-to-noise ratio of the loadings, :math:`\frac1d \sum_j \bar\tau_j m_{jl}^2`, (k,)."""
        return self.noise_precision @ self.loadings.square() / len(self.rate)

    @property
    def loading_uncertainty(self) -> Tensor:
        r"""The same of what is not known of the loadings, :math:`\frac1d \sum_j (V_j)_{ll}`, (k,)."""
        return self.coefficient_covariance.diagonal(dim1=-2, dim2=-1).mean(0)[:-1]

    @property
    def is_used(self) -> Tensor:
        """Which factors are in use, (k,): those whose loadings are, in mean square, more than their own deviation."""
        return self.signal_to_noise > self.loading_uncertainty

    def present_weight(self) -> Tensor:
        """Weight of the values of each column, (d,)."""
        return (2.0 * (self.shape - self.parameter_prior.noise_shape)).expand_as(self.rate)

    def standard_errors(self) -> FactorErrors:
        """Standard errors of mean, loadings (d, k) and log-noise; q's own for loadings of factors out of use. q
        takes factors and parameters for independent, and so is narrower than the posterior, however many rows there
        are."""
        used = self.is_used
        of_used = factor_standard_errors(
            self.loadings[:, used], self.noise, self.present_weight(), self.parameter_prior.noise_rate
        )
        loadings = self.standard_deviations()["components"].mT.clone()
        loadings[:, used] = of_used.loadings
        return of_used._replace(loadings=loadings)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """The best distributions of the factors: their statistics, and what the rows add to the bound."""
        return self.e_step().expect(rows, weight)

    def repair_statistics(self, statistics: LinearStatistics) -> tuple[LinearStatistics, tuple[str, ...]]:
        """Nothing can go wrong under a proper prior."""
        return statistics, ()

    def solve(self, statistics: LinearStatistics) -> Self:
        """Update coefficients and noise given the factors; the best change of factors; relevances."""
        known = statistics * (self.total / statistics.latent[-1, -1])
        fitted = self._regress(known)
        if self.expand:
            turn = best_transformation(
                known.latent, fitted.coefficient_moments(), len(self.rate), self.parameter_prior
            )
            coefficients = fitted.coefficients @ turn.back
            fitted = replace(
                fitted,
                coefficients=coefficients,
                coefficient_covariance=turn.back.mT @ fitted.coefficient_covariance @ turn.back,
            )
        energy = fitted.coefficient_moments().diagonal()[:-1]
        return replace(fitted, relevance_rate=self.parameter_prior.relevance_rate + 0.5 * energy)

    def _prior_precision(self) -> Tensor:
        """Of coefficients, in units of the noise precision, (k + 1,)."""
        return torch.cat([self.precision, self.precision.new_full((1,), self.parameter_prior.strength)])

    def _regress(self, known: LinearStatistics) -> Self:
        """Normal-gamma posterior of every column, given summed statistics."""
        before, k = self._prior_precision(), self.loadings.shape[1]
        inner = known.latent - known.absent + torch.diag(before)
        factor = torch.linalg.cholesky(inner)
        pulled = known.cross.clone()
        pulled[:, k] += before[k] * self.parameter_prior.centre
        if len(inner) == 1:
            coefficients = torch.cholesky_solve(pulled.mT, factor[0]).mT
        else:
            coefficients = torch.cholesky_solve(pulled[..., None], factor)[..., 0]
        away = coefficients.clone()
        away[:, k] -= self.parameter_prior.centre
        apart = known.residual_squares(coefficients) + away.square() @ before
        shape = self.parameter_prior.noise_shape + 0.5 * known.present_weight
        rate = self.parameter_prior.noise_rate + 0.5 * apart.clamp(min=0.0)
        return replace(
            self,
            coefficients=coefficients,
            coefficient_covariance=torch.cholesky_inverse(factor),
            shape=shape,
            rate=rate,
        )

    def coefficient_moments(self) -> Tensor:
        r""":math:`\sum_j E[\tau_j f_j f_j^\top]` of coefficients less their prior means, (k + 1, k + 1)."""
        away = self.coefficients.clone()
        away[:, -1] -= self.parameter_prior.centre
        whole: Tensor = (away.mT * self.noise_precision) @ away
        return whole + self.coefficient_covariance.mean(0) * len(self.rate)

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log of the predictive density of each row, (n,); the factors out of use are a part of the noise."""
        used = self.is_used
        columns = torch.cat([torch.nonzero(used)[:, 0], torch.tensor([len(used)], device=used.device)])
        lost = self.noise_precision[:, None] * self.loadings[:, ~used].square()
        more = 1.0 + (lost + self.coefficient_covariance.diagonal(dim1=-2, dim2=-1)[:, :-1][:, ~used]).sum(1)
        covariance = self.coefficient_covariance[:, columns][:, :, columns] / more[:, None, None]
        return predictive_density(
            NormalGammaFactors(self.coefficients[:, columns], covariance, self.shape, self.rate * more), rows
        )

    def divergence(self) -> Tensor:
        r"""Kullback-Leibler divergence of q from the prior: coefficients given noise, noise, relevances.

        .. math:: \sum_j \tfrac12 \Big( \mathrm{tr} P V_j + \bar\tau_j (m_j - \mu_j)^\top P (m_j - \mu_j) - k - 1
                  - \log |V_j| - \sum_l E[\log \alpha_l] - \log \beta \Big) + KL(q(\tau)) + KL(q(\alpha))
        """
        d, prior = len(self.rate), self.parameter_prior
        shape = self.relevance_rate.new_full((1,), prior.shape(d))
        log_before = torch.digamma(shape) - self.relevance_rate.log()
        level = log_before.sum() + math.log(prior.strength) + len(log_before) + 1.0
        factor = torch.linalg.cholesky(self.coefficient_covariance)
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).mean()
        coefficients = 0.5 * (
            self.coefficient_moments().diagonal() @ self._prior_precision() - d * (level + log_det)
        )
        # Gamma distributions of precisions diverge as the inverse gammas of the variances do.
        noise = InverseGamma(self.shape, self.rate).divergence(prior.noise_prior())
        relevance = InverseGamma(shape, self.relevance_rate).divergence(prior.relevance_prior())
        return coefficients + noise.sum() + relevance.sum()

    def expected_log_likelihood(self, statistics: LinearStatistics) -> Tensor:
        """Expected log-likelihood of rows and factors under q, up to the prior of the factors."""
        inner = statistics.latent - statistics.absent
        covariance = (self.coefficient_covariance * inner).sum((-2, -1))
        apart = self.noise_precision * statistics.residual_squares(self.coefficients) + covariance
        level = torch.digamma(self.shape) - self.rate.log() - LOG_2PI
        return 0.5 * (statistics.present_weight * level - apart).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The distribution of the models of ``origin + scale * x``: exact, since loadings are in units of the noise."""
        coefficients = scale[:, None] * self.coefficients
        coefficients[:, -1] += origin
        return replace(
            self,
            coefficients=coefficients,
            rate=scale.square() * self.rate,
            parameter_prior=self.parameter_prior.affine(origin, scale),
        )

    def to_canonical_form(self) -> Self:
        """Most relevant factors first, the largest loading of each (in units of noise) positive."""
        order = torch.argsort(self.relevance_rate, descending=True, stable=True)
        whole = torch.cat([order, order.new_tensor([len(order)])])
        scaled = self.loadings[:, order] * self.noise_precision.sqrt()[:, None]
        sign = torch.sign(scaled.gather(0, scaled.abs().argmax(0, keepdim=True))[0])
        sign = torch.cat([torch.where(sign == 0.0, 1.0, sign), sign.new_ones(1)])
        coefficients = self.coefficients[:, whole] * sign
        covariance = self.coefficient_covariance[:, whole][:, :, whole] * sign[:, None] * sign
        return replace(
            self,
            coefficients=coefficients,
            coefficient_covariance=covariance,
            relevance_rate=self.relevance_rate[order],
        )

    def without_factor(self, factor: int) -> Self:
        r"""The distribution without one of its factors: no loadings, and the relevance at the fixed point for such a
        factor, :math:`V_{ll} = 1 / (\alpha + n)` and :math:`\alpha = (a_0 + d/2) / (b_0 + d V_{ll} / 2)`, a
        quadratic."""
        d, prior = len(self.rate), self.parameter_prior
        shape, rate, n = prior.relevance_shape, prior.relevance_rate, self.total
        lean = rate * n - shape  # rate precision^2 + lean precision = (shape + d / 2) n
        precision = (math.sqrt(lean * lean + 4.0 * rate * prior.shape(d) * n) - lean) / (2.0 * rate)
        coefficients, covariance = self.coefficients.clone(), self.coefficient_covariance.clone()
        coefficients[:, factor] = 0.0
        covariance[:, factor] = 0.0
        covariance[:, :, factor] = 0.0
        covariance[:, factor, factor] = 1.0 / (precision + n)
        relevance_rate = self.relevance_rate.clone()
        relevance_rate[factor] = prior.shape(d) / precision
        return replace(
            self, coefficients=coefficients, coefficient_covariance=covariance, relevance_rate=relevance_rate
        )

    def is_floored(self) -> Tensor:
        """No column: the prior keeps noise from vanishing, (d,)."""
        return torch.zeros_like(self.rate, dtype=torch.bool)

    def free_parameters(self) -> dict[str, Tensor]:
        """What any values of are a distribution of the same width: coefficients, log-rates of the noise."""
        return {"coefficients": self.coefficients, "log_rate": self.rate.log()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The distribution at other values of them."""
        return replace(self, coefficients=free["coefficients"], rate=free["log_rate"].exp())
