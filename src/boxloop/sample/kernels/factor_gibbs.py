r"""Gibbs sampling of Bayesian factor analysis, all chains at once, at a cost independent of the number of rows.

.. math:: x_i = c + F z_i + \epsilon_i, \qquad z_i \mid x_i, \theta \sim N\big(K^{-1} H (x_i - c), K^{-1}\big), \qquad
          H = F^\top \Psi^{-1}, \quad K = I + H F = R R^\top

The conditionals of c, F and psi see the factors only in sums: of z, of z z' and of x z'. Their distribution depends on
the rows through their mean and scatter alone. With r = min(d, n - 1) and :math:`G^\top G` the scatter, G (r, d),

.. math:: \textstyle\sum_i z_i z_i^\top = R^{-\top} (Y Y^\top + T T^\top) R^{-1} + n \bar z \bar z^\top, \qquad
          \sum_i (x_i - \bar x) z_i^\top = G^\top Y^\top R^{-1}, \qquad Y = R^{-1} H G^\top + E

where E is (k, r) standard normal, :math:`T T^\top \sim W(n - 1 - r, I)` and
:math:`\bar z = R^{-\top}(R^{-1} H (\bar x - c) + e / \sqrt n)`: the part of the noise in the span of the columns is
normal, and the rest enters by its squares alone.

Factors and loadings are strongly dependent: given z the scale of F hardly moves. So each step ends with two moves along
directions in which the likelihood is flat (Liu and Sabatti 2000, *Biometrika* 87): z + b with c - F b, drawn exactly;
and A z with :math:`F A^{-1}`, A lower triangular, proposed from the distribution of the factors alone and accepted by
the ratio of the loadings' prior.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Generator, Tensor
from torch.linalg import cholesky, solve_triangular

from boxloop.chain import Chains, Info, Kernel
from boxloop.distributions import FactorPrior, wishart_root
from boxloop.numeric import normal
from boxloop.sample.kernels.metropolis import repeat_stream
from boxloop.tree import Tree

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class ScatterStatistics(Tree):
    """Sufficient statistics of complete rows for factor analysis."""

    centre: Tensor  # mean of the rows, (d,); or (c, d), of a table for each chain
    root: Tensor  # G of G' G, the scatter about that mean, (r, d) or (c, r, d)
    count: int  # n

    @classmethod
    def from_covariance(cls, mean: Tensor, covariance: Tensor, count: int) -> Self:
        """From a mean (..., d) and a covariance (..., d, d), divisor n, of n rows."""
        size, axes = torch.linalg.eigh(covariance * count)
        r = min(mean.shape[-1], count - 1)
        root = size.clamp(min=0.0).sqrt()[..., :, None] * axes.mT
        return cls(mean, root[..., root.shape[-2] - r :, :], count)

    @classmethod
    def from_rows(cls, rows: Tensor) -> Self:
        """From rows (..., n, d)."""
        mean = rows.mean(-2)
        centred = rows - mean[..., None, :]
        return cls.from_covariance(mean, centred.mT @ centred / rows.shape[-2], rows.shape[-2])


class FactorParameters(NamedTuple):
    """Parameters of c models: mean (c, d), loadings (c, d, k), noise variances (c, d)."""

    mean: Tensor
    loadings: Tensor
    noise: Tensor


class FactorConditional(NamedTuple):
    """Parameters of p(z | x): R, (c, k, k); R^-1 H G', (c, k, r); R^-1 H (mean of x - c), (c, k, 1)."""

    factor: Tensor
    projected: Tensor
    centre: Tensor


class _LatentSums(NamedTuple):
    """Sums over rows of drawn factors: their scatter (c, k, k), that with the columns (c, d, k), their mean (c, k)."""

    inner: Tensor
    cross: Tensor
    mean: Tensor

    def second_moments(self, n: int) -> Tensor:
        """Second moments about zero times n, (c, k, k)."""
        return self.inner + n * self.mean[..., :, None] * self.mean[..., None, :]


def pack_factors(values: FactorParameters) -> Tensor:
    """Positions of c chains: mean, loadings row by row, log-noise; (c, d (k + 2))."""
    return torch.cat([values.mean, values.loadings.flatten(1), values.noise.log()], dim=1)


