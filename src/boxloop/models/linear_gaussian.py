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

from boxloop.distributions import DiagonalGaussian, LowRankGaussian
from boxloop.numeric import covariance as forms, has_missing, product
from boxloop.tree import Tree
from boxloop.types import Expected

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class LinearStatistics(Tree):
    """Expected sums over rows, with u = (z, 1)."""

    square: Tensor  # sum of w x_j^2 over values present, (d,)
    cross: Tensor  # sum of w x_j E[u]' over values present, (d, k + 1)
    latent: Tensor  # sum of w E[u u'] over all rows, (k + 1, k + 1)
    absent: Tensor  # the same over rows that lack column j, (d, k + 1, k + 1); (1, ...) when none does

    @property
    def present_weight(self) -> Tensor:
        """Weight of the values present in each column, (d,) or (1,)."""
        return self.latent[-1, -1] - self.absent[:, -1, -1]

    def solve_regressions(self) -> Tensor:
        """Coefficients of u for every column, (d, k + 1)."""
        inner = self.latent - self.absent
        if inner.shape[0] == 1:
            return torch.linalg.solve(inner[0], self.cross.mT).mT
        return torch.linalg.solve(inner, self.cross[..., None])[..., 0]

    def residual_squares(self, coefficients: Tensor) -> Tensor:
        """Expected residual sum of squares of each column, (d,)."""
        inner = self.latent - self.absent
        fitted = (coefficients[:, None] @ inner)[:, 0] if len(inner) > 1 else coefficients @ inner[0]
        return self.square - ((2.0 * self.cross - fitted) * coefficients).sum(1)


