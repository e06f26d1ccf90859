r"""Moments of distinct words, from word counts that are never made dense.

With :math:`(L)_j = L (L-1) \cdots` and c the counts of a document of length L, the means over documents of

.. math:: \frac{c}{L}, \qquad \frac{c c^\top - \mathrm{diag}(c)}{(L)_2}, \qquad
   \frac{c^{\otimes 3} - \sum_{\text{3 places}} \mathrm{diag}(c) \otimes c + 2\, \mathrm{diag}_3(c)}{(L)_3}

are unbiased for :math:`E[x_1], E[x_1 x_2^\top], E[x_1 \otimes x_2 \otimes x_3]`: all pairs and triples of distinct
places of the document count. A matrix with as many rows as words is only ever multiplied by a thin one.

Documents that mix topics, in shares drawn from a Dirichlet law of concentration :math:`\alpha_0` (latent Dirichlet
allocation), have the same moments but for known multiples of the lower ones, which are taken away (Anandkumar, Foster,
Hsu, Kakade and Liu 2012); :math:`\alpha_0 = 0` is one topic a document.

Deviation: document 001 writes :math:`E[x_1 x_1^\top]`, which is diagonal and tells nothing about the topics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from boxloop.numeric import product, sparse_product
from boxloop.tree import Tree
from boxloop.types import Source

Weighting = Literal["documents", "information"]

FEWEST = 3
"""Words of a document that has a triple of them."""


class SpectralError(ValueError):
    """The moments do not tell so many topics apart, or there are none to be had."""


@dataclass(frozen=True)
class _Sums(Tree):
    weight: Tensor
    parts: Tensor


@dataclass(frozen=True)
class Documents:
    """Word counts with a weight for each document and a scale for each word.

    Args:
        source: word counts.
        scale: D, (b,): moments are those of ``D c``, so that frequent words do not drown the others.
        ratio: r; a document of length L counts for L / (L + r), or all alike when it is 0.
        mean: scaled mean frequency of each word, (b,), all documents alike.
        total: weight of all documents that are long enough.
        words: how many words they have.
        skipped: how many are not.
        concentration: alpha_0, of the topics in a document; 0 for one topic.
    """

    source: Source
    scale: Tensor
    ratio: float
    mean: Tensor
    total: float
    words: float
    skipped: int
    concentration: float = 0.0

    @classmethod
    def of(
        cls,
        source: Source,
        weighting: Weighting = "information",
        *,
        scaled: bool = True,
        concentration: float = 0.0,
    ) -> Documents:
        r"""Read the documents once: their number, and how often each word occurs.

        Args:
            source: word counts, sparse or dense, whole numbers.
            weighting: ``documents`` counts all alike. ``information`` weighs by the inverse of a document's variance,
                :math:`L / (L + r)` with r the variance of a word within a topic over that between topics.
            scaled: divide each word by the root of its frequency.
            concentration: of the topics in a document.
        """
        found = source.reduce(_survey)
        total = float(found.weight)
        skipped = int(found.parts[-1])
        if total <= 0.0:
            raise SpectralError(
                f"every document has fewer than {FEWEST} words: pairs and triples of words are needed"
            )
        mean, alike, words = found.parts[:-3] / total, float(found.parts[-3]) / total, float(found.parts[-2])
        between = max(alike - float(mean.square().sum()), 1e-12)
        ratio = (1.0 - alike) / between if weighting == "information" else 0.0
        seen = mean.clamp(min=float(mean[mean > 0].min()))
        scale = seen.rsqrt() if scaled else torch.ones_like(mean)
        return cls(source, scale, ratio, scale * mean, total, words, skipped, concentration)

    def shares(self, rows: Tensor, weight: Tensor, length: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Length of each document, at least 3, and its weight, none for a shorter one; (n,) each."""
        length = _lengths(rows) if length is None else length
        enough = length >= FEWEST
        length = length.clamp(min=FEWEST)
        return length, weight * enough * (length / (length + self.ratio))

    def pairs(self, right: Tensor) -> Tensor:
        """The pair moment, less what mixing topics adds, times a thin matrix, (b, r)."""
        spread = torch.cat([self.scale[:, None] * right, torch.ones_like(right[:, :1])], dim=1)

        def multiply(rows: Tensor, weight: Tensor) -> _Sums:
            inner = times(rows, spread)  # the last column: lengths
            length, share = self.shares(rows, weight, inner[:, -1])
            heavy = (share / (length * (length - 1.0)))[:, None]
            inner[:, :-1] *= heavy
            inner[:, -1:] = heavy
            return _Sums(share.sum(), times(rows, inner, transpose=True))

        sums = self.source.reduce(multiply)
        found = sums.parts * (self.scale[:, None] / sums.weight)
        less = self.concentration / (self.concentration + 1.0) * self.mean[:, None] * (self.mean @ right)
        return found[:, :-1] - (self.scale * found[:, -1])[:, None] * right - less

    def projected(self, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The first moment, (b,), and second and third ones of ``left.T @ D c``, (r, r), (r, r, r), in one pass.

        Args:
            left: (b, r).
        """
        r = left.shape[1]
        spread = self.scale[:, None] * left
        with_lengths = torch.cat([spread, torch.ones_like(left[:, :1])], dim=1)

        def moments(rows: Tensor, weight: Tensor) -> _Sums:
            y = times(rows, with_lengths)
            length, share = self.shares(rows, weight, y[:, -1])
            y = y[:, :-1]
            once = (share / length)[:, None]
            two = once / (length - 1.0)[:, None]
            three = two / (length - 2.0)[:, None]
            second = product((two * y).mT.contiguous(), y)
            third = product((three * y).mT.contiguous(), (y[:, :, None] * y[:, None, :]).reshape(len(y), -1))
            words = times(rows, torch.cat([three * y, once, two, three], dim=1), transpose=True)
            return _Sums(share.sum(), torch.cat([second.reshape(-1), third.reshape(-1), words.reshape(-1)]))

        sums = self.source.reduce(moments)
        second, third, words = torch.split(sums.parts / sums.weight, [r * r, r**3, len(left) * (r + 3)])
        words = words.reshape(len(left), r + 3)
        square = (spread[:, :, None] * spread[:, None, :]).reshape(len(left), -1)
        mixed = (square.mT @ words[:, :r]).reshape(r, r, r)
        cube = (square.mT @ (words[:, r + 2, None] * spread)).reshape(r, r, r)
        triple = third.reshape(r, r, r) - mixed - mixed.permute(0, 2, 1) - mixed.permute(2, 0, 1) + 2.0 * cube
        pair = second.reshape(r, r) - spread.mT @ (words[:, r + 1, None] * spread)
        return self.scale * words[:, r], *self._unmixed(self.mean @ left, pair, triple)

    def _unmixed(self, m: Tensor, pair: Tensor, triple: Tensor) -> tuple[Tensor, Tensor]:
        """Second and third moments without what mixing topics adds, from the first one in the same coordinates."""
        a = self.concentration
        if a == 0.0:
            return pair, triple
        mixed = pair[:, :, None] * m
        mixed = mixed + mixed.permute(0, 2, 1) + mixed.permute(2, 0, 1)
        cube = m[:, None, None] * m[:, None] * m
        triple = triple - a / (a + 2.0) * mixed + 2.0 * a * a / ((a + 1.0) * (a + 2.0)) * cube
        return pair - a / (a + 1.0) * m[:, None] * m, triple


def _survey(rows: Tensor, weight: Tensor) -> _Sums:
    """Weight of the documents; sums of frequencies, chances that two words agree, lengths, and short documents."""
    values = rows.values() if rows.layout != torch.strided else rows
    if not bool((values == values.round()).all()):  # NaN is not equal to itself
        raise SpectralError("spectral estimation needs whole word counts, none missing")
    length = _lengths(rows)
    share = weight * (length >= FEWEST)
    length = length.clamp(min=FEWEST)
    squares = _squares(rows)
    alike = share @ ((squares - length) / (length * (length - 1.0)))
    words = times(rows, (share / length)[:, None], transpose=True)[:, 0]
    short = (share == 0.0) & (weight > 0.0)
    return _Sums(share.sum(), torch.cat([words, torch.stack([alike, share @ length, short.sum().to(alike)])]))


def _lengths(rows: Tensor) -> Tensor:
    return times(rows, torch.ones(rows.shape[1], 1, dtype=torch.float64, device=rows.device))[:, 0]


def _squares(rows: Tensor) -> Tensor:
    if rows.layout == torch.strided:
        return rows.double().square().sum(1)
    ends, squares = rows.crow_indices(), rows.values().double().square()
    return torch.segment_reduce(squares, "sum", offsets=ends.to(torch.int64), initial=0.0)


def times(rows: Tensor, right: Tensor, *, transpose: bool = False) -> Tensor:
    """``rows @ right``, or ``rows.T @ right``, for dense or sparse counts."""
    if rows.layout == torch.strided:
        rows = rows.double()
        return product((rows.mT if transpose else rows).contiguous(), right)
    return sparse_product(rows, right, transpose=transpose)