def unpack_factors(position: Tensor, d: int) -> FactorParameters:
    """The inverse of :func:`pack_factors`; leading axes stay."""
    mean, loadings, log_noise = position.split([d, position.shape[-1] - 2 * d, d], dim=-1)
    return FactorParameters(mean, loadings.unflatten(-1, (d, loadings.shape[-1] // d)), log_noise.exp())


def make_factor_kernel(rows: ScatterStatistics, prior: FactorPrior) -> Kernel:
    r"""The Gibbs kernel of factor analysis: sums of factors, then mean, loadings and noise, then two flat moves.

    The density stored with a position is that of the parameters with the factors integrated out,
    :math:`\log N(x; c, F F^\top + \Psi) + \log p(c, F, \psi)`, which no rotation of the factors changes. The
    log-ratio of the move of scales is in ``Info.detail``; the move needs n >= d + k rows and is left out otherwise.
    """
    d = rows.root.shape[-1]
    square = rows.root.square().sum(-2)

    def evaluate(values: FactorParameters) -> tuple[Tensor, tuple[Tensor, ...]]:
        conditional, log_likelihood = factor_conditional(rows, square, values)
        return log_likelihood + prior.log_prob(*values), tuple(conditional)

    def init(position: Tensor) -> Chains:
        return Chains(position, *evaluate(unpack_factors(position, d)))

    def step(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
        values = unpack_factors(chains.position, d)
        latent = draw_latent_sums(rows, FactorConditional(*chains.auxiliary), stream)
        values = _draw_parameters(rows, square, prior, values, latent, stream)
        values, latent = shift_factors(rows.count, prior, values, latent, stream)
        values, log_ratio = scale_factors(rows.count, prior, values, latent, stream)
        return Chains(pack_factors(values), *evaluate(values)), Info(detail=log_ratio)

    return Kernel(init, repeat_stream, step)


def start_factors(prior: FactorPrior, chains: int, stream: Generator) -> Tensor:
    """Dispersed positions, (c, p): the prior's mean, small loadings, large noise; see :func:`pack_factors`."""
    d, k = prior.centre.shape[0], prior.n_factors
    dtype = prior.centre.dtype
    loadings = (prior.loading / (2 * k)).sqrt()[:, None] * normal((chains, d, k), stream, dtype)
    noise = prior.loading * (0.5 * normal((chains, d), stream, dtype)).exp()
    return pack_factors(FactorParameters(prior.centre.expand(chains, d), loadings, 0.5 * noise))


def factor_conditional(
    rows: ScatterStatistics, square: Tensor, values: FactorParameters
) -> tuple[FactorConditional, Tensor]:
    """The distribution of factors given the rows, and the log-likelihood, (c,)."""
    mean, loadings, noise = values
    n, d = rows.count, loadings.shape[1]
    score = (loadings / noise[..., None]).mT
    inner = score @ loadings
    inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
    factor = cholesky(inner)
    difference = rows.centre - mean
    both = torch.cat([torch.matmul(score, rows.root.mT), score @ difference[..., None]], dim=-1)
    both = solve_triangular(factor, both, upper=False)
    projected, centre = both[..., :-1], both[..., -1:]
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1) + noise.log().sum(-1)
    total = ((square + n * difference.square()) / noise).sum(-1)
    explained = projected.square().sum((-2, -1)) + n * centre.square().sum((-2, -1))
    log_likelihood = -0.5 * (total - explained + n * (log_det + d * LOG_2PI))
    return FactorConditional(factor, projected, centre), log_likelihood


def draw_latent_sums(
    rows: ScatterStatistics, conditional: FactorConditional, stream: Generator
) -> _LatentSums:
    """Sums over the rows of factors drawn given the rows."""
    c, k, r = conditional.projected.shape
    dtype, left = conditional.projected.dtype, rows.count - 1 - r
    inside = conditional.projected + normal((c, k, r), stream, dtype)
    if left >= k:
        outside = wishart_root(inside.new_full((c,), float(left)), k, stream)
    else:
        outside = normal((c, k, left), stream, dtype)
    centre = conditional.centre + normal((c, k, 1), stream, dtype) / rows.count**0.5
    factors = solve_triangular(
        conditional.factor.mT, torch.cat([inside, outside, centre], dim=-1), upper=True
    )
    inside, centred = factors[..., :r], factors[..., :-1]
    return _LatentSums(centred @ centred.mT, torch.matmul(inside, rows.root).mT, factors[..., -1])


def _draw_parameters(
    rows: ScatterStatistics,
    square: Tensor,
    prior: FactorPrior,
    values: FactorParameters,
    latent: _LatentSums,
    stream: Generator,
) -> FactorParameters:
    """Loadings given mean and noise, mean given these, noise given both: regressions of columns on factors."""
    n, dtype = rows.count, values.mean.dtype
    difference, (inner, cross, z) = rows.centre - values.mean, latent
    # One rotation of the factors makes the regressions of all columns diagonal.
    size, axes = torch.linalg.eigh(latent.second_moments(n))
    precision = size[:, None] / values.noise[..., None] + 1.0 / prior.loading[:, None]
    score = (cross + n * difference[..., None] * z[:, None]) @ axes / values.noise[..., None]
    rotated = score / precision + normal(tuple(precision.shape), stream, dtype) / precision.sqrt()
    loadings = rotated @ axes.mT
    fitted = (loadings @ z[..., None])[..., 0]
    precision = n / values.noise + 1.0 / prior.mean_variance
    middle = (n / values.noise * (rows.centre - fitted) + prior.centre / prior.mean_variance) / precision
    mean = middle + normal(tuple(middle.shape), stream, dtype) / precision.sqrt()
    residual = square + ((loadings @ inner - 2.0 * cross) * loadings).sum(-1)
    residual = residual.clamp(min=0.0) + n * (rows.centre - mean - fitted).square()
    return FactorParameters(mean, loadings, prior.noise.posterior(n, residual).draw(stream))


def shift_factors(
    n: int, prior: FactorPrior, values: FactorParameters, latent: _LatentSums, stream: Generator
) -> tuple[FactorParameters, _LatentSums]:
    """Add b to all factors and subtract F b from the mean; the conditional distribution of b is normal."""
    mean, loadings, noise = values
    weighted = (loadings / prior.mean_variance[:, None]).mT
    precision = weighted @ loadings
    precision.diagonal(dim1=-2, dim2=-1).add_(n)
    factor = cholesky(precision)
    score = weighted @ (mean - prior.centre)[..., None] - n * latent.mean[..., None]
    half = solve_triangular(factor, score, upper=False)
    b = solve_triangular(factor.mT, half + normal(tuple(half.shape), stream, half.dtype), upper=True)
    shifted = FactorParameters(mean - (loadings @ b)[..., 0], loadings, noise)
    return shifted, latent._replace(mean=latent.mean + b[..., 0])


def scale_factors(
    n: int, prior: FactorPrior, values: FactorParameters, latent: _LatentSums, stream: Generator
) -> tuple[FactorParameters, Tensor | None]:
    r"""Multiply factors by A and loadings by its inverse; and the log-ratio of the proposal, (c,).

    With L the Cholesky factor of :math:`\sum z z^\top`, the density of L given :math:`L^{-1} z` and :math:`F L` is
    that of the root of a Wishart matrix with n - d degrees of freedom, times the prior of :math:`F = (F L) L^{-1}`.
    """
    loadings = values.loadings
    c, d, k = loadings.shape
    if n - d < k:
        return values, None
    old = cholesky(latent.second_moments(n))
    new = wishart_root(loadings.new_full((c,), float(n - d)), k, stream)
    scaled = solve_triangular(new, loadings @ old, upper=False, left=False)
    gain = (loadings.square() - scaled.square()).sum(-1) / prior.loading
    log_ratio = 0.5 * gain.sum(-1)
    level = torch.rand(c, generator=stream, dtype=log_ratio.dtype, device=log_ratio.device).log()
    loadings = torch.where((level < log_ratio)[:, None, None], scaled, loadings)
    return values._replace(loadings=loadings), log_ratio
