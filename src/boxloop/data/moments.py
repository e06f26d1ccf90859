r"""A mean and a covariance, seen as rows.

For a linear-Gaussian model every statistic is a function of the first two moments. So a covariance
:math:`S = C C^\top` and a count n are as good as the 2d weighted rows :math:`\bar x \pm \sqrt{d}\, c_i`, each of
weight n/(2d): they have mean :math:`\bar x` and covariance S. A model never knows which it was given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from boxloop.data.array import ArraySource
from boxloop.numeric import gram
from boxloop.tree import Tree
from boxloop.types import Source


def moment_source(
    mean: Tensor,
    covariance: Tensor,
    n_rows: float,
    names: tuple[str, ...] | None = None,
    slack: float = 1e-8,
) -> ArraySource:
    """Rows with exactly this mean and this covariance (divisor n).

    Args:
        mean: (d,).
        covariance: (d, d), symmetric positive semi-definite.
        n_rows: how many observations they summarise; the total weight of the result.
        names: column names.
        slack: largest negative eigenvalue, beside the largest of all, that passes for rounding.
    """
    values, vectors = torch.linalg.eigh(covariance)
    limit = values.abs().max().clamp(min=1e-300)
    if bool(values.min() < -slack * limit):
        raise ValueError(f"the covariance has a negative eigenvalue, {float(values.min()):.3g}")
    d = mean.shape[0]
    spread = (vectors * (values.clamp(min=0.0) * d).sqrt()).mT
    rows = torch.cat([mean + spread, mean - spread])
    weight = torch.full((2 * d,), float(n_rows) / (2 * d), dtype=rows.dtype, device=rows.device)
    return ArraySource(rows, weight, names)


def summarise_moments(source: Source) -> ArraySource:
    """One pass over complete rows; the same first and second moments as 2d rows."""
    from dataclasses import dataclass

    @dataclass(frozen=True)
    class Moments(Tree):
        weight: Tensor
        first: Tensor
        second: Tensor

    def moments(rows: Tensor, weight: Tensor) -> Moments:
        first = rows.mT @ weight.to(rows.dtype)
        return Moments(weight.sum(), first.double(), gram(rows, weight.to(rows.dtype)).double())

    m = source.reduce(moments)
    mean = m.first / m.weight
    covariance = m.second / m.weight - mean[:, None] * mean
    return moment_source(mean, covariance, float(m.weight), source.names, slack=torch.inf)
