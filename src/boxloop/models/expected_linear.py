r"""The E step of linear-Gaussian models whose coefficients have a law, not a value.

With :math:`x_j = f_j^\top u + \epsilon_j`, u = (z, 1), and a normal-gamma law of coefficients and noise precision,
:math:`E[\tau_j f_j f_j^\top] = \bar\tau_j m_j m_j^\top + V_j`, the law of the factors of row i is normal with

.. math:: K_i = I + \sum_{j \text{ seen}} (\bar\tau_j m_j m_j^\top + V_j)_{zz}, \qquad
          K_i E[z_i] = h_i = \sum_{j \text{ seen}} \bar\tau_j (x_{ij} - m_{jc}) m_{jz} - (V_j)_{zc}

and the row adds to the evidence bound

.. math:: \log \int e^{E[\log p(x_i, z)]} dz = \tfrac12 \sum_{j \text{ seen}} \left( E[\log \tau_j] - \log 2\pi
          - \bar\tau_j (x_{ij} - m_{jc})^2 - (V_j)_{cc} \right) + \tfrac12 h_i^\top K_i^{-1} h_i - \tfrac12 \log |K_i|.

Complete rows share one K; a row with missing values has its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.distributions import columns_of, has_missing
from boxloop.models.linear import LOG_2PI, LinearStatistics, complete_statistics
from boxloop.numeric import product
from boxloop.tree import Tree
from boxloop.types import Expected


@dataclass(frozen=True)
class ExpectedLinear(Tree):
    """What the law of the factors needs to know of the coefficients.

    Args:
        coefficients: m, loadings and last the mean, (d, k + 1).
        spread: V, (d, k + 1, k + 1), or (1, ...) where all columns share it.
        precision: expected noise precisions, (d,).
        log_precision: their expected logarithms, (d,).
    """

    coefficients: Tensor
    spread: Tensor
    precision: Tensor
    log_precision: Tensor

    @property
    def _scaled(self) -> Tensor:
        """Loadings times precisions, (d, k)."""
        return self.coefficients[:, :-1] * self.precision[:, None]

    def _total(self) -> Tensor:
        """The sum of V over all columns, (k + 1, k + 1)."""
        total: Tensor = self.spread.sum(0) * (len(self.precision) / len(self.spread))
        return total

    def _complete_factor(self) -> Tensor:
        """Cholesky factor of K of a complete row, (k, k)."""
        k = self.coefficients.shape[1] - 1
        inner = self._scaled.mT @ self.coefficients[:, :k] + self._total()[:k, :k]
        inner.diagonal().add_(1.0)
        return torch.linalg.cholesky(inner)

    def _seen_factor(self, seen: Tensor) -> Tensor:
        """Cholesky factors of K of every row, (n, k, k)."""
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        outer = self._scaled[:, :, None] * self.coefficients[:, None, :k] + self.spread[:, :k, :k]
        inner = (seen @ outer.reshape(d, k * k)).reshape(-1, k, k)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return torch.linalg.cholesky(inner)

    def _score(self, deviation: Tensor, seen: Tensor) -> Tensor:
        """h of every row, (n, k)."""
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        return deviation @ self._scaled - seen @ self.spread[:, :k, k].expand(d, k)

    def _deviation(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rows less their means, zero where missing, and which values are there, both (n, d)."""
        rows = rows.to(self.precision.dtype)
        seen = ~torch.isnan(rows)
        return torch.where(seen, rows - self.coefficients[:, -1], 0.0), seen.to(rows.dtype)

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row, missing values left out."""
        deviation, seen = self._deviation(rows)
        score = self._score(deviation, seen)
        if bool((seen > 0).all()):
            factor = self._complete_factor()
            z = torch.cholesky_solve(score.mT, factor).mT
            return z, torch.cholesky_inverse(factor).expand(len(z), -1, -1)
        factor = self._seen_factor(seen)
        return torch.cholesky_solve(score[..., None], factor)[..., 0], torch.cholesky_inverse(factor)

    def expect(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        """Statistics of a tile of rows (n, d), and what they add to the bound."""
        columns = columns_of(rows)
        return self._gappy(rows, weight) if has_missing(columns) else self._complete(columns, weight)

    def _complete(self, columns: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        low, k = columns.dtype, self.coefficients.shape[1] - 1
        mean, scaled, spread = self.coefficients[:, k], self._scaled.mT, self._total()
        factor = self._complete_factor()
        score = product(scaled.to(low), columns) - (scaled @ mean + spread[:k, k])[:, None].to(low)
        statistics, explained = complete_statistics(columns, weight, factor, score)
        total = weight.sum()
        apart = self.precision @ statistics.spread(mean, total)
        level = (self.log_precision - LOG_2PI).sum() - spread[k, k] - 2.0 * factor.diagonal().log().sum()
        return Expected(statistics, 0.5 * (total * level - apart + explained), total)

    def _gappy(self, rows: Tensor, weight: Tensor) -> Expected[LinearStatistics]:
        deviation, seen = self._deviation(rows)
        d, k = len(self.precision), self.coefficients.shape[1] - 1
        factor = self._seen_factor(seen)
        half = torch.linalg.solve_triangular(factor, self._score(deviation, seen)[..., None], upper=False)
        z = torch.linalg.solve_triangular(factor.mT, half, upper=True)[..., 0]
        u = torch.cat([z, z.new_ones(len(z), 1)], dim=1)
        inner = u[:, :, None] * u[:, None, :]
        inner[:, :k, :k] += torch.cholesky_inverse(factor)
        inner = (inner * weight[:, None, None]).reshape(len(z), -1)
        absent = ((1.0 - seen).mT @ inner).reshape(d, k + 1, k + 1)
        filled = torch.nan_to_num(rows.to(seen.dtype), nan=0.0)
        heavy = filled * weight[:, None]
        level = seen @ (self.log_precision - LOG_2PI - self.spread[:, k, k])
        log_det = 2.0 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
        value = 0.5 * (level - deviation.square() @ self.precision - log_det + half.square().sum((1, 2)))
        latent = inner.sum(0).reshape(k + 1, k + 1)
        statistics = LinearStatistics((heavy * filled).sum(0), heavy.mT @ u, latent, absent)
        return Expected(statistics, value @ weight, weight.sum())
