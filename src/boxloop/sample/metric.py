"""The shape of a proposal: which directions are long. A factor F with covariance F F' of the target."""

from __future__ import annotations

import torch
from torch import Tensor

Metric = Tensor | None
"""None for the identity, (d,) for scales of the columns, (d, d) for a lower triangular factor."""


LEAST = 1e-12
"""Variance of a column that never moved, in units of the largest."""


def stretch(metric: Metric, rows: Tensor) -> Tensor:
    """F times each row, (..., d)."""
    if metric is None:
        return rows
    return rows * metric if metric.dim() == 1 else rows @ metric.mT


def shifted(metric: Metric, base: Tensor, rows: Tensor, factor: float) -> Tensor:
    """``base + factor * F rows``, in one operation where there is one."""
    if metric is None:
        return torch.add(base, rows, alpha=factor)
    if metric.dim() == 1:
        return torch.addcmul(base, rows, metric, value=factor)
    return torch.addmm(base, rows, metric.mT, alpha=factor)


def pull(metric: Metric, slopes: Tensor) -> Tensor:
    """F' times each row: a gradient in stretched coordinates."""
    if metric is None:
        return slopes
    return slopes * metric if metric.dim() == 1 else slopes @ metric


def check_metric(metric: Metric) -> None:
    """Refuse what is no factor of a covariance."""
    if metric is None:
        return
    if not isinstance(metric, Tensor) or metric.dim() not in (1, 2) or metric.shape[0] != metric.shape[-1]:
        raise ValueError(
            "a metric is a tensor: a vector of positive scales or a lower triangular factor of a covariance"
        )
    diagonal = metric if metric.dim() == 1 else metric.diagonal()
    if not bool((diagonal > 0).all()) or not bool(torch.isfinite(metric).all()):
        raise ValueError(
            "a metric must have positive scales or a positive diagonal, and finite numbers throughout"
        )
    if metric.dim() == 2 and bool(metric.triu(1).any()):
        raise ValueError("a metric must be lower triangular: pass torch.linalg.cholesky(covariance)")


def make_factor(covariance: Tensor, seen: int) -> Tensor | None:
    """A metric from a covariance; few positions draw it towards a diagonal, and none is made of constant ones."""
    variance = covariance if covariance.dim() == 1 else covariance.diagonal()
    if not bool(torch.isfinite(covariance).all()) or not bool((variance > 0).any()):
        return None
    scale = torch.where(variance > 0, variance, LEAST * variance.max()).sqrt()
    if covariance.dim() == 1:
        return scale
    shape = covariance / (scale[:, None] * scale) * (seen / (seen + 2.0 * len(scale)))
    shape.diagonal().fill_(1.0)
    # By rows, as it comes back from a checkpoint: products with another layout differ in their last digit.
    return (scale[:, None] * torch.linalg.cholesky(shape)).contiguous()


def narrowest_width(factor: Tensor, metric: Tensor) -> float:
    """Least standard deviation, over directions, of a covariance F F' with ``factor`` F, in units of the metric."""
    if factor.dim() == 1:
        return float((factor / metric).min())
    return float(torch.linalg.svdvals(torch.linalg.solve_triangular(metric, factor, upper=False))[-1])
