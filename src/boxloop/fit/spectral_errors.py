r"""Standard errors of topics found from moments: the delta method through the whole map.

Document 001: :math:`\sqrt n (\hat\theta - \theta) \to N(0, \nabla M^{-1} \,\mathrm{Cov}[\phi]\, \nabla M^{-\top})`. The
inverse map is differentiated by perturbing what it solves. Scale words by D; let :math:`B` be the topics,
:math:`G = B^+`, :math:`\Pi = \mathrm{diag}(\pi)`, :math:`\lambda_h = \pi_h^{-1/2}`, and let a document move the
moments by :math:`E_1, E_2, E_3`, seen through G as :math:`e_1, e_2, e_3`. Then

.. math:: d\beta_h = \tfrac{1}{\pi_h} (I - B G) E_2\, g_h + B\, \bigl( \tfrac{1}{2 \pi_h} e_2
   + \Pi^{1/2} A\, \Pi^{-1/2} \bigr)_{\cdot h}, \qquad
   A_{gh} = - \frac{\lambda_g \epsilon_{ggh} - \lambda_h \epsilon_{hhg}}{\lambda_g^2 + \lambda_h^2}, \qquad
   \epsilon_{ggh} = \frac{e_{3, ggh}}{\pi_g \sqrt{\pi_h}} - \frac{\lambda_g\, e_{2, gh}}{2 \sqrt{\pi_g \pi_h}},

the first term turns the span of the topics, the second moves them within it; A is the turn that the joint
diagonalisation of all slices makes. Columns are then scaled to sum to one, and :math:`d\pi = e_1 - G\, dB\, \pi`.

A document's influence is a sparse vector plus a combination of the topics, so sums of squares need sparse products with
thin matrices and nothing of size documents x words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.data import ArraySource, SparseSource, csr_tensor
from boxloop.fit.documents import Documents, times
from boxloop.fit.spectral import Method, Spectral, match, spectral
from boxloop.numeric import single_threaded
from boxloop.tree import Tree

WIDEST = 3000
"""Most parameters whose whole covariance is worked out."""


@dataclass(frozen=True)
class SpectralErrors:
    """Standard errors.

    Args:
        weights: of the topics' weights, (k,).
        probabilities: of each word in each topic, before the projection to the simplex, (k, b).
        weights_covariance: of the weights, (k, k).
    """

    weights: Tensor
    probabilities: Tensor
    weights_covariance: Tensor


@dataclass(frozen=True)
class _Squares(Tree):
    """Sums over documents: weight, products of influences on pi, and three parts of the squares for words."""

    weight: Tensor
    shares: Tensor
    inner: Tensor
    cross: Tensor
    square: Tensor


@single_threaded
def spectral_errors(found: Spectral) -> SpectralErrors:
    """Standard errors by the delta method, in one pass over the documents.

    Args:
        found: topics from :func:`boxloop.fit.spectral.spectral`; their diagonalisation is taken to be ``joint``.

    Returns:
        Errors of the estimate before its projection to the simplex, which only takes error away.
    """
    frame = DocumentInfluence.of(found)
    sums = found.documents.source.reduce(frame.squares)
    topics, k = found.unprojected, len(found.weights)
    low = torch.einsum("gv,hgj,jv->hv", topics, sums.inner, topics)
    a = frame.own[:, None, :]  # (k, 1, b)
    by_y, alone = sums.cross.reshape(-1, k, 2, k).permute(1, 2, 3, 0).unbind(1)
    mixed = (topics * (by_y - a * alone)).sum(1)
    most, some, none = sums.square.reshape(-1, k, 3).permute(2, 1, 0)
    high = most - 2.0 * frame.own * some + frame.own.square() * none
    total = sums.weight
    covariance = sums.shares / total**2
    variance = (low + 2.0 * mixed + high) / total**2
    return SpectralErrors(covariance.diagonal().sqrt(), variance.clamp(min=0.0).sqrt(), covariance)


@dataclass(frozen=True)
class _Outer(Tree):
    weight: Tensor
    outer: Tensor


@single_threaded
def spectral_covariance(found: Spectral) -> Tensor:
    """Covariance of all weights and probabilities, (k + k b, k + k b): weights first, then topic after topic.

    Its diagonal holds the squares of what :func:`spectral_errors` gives; that function needs no matrix of this size.

    Args:
        found: topics of so few words that k (b + 1) is at most ``WIDEST``.
    """
    k, b = found.unprojected.shape
    if k * (b + 1) > WIDEST:
        raise ValueError(
            f"{k} topics of {b} words have a covariance of {k * (b + 1)} rows, over {WIDEST}: use spectral_errors"
        )
    frame = DocumentInfluence.of(found)

    def outer(rows: Tensor, weight: Tensor) -> _Outer:
        length, share = found.documents.shares(rows, weight)
        heavy = torch.where(weight > 0, share * share / weight.clamp(min=1e-300), 0.0)
        y, inner, kappa, shares = frame.influence(rows, length)
        counts = (rows.to_dense() if rows.layout != torch.strided else rows).double()
        words = kappa[:, :, None] * counts[:, None, :] * (y[:, :, None] - frame.own)
        moved = torch.cat([shares, (words + inner @ found.unprojected).flatten(1)], dim=1)
        return _Outer(share.sum(), (heavy[:, None] * moved).mT @ moved)

    sums = found.documents.source.reduce(outer)
    return sums.outer / sums.weight**2


@dataclass(frozen=True)
class DocumentInfluence:
    """What the influence of a document is made of.

    Args:
        documents: weights and scales.
        weights: pi, (k,).
        spread: D G', (b, k): counts times it are coordinates in the topics.
        own: D g_h, (k, b): what a word adds to its own pair.
        pairs: D^2 g_g g_h, (b, k k).
        triples: D^3 g_g^2 g_h, (b, k k).
    """

    documents: Documents
    weights: Tensor
    spread: Tensor
    own: Tensor
    pairs: Tensor
    triples: Tensor

    @classmethod
    def of(cls, found: Spectral) -> DocumentInfluence:
        if found.documents.concentration > 0.0:
            raise ValueError(
                "errors of documents that mix topics are not known in closed form: use bootstrap"
            )
        scale = found.documents.scale
        dual = torch.linalg.pinv(found.unprojected.mT * scale[:, None])
        spread = scale[:, None] * dual.mT
        pairs = (spread[:, :, None] * spread[:, None, :]).flatten(1)
        triples = (spread.square()[:, :, None] * spread[:, None, :]).flatten(1)
        return cls(found.documents, found.weights, spread, spread.mT, pairs, triples)

    def squares(self, rows: Tensor, weight: Tensor) -> _Squares:
        """Sums over a tile of documents."""
        length, share = self.documents.shares(rows, weight)
        heavy = torch.where(weight > 0, share * share / weight.clamp(min=1e-300), 0.0)
        y, inner, kappa, shares = self.influence(rows, length)
        strong = heavy[:, None] * kappa  # (n, k)
        low = torch.einsum("n,nhg,nhj->hgj", heavy, inner, inner)
        cross = torch.stack([(strong * y)[:, :, None] * inner, strong[:, :, None] * inner], dim=2)
        crossed = times(rows, cross.reshape(len(y), -1), transpose=True)
        square = torch.stack([strong * kappa * y * y, strong * kappa * y, strong * kappa], dim=2)
        squared = times(_squared(rows), square.reshape(len(y), -1), transpose=True)
        return _Squares(share.sum(), (heavy[:, None] * shares).mT @ shares, low, crossed, squared)

    def influence(self, rows: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of each document: y (n, k); z (n, k, k), its part along the topics; kappa (n, k); and on pi (n, k).

        The influence on topic h is ``kappa_h c (y_h - own_h) + B z_h``.
        """
        n, k = len(rows), len(self.weights)
        pi, root = self.weights, self.weights.sqrt()
        one, two = length[:, None], (length * (length - 1.0))[:, None]
        three = two * (length - 2.0)[:, None]
        y = times(rows, self.spread)
        pair = times(rows, self.pairs)
        triple = times(rows, self.triples).reshape(n, k, k)
        apart = (y[:, :, None] * y[:, None, :] - pair.reshape(n, k, k)) / two[..., None]
        e2 = apart - torch.diag(pi)
        own = pair.reshape(n, k, k).diagonal(dim1=1, dim2=2)
        e3 = y.square()[:, :, None] * y[:, None, :] - own[:, :, None] * y[:, None, :]
        e3 = (e3 - 2.0 * pair.reshape(n, k, k) * y[:, :, None] + 2.0 * triple) / three[..., None]
        e3 = e3 - torch.diag(pi)
        lean = e3 / (pi[:, None] * root) - 0.5 * e2 / (pi[:, None] * root)
        scaled = lean / root[:, None]
        turn = -(scaled - scaled.mT) / (1.0 / pi[:, None] + 1.0 / pi)
        inside = 0.5 * e2 / pi + root[:, None] * turn / root - apart / pi
        kappa = 1.0 / (two * pi)
        inner = inside.mT  # (n, h, g)
        loss = inner.sum(2) + y / (one * pi)
        inner = inner - torch.diag_embed(loss)
        moved = apart / pi + inner.mT  # G dB, (n, g, h)
        shares = y / one - pi - moved @ pi
        return y, inner, kappa, shares - pi * shares.sum(1, keepdim=True)


