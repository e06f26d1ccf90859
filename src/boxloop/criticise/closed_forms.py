"""Expectations in closed form: under Gaussians of any covariance, and of powers of counts."""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from boxloop.distributions import (
    Bernoulli,
    DiagonalGaussian,
    FullGaussian,
    LogitBernoulli,
    LogPoisson,
    LowRankGaussian,
    Poisson,
    SphericalGaussian,
    TiedGaussian,
    TiedLowRankGaussian,
)
from boxloop.numeric import covariance as forms
from boxloop.types import Covariance, Distribution

GAUSSIAN = (
    FullGaussian,
    TiedGaussian,
    DiagonalGaussian,
    SphericalGaussian,
    LowRankGaussian,
    TiedLowRankGaussian,
)
BINARY, COUNTS = (Bernoulli, LogitBernoulli), (Poisson, LogPoisson)


def projected_variance(covariance: Covariance, directions: Tensor) -> Tensor:
    """Variance of the projections on (p, d) directions under each of m distributions, (m, p)."""
    if isinstance(covariance, forms.Shared):
        return projected_variance(covariance.one, directions).expand(covariance.members, -1)
    if isinstance(covariance, forms.Diagonal):
        return covariance.variance @ directions.square().mT
    if isinstance(covariance, forms.LowRank):
        along = torch.einsum("pd,mdk->mpk", directions, covariance.loadings)
        return along.square().sum(-1) + covariance.noise @ directions.square().mT
    return torch.einsum("pi,mij,pj->mp", directions, covariance.dense(), directions)


def average_covariance(covariance: Covariance, weight: Tensor) -> Tensor:
    """Weighted sum of m covariances as one matrix (d, d), never (m, d, d) unless they are stored so."""
    if isinstance(covariance, forms.Shared):
        return average_covariance(covariance.one, weight.sum()[None])
    if isinstance(covariance, forms.Diagonal):
        return torch.diag(weight @ covariance.variance)
    if isinstance(covariance, forms.LowRank):
        m, d, k = covariance.loadings.shape
        wide = (covariance.loadings * weight[:, None, None]).permute(1, 0, 2).reshape(d, m * k)
        low = wide @ covariance.loadings.permute(1, 0, 2).reshape(d, m * k).mT
        return low + torch.diag(weight @ covariance.noise)
    return torch.einsum("m,mij->ij", weight, covariance.dense())


def normal_moment(mean: Tensor, variance: Tensor, order: int) -> Tensor:
    """E[y^order] of normal variables, by E[y^r] = mean E[y^(r-1)] + (r - 1) variance E[y^(r-2)]."""
    previous, current = torch.ones_like(mean), mean
    for r in range(2, order + 1):
        previous, current = current, mean * current + (r - 1) * variance * previous
    return current


def count_moment(distribution: Distribution, origin: Tensor, order: int) -> Tensor | None:
    r"""E[(x - origin)^order] of every column of independent counts, (m, d); None for other distributions.

    Poisson moments about zero are Touchard's polynomials, :math:`T_{r+1} = \lambda \sum_k \binom{r}{k} T_k`.
    """
    if isinstance(distribution, BINARY):
        return (1.0 - distribution.mean) * (-origin) ** order + distribution.mean * (1.0 - origin) ** order
    if not isinstance(distribution, COUNTS):
        return None
    raw = [torch.ones_like(distribution.mean)]
    for r in range(order):
        raw.append(distribution.mean * torch.stack([comb(r, k) * raw[k] for k in range(r + 1)]).sum(0))
    parts = [comb(order, r) * raw[r] * (-origin) ** (order - r) for r in range(order + 1)]
    return torch.stack(parts).sum(0)


def count_cdf(distribution: Distribution, places: Tensor, thresholds: Tensor) -> Tensor | None:
    """P(x <= threshold) of these columns of independent counts, (m, p); None for other distributions."""
    at, mean = thresholds.floor(), distribution.mean[:, places]
    if isinstance(distribution, BINARY):
        return torch.where(at < 0.0, 0.0, torch.where(at < 1.0, 1.0 - mean, 1.0))
    if not isinstance(distribution, COUNTS):
        return None
    upper = torch.special.gammaincc((at + 1.0).clamp(min=1.0).expand_as(mean), mean)
    return torch.where(at < 0.0, 0.0, upper)
