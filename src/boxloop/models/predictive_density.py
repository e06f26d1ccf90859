r"""The predictive density of factor analysis under a normal-gamma law of its parameters.

.. math:: p(x) = \int N(z; 0, I) \prod_{j \text{ seen}} t_{2 a_j}\big(x_j; m_j^\top u, \tfrac{b_j}{a_j}
          (1 + u^\top V_j u)\big) \, dz, \qquad u = (z, 1)

by importance sampling from a Gaussian about the peak of the integrand of each row. Only the factors are integrated by
nodes, the columns in closed form: nothing depends on the order of the columns, and the integrand is nearly Gaussian.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from boxloop.models.evidence import score_points
from boxloop.models.factor_law import FactorLaw

NODES = 64
"""Sobol points at which the integrand of a row is evaluated."""

REWEIGHTED = 5
"""Rounds that find the peak: each weighs the columns by how far off they are, as Student's density does."""

TILE = 1 << 22
"""Most numbers in a tensor of one precision matrix per row."""


def predictive_density(law: FactorLaw, rows: Tensor) -> Tensor:
    """Logs of the predictive density of rows (n, d), NaN where missing, (n,).

    Example:
        >>> import torch
        >>> coefficients = torch.tensor([[1.0, 0.0], [1.0, 0.0]]).double()
        >>> many = torch.full((2,), 1e8).double()  # as good as known: two columns of variance 2, covariance 1
        >>> law = FactorLaw(coefficients, torch.zeros(1, 2, 2).double(), many, many)
        >>> predictive_density(law, torch.zeros(1, 2).double())  # -log(2 pi) - log(3) / 2
        tensor([-2.3872], dtype=torch.float64)
    """
    rows = rows.to(law.rate.dtype)
    k = law.loadings.shape[1]
    if k == 0:
        return _students(law, rows, ~torch.isnan(rows), rows.new_zeros(len(rows), 0))
    nodes = torch.special.ndtri(score_points(NODES, k).clamp(1e-12, 1.0 - 1e-12)).to(rows)
    size = max(1, TILE // max(k * k, rows.shape[1]))
    return torch.cat([_density(law, tile, nodes) for tile in rows.split(size)])


def _density(law: FactorLaw, rows: Tensor, nodes: Tensor) -> Tensor:
    seen = ~torch.isnan(rows)
    rows = torch.where(seen, rows, 0.0)
    z, factor = _peak(law, rows, seen.to(rows.dtype))
    level = factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
    values = []
    for node in nodes:
        step = node.expand(len(rows), -1)[..., None]
        at = z + torch.linalg.solve_triangular(factor.mT, step, upper=True)[..., 0]
        prior = 0.5 * (node.square().sum() - at.square().sum(1))
        values.append(_students(law, rows, seen, at) + prior)
    return torch.logsumexp(torch.stack(values), 0) - level - math.log(len(nodes))


def _students(law: FactorLaw, rows: Tensor, seen: Tensor, z: Tensor) -> Tensor:
    """Log-density of the values seen given the factors, (n,)."""
    centre, scale = law.given(z)
    half = law.shape + 0.5
    level = torch.lgamma(half) - torch.lgamma(law.shape) - 0.5 * (2.0 * math.pi * law.shape).log()
    away = torch.where(seen, rows - centre, 0.0)
    tail = half * torch.log1p(away.square() / (2.0 * law.shape * scale))
    return torch.where(seen, level - 0.5 * scale.log() - tail, 0.0).sum(1)


def _peak(law: FactorLaw, rows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Where the integrand of each row is highest (n, k), nearly, and Cholesky factors of its curvature (n, k, k)."""
    d, k = law.loadings.shape
    deviation = (rows - law.mean) * seen
    loadings = law.loadings
    outer = (loadings[:, :, None] * loadings[:, None]).reshape(d, k * k)
    spread = law.spread.expand(d, -1, -1)
    unsure, lean = spread[:, :k, :k].reshape(d, k * k), spread[:, :k, k]
    z = rows.new_zeros(len(rows), k)
    for _ in range(REWEIGHTED):
        centre, scale = law.given(z)
        degrees = 2.0 * law.shape
        weight = seen * (degrees + 1.0) / (degrees * scale + (rows - centre).square())
        # 1 + u'Vu in the scale lowers the density far from the middle: to first order as its logarithm does.
        bend = seen / (scale * law.noise_precision)
        inner = (weight @ outer + bend @ unsure).reshape(-1, k, k)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        factor = torch.linalg.cholesky(inner)
        score = (weight * deviation) @ loadings - bend @ lean
        z = torch.cholesky_solve(score[..., None], factor)[..., 0]
    return z, factor
