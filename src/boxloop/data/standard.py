"""Standard coordinates: every fit sees columns of mean 0 and standard deviation 1."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from boxloop.data.digest import as_digest, rows_word
from boxloop.data.tiles import Placed, View
from boxloop.tree import Tree
from boxloop.types import Source

FIRST_ROWS = 1024
"""Rows that tell where a table lies."""


@dataclass(frozen=True)
class Frame:
    """An origin and a scale per column, with what the first pass learnt about the rows.

    ``constant`` marks columns without spread (their scale is 1); ``observed`` is the weight of the values present
    in each column, so that log-likelihoods can be carried between coordinates when values are missing. ``digest``
    tells these rows from others.
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


def survey(source: Source) -> Frame:
    """One pass over the rows: origin, scale and what is missing or constant.

    The pass runs about the first complete value of each column, so columns near 1e7 with spread 0.1 keep all
    their digits.
    """
    shift = _shift(source)

    def moments(rows: Tensor, weight: Tensor) -> _Moments:
        word = rows_word(rows, weight)
        centred = rows.to(torch.float64) - shift
        plain = centred.mT @ weight
        if not bool(torch.isnan(plain).any()):
            total = weight.sum()
            second = (centred * centred).mT @ weight
            return _Moments(total, total.expand_as(plain), plain, second, total.new_zeros(()), word)
        seen = ~torch.isnan(centred)
        centred = torch.where(seen, centred, 0.0)
        observed = seen.to(torch.float64).mT @ weight
        first, second = centred.mT @ weight, (centred * centred).mT @ weight
        return _Moments(weight.sum(), observed, first, second, (~seen).any().to(torch.float64), word)

    m = source.reduce(moments)
    mean = torch.where(m.observed > 0, m.first / m.observed.clamp(min=1e-300), 0.0)
    variance = (m.second / m.observed.clamp(min=1e-300) - mean * mean).clamp(min=0.0)
    frame = frame_of(shift + mean, variance.sqrt(), m.observed, float(m.weight), missing=bool(m.missing))
    return replace(frame, digest=as_digest(m.word))


def frame_of(origin: Tensor, deviation: Tensor, observed: Tensor, weight: float, *, missing: bool) -> Frame:
    """A frame from means and standard deviations; a column whose spread is rounding is constant."""
    constant = deviation <= 1e-13 * torch.maximum(origin.abs(), deviation)
    return Frame(origin, torch.where(constant, 1.0, deviation), observed, weight, constant, missing)


def _shift(source: Source) -> Tensor:
    """The first value of each column that is there, 0 where none is."""
    shift = _first(next(iter(source.chunks(FIRST_ROWS)))[0])
    if bool(torch.isnan(shift).any()):
        shift = source.reduce(lambda rows, weight: _Firsts(_first(rows))).value
    return torch.nan_to_num(shift, nan=0.0)


def _first(rows: Tensor) -> Tensor:
    seen = ~torch.isnan(rows)
    return rows.gather(0, seen.to(torch.int8).argmax(0, keepdim=True))[0].to(torch.float64)


@dataclass(frozen=True)
class _Firsts(Tree):
    """The first value of each column of some rows, NaN where it has none."""

    value: Tensor

    def __add__(self, other: _Firsts) -> _Firsts:
        return _Firsts(torch.where(torch.isnan(self.value), other.value, self.value))


@dataclass(frozen=True)
class _Seen(Tree):
    weight: Tensor
    absent: Tensor
    word: Tensor


def identity_frame(source: Source) -> Frame:
    """The frame that changes nothing, for counts; still one pass, for weights and missing values."""

    def count(rows: Tensor, weight: Tensor) -> _Seen:
        values = rows.values() if rows.layout != torch.strided else rows
        if not bool(torch.isnan(values.sum())):
            return _Seen(weight.sum(), weight.new_zeros(rows.shape[1]), rows_word(rows, weight))
        dense = rows.to_dense() if rows.layout != torch.strided else rows
        absent = torch.isnan(dense).to(weight.dtype).mT @ weight
        return _Seen(weight.sum(), absent, rows_word(rows, weight))

    seen = source.reduce(count)
    one = torch.ones_like(seen.absent)
    observed = seen.weight - seen.absent
    missing, found = bool((seen.absent > 0).any()), as_digest(seen.word)
    return Frame(one * 0, one, observed, float(seen.weight), one < 0, missing, found)


@dataclass(frozen=True)
class Standardised(View):
    """A source seen in a frame's coordinates, optionally in a lower precision.

    Tiles are stored columns-major, (d, n), and handed out as their transpose: the layout that a model's matrix
    products want.
    """

    source: Source
    frame: Frame
    dtype: torch.dtype = torch.float64

    def look(self) -> Callable[[Tensor, Tensor, int], Placed]:
        """Tiles in standard coordinates."""
        origin, scale, dtype = self.frame.origin, self.frame.scale, self.dtype

        def standard(rows: Tensor, weight: Tensor, start: int) -> Placed:
            columns = torch.empty(rows.shape[::-1], dtype=dtype, device=rows.device)
            if dtype != rows.dtype:
                return columns.copy_(rows.sub(origin).div_(scale).mT).mT, weight, start
            torch.sub(rows.mT, origin[:, None], out=columns)  # in float64, then rounded once
            return columns.div_(scale[:, None]).mT, weight, start

        return standard
