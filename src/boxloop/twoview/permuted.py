r"""Correlations of rows whose partners are exchanged at random: what chance alone gives.

.. math:: t(\pi) = \frac{1}{1 - \rho(\pi)^2} \, \frac{\sum_n a_n b_{\pi(n)}}{\sqrt{\sum_n a_n^2 \, b_{\pi(n)}^2}},
    \qquad a_n = w_n (u_n - \bar u), \; b_n = v_n - \bar v

DiCiccio and Romano (2017), "Robust permutation tests for correlation and regression coefficients", JASA 112. Where u
and v are independent, the true order is as likely as any other to give the largest t; where they are merely
uncorrelated, the division by an estimate of the error makes that true for many rows. The first factor, with the
correlation :math:`\rho`, is 1 for unrelated views, and keeps strong correlations of few rows above all others: the
error of a correlation falls as it rises.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Generator, Tensor

Array = NDArray[np.float64]

DIRECT = 2048
"""Most rows whose orders are drawn one by one; of more rows all rotations are correlated by one Fourier transform."""

BLOCK = 1 << 22
"""Values that are exchanged at a time."""

TIE = 1e-9
"""Totals of normal scores as close as this differ by rounding."""


def exchanged(u: Tensor, v: Tensor, weight: Tensor, count: int, stream: Generator) -> Tensor:
    """Studentised covariances of u with v in its own order, then in ``count`` random ones.

    Args:
        u: (n, r).
        v: (n, r); all r are exchanged together.
        weight: (n,), positive; it stays with u.
        count: random orders.
        stream: of the orders, on the CPU.

    Returns:
        t, (1 + count, r); 0 where a variable is constant.

    Example:
        >>> import torch
        >>> x = torch.arange(6.0).double()[:, None]
        >>> t = exchanged(x, x, torch.ones(6).double(), 99, torch.Generator().manual_seed(0))
        >>> t.shape, bool((t[0] >= t).all())
        (torch.Size([100, 1]), True)
    """
    share = weight / weight.sum()
    u, b = u - share @ u, v - v.mean(0)  # a mean that no order changes: weights stay behind
    a = weight[:, None] * u
    own = torch.stack([(a * b).sum(0), (a * b).square().sum(0)])[:, None]
    drawn = rotated(a, b, count, stream) if len(a) > max(DIRECT, count) else reordered(a, b, count, stream)
    total, square = torch.cat([own, drawn], 1)
    size = square.clamp(min=0.0).sqrt()
    rho = total / ((a * u).sum(0) * (weight.sum() * b.square().mean(0))).sqrt().clamp(min=1e-300)
    rest = (1.0 - rho.square()).clamp(min=1e-12)
    floor = 1e-12 * (a.square().sum(0) * b.square().sum(0)).sqrt()  # what rounding leaves of a constant
    return torch.where(size > floor, total / (size * rest), 0.0)


def reordered(a: Tensor, b: Tensor, count: int, stream: Generator) -> Tensor:
    """Sums of a b and of their squares with b in random orders, (2, count, r)."""
    n, r = a.shape
    step = max(1, BLOCK // (n * r))
    found = []
    for start in range(0, count, step):
        size = (min(step, count - start), n)
        order = torch.rand(size, generator=stream, dtype=torch.float64).argsort(1).to(b.device)
        there, here = b.mT.contiguous()[:, order], a.mT[:, :, None]  # (r, count, n) and (r, n, 1)
        sums = torch.cat([torch.bmm(there, here), torch.bmm(there.square(), here.square())], 2)
        found.append(sums.permute(2, 1, 0))
    return torch.cat(found, 1)


def rotated(a: Tensor, b: Tensor, count: int, stream: Generator) -> Tensor:
    """The same after one random order of all rows, b then turned by ``count`` different steps.

    Rotations form a group, so that the test is as exact as with all orders, and one Fourier transform of each variable
    gives the sums of every rotation.
    """
    n = len(a)
    order = torch.randperm(n, generator=stream).to(a.device)
    turn = (1 + torch.randperm(n - 1, generator=stream)[:count]).to(a.device)
    found = []
    for j in range(a.shape[1]):
        x, y = a[order, j], b[order, j]
        both = torch.stack([x, x.square()]), torch.stack([y, y.square()])
        spectrum = torch.fft.rfft(both[0]).conj() * torch.fft.rfft(both[1])
        found.append(torch.fft.irfft(spectrum, n)[:, turn])
    return torch.stack(found, 2)


def combined(groups: Sequence[Tensor], size: Sequence[float]) -> Array:
    r"""P-values of groups of rows together.

    In each group the statistics become normal scores of their ranks, which add with weights
    :math:`\sqrt{\text{size}}` (Stouffer). Given all that was seen before a group, every order of its statistics was
    equally likely: so it is for the totals, and

    .. math:: p = \frac{1 + \#\{b : T_b \ge T_0\}}{1 + N}

    is uniform where nothing depends on anything.

    Args:
        groups: statistics of the rows as they are, then of N orders, (1 + N, r) each.
        size: weight of each group.

    Returns:
        (r,).

    Example:
        >>> import torch
        >>> combined([torch.tensor([[3.0], [1.0], [2.0], [0.0]])], [1.0])
        array([0.25])
    """
    total = np.zeros(tuple(groups[0].shape))
    for found, weight in zip(groups, size, strict=True):
        rank = stats.rankdata(found.cpu().numpy(), axis=0)
        total += weight**0.5 * stats.norm.ppf((rank - 0.5) / len(rank))
    beaten = (total[1:] >= total[0] - TIE * sum(size) ** 0.5).sum(0)
    return np.asarray((1.0 + beaten) / len(total))
