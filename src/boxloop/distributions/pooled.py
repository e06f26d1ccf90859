"""What conjugate laws of Gaussian means share."""

from __future__ import annotations

from torch import Tensor


def pooled_mean(mean: Tensor, strength: Tensor, count: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Strength and mean of the posterior of means, from the weight and the sum of rows."""
    pooled = strength + count
    return pooled, (strength[..., None] * mean + first) / pooled[..., None]


def mean_divergence(strength: Tensor, prior: Tensor, d: int, apart: Tensor) -> Tensor:
    r"""Expected divergence of :math:`N(m, \Sigma / \kappa)` from :math:`N(m_0, \Sigma / \kappa_0)`, (k,).

    .. math:: \tfrac12 \left( d \left( \frac{\kappa_0}{\kappa} - 1 - \log \frac{\kappa_0}{\kappa} \right)
              + \kappa_0 E[(m - m_0)^\top \Sigma^{-1} (m - m_0)] \right)

    Args:
        strength: kappa, (k,).
        prior: kappa_0, (k,) or (1,).
        d: columns.
        apart: the expected square, (k,).
    """
    ratio = prior / strength
    return 0.5 * (d * (ratio - 1.0 - ratio.log()) + prior * apart)


def outer(rows: Tensor) -> Tensor:
    """(..., d) -> (..., d, d)."""
    return rows[..., :, None] * rows[..., None, :]
