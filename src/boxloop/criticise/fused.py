r"""Both terms of the moment penalty and their gradient, in as few products as there are.

.. math:: f = \|u\|_2 + \sqrt{\|G\|_F}, \qquad u = \bar x - \bar\mu, \qquad
   G = \frac{X^\top X}{n} - \frac{M^\top M}{m} - S,

.. math:: \frac{\partial f}{\partial M} = -\frac1m \left( \frac{\mathbf 1 u^\top}{\|u\|}
   + \frac{M G}{\|G\|_F^{3/2}} \right)

Two half products forward, one product backward: autograd over the parts would start three times as many kernels,
which on a GPU is all their time. Nothing here waits for the device, so a trainer's step that holds it can be captured
in a CUDA graph.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxloop.numeric import column_means, gram, product

TINY = 1e-12
"""Under the root of the second gap, whose slope is infinite at zero."""


def fused_gap(rows: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """f, for rows X (n, d), means M (m, d) of equal weight, and symmetric S, (d, d), or its diagonal (d,)."""
    function: Any = _Fused
    return cast(Tensor, function.apply(rows, mean, spread))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        first = column_means(rows) - column_means(mean)
        second = _difference(rows, mean)
        (second.diagonal() if spread.dim() == 1 else second).sub_(spread)
        near, far = torch.linalg.vector_norm(first), torch.linalg.vector_norm(second)
        root = (far + TINY).sqrt()
        ctx.save_for_backward(rows, mean, first, second, near, far, root)
        ctx.diagonal = spread.dim() == 1
        return near + root

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        rows, mean, first, second, near, far, root = ctx.saved_tensors
        along = first * (slope / near.clamp(min=torch.finfo(near.dtype).tiny))
        steep = second * (slope / (2.0 * root * far.clamp(min=torch.finfo(far.dtype).tiny)))
        by_rows, by_mean, _ = ctx.needs_input_grad
        n, m = len(rows), len(mean)
        return (
            _plane(along * (1.0 / n), rows, steep, 2.0 / n) if by_rows else None,
            _plane(along * (-1.0 / m), mean, steep, -2.0 / m) if by_mean else None,
            -steep.diagonal() if ctx.diagonal else -steep,
        )


def _plane(height: Tensor, left: Tensor, right: Tensor, slope: float) -> Tensor:
    """``height + slope * left @ right``; a GPU adds inside a float32 product for free, in float64 at a cost."""
    if left.device.type == "cuda" and left.dtype == torch.float32:
        return torch.addmm(height, left, right, alpha=slope)
    return product(left, right * slope).add_(height)


def _difference(rows: Tensor, mean: Tensor) -> Tensor:
    if rows.device.type == "cpu":
        return (gram(rows) / len(rows)).sub_(gram(mean), alpha=1.0 / len(mean))
    result = rows.mT @ rows
    half = len(result) // 2
    for some, on in ((slice(half), slice(None)), (slice(half, None), slice(half, None))):
        left, right = mean[:, some].mT, mean[:, on]
        result[some, on].addmm_(left, right, beta=1.0 / len(rows), alpha=-1.0 / len(mean))
    result[half:, :half] = result[:half, half:].mT
    return result
