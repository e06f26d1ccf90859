"""Orthogonal rotations that make loadings easy to read."""

from __future__ import annotations

import torch
from torch import Tensor


def varimax(loadings: Tensor, power: float = 1.0, max_rounds: int = 500, tol: float = 1e-10) -> Tensor:
    r"""The rotation T that maximises the orthomax criterion of ``loadings @ T`` (Kaiser 1958).

    .. math:: \sum_{k} \left[ \sum_j l_{jk}^4 - \frac{\gamma}{d} \Big( \sum_j l_{jk}^2 \Big)^2 \right]

    Args:
        loadings: (d, k).
        power: gamma: 1 is varimax, 0 quartimax.
        max_rounds: most rounds of the fixed-point iteration on the polar factor.
        tol: stop when the criterion's bound rises by less, relatively.

    Returns:
        T, (k, k), orthogonal.
    """
    d, k = loadings.shape
    turn = torch.eye(k, dtype=loadings.dtype, device=loadings.device)
    last = 0.0
    for _ in range(max_rounds):
        turned = loadings @ turn
        slope = turned**3 - (power / d) * turned * turned.square().sum(0)
        left, size, right = torch.linalg.svd(loadings.mT @ slope)
        turn = left @ right
        level = float(size.sum())
        if level < last * (1 + tol):
            break
        last = level
    return turn
