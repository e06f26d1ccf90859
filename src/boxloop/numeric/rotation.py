"""Orthogonal rotations that make loadings easy to read."""

from __future__ import annotations

import torch
from torch import Tensor


def varimax(loadings: Tensor, power: float = 1.0, max_iter: int = 500, tol: float = 1e-10) -> Tensor:
    r"""The rotation T that maximises the orthomax criterion of ``loadings @ T`` (Kaiser 1958).

    .. math:: \sum_{k} \left[ \sum_j l_{jk}^4 - \frac{\gamma}{d} \Big( \sum_j l_{jk}^2 \Big)^2 \right]

    Args:
        loadings: (d, k).
        power: gamma: 1 is varimax, 0 quartimax.
        max_iter: most iterations of the fixed-point iteration on the polar factor.
        tol: stop when no entry of T moves by more.

    Returns:
        T, (k, k), orthogonal; columns of ``loadings @ T`` are in order of their length, their largest entries
        positive.
    """
    d, k = loadings.shape
    turn = torch.eye(k, dtype=loadings.dtype, device=loadings.device)
    for _ in range(max_iter):
        turned = loadings @ turn
        slope = turned**3 - (power / d) * turned * turned.square().sum(0)
        left, _, right = torch.linalg.svd(loadings.mT @ slope)
        turn, last = left @ right, turn
        if float((turn - last).abs().max()) < tol:
            break
    turned = loadings @ turn
    sign = torch.sign(turned.gather(0, turned.abs().argmax(0, keepdim=True)))
    order = torch.argsort(turned.square().sum(0), descending=True, stable=True)
    return (turn * torch.where(sign == 0, 1.0, sign))[:, order]
