r"""Linear-Gaussian models: factor analysis and probabilistic principal components.

.. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon \sim N(0, \mathrm{diag}(\psi_1, \dots, \psi_d))

With u = (z, 1) a column is :math:`x_j = b_j^\top u + \epsilon_j`. The E step needs only expected products of u with
itself and with x; the M step is one regression per column. A missing value leaves its row out of that column's
regression: complete data are then (x observed, z), so EM stays exact.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import torch
from torch import Generator, Tensor

from boxloop.distributions import DiagonalGaussian, LowRankGaussian, observed_precision
from boxloop.numeric import covariance as forms, has_missing, product, woodbury
from boxloop.tree import Tree
from boxloop.types import Expected

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class LinearStatistics(Tree):
    r"""Expected sums over rows.

    Args:
        square: :math:`\sum w x_j^2` over values present, (d,).
        cross: :math:`\sum w x_j E[u]^\top` over values present, (d, k + 1).
        latent: :math:`\sum w E[u u^\top]` over all rows, (k + 1, k + 1).
        absent: the same over the rows in which column j is missing, (d, k + 1, k + 1); (1, ...) when none is.
    """

    square: Tensor
    cross: Tensor
    latent: Tensor
    absent: Tensor

    @property
    def present(self) -> Tensor:
        """Weight of the values present in each column, (d,) or (1,)."""
        return self.latent[-1, -1] - self.absent[:, -1, -1]

    def squared_deviations(self, mean: Tensor, total: Tensor) -> Tensor:
        """Sum of squares about a mean (d,), of complete rows of so much weight in all, (d,)."""
        return self.square - 2.0 * mean * self.cross[:, -1] + total * mean.square()

    def regress(self) -> Tensor:
        """Coefficients of u for every column, (d, k + 1)."""
        inner = self.latent - self.absent
        if inner.shape[0] == 1:
            return torch.linalg.solve(inner[0], self.cross.mT).mT
        return torch.linalg.solve(inner, self.cross[..., None])[..., 0]

    def residual(self, coefficients: Tensor) -> Tensor:
        """Expected residual sum of squares of each column, (d,)."""
        inner = self.latent - self.absent
        fitted = (coefficients[:, None] @ inner)[:, 0] if len(inner) > 1 else coefficients @ inner[0]
        return self.square - ((2.0 * self.cross - fitted) * coefficients).sum(1)


def expect_linear(
    mean: Tensor, loadings: Tensor, noise: Tensor, rows: Tensor, weight: Tensor
) -> Expected[LinearStatistics]:
    """E step of x = mean + loadings z + noise on a tile of rows (n, d)."""
    columns = rows.mT.contiguous()
    if has_missing(columns):
        return _expect_missing(mean, loadings, noise, rows, weight)
    low = columns.dtype
    factor, log_det = woodbury(loadings, noise)
    scaled = (loadings / noise[:, None]).mT
    score = product(scaled.to(low), columns) - (scaled @ mean)[:, None].to(low)
    statistics, explained = complete_statistics(columns, weight, factor, score)
    total = weight.sum()
    quadratic = (statistics.squared_deviations(mean, total) / noise).sum() - explained
    log_likelihood = -0.5 * (quadratic + total * (log_det + len(noise) * LOG_2PI))
    return Expected(statistics, log_likelihood, total)


def complete_statistics(
    columns: Tensor, weight: Tensor, factor: Tensor, score: Tensor
) -> tuple[LinearStatistics, Tensor]:
    """Statistics of complete rows, and the sum of squares that their factors explain.

    Args:
        columns: (d, n).
        weight: (n,).
        factor: lower Cholesky factor of the precision of z given a row, (k, k).
        score: that precision times the mean of z, (k, n).
    """
    low, k = columns.dtype, len(factor)
    half = torch.linalg.solve_triangular(factor.to(low), score, upper=False)
    z = torch.linalg.solve_triangular(factor.mT.to(low), half, upper=True)
    u = torch.cat([z, z.new_ones(1, z.shape[1])])
    heavy = u * weight.to(low)
    cross = product(columns, heavy.mT).double()
    latent = (heavy @ u.mT).double()
    latent[:k, :k] += weight.sum() * torch.cholesky_inverse(factor)
    square = (columns.square() @ weight.to(low)).double()
    statistics = LinearStatistics(square, cross, latent, torch.zeros_like(latent)[None])
    return statistics, half.square().sum(0).double() @ weight


def latent_posterior(mean: Tensor, loadings: Tensor, noise: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (n, k) and covariance (n, k, k) of the factors given each row, missing values left out."""
    deviation = rows.to(noise.dtype) - mean
    seen = ~torch.isnan(deviation)
    deviation = torch.where(seen, deviation, 0.0)
    score = deviation @ (loadings / noise[:, None])
    if bool(seen.all()):
        factor, _ = woodbury(loadings, noise)
        z = torch.cholesky_solve(score.mT, factor).mT
        return z, torch.cholesky_inverse(factor).expand(len(z), -1, -1)
    factor = torch.linalg.cholesky(observed_precision(loadings, noise, seen.to(noise.dtype)))
    return torch.cholesky_solve(score[..., None], factor)[..., 0], torch.cholesky_inverse(factor)


