"""The shape of a proposal: which directions are long. A factor F with covariance F F' of the target."""

from __future__ import annotations

import torch
from torch import Tensor

Metric = Tensor | None
"""None for the identity, (d,) for scales of the columns, (d, d) for a lower triangular factor."""


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