def _squared(rows: Tensor) -> Tensor:
    if rows.layout == torch.strided:
        return rows.double().square()
    squares = rows.values().double().square()
    return csr_tensor(rows.crow_indices(), rows.col_indices(), squares, (rows.shape[0], rows.shape[1]))


@single_threaded
def bootstrap(
    source: ArraySource | SparseSource,
    k: int,
    generator: Generator,
    *,
    draws: int = 50,
    method: Method = "joint",
    concentration: float = 0.0,
) -> tuple[Spectral, Tensor, Tensor]:
    """Topics, and those of documents drawn with replacement, matched to them.

    Args:
        source: word counts in memory.
        k: number of topics.
        generator: random stream.
        draws: how many samples.
        method: of the diagonalisation.
        concentration: as in :func:`boxloop.fit.spectral.spectral`.

    Returns:
        The topics; weights of each draw, (draws, k); probabilities, (draws, k, b).
    """
    found = spectral(source, k, generator, method=method, concentration=concentration)
    weights, topics = [], []
    for _ in range(draws):
        order = torch.randint(source.n_rows, (source.n_rows,), generator=generator, device=generator.device)
        drawn = source.take(order.to(source.rows.device))
        again = spectral(drawn, k, generator, method=method, concentration=concentration)
        place = match(found.probabilities, again.probabilities)
        weights.append(again.weights[place])
        topics.append(again.unprojected[place])
    return found, torch.stack(weights), torch.stack(topics)