def _expect_missing(
    mean: Tensor, loadings: Tensor, noise: Tensor, rows: Tensor, weight: Tensor
) -> Expected[LinearStatistics]:
    rows = rows.to(noise.dtype)
    seen = (~torch.isnan(rows)).to(noise.dtype)
    filled = torch.nan_to_num(rows, nan=0.0)
    deviation = torch.nan_to_num(rows - mean, nan=0.0)
    factor = torch.linalg.cholesky(observed_precision(loadings, noise, seen))
    score = (deviation @ (loadings / noise[:, None]))[..., None]
    half = torch.linalg.solve_triangular(factor, score, upper=False)
    z = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]
    n, k = z.shape
    u = torch.cat([z, z.new_ones(n, 1)], dim=1)
    inner = u[:, :, None] * u[:, None, :]
    inner[:, :k, :k] += torch.cholesky_inverse(factor)
    inner = (inner * weight[:, None, None]).reshape(n, -1)
    absent = ((1.0 - seen).mT @ inner).reshape(-1, k + 1, k + 1)
    heavy = filled * weight[:, None]
    log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1) + seen @ noise.log()
    quadratic = (deviation.square() / noise).sum(1) - half.square().sum((1, 2))
    log_density = -0.5 * (quadratic + log_det + seen.sum(1) * LOG_2PI)
    statistics = LinearStatistics(
        (heavy * filled).sum(0), heavy.mT @ u, inner.sum(0).reshape(k + 1, k + 1), absent
    )
    return Expected(statistics, log_density @ weight, weight.sum())


