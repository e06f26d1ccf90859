r"""Both terms of the moment penalty and their gradient, in as few products as there are.

.. math:: f = \|u\|_2 + \sqrt{\|G\|_F}, \qquad u = \bar x - \bar\mu, \qquad
   G = \frac{X^\top X}{n} - \frac{M^\top M}{m} - S,

.. math:: \frac{\partial f}{\partial M} = -\frac1m \left( \frac{\mathbf 1 u^\top}{\|u\|}
   + \frac{M G}{\|G\|_F^{3/2}} \right)

Two half products forward, one product backward: autograd over the parts would start three times as many kernels,
which on a GPU is all their time.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from boxloop.numeric import gram, product

TINY = 1e-12
"""Under the root of the second gap, whose slope is infinite at zero."""


def fused_gap(rows: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
    """f, for rows X (n, d), means M (m, d) of equal weight, and symmetric S, (d, d), or its diagonal (d,)."""
    function: Any = _Fused
    return cast(Tensor, function.apply(rows, mean, spread))


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, mean: Tensor, spread: Tensor) -> Tensor:
        first = rows.mean(0) - mean.mean(0)
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
            product(rows, steep * (2.0 / n)).add_(along, alpha=1.0 / n) if by_rows else None,
            product(mean, steep * (-2.0 / m)).add_(along, alpha=-1.0 / m) if by_mean else None,
            -steep.diagonal() if ctx.diagonal else -steep,
        )


def _difference(rows: Tensor, mean: Tensor) -> Tensor:
    if rows.device.type == "cpu":
        return (gram(rows) / len(rows)).sub_(gram(mean), alpha=1.0 / len(mean))
    data = rows.mT @ rows
    return torch.addmm(data, mean.mT, mean, beta=1.0 / len(rows), alpha=-1.0 / len(mean))
