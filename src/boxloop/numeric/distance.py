"""Distances between Gaussian laws."""

from __future__ import annotations

import torch
from torch import Tensor


def relative_error(estimate: Tensor, truth: Tensor) -> float:
    r"""Frobenius norm of the difference over that of the truth (document 004, figure 5.1)."""
    return float((estimate - truth).norm() / truth.norm())


def wasserstein(
    covariance: Tensor, other: Tensor, mean: Tensor | None = None, other_mean: Tensor | None = None
) -> float:
    r"""2-Wasserstein distance between two Gaussians.

    .. math:: W_2^2 = |\mu - \nu|^2 + \mathrm{tr}\left(A + B - 2 (A^{1/2} B A^{1/2})^{1/2}\right)

    Args:
        covariance: A, (d, d).
        other: B, (d, d).
        mean: mu, (d,); left out together with ``other_mean`` when only covariances are compared.
        other_mean: nu, (d,).
    """
    values, vectors = torch.linalg.eigh(covariance)
    half = (vectors * values.clamp(min=0.0).sqrt()) @ vectors.mT
    inner = torch.linalg.eigvalsh(half @ other @ half).clamp(min=0.0).sqrt().sum()
    square = covariance.trace() + other.trace() - 2.0 * inner
    if mean is not None and other_mean is not None:
        square = square + (mean - other_mean).square().sum()
    return float(square.clamp(min=0.0).sqrt())