def expanded(coefficients: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and loadings after the parameter-expanded M step (Liu, Rubin and Wu 1998).

    The factors' distribution is let free, :math:`z \sim N(\bar z, K)`, fitted, and absorbed:
    :math:`F \leftarrow F K^{1/2}`, :math:`c \leftarrow c + F \bar z`. The likelihood never falls, and the rate of
    convergence is at least the plain step's (one step alone may rise less); the scale of F converges in a few
    iterations instead of hundreds.
    """
    loadings, mean = coefficients[:, :-1], coefficients[:, -1]
    total = latent[-1, -1]
    centre = latent[:-1, -1] / total
    covariance = latent[:-1, :-1] / total - centre[:, None] * centre
    return mean + loadings @ centre, loadings @ torch.linalg.cholesky(covariance)


@dataclass(frozen=True)
class LinearGaussian(Tree):
    """A Gaussian whose covariance is low rank plus diagonal; a subclass says what the diagonal may be."""

    mean: Tensor
    loadings: Tensor
    noise: Tensor
    floor: float = 0.0
    expand: bool = True

    @abstractmethod
    def fitted_noise(self, residual: Tensor, present: Tensor) -> Tensor:
        """Noise variances from residual sums of squares (d,) and the weight of the values behind them."""

    @property
    def psi(self) -> Tensor:
        """Noise variance of every column, (d,)."""
        return self.noise.expand_as(self.mean)

    def prior(self) -> DiagonalGaussian:
        """Standard normal factors."""
        zero = self.loadings.new_zeros(1, self.loadings.shape[1])
        return DiagonalGaussian(zero, zero + 1.0)

    def emission(self, z: Tensor) -> DiagonalGaussian:
        """The distributions of x given factors z, (m, k)."""
        mean = self.mean + z @ self.loadings.mT
        return DiagonalGaussian(mean, self.psi.expand_as(mean))

    def marginal(self) -> LowRankGaussian:
        """The marginal distribution of a row."""
        return LowRankGaussian(self.mean, self.loadings, self.psi)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """E step: moments of the factors given each row (Brownlie 2021, eq. 4.28)."""
        return expect_linear(self.mean, self.loadings, self.psi, rows, weight)

    def repair(self, statistics: LinearStatistics) -> tuple[LinearStatistics, tuple[str, ...]]:
        """Nothing can go wrong that a floor does not mend."""
        return statistics, ()

    def solve(self, statistics: LinearStatistics) -> Self:
        """M step: regress every column on the factors (Brownlie 2021, eq. 4.29 to 4.31)."""
        coefficients = statistics.regress()
        noise = self.fitted_noise(statistics.residual(coefficients), statistics.present).clamp(min=self.floor)
        mean, loadings = coefficients[:, -1], coefficients[:, :-1]
        if self.expand:
            mean, loadings = expanded(coefficients, statistics.latent)
        return type(self)(mean, loadings, noise, self.floor, self.expand)

    def complete(self, statistics: LinearStatistics) -> Tensor:
        """Expected complete-data log-likelihood, up to the prior of the factors."""
        coefficients = torch.cat([self.loadings, self.mean[:, None]], dim=1)
        residual = statistics.residual(coefficients) / self.psi
        return -0.5 * (residual + statistics.present * (self.psi.log() + LOG_2PI)).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""
        return self.marginal().log_prob(rows)[0]

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row."""
        return latent_posterior(self.mean, self.loadings, self.psi, rows)

    def moments(self) -> tuple[Tensor, forms.LowRank]:
        """Exact mean (d,) and covariance of a row."""
        return self.mean, forms.LowRank(self.loadings[None], self.psi[None])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) with their factors (n, k)."""
        z = self.prior().draw(n, generator)[0]
        return self.emission(z).draw(1, generator)[:, 0], z

    def canonical(self) -> Self:
        r"""Rotated so that :math:`F^\top \Psi^{-1} F` is diagonal, largest first; signs fixed in units of the noise."""
        left, size, _ = torch.linalg.svd(self.loadings / self.psi.sqrt()[:, None], full_matrices=False)
        dust = len(left) * torch.finfo(size.dtype).eps * size.amax()
        size = torch.where(
            size > dust, size, 0.0
        )  # where noise is small, what rounding leaves would show in scores
        loadings = self.psi.sqrt()[:, None] * left * size
        sign = torch.sign(left.gather(0, left.abs().argmax(0, keepdim=True)))
        sign = torch.where(sign == 0, 1.0, sign)
        return type(self)(self.mean, loadings * sign, self.noise, self.floor, self.expand)

    def floored(self) -> Tensor:
        """Which columns have a noise variance at the floor (Heywood cases), (d,)."""
        return self.noise <= self.floor * (1 + 1e-6)

    def free(self) -> dict[str, Tensor]:
        """Free parameters, any values of which are a model: mean, loadings, log-noise."""
        return {"mean": self.mean, "loadings": self.loadings, "log_noise": self.noise.log()}

    def with_free(self, free: Mapping[str, Tensor]) -> Self:
        """The model at other values of the free parameters."""
        return type(self)(free["mean"], free["loadings"], free["log_noise"].exp(), self.floor, self.expand)

    def constraints(self) -> Tensor:
        r"""Off-diagonal entries of :math:`F^\top \Psi^{-1} F`: zero in the canonical rotation."""
        inner = self.loadings.mT @ (self.loadings / self.psi[:, None])
        i, j = torch.triu_indices(len(inner), len(inner), offset=1, device=inner.device)
        return inner[i, j]

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""
        return {"mean": self.mean, "components": self.loadings.mT, "noise_variance": self.noise}


@dataclass(frozen=True)
class FactorModel(LinearGaussian):
    """Factor analysis, a noise variance for every column. Brownlie (2021), sections 2.1 and 4.2.

    Args:
        mean: c, (d,).
        loadings: F, (d, k).
        noise: psi, (d,).
        floor: smallest noise variance that ``solve`` may return.
        expand: use the parameter-expanded M step; ``False`` is the plain step of Brownlie (2021).

    Example:
        >>> import torch
        >>> model = FactorModel(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> model.moments()[1].diagonal()
        tensor([[2., 2., 2.]])
    """

    def fitted_noise(self, residual: Tensor, present: Tensor) -> Tensor:
        """One variance a column (Brownlie 2021, eq. 4.31)."""
        return residual / present

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``."""
        mean, loadings = origin + scale * self.mean, scale[:, None] * self.loadings
        return type(self)(mean, loadings, scale.square() * self.noise, self.floor, self.expand)


@dataclass(frozen=True)
class PrincipalModel(LinearGaussian):
    r"""Probabilistic principal components, one noise variance for all columns. Tipping and Bishop (1999).

    With complete rows the maximum is closed form: with eigenvalues :math:`\lambda_1 \ge \dots \ge \lambda_d` and
    eigenvectors U of the covariance, :math:`\sigma^2 = \frac{1}{d - k} \sum_{j > k} \lambda_j` and
    :math:`F = U_k (\Lambda_k - \sigma^2 I)^{1/2}`.

    Args:
        mean: c, (d,).
        loadings: F, (d, k).
        noise: sigma^2, (1,).
        floor: smallest noise variance that ``solve`` may return.
        expand: use the parameter-expanded M step.

    Example:
        >>> import torch
        >>> covariance = torch.diag(torch.tensor([3.0, 1.0, 1.0]))
        >>> PrincipalModel.closed_form(torch.zeros(3), covariance, 1).noise
        tensor([1.])
    """

    def fitted_noise(self, residual: Tensor, present: Tensor) -> Tensor:
        """The residual averaged over all values present, (1,)."""
        return (residual.sum() / present.expand_as(residual).sum())[None]

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``; the noise stays isotropic only under one common scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("isotropic noise stays isotropic only when all columns share one scale")
        mean, loadings = origin + scale * self.mean, scale[:, None] * self.loadings
        return type(self)(mean, loadings, scale[0].square() * self.noise, self.floor, self.expand)

    @classmethod
    def closed_form(cls, mean: Tensor, covariance: Tensor, k: int, floor: float = 0.0) -> Self:
        """The maximum-likelihood model of a mean (d,) and a covariance (d, d) with divisor n."""
        d = mean.shape[0]
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0), vectors.flip(1)
        noise = values[k:].mean() if k < d else values.new_zeros(())
        noise = noise.clamp(min=floor)
        loadings = vectors[:, :k] * (values[:k] - noise).clamp(min=0.0).sqrt()
        return cls(mean, loadings, noise[None], floor)