@dataclass(frozen=True)
class FactorEStep(Tree):
    r"""E step of a linear-Gaussian model whose coefficients have a distribution; a value is one without width.

    :math:`E[\tau_j f_j f_j^\top] = \bar\tau_j m_j m_j^\top + V_j`, so the factors of row i are normal with

    .. math:: K_i = I + \sum_{j \text{ seen}} (\bar\tau_j m_j m_j^\top + V_j)_{zz}, \qquad
              K_i E[z_i] = h_i = \sum_{j \text{ seen}} \bar\tau_j (x_{ij} - m_{jc}) m_{jz} - (V_j)_{zc}

    and the row adds to the evidence bound

    .. math:: \log \int e^{E[\log p(x_i, z)]} dz = \tfrac12 \sum_{j \text{ seen}} \left( E[\log \tau_j] - \log 2\pi
              - \bar\tau_j (x_{ij} - m_{jc})^2 - (V_j)_{cc} \right)
              + \tfrac12 h_i^\top K_i^{-1} h_i - \tfrac12 \log |K_i|.

    Complete rows share one K; a row with missing values has its own.
    """

    coefficients: Tensor  # m, loadings and last the mean, (d, k + 1)
    covariance: Tensor  # V, (d, k + 1, k + 1), or (1, ...) where all columns share it
    precision: Tensor  # expected noise precisions, (d,)
    log_precision: Tensor  # their expected logarithms, (d,)

    @property
    def _scaled_loadings(self) -> Tensor:
        """Loadings times precisions, (d, k)."""
        return self.coefficients[:, :-1] * self.precision[:, None]

    def _factor_complete(self) -> tuple[Tensor, Tensor]:
        """Cholesky factor of K of a complete row, (k, k), and the sum of V over all columns, (k + 1, k + 1)."""
        k = self.coefficients.shape[1] - 1
        covariance = self.covariance.sum(0) * (len(self.precision) / len(self.covariance))
        inner = self._scaled_loadings.mT @ self.coefficients[:, :k] + covariance[:k, :k]
        inner.diagonal().add_(1.0)
        return torch.linalg.cholesky(inner), covariance

    def _factor_seen(self, seen: Tensor) -> Tensor:
        """Cholesky factors of K of every row, (n, k, k)."""
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        outer = (
            self._scaled_loadings[:, :, None] * self.coefficients[:, None, :k] + self.covariance[:, :k, :k]
        )
        inner = (seen @ outer.reshape(d, k * k)).reshape(-1, k, k)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return torch.linalg.cholesky(inner)

    def _centre_rows(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows less their means, zero where missing, and which values are there, both (n, d); h, (n, k)."""
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        rows = rows.to(self.precision.dtype)
        seen = ~torch.isnan(rows)
        deviation = torch.where(seen, rows - self.coefficients[:, -1], 0.0)
        present = seen.to(rows.dtype)
        score = deviation @ self._scaled_loadings - present @ self.covariance[:, :k, k].expand(d, k)
        return deviation, present, score

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row, missing values left out."""
        _, seen, score = self._centre_rows(rows)
        if bool((seen > 0).all()):
            factor, _ = self._factor_complete()
            z = torch.cholesky_solve(score.mT, factor).mT
            return z, torch.cholesky_inverse(factor).expand(len(z), -1, -1)
        factor = self._factor_seen(seen)
        return torch.cholesky_solve(score[..., None], factor)[..., 0], torch.cholesky_inverse(factor)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """Statistics of a tile of rows (n, d), and what they add to the bound."""
        columns = rows.mT.contiguous()
        if has_missing(columns):
            return self._expect_missing(rows, weight)
        return self._expect_complete(columns, weight)

    def _expect_complete(self, columns: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        low, k = columns.dtype, self.coefficients.shape[1] - 1
        mean, scaled = self.coefficients[:, k], self._scaled_loadings.mT
        factor, covariance = self._factor_complete()
        score = product(scaled.to(low), columns) - (scaled @ mean + covariance[:k, k])[:, None].to(low)
        half = torch.linalg.solve_triangular(factor.to(low), score, upper=False)
        z = torch.linalg.solve_triangular(factor.mT.to(low), half, upper=True)
        u = torch.cat([z, z.new_ones(1, z.shape[1])])
        heavy = u * weight.to(low)
        cross = product(columns, heavy.mT).double()
        latent = (heavy @ u.mT).double()
        total = weight.sum()
        latent[:k, :k] += total * torch.cholesky_inverse(factor)
        square = (columns.square() @ weight.to(low)).double()
        explained = half.square().sum(0).double() @ weight
        apart = self.precision @ (square - 2.0 * mean * cross[:, -1] + total * mean.square())
        level = (self.log_precision - LOG_2PI).sum() - covariance[k, k] - 2.0 * factor.diagonal().log().sum()
        statistics = LinearStatistics(square, cross, latent, torch.zeros_like(latent)[None])
        return Expected(statistics, 0.5 * (total * level - apart + explained), total)

    def _expect_missing(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        deviation, seen, score = self._centre_rows(rows)
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        factor = self._factor_seen(seen)
        half = torch.linalg.solve_triangular(factor, score[..., None], upper=False)
        z = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]
        u = torch.cat([z, z.new_ones(len(z), 1)], dim=1)
        inner = u[:, :, None] * u[:, None, :]
        inner[:, :k, :k] += torch.cholesky_inverse(factor)
        inner = (inner * weight[:, None, None]).reshape(len(z), -1)
        absent = ((1.0 - seen).mT @ inner).reshape(d, k + 1, k + 1)
        filled = torch.nan_to_num(rows.to(seen.dtype), nan=0.0)
        heavy = filled * weight[:, None]
        level = seen @ (self.log_precision - LOG_2PI - self.covariance[:, k, k])
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        value = 0.5 * (level - deviation.square() @ self.precision - log_det + half.square().sum((1, 2)))
        latent = inner.sum(0).reshape(k + 1, k + 1)
        statistics = LinearStatistics((heavy * filled).sum(0), heavy.mT @ u, latent, absent)
        return Expected(statistics, value @ weight, weight.sum())


def apply_parameter_expansion(coefficients: Tensor, latent: Tensor) -> tuple[Tensor, Tensor]:
    r"""Mean and loadings after the parameter-expanded M step (Liu, Rubin and Wu 1998): :math:`F K^{1/2}`, :math:`c +
    F \bar z` where :math:`z \sim N(\bar z, K)`. The scale of F converges in a few iterations instead of hundreds."""
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
    def fit_noise(self, residual: Tensor, present: Tensor) -> Tensor:
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

    def e_step(self) -> FactorEStep:
        """The E step at these coefficients, which are known."""
        coefficients = torch.cat([self.loadings, self.mean[:, None]], dim=1)
        size = coefficients.shape[1]
        return FactorEStep(
            coefficients, coefficients.new_zeros(1, size, size), 1.0 / self.psi, -self.psi.log()
        )

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """E step: moments of the factors given each row (Brownlie 2021, eq. 4.28)."""
        return self.e_step().expect(rows, weight)

    def repair_statistics(self, statistics: LinearStatistics) -> tuple[LinearStatistics, tuple[str, ...]]:
        """Nothing can go wrong that a floor does not mend."""
        return statistics, ()

    def solve(self, statistics: LinearStatistics) -> Self:
        """M step: regress every column on the factors (Brownlie 2021, eq. 4.29 to 4.31)."""
        coefficients = statistics.solve_regressions()
        noise = self.fit_noise(statistics.residual_squares(coefficients), statistics.present_weight).clamp(
            min=self.floor
        )
        mean, loadings = coefficients[:, -1], coefficients[:, :-1]
        if self.expand:
            mean, loadings = apply_parameter_expansion(coefficients, statistics.latent)
        return type(self)(mean, loadings, noise, self.floor, self.expand)

    def expected_log_likelihood(self, statistics: LinearStatistics) -> Tensor:
        """Expected complete-data log-likelihood, up to the prior of the factors."""
        coefficients = torch.cat([self.loadings, self.mean[:, None]], dim=1)
        residual = statistics.residual_squares(coefficients) / self.psi
        return -0.5 * (residual + statistics.present_weight * (self.psi.log() + LOG_2PI)).sum()

    def log_base(self, rows: Tensor) -> None:
        """None."""

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""
        return self.marginal().log_prob(rows)[0]

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row."""
        return self.e_step().posterior(rows)

    def moments(self) -> tuple[Tensor, forms.LowRank]:
        """Exact mean (d,) and covariance of a row."""
        return self.mean, forms.LowRank(self.loadings[None], self.psi[None])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows (n, d) with their factors (n, k)."""
        z = self.prior().draw(n, generator)[0]
        return self.emission(z).draw(1, generator)[:, 0], z

    def to_canonical_form(self) -> Self:
        r"""Rotated so that :math:`F^\top \Psi^{-1} F` is diagonal, largest first; signs fixed in units of the noise."""
        left, size, _ = torch.linalg.svd(self.loadings / self.psi.sqrt()[:, None], full_matrices=False)
        # Where noise is small, what rounding leaves would show in scores.
        rounding = len(left) * torch.finfo(size.dtype).eps * size.amax()
        size = torch.where(size > rounding, size, 0.0)
        loadings = self.psi.sqrt()[:, None] * left * size
        sign = torch.sign(left.gather(0, left.abs().argmax(0, keepdim=True)))
        sign = torch.where(sign == 0, 1.0, sign)
        return type(self)(self.mean, loadings * sign, self.noise, self.floor, self.expand)

    def is_floored(self) -> Tensor:
        """Which columns have a noise variance at the floor (Heywood cases), (d,)."""
        return self.noise <= self.floor * (1 + 1e-6)

    def free_parameters(self) -> dict[str, Tensor]:
        """Free parameters, any values of which are a model: mean, loadings, log-noise."""
        return {"mean": self.mean, "loadings": self.loadings, "log_noise": self.noise.log()}

    def with_free_parameters(self, free: Mapping[str, Tensor]) -> Self:
        """The model at other values of the free parameters."""
        return type(self)(free["mean"], free["loadings"], free["log_noise"].exp(), self.floor, self.expand)

    def identification_constraints(self) -> Tensor:
        r"""Off-diagonal entries of :math:`F^\top \Psi^{-1} F`: zero in the canonical rotation."""
        inner = self.loadings.mT @ (self.loadings / self.psi[:, None])
        i, j = torch.triu_indices(len(inner), len(inner), offset=1, device=inner.device)
        return inner[i, j]

    def named_parameters(self) -> dict[str, Tensor]:
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

    def fit_noise(self, residual: Tensor, present: Tensor) -> Tensor:
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

    def fit_noise(self, residual: Tensor, present: Tensor) -> Tensor:
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
