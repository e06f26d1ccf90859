r"""Gaussian rows with missing values, grouped by which values are missing.

For a pattern with observed columns o and missing ones m, the missing values have conditional mean
:math:`\mu_m + \Sigma_{mo} \Sigma_{oo}^{-1} (x_o - \mu_o)` and covariance
:math:`\Sigma_{mm} - \Sigma_{mo} \Sigma_{oo}^{-1} \Sigma_{om}`. Both enter the expected statistics exactly (Little and
Rubin, chapter 11).

Patterns are solved many at a time. With D the diagonal matrix of the columns seen, :math:`A = D \Sigma D + (I - D)`
has the same size for every pattern, the determinant of :math:`\Sigma_{oo}`, and its inverse where columns are seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from boxloop.distributions.family import Sums
from boxloop.numeric import pack, safe_cholesky

BATCH_VALUES = 1 << 20
"""Values of the matrices that are factored at once: a thousand patterns of ten columns and ten members."""


@dataclass(frozen=True)
class _PatternBatch:
    """p patterns with at most r rows each."""

    index: Tensor  # the rows of each, (p, r); short ones repeat their last row
    real: Tensor  # which of these are no repetitions, (p, r)
    seen: Tensor  # the columns observed, (p, d)


def find_missing_patterns(missing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Distinct rows of a mask (n, d) in order, which of them each row is, and how often each occurs."""
    d = missing.shape[1]
    if d > 62:
        return torch.unique(missing, dim=0, return_inverse=True, return_counts=True)
    # Read as whole numbers, which are sorted many times faster than rows.
    place = 2 ** torch.arange(d - 1, -1, -1, device=missing.device)
    code, member, count = torch.unique((missing * place).sum(1), return_inverse=True, return_counts=True)
    return (code[:, None] & place) > 0, member, count


def _batch_patterns(rows: Tensor, members: int) -> Iterator[_PatternBatch]:
    """Rows (n, d) by pattern; patterns of about as many rows together, complete rows apart."""
    missing, member, count = find_missing_patterns(torch.isnan(rows))
    order, start = torch.argsort(member, stable=True), count.cumsum(0) - count
    bucket = (2 * count - 1).double().log2().floor()
    bucket[~missing.any(1)] = -1.0
    d = rows.shape[1]
    for size in torch.unique(bucket).tolist():
        chosen = torch.nonzero(bucket == size)[:, 0]
        longest = int(count[chosen].max())
        for part in chosen.split(max(1, BATCH_VALUES // (members * d * max(d, longest)))):
            step = torch.arange(longest, device=rows.device)
            last = count[part][:, None] - 1
            index = order[start[part][:, None] + torch.minimum(step, last)]
            yield _PatternBatch(index, step <= last, ~missing[part])


class PatternView:
    """A tile (d, n) with missing values under k Gaussians; covariances (k, d, d), or (1, d, d) where members share
    one."""

    def __init__(self, mean: Tensor, covariance: Tensor, columns: Tensor) -> None:
        self.mean = mean
        self.covariance = covariance
        self.rows: Tensor = columns.mT.to(mean.dtype)
        self.batches: list[_PatternBatch] = list(_batch_patterns(self.rows, mean.shape[0]))
        self._factors: dict[int, tuple[Tensor, Tensor]] = {}

    def _whiten_batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Cholesky factors L of A, (p, k, d, d), and L^-1 D (x - mean), (p, k, d, r), of a batch."""
        if number in self._factors:
            return self._factors[number]
        batch = self.batches[number]
        seen = batch.seen[:, None].to(self.mean.dtype)
        matrix = self.covariance * seen[..., :, None] * seen[..., None, :] + torch.diag_embed(1.0 - seen)
        factor = safe_cholesky(matrix, "the covariance of component")
        apart = self.rows[batch.index].mT[:, None] - self.mean[:, :, None]
        apart = torch.where(batch.seen[:, None, :, None], apart, 0.0)
        y = torch.linalg.solve_triangular(factor, apart, upper=False)
        # Kept for the second product of an iteration, unless larger than what was made from the rows.
        if factor.numel() <= y.numel():
            self._factors[number] = factor, y
        return factor, y

    def _conditional_covariance(self, batch: _PatternBatch, factor: Tensor) -> Tensor:
        """Covariance of the missing values given those present, zero elsewhere, (p, k, d, d)."""
        seen = batch.seen[:, None]
        half = torch.linalg.solve_triangular(factor, self.covariance * seen[..., None], upper=False)
        covariance = self.covariance - half.mT @ half
        return torch.where(seen[..., :, None] | seen[..., None, :], 0.0, covariance)

    def log_joint(self, offset: Tensor) -> Tensor:
        """``offset`` + log-density of the values present, (k, n)."""
        density = self.mean.new_empty(self.mean.shape[0], self.rows.shape[0])
        for number, batch in enumerate(self.batches):
            factor, y = self._whiten_batch(number)
            level = batch.seen.sum(1, dtype=y.dtype) * (0.5 * math.log(2 * math.pi))
            level = level[:, None] + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
            value = -0.5 * y.square().sum(2) - level[..., None]
            density[:, batch.index[batch.real]] = value.movedim(1, 0)[:, batch.real]
        return density + offset[:, None]

    def summarise(self, share: Tensor) -> Sums:
        """Expected (1, x, x_i x_j) given the values present, weighted by ``share``."""
        k, d = self.mean.shape
        share = share.to(self.mean.dtype)
        first, second = share.new_zeros(k, d), share.new_zeros(k, d, d)
        for number, batch in enumerate(self.batches):
            weight = share[:, batch.index] * batch.real
            filled = self.rows[batch.index].mT[:, None]
            if not bool(batch.seen.all()):
                factor, y = self._whiten_batch(number)
                slope = torch.linalg.solve_triangular(factor.mT, y, upper=True)
                guess = self.mean[:, :, None] + self.covariance @ slope
                filled = torch.where(batch.seen[:, None, :, None], filled, guess)
                second += (
                    weight.sum(2).mT[..., None, None] * self._conditional_covariance(batch, factor)
                ).sum(0)
            flat = filled.movedim(1, 0).mT.reshape(filled.shape[1], -1, d)
            weighted = flat * weight.reshape(k, -1, 1)
            first += weighted.sum(1)
            second += weighted.mT @ flat
        return Sums(torch.cat([share.sum(1, keepdim=True), first, pack(second)], dim=1))
