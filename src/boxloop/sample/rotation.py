r"""Factors have no axes of their own: draws of loadings are turned to common ones, and say so.

The likelihood and the prior of factor analysis do not change when factors are rotated. So the mean of loadings over
draws is near zero, whatever the rows say; only :math:`F F^\top`, communalities and noise can be averaged as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.numeric import varimax

ROUNDS = 100
TOLERANCE = 1e-8


@dataclass(frozen=True, eq=False)
class Alignment:
    """Loadings of all draws on common axes.

    Args:
        loadings: (c, n, d, k).
        kept: share of the draws' squared loadings that is left in the square of their mean: 1 where all draws agree.
        turned: share of the squared loadings that is left when draws are averaged as they are.

    Example:
        >>> import torch
        >>> one = torch.tensor([[1.0, 0.1], [0.9, 0.0], [0.0, 0.8]])
        >>> turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]])
        >>> found = align(torch.stack([one, one @ turn])[None])
        >>> round(found.kept, 3), round(found.turned, 3)
        (1.0, 0.5)
    """

    loadings: Tensor
    kept: float
    turned: float

    def __str__(self) -> str:
        return (
            "aligned: each draw's factors are turned towards a common mean (orthogonal Procrustes), whose axes are "
            f"those of varimax; {100 * self.kept:.0f}% of the squared loadings agree over draws, "
            f"{100 * self.turned:.0f}% before"
        )


def align(loadings: Tensor, pivot: int = 0, unit: Tensor | None = None) -> Alignment:
    r"""Turn every draw of loadings towards their mean, and that to varimax.

    .. math:: \min_{M, R_s} \sum_s \| F_s R_s - M \|^2, \qquad R_s R_s^\top = I

    In turn M is the mean of the turned draws, and :math:`R_s = U V^\top` with :math:`F_s^\top M = U D V^\top`
    (Gower 1975). In the end the mean is rotated by varimax, its factors ordered by size, their largest loading
    positive. A turn that brings draws together can make weak loadings look surer than they are.

    Args:
        loadings: of c chains of n draws, (c, n, d, k).
        pivot: the draw, counted through all chains, that is the first mean; one of high density.
        unit: of each column, (d,); loadings are compared in these.

    Returns:
        The turned loadings.
    """
    c, n, d, k = loadings.shape
    scale = loadings.new_ones(d) if unit is None else unit
    flat = (loadings / scale[:, None]).reshape(c * n, d, k)
    size = flat.square().sum((1, 2)).mean().clamp(min=1e-300)
    turned = float(flat.mean(0).square().sum() / size)
    centre, moved = flat[pivot], flat
    for _ in range(ROUNDS):
        left, _, right = torch.linalg.svd(flat.mT @ centre, full_matrices=False)
        moved = flat @ (left @ right)
        before, centre = centre, moved.mean(0)
        if float((centre - before).square().sum()) <= TOLERANCE**2 * float(size):
            break
    kept = float(centre.square().sum() / size)
    axes = varimax(centre)
    found = (moved @ axes) * scale[:, None]
    return Alignment(found.reshape(c, n, d, k), kept, turned)
