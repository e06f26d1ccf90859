"""Standard coordinates: every fit sees columns of mean 0 and standard deviation 1."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.data.fingerprint import hash_tile, hash_to_text
from boxloop.data.source import ArraySource, SourceView, TileTransform
from boxloop.numeric import has_missing
from boxloop.tree import Tree
from boxloop.types import Source

HELD_VALUES = 1 << 22
"""Most values of a table in memory that are held in standard coordinates as well: 32 MB of float64."""

FIRST_ROWS = 1024
"""Rows that give a first guess of the location of each column."""


@dataclass(frozen=True)
class Standardisation:
    """An origin and a scale per column, with what the pass over the rows found.

    ``constant`` marks columns of standard deviation 0 (their scale is 1); ``observed`` is the weight of the values
    present in each column, so that log-likelihoods can be converted between coordinates when values are missing;
    ``digest`` is the fingerprint of the rows.
    """

    origin: Tensor
    scale: Tensor
    observed: Tensor
    weight: float
    constant: Tensor
    missing: bool
    digest: str | None = None

    @property
    def log_volume(self) -> float:
        """Weighted sum over observed values of log scale: what standardising adds to a log-likelihood."""
        return float((self.observed * self.scale.log()).sum())


@dataclass(frozen=True)
class _Moments(Tree):
    """Weight, sum and sum of squares per column about a fixed shift, NaN left out."""

    weight: Tensor
    observed: Tensor
    first: Tensor
    second: Tensor
    missing: Tensor
    word: Tensor


def fit_standardisation(source: Source, hashed: bool = True) -> Standardisation:
    """One pass over the rows: origin, scale, what is missing or constant, and if ``hashed`` a fingerprint of the rows.

    The pass runs about the first complete value of each column, so columns near 1e7 with standard deviation 0.1
    keep all their digits.
    """
    shift = _first_values(next(iter(source.chunks(FIRST_ROWS)))[0])
    if has_missing(shift):
        shift = source.reduce(lambda rows, weight: _FirstValues(_first_values(rows))).value
        shift = torch.nan_to_num(shift, nan=0.0)

    def moments(rows: Tensor, weight: Tensor) -> _Moments:
        word = hash_tile(rows, weight) if hashed else torch.zeros((), dtype=torch.int64)
        centred = rows.to(torch.float64) - shift
        first = centred.mT @ weight
        if not has_missing(first):
            total = weight.sum()
            second = (centred * centred).mT @ weight
            return _Moments(total, total.expand_as(first), first, second, total.new_zeros(()), word)
        present = ~torch.isnan(centred)
        centred = torch.where(present, centred, 0.0)
        observed = present.to(torch.float64).mT @ weight
        first, second = centred.mT @ weight, (centred * centred).mT @ weight
        return _Moments(weight.sum(), observed, first, second, (~present).any().to(torch.float64), word)

    m = source.reduce(moments)
    mean = torch.where(m.observed > 0, m.first / m.observed.clamp(min=1e-300), 0.0)
    variance = (m.second / m.observed.clamp(min=1e-300) - mean * mean).clamp(min=0.0)
    frame = make_standardisation(
        shift + mean, variance.sqrt(), m.observed, float(m.weight), missing=bool(m.missing)
    )
    return replace(frame, digest=hash_to_text(m.word)) if hashed else frame


def make_standardisation(
    origin: Tensor, deviation: Tensor, observed: Tensor, weight: float, *, missing: bool
) -> Standardisation:
    """From means and standard deviations; a column whose deviation is rounding error is constant."""
    constant = deviation <= 1e-13 * torch.maximum(origin.abs(), deviation)
    return Standardisation(origin, torch.where(constant, 1.0, deviation), observed, weight, constant, missing)


def _first_values(rows: Tensor) -> Tensor:
    """The first value of each column that is there, NaN where none is."""
    present = ~torch.isnan(rows)
    return rows.gather(0, present.to(torch.int8).argmax(0, keepdim=True))[0].to(torch.float64)


@dataclass(frozen=True)
class _FirstValues(Tree):
    """The first value of each column of some rows, NaN where it has none."""

    value: Tensor

    def __add__(self, other: _FirstValues) -> _FirstValues:
        return _FirstValues(torch.where(torch.isnan(self.value), other.value, self.value))


@dataclass(frozen=True)
class _Counts(Tree):
    weight: Tensor
    absent: Tensor
    word: Tensor


def identity_standardisation(source: Source) -> Standardisation:
    """Origin 0 and scale 1, for counts; still one pass, for weights and missing values."""

    def count(rows: Tensor, weight: Tensor) -> _Counts:
        values = rows.values() if rows.layout != torch.strided else rows
        if not has_missing(values):
            return _Counts(weight.sum(), weight.new_zeros(rows.shape[1]), hash_tile(rows, weight))
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        absent = torch.isnan(dense).to(weight.dtype).mT @ weight
        return _Counts(weight.sum(), absent, hash_tile(rows, weight))

    counts = source.reduce(count)
    one = torch.ones_like(counts.absent)
    observed = counts.weight - counts.absent
    missing, found = bool((counts.absent > 0).any()), hash_to_text(counts.word)
    return Standardisation(one * 0, one, observed, float(counts.weight), one < 0, missing, found)


def standardise_rows(source: Source, frame: Standardisation, dtype: torch.dtype = torch.float64) -> Source:
    """The rows in standard coordinates: those in memory once, where they are few; others whenever they are read."""
    if not isinstance(source, ArraySource) or source.rows.numel() > HELD_VALUES:
        return StandardisedSource(source, frame, dtype)
    rows = _scale_rows(source.rows, frame.origin, frame.scale, dtype)
    return ArraySource(rows, source.weight, source.columns)


def _scale_rows(rows: Tensor, origin: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows (n, d) in standard coordinates, stored columns-major: the layout that matrix products of models want."""
    columns = torch.empty(rows.shape[::-1], dtype=dtype, device=rows.device)
    if dtype != rows.dtype:
        return columns.copy_(rows.sub(origin).div_(scale).mT).mT
    torch.sub(rows.mT, origin[:, None], out=columns)  # in float64, then rounded once
    return columns.div_(scale[:, None]).mT


@dataclass(frozen=True)
class StandardisedSource(SourceView):
    """A source in standard coordinates, optionally in a lower precision."""

    source: Source
    frame: Standardisation
    dtype: torch.dtype = torch.float64

    def tile_transform(self) -> TileTransform:
        """Tiles in standard coordinates."""
        origin, scale, dtype = self.frame.origin, self.frame.scale, self.dtype
        return lambda rows, weight, start: (_scale_rows(rows, origin, scale, dtype), weight, start)
