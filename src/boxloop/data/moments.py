r"""A mean and a covariance as a source of rows.

For a linear-Gaussian model every statistic is a function of the first two moments. So a covariance
:math:`S = C C^\top` and a count n are as good as d + 1 weighted rows, the corners of a simplex
:math:`\bar x + \sqrt{d + 1}\, [0, C]\, h_i`, each of weight n/(d + 1), where :math:`h_i` are the columns of the
reflection that takes the first axis to the diagonal: they have mean :math:`\bar x` and covariance S. A model never
knows which it was given.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.data.fingerprint import hash_tile, hash_to_text
from boxloop.data.source import ArraySource
from boxloop.data.standardise import FIRST_ROWS, Standardisation, make_standardisation
from boxloop.numeric import mirrored, product, upper_gram
from boxloop.tree import Tree
from boxloop.types import Source

MOMENT_COLUMNS = 4096
"""Widest table whose second moments are worth a d x d matrix."""

RANGE = 1e60
"""Standard deviations between this and its inverse have squares, and sums of squares, that float64 can hold."""


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
        slack: largest negative eigenvalue, relative to the largest of all, that counts as rounding error.
    """
    n = mean.shape[0] + 1
    root, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        root = _semidefinite_root(covariance, slack)
    simplex = torch.cat([mean.new_zeros(n - 1, 1), root * n**0.5], dim=1)
    axis = mean.new_full((n,), n**-0.5)
    axis[0] -= 1.0
    reflection = (simplex @ axis)[:, None] * axis * (2.0 / axis.dot(axis))
    rows = (simplex - reflection + mean[:, None]).mT  # columns-major, as models read them
    weight = torch.full((n,), float(n_rows) / n, dtype=rows.dtype, device=rows.device)
    return ArraySource(rows, weight, names)


def _semidefinite_root(covariance: Tensor, slack: float) -> Tensor:
    values, vectors = torch.linalg.eigh(covariance)
    limit = values.abs().max().clamp(min=1e-300)
    if bool(values.min() < -slack * limit):
        raise ValueError(f"the covariance has a negative eigenvalue, {float(values.min()):.3g}")
    return vectors * values.clamp(min=0.0).sqrt()


@dataclass(frozen=True)
class MomentSummary:
    """First and second moments of complete rows, about a rough origin and in rough units."""

    origin: Tensor  # what the moments are about, (d,)
    scale: Tensor  # their units, (d,)
    mean: Tensor  # (d,), in these coordinates
    covariance: Tensor  # (d, d), in these coordinates
    weight: float  # of all rows
    names: tuple[str, ...]
    digest: str | None = None  # of the rows

    @property
    def frame(self) -> Standardisation:
        """The frame that :func:`boxloop.data.survey` would find."""
        deviation = self.scale * self.covariance.diagonal().clamp(min=0.0).sqrt()
        present = torch.full_like(deviation, self.weight)
        mean = self.origin + self.scale * self.mean
        frame = make_standardisation(mean, deviation, present, self.weight, missing=False)
        return replace(frame, digest=self.digest)

    def rows(self, origin: Tensor | float = 0.0, scale: Tensor | float = 1.0) -> ArraySource:
        """d + 1 rows with these moments, as ``(x - origin) / scale``."""
        unit = self.scale / scale
        mean = (self.origin - origin) / scale + unit * self.mean
        covariance = unit[:, None] * self.covariance * unit
        return moment_source(mean, covariance, self.weight, self.names, slack=torch.inf)


@dataclass(frozen=True)
class _Moments(Tree):
    weight: Tensor
    first: Tensor
    second: Tensor
    word: Tensor


def summarise_moments(source: Source, dtype: torch.dtype = torch.float64) -> MomentSummary | None:
    """One pass over the rows; None if a value is missing, or a d x d matrix would be too wide.

    The pass runs about the mean of the first rows, in units of their standard deviations. The mean of all n rows is
    within sqrt(n / first rows) standard deviations of that, so no digits are lost. In float64 the units are left out
    unless squares would leave its range.

    Args:
        source: rows.
        dtype: of the products; sums over tiles are in float64.
    """
    if source.n_columns > MOMENT_COLUMNS:
        return None
    rough = _moments_of_first_rows(source)
    if rough is None:
        return None
    origin, scale = rough
    unscaled = dtype == torch.float64 and bool(((scale > 1.0 / RANGE) & (scale < RANGE)).all())
    scale = torch.ones_like(scale) if unscaled else scale
    buffer = origin[:0]  # kept, as fresh pages for every tile would cost a tenth of the pass

    def moments(rows: Tensor, weight: Tensor) -> _Moments:
        nonlocal buffer
        word = hash_tile(rows, weight)
        if buffer.numel() < rows.numel():
            buffer = origin.new_empty(rows.numel())  # anew: what BLAS has seen cannot be resized
        centred = torch.sub(rows, origin, out=buffer[: rows.numel()].view(rows.shape))
        low = (centred if unscaled else centred.div_(scale)).to(dtype)
        second = upper_gram(low, weight.to(dtype)).double()  # first: it leaves the tile in cache
        return _Moments(weight.sum(), product(weight[None], centred)[0], second, word)

    m = source.reduce(moments)
    if bool(torch.isnan(m.first).any()):
        return None
    mean = m.first / m.weight
    covariance = mirrored(m.second) / m.weight - mean[:, None] * mean
    return MomentSummary(origin, scale, mean, covariance, float(m.weight), source.names, hash_to_text(m.word))


def _moments_of_first_rows(source: Source) -> tuple[Tensor, Tensor] | None:
    """Mean and standard deviation of the first rows, each (d,); None if a value of theirs is missing."""
    head, mass = next(iter(source.chunks(FIRST_ROWS)))
    head = head.to(torch.float64)
    share = mass / mass.sum().clamp(min=1e-300)
    origin = head.mT @ share
    if bool(torch.isnan(origin).any()):
        return None
    deviation = ((head - origin).square().mT @ share).sqrt()
    return origin, torch.where(deviation > 1e-13 * origin.abs(), deviation, 1.0)
