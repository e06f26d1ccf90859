"""The metric of a proposal: a factor F such that F F' approximates the covariance of the target."""

from __future__ import annotations

import torch
from torch import Tensor

Metric = Tensor | None
"""None for the identity, (d,) for scales of the columns, (d, d) for a lower triangular factor."""


LEAST_VARIANCE = 1e-12
"""Variance given to a column that never moved, in units of the largest."""


def apply_metric(metric: Metric, rows: Tensor) -> Tensor:
    """F times each row, (..., d)."""
    if metric is None:
        return rows
    return rows * metric if metric.dim() == 1 else rows @ metric.mT


def add_scaled(metric: Metric, base: Tensor, rows: Tensor, factor: float) -> Tensor:
    """``base + factor * F rows``, in one operation if possible."""
    if metric is None:
        return torch.add(base, rows, alpha=factor)
    if metric.dim() == 1:
        return torch.addcmul(base, rows, metric, value=factor)
    return torch.addmm(base, rows, metric.mT, alpha=factor)


def apply_metric_transpose(metric: Metric, gradients: Tensor) -> Tensor:
    """F' times each row: gradients in the coordinates of the metric."""
    if metric is None:
        return gradients
    return gradients * metric if metric.dim() == 1 else gradients @ metric


def check_metric(metric: Metric) -> None:
    """Refuse anything but a factor of a covariance."""
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


def make_factor(covariance: Tensor, count: int) -> Tensor | None:
    """A metric from the covariance of ``count`` positions, shrunk if they are few; None if all are equal."""
    variance = covariance if covariance.dim() == 1 else covariance.diagonal()
    if not bool(torch.isfinite(covariance).all()) or not bool((variance > 0).any()):
        return None
    scale = torch.where(variance > 0, variance, LEAST_VARIANCE * variance.max()).sqrt()
    if covariance.dim() == 1:
        return scale
    correlation = covariance / (scale[:, None] * scale) * (count / (count + 2.0 * len(scale)))
    correlation.diagonal().fill_(1.0)
    # Row-major, as read from a checkpoint: products with another layout differ in their last digit.
    return (scale[:, None] * torch.linalg.cholesky(correlation)).contiguous()


def narrowest_width(factor: Tensor, metric: Tensor) -> float:
    """Smallest standard deviation over directions, in units of the metric, of a covariance with this factor."""
    if factor.dim() == 1:
        return float((factor / metric).min())
    return float(torch.linalg.svdvals(torch.linalg.solve_triangular(metric, factor, upper=False))[-1])
