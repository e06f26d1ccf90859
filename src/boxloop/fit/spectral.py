r"""Mixtures from moments: topics of documents and spherical clusters, without starts, iterations or local optima.

With topics :math:`\beta_h` of weight :math:`\pi_h`, distinct words of a document have

.. math:: M_2 = \sum_h \pi_h \beta_h \beta_h^\top, \qquad M_3 = \sum_h \pi_h\, \beta_h \otimes \beta_h \otimes \beta_h.

W whitens: :math:`W^\top M_2 W = I` on the span of the k largest *signed* eigenvalues. Then
:math:`v_h = \sqrt{\pi_h}\, W^\top \beta_h` are orthonormal, and the slices of
:math:`M_3(W, W, W) = \sum_h \pi_h^{-1/2} v_h^{\otimes 3}` are diagonal in them (Anandkumar, Hsu and Kakade 2012).

The moments come from word counts that are never made dense. With :math:`(L)_j = L (L-1) \cdots` and c the counts of a
document of length L, the means over documents of

.. math:: \frac{c}{L}, \qquad \frac{c c^\top - \mathrm{diag}(c)}{(L)_2}, \qquad
   \frac{c^{\otimes 3} - \sum_{\text{3 places}} \mathrm{diag}(c) \otimes c + 2\, \mathrm{diag}_3(c)}{(L)_3}

are unbiased for :math:`E[x_1], E[x_1 x_2^\top], E[x_1 \otimes x_2 \otimes x_3]`: they use all pairs and triples of
distinct words. A matrix with as many rows as words is only ever multiplied by a thin one.

Documents that mix topics in Dirichlet proportions of concentration :math:`\alpha_0` (latent Dirichlet allocation)
have the same moments up to known multiples of the lower ones, which are subtracted (Anandkumar, Foster, Hsu, Kakade
and Liu 2012); :math:`\alpha_0 = 0` is one topic per document.

Deviation: the method-of-moments notes write :math:`E[x_1 x_1^\top]`, which is diagonal and carries no information about
the topics.

Standard errors follow from the delta method, :math:`\sqrt n (\hat\theta - \theta) \to
N(0, \nabla M^{-1} \,\mathrm{Cov}[\phi]\, \nabla M^{-\top})`, with the inverse map differentiated by perturbation.
Scale words by D; let :math:`B` be the topics, :math:`G = B^+`, :math:`\Pi = \mathrm{diag}(\pi)`, :math:`\lambda_h =
\pi_h^{-1/2}`, and let a document move the moments by :math:`E_1, E_2, E_3`, which G maps to :math:`e_1, e_2, e_3`. Then

.. math:: d\beta_h = \tfrac{1}{\pi_h} (I - B G) E_2\, g_h + B\, \bigl( \tfrac{1}{2 \pi_h} e_2
   + \Pi^{1/2} A\, \Pi^{-1/2} \bigr)_{\cdot h}, \qquad
   A_{gh} = - \frac{\lambda_g \epsilon_{ggh} - \lambda_h \epsilon_{hhg}}{\lambda_g^2 + \lambda_h^2}, \qquad
   \epsilon_{ggh} = \frac{e_{3, ggh}}{\pi_g \sqrt{\pi_h}} - \frac{\lambda_g\, e_{2, gh}}{2 \sqrt{\pi_g \pi_h}}.

The first term rotates the span of the topics, the second moves them within it; A is the rotation of the joint
diagonalisation of all slices. Columns are then scaled to sum to one, and :math:`d\pi = e_1 - G\, dB\, \pi`. The
influence of a document is a sparse vector plus a combination of the topics, so sums of squares need products of
sparse with thin matrices and nothing of size documents x words.

Spherical clusters of weight :math:`\pi_h`, mean :math:`\mu_h` and common variance :math:`\sigma^2` (Hsu and Kakade
2013) have, with a constant column c appended to rows x and to means, and J the identity without its last entry,

.. math:: M_2 = E[x x^\top] - \sigma^2 J = \sum_h \pi_h \mu_h \mu_h^\top, \qquad
   M_3 = E[x^{\otimes 3}] - \sigma^2 \sum_{\text{3 places}} E[x] \otimes J = \sum_h \pi_h \mu_h^{\otimes 3},

and :math:`\sigma^2` is the mean of the smallest eigenvalues of the covariance. With the constant column the means
need only be affinely independent, wherever the origin is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, nnls
from scipy.special import softmax
from torch import Generator, Tensor

from boxloop.data import ArraySource, SparseSource, csr_tensor
from boxloop.distributions import Multinomial, Sums
from boxloop.fit.em import EMState, em
from boxloop.fit.fit import Fit, coordinates, unstandardise
from boxloop.loop import run
from boxloop.models import Mixture
from boxloop.numeric import (
    Diagonaliser,
    diagonalise_by_powers,
    diagonalise_jointly,
    diagonalise_widest_gap,
    normal,
    product,
    single_threaded,
    sparse_product,
)
from boxloop.tree import Tree
from boxloop.types import Source

Weighting = Literal["documents", "information"]

MIN_WORDS = 3
"""Fewest words of a document that has a triple of words."""


class SpectralError(ValueError):
    """The moments do not identify so many topics, or cannot be computed."""


@dataclass(frozen=True)
class _WeightedSums(Tree):
    """Sums over documents, and their total weight."""

    weight: Tensor
    parts: Tensor


@dataclass(frozen=True)
class DocumentMoments:
    """Moments of word counts, with a weight per document and a scale per word."""

    source: Source  # word counts
    scale: Tensor  # D, (b,): moments are those of ``D c``, so that frequent words do not dominate
    ratio: float  # r; a document of length L has weight L / (L + r); all are equal when r is 0
    mean: Tensor  # scaled mean frequency of each word, (b,), over equally weighted documents
    total: float  # weight of all documents that are long enough
    words: float  # number of words in them
    skipped: int  # number of documents that are too short
    concentration: float = 0.0  # alpha_0 of the topics in a document; 0 for one topic

    @classmethod
    def measure(
        cls,
        source: Source,
        weighting: Weighting = "information",
        *,
        scaled: bool = True,
        concentration: float = 0.0,
    ) -> DocumentMoments:
        """Read the documents once, for their number and the frequency of each word.

        ``documents`` weights all equally; ``information`` by the inverse of a document's variance, L / (L + r), with r
        the variance of a word within a topic over that between topics. ``scaled`` divides each word by the root of its
        frequency.
        """
        sums = source.reduce(_count_words)
        total = float(sums.weight)
        skipped = int(sums.parts[-1])
        if total <= 0.0:
            raise SpectralError(
                f"Every document has fewer than {MIN_WORDS} words: spectral estimation needs pairs and triples."
            )
        mean, agreement, words = sums.parts[:-3] / total, float(sums.parts[-3]) / total, float(sums.parts[-2])
        between = max(agreement - float(mean.square().sum()), 1e-12)
        ratio = (1.0 - agreement) / between if weighting == "information" else 0.0
        seen = mean.clamp(min=float(mean[mean > 0].min()))
        scale = seen.rsqrt() if scaled else torch.ones_like(mean)
        return cls(source, scale, ratio, scale * mean, total, words, skipped, concentration)

    def document_weights(
        self, rows: Tensor, weight: Tensor, length: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Length of each document, at least 3, and its weight, 0 if it is shorter; (n,) each."""
        length = _sum_words(rows) if length is None else length
        long_enough = length >= MIN_WORDS
        length = length.clamp(min=MIN_WORDS)
        return length, weight * long_enough * (length / (length + self.ratio))

    def multiply_pairs(self, right: Tensor) -> Tensor:
        """The pair moment, corrected for mixing of topics, times a thin matrix, (b, r)."""
        columns = torch.cat([self.scale[:, None] * right, torch.ones_like(right[:, :1])], dim=1)

        def multiply_tile(rows: Tensor, weight: Tensor) -> _WeightedSums:
            inner = multiply_counts(rows, columns)  # the last column: lengths
            length, share = self.document_weights(rows, weight, inner[:, -1])
            heavy = (share / (length * (length - 1.0)))[:, None]
            inner[:, :-1] *= heavy
            inner[:, -1:] = heavy
            return _WeightedSums(share.sum(), multiply_counts(rows, inner, transpose=True))

        sums = self.source.reduce(multiply_tile)
        moment = sums.parts * (self.scale[:, None] / sums.weight)
        mixing = self.concentration / (self.concentration + 1.0) * self.mean[:, None] * (self.mean @ right)
        return moment[:, :-1] - (self.scale * moment[:, -1])[:, None] * right - mixing

    def project_moments(self, left: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """First moment, (b,), and second and third moments of ``left.T @ D c``, in one pass, for ``left`` (b, r)."""
        r = left.shape[1]
        scaled = self.scale[:, None] * left
        with_lengths = torch.cat([scaled, torch.ones_like(left[:, :1])], dim=1)

        def sum_moments(rows: Tensor, weight: Tensor) -> _WeightedSums:
            y = multiply_counts(rows, with_lengths)
            length, share = self.document_weights(rows, weight, y[:, -1])
            y = y[:, :-1]
            once = (share / length)[:, None]
            two = once / (length - 1.0)[:, None]
            three = two / (length - 2.0)[:, None]
            second = product((two * y).mT.contiguous(), y)
            third = product((three * y).mT.contiguous(), (y[:, :, None] * y[:, None, :]).reshape(len(y), -1))
            words = multiply_counts(rows, torch.cat([three * y, once, two, three], dim=1), transpose=True)
            return _WeightedSums(
                share.sum(), torch.cat([second.reshape(-1), third.reshape(-1), words.reshape(-1)])
            )

        sums = self.source.reduce(sum_moments)
        second, third, words = torch.split(sums.parts / sums.weight, [r * r, r**3, len(left) * (r + 3)])
        words = words.reshape(len(left), r + 3)
        square = (scaled[:, :, None] * scaled[:, None, :]).reshape(len(left), -1)
        mixed = (square.mT @ words[:, :r]).reshape(r, r, r)
        cube = (square.mT @ (words[:, r + 2, None] * scaled)).reshape(r, r, r)
        triple = third.reshape(r, r, r) - mixed - mixed.permute(0, 2, 1) - mixed.permute(2, 0, 1) + 2.0 * cube
        pair = second.reshape(r, r) - scaled.mT @ (words[:, r + 1, None] * scaled)
        return self.scale * words[:, r], *self.remove_mixing(self.mean @ left, pair, triple)

    def remove_mixing(self, m: Tensor, pair: Tensor, triple: Tensor) -> tuple[Tensor, Tensor]:
        """Second and third moments corrected for mixing of topics; m is the first moment in the same coordinates."""
        a = self.concentration
        if a == 0.0:
            return pair, triple
        mixed = pair[:, :, None] * m
        mixed = mixed + mixed.permute(0, 2, 1) + mixed.permute(2, 0, 1)
        cube = m[:, None, None] * m[:, None] * m
        triple = triple - a / (a + 2.0) * mixed + 2.0 * a * a / ((a + 1.0) * (a + 2.0)) * cube
        return pair - a / (a + 1.0) * m[:, None] * m, triple


def _count_words(rows: Tensor, weight: Tensor) -> _WeightedSums:
    """Weight of the documents; sums of frequencies, probabilities that two words agree, lengths; short documents."""
    values = rows.values() if rows.layout != torch.strided else rows
    if not bool((values == values.round()).all()):  # NaN is not equal to itself
        raise SpectralError("Spectral estimation needs integer word counts without missing values.")
    length = _sum_words(rows)
    share = weight * (length >= MIN_WORDS)
    length = length.clamp(min=MIN_WORDS)
    squares = _sum_words(_square_counts(rows))
    agreement = share @ ((squares - length) / (length * (length - 1.0)))
    words = multiply_counts(rows, (share / length)[:, None], transpose=True)[:, 0]
    short = (share == 0.0) & (weight > 0.0)
    return _WeightedSums(
        share.sum(), torch.cat([words, torch.stack([agreement, share @ length, short.sum().to(share)])])
    )


def _sum_words(rows: Tensor) -> Tensor:
    return multiply_counts(rows, torch.ones(rows.shape[1], 1, dtype=torch.float64, device=rows.device))[:, 0]


def multiply_counts(rows: Tensor, right: Tensor, *, transpose: bool = False) -> Tensor:
    """``rows @ right``, or ``rows.T @ right``, for dense or sparse counts."""
    if rows.layout == torch.strided:
        rows = rows.double()
        return product((rows.mT if transpose else rows).contiguous(), right)
    return sparse_product(rows, right, transpose=transpose)


Array = NDArray[np.float64]
Method = Literal["joint", "gap", "power"]

DIAGONALISERS: dict[Method, Diagonaliser] = {
    "joint": diagonalise_jointly,
    "gap": diagonalise_widest_gap,
    "power": diagonalise_by_powers,
}
OVERSAMPLING, POWER_STEPS = 10, 2
"""Columns beyond k of the random matrix of the range finder, and its power iterations."""


NOISE_SHARE = 0.03
"""Off-diagonal fraction of the third moment from which some topics are probably noise."""


@dataclass(frozen=True)
class SpectralTopics:
    """Topics estimated from moments.

    Args:
        weights: pi, (k,), in decreasing order.
        probabilities: of each word in each topic, (k, b), on the simplex.
        unprojected: the same before the projection to the simplex; rows sum to one.
        spectrum: the largest signed eigenvalues of the scaled pair moment, more than k of them.
        left: fraction of the squared whitened third moment that k topics do not explain.
        documents: moments of the documents.
        notes: what was corrected.
    """

    weights: Tensor
    probabilities: Tensor
    unprojected: Tensor
    spectrum: Tensor
    residual: float
    documents: DocumentMoments
    notes: tuple[str, ...]


@single_threaded
def spectral(
    source: Source,
    k: int,
    generator: Generator,
    *,
    weighting: Weighting = "information",
    method: Method = "joint",
    scaled: bool = True,
    concentration: float = 0.0,
) -> SpectralTopics:
    """Topics of documents by the method of moments.

    Args:
        source: word counts (n, b), sparse or dense; documents of fewer than 3 words are skipped.
        k: number of topics.
        generator: for the random range finder and for random directions.
        weighting: of documents by length; see :meth:`DocumentMoments.measure`.
        method: of the diagonalisation of the third moment: ``joint`` (all slices at once), ``gap`` (one slice, of the
            direction with the widest gap), ``power`` (the tensor power method).
        scaled: divide each word by the square root of its frequency first; otherwise noise in frequent words dominates.
        concentration: 0 for one topic per document; else the sum of the Dirichlet parameters of the topic proportions
            of a document (latent Dirichlet allocation), and ``weights`` are mean proportions.

    Raises:
        SpectralError: fewer than k independent moments.

    Example:
        >>> import torch
        >>> from boxloop.data import draw_topics
        >>> from boxloop.numeric import generator
        >>> problem = draw_topics(2, 20, generator(0))
        >>> found = spectral(problem.source(20_000, 10, generator(1)), 2, generator(2))
        >>> place = match_topics(problem.probabilities, found.probabilities)
        >>> bool((found.probabilities[place] - problem.probabilities).abs().sum(1).max() < 0.05)
        True
    """
    b = source.n_columns
    if k > b:
        raise SpectralError(f"k={k} exceeds the {b} words: there cannot be more topics than words.")
    if not concentration >= 0.0:
        raise ValueError(f"concentration must not be negative, got {concentration}")
    documents = DocumentMoments.measure(source, weighting, scaled=scaled, concentration=concentration)
    notes = [f"{documents.skipped} documents of fewer than 3 words skipped"] if documents.skipped else []
    spectrum, basis = find_largest_eigenvalues(documents, k, generator)
    mean, pair, triple = documents.project_moments(basis)
    values, axes = torch.linalg.eigh(0.5 * (pair + pair.mT))
    least = 1e-10 * spectrum[0].clamp(min=1e-300)
    positive = int((spectrum > least).sum())
    if positive < k or bool(values[0] <= least):
        raise SpectralError(
            f"The pair moments of these documents have {positive} positive eigenvalues, "
            f"so at most {positive} topics can be estimated; k={k}."
        )
    whitener = axes / values.sqrt()
    tensor = torch.einsum("abc,ag,bh,cj->ghj", triple, whitener, whitener, whitener).cpu().numpy()
    rotation = DIAGONALISERS[method](tensor, generator)
    residual = _measure_off_diagonal_share(tensor, rotation)
    if residual > NOISE_SHARE:
        notes.append(
            f"{k} topics leave {residual:.0%} of the third moment unexplained: there may be fewer topics"
        )
    dewhitener = axes * values.sqrt() @ torch.from_numpy(rotation).to(axes)
    columns = basis @ dewhitener / documents.scale[:, None]
    weights, unprojected, more_notes = _normalise_topics(columns, mean, documents.scale)
    probabilities = project_to_simplex(unprojected)
    order = weights.argsort(descending=True, stable=True)
    return SpectralTopics(
        weights[order],
        probabilities[order],
        unprojected[order],
        spectrum,
        residual,
        documents,
        (*notes, *more_notes),
    )


def _measure_off_diagonal_share(tensor: Array, axes: Array) -> float:
    """Fraction of a tensor's sum of squares off its diagonal in these axes."""
    sizes = np.einsum("abc,ah,bh,ch->h", tensor, axes, axes, axes)
    return float(max(1.0 - (sizes @ sizes) / max(np.square(tensor).sum(), 1e-300), 0.0))


def find_largest_eigenvalues(
    documents: DocumentMoments, k: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Largest signed eigenvalues of the pair moment, more than k, and a basis (b, k) of the first k vectors.

    Randomised range finder with power iterations (Halko, Martinsson and Tropp 2011, algorithm 4.4); the products of the
    last iteration give the eigenvalues and, being one multiplication ahead, the more accurate vectors.
    """
    width = min(len(documents.scale), k + OVERSAMPLING)
    image = documents.multiply_pairs(normal((len(documents.scale), width), generator).to(documents.scale))
    for _ in range(POWER_STEPS):
        basis, _ = torch.linalg.qr(image)
        image = documents.multiply_pairs(basis)
    small = basis.mT @ image
    values, axes = torch.linalg.eigh(0.5 * (small + small.mT))
    vectors, _ = torch.linalg.qr(image @ axes.flip(1)[:, :k])
    return values.flip(0), vectors


def _normalise_topics(columns: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Weights (k,) and topics (k, b) from their directions: signs, sums, and a fit to the first moment."""
    notes = []
    total = columns.sum(0)
    size = columns.abs().sum(0)
    if bool((total.abs() < 0.1 * size).any()):
        notes.append("a topic has nearly as much negative mass as positive: there may be fewer topics")
    topics = (columns / torch.where(total.abs() < 1e-12 * size, size, total)).mT
    share, _ = nnls((topics * scale).mT.cpu().numpy(), mean.cpu().numpy())
    if share.min() <= 0.0:
        notes.append("a topic has weight zero: there may be fewer topics")
    weights = torch.from_numpy(share / max(share.sum(), 1e-300)).to(columns)
    return weights, topics, notes


def project_to_simplex(points: Tensor) -> Tensor:
    """Euclidean projection of each row to the simplex (Held, Wolfe and Crowder 1974)."""
    ordered = points.sort(dim=1, descending=True).values
    excess = ordered.cumsum(1) - 1.0
    rank = torch.arange(1, points.shape[1] + 1, device=points.device)
    support = (ordered - excess / rank > 0).sum(1, keepdim=True)
    level = excess.gather(1, support - 1) / support
    projected = (points - level).clamp(min=0.0)
    return projected / projected.sum(1, keepdim=True)


def match_topics(reference: Tensor, topics: Tensor) -> Tensor:
    """The permutation (k,) of the rows of ``topics`` (k, b) with the least total L1 distance to ``reference``."""
    cost = torch.cdist(reference.double(), topics.double(), p=1.0)
    _, place = linear_sum_assignment(cost.cpu().numpy())
    return torch.from_numpy(place).to(topics.device)


MAX_PARAMETERS = 3000
"""Most parameters for a full covariance."""


@dataclass(frozen=True)
class SpectralErrors:
    """Standard errors of topics.

    Args:
        weights: of the topics' weights, (k,).
        probabilities: of each word in each topic, before the projection to the simplex, (k, b).
        weights_covariance: covariance of the weights, (k, k).
    """

    weights: Tensor
    probabilities: Tensor
    weights_covariance: Tensor


@dataclass(frozen=True)
class _InfluenceSums(Tree):
    """Sums over documents: weight, products of influences on pi, and three parts of the squares for words."""

    weight: Tensor
    shares: Tensor
    inner: Tensor
    cross: Tensor
    square: Tensor


@single_threaded
def spectral_errors(estimate: SpectralTopics) -> SpectralErrors:
    """Standard errors by the delta method, in one pass over the documents.

    Args:
        estimate: topics from :func:`spectral`, assumed to be diagonalised by ``joint``.

    Returns:
        Errors of the estimate before its projection to the simplex, which can only reduce them.
    """
    influence = DocumentInfluence.from_estimate(estimate)
    sums = estimate.documents.source.reduce(influence.sum_squares)
    topics, k = estimate.unprojected, len(estimate.weights)
    low = torch.einsum("gv,hgj,jv->hv", topics, sums.inner, topics)
    a = influence.own[:, None, :]  # (k, 1, b)
    with_y, without_y = sums.cross.reshape(-1, k, 2, k).permute(1, 2, 3, 0).unbind(1)
    mixed = (topics * (with_y - a * without_y)).sum(1)
    quadratic, linear, constant = sums.square.reshape(-1, k, 3).permute(2, 1, 0)
    high = quadratic - 2.0 * influence.own * linear + influence.own.square() * constant
    total = sums.weight
    covariance = sums.shares / total**2
    variance = (low + 2.0 * mixed + high) / total**2
    return SpectralErrors(covariance.diagonal().sqrt(), variance.clamp(min=0.0).sqrt(), covariance)


@single_threaded
def spectral_covariance(estimate: SpectralTopics) -> Tensor:
    """Covariance of all weights and probabilities, (k + k b, k + k b): the weights, then topic by topic.

    Its diagonal holds the squares of :func:`spectral_errors`, which needs no matrix of this size.

    Args:
        estimate: topics with k (b + 1) at most ``MAX_PARAMETERS``.
    """
    k, b = estimate.unprojected.shape
    if k * (b + 1) > MAX_PARAMETERS:
        raise ValueError(
            f"{k} topics of {b} words have a covariance of {k * (b + 1)} rows, over {MAX_PARAMETERS}: use "
            f"spectral_errors."
        )
    influence = DocumentInfluence.from_estimate(estimate)

    def sum_outer_products(rows: Tensor, weight: Tensor) -> _WeightedSums:
        length, share = estimate.documents.document_weights(rows, weight)
        heavy = torch.where(weight > 0, share * share / weight.clamp(min=1e-300), 0.0)
        y, inner, kappa, shares = influence.evaluate(rows, length)
        counts = (rows.to_dense() if rows.layout != torch.strided else rows).double()
        words = kappa[:, :, None] * counts[:, None, :] * (y[:, :, None] - influence.own)
        moved = torch.cat([shares, (words + inner @ estimate.unprojected).flatten(1)], dim=1)
        return _WeightedSums(share.sum(), (heavy[:, None] * moved).mT @ moved)

    sums = estimate.documents.source.reduce(sum_outer_products)
    return sums.parts / sums.weight**2


@dataclass(frozen=True)
class DocumentInfluence:
    """The influence of a document on weights and topics."""

    documents: DocumentMoments  # weights and scales of the moments
    weights: Tensor  # pi, (k,)
    dual: Tensor  # D G', (b, k): counts times it are coordinates in the topics
    own: Tensor  # D g_h, (k, b): what a word adds to the pair with itself
    pairs: Tensor  # D^2 g_g g_h, (b, k k)
    triples: Tensor  # D^3 g_g^2 g_h, (b, k k)

    @classmethod
    def from_estimate(cls, estimate: SpectralTopics) -> DocumentInfluence:
        if estimate.documents.concentration > 0.0:
            raise ValueError(
                "Standard errors of documents that mix topics (concentration > 0) have no closed form: use bootstrap."
            )
        scale = estimate.documents.scale
        dual = scale[:, None] * torch.linalg.pinv(estimate.unprojected.mT * scale[:, None]).mT
        pairs = (dual[:, :, None] * dual[:, None, :]).flatten(1)
        triples = (dual.square()[:, :, None] * dual[:, None, :]).flatten(1)
        return cls(estimate.documents, estimate.weights, dual, dual.mT, pairs, triples)

    def sum_squares(self, rows: Tensor, weight: Tensor) -> _InfluenceSums:
        """Sums over a tile of documents."""
        length, share = self.documents.document_weights(rows, weight)
        heavy = torch.where(weight > 0, share * share / weight.clamp(min=1e-300), 0.0)
        y, inner, kappa, shares = self.evaluate(rows, length)
        strong = heavy[:, None] * kappa  # (n, k)
        low = torch.einsum("n,nhg,nhj->hgj", heavy, inner, inner)
        cross = torch.stack([(strong * y)[:, :, None] * inner, strong[:, :, None] * inner], dim=2)
        crossed = multiply_counts(rows, cross.reshape(len(y), -1), transpose=True)
        square = torch.stack([strong * kappa * y * y, strong * kappa * y, strong * kappa], dim=2)
        squared = multiply_counts(_square_counts(rows), square.reshape(len(y), -1), transpose=True)
        return _InfluenceSums(share.sum(), (heavy[:, None] * shares).mT @ shares, low, crossed, squared)

    def evaluate(self, rows: Tensor, length: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """y, z, kappa and the influence on pi of each document; ``kappa_h c (y_h - own_h) + B z_h`` on topic h."""
        n, k = len(rows), len(self.weights)
        pi, root = self.weights, self.weights.sqrt()
        one, two = length[:, None], (length * (length - 1.0))[:, None]
        three = two * (length - 2.0)[:, None]
        y = multiply_counts(rows, self.dual)
        pair = multiply_counts(rows, self.pairs)
        triple = multiply_counts(rows, self.triples).reshape(n, k, k)
        distinct = (y[:, :, None] * y[:, None, :] - pair.reshape(n, k, k)) / two[..., None]
        e2 = distinct - torch.diag(pi)
        own = pair.reshape(n, k, k).diagonal(dim1=1, dim2=2)
        e3 = y.square()[:, :, None] * y[:, None, :] - own[:, :, None] * y[:, None, :]
        e3 = (e3 - 2.0 * pair.reshape(n, k, k) * y[:, :, None] + 2.0 * triple) / three[..., None]
        e3 = e3 - torch.diag(pi)
        epsilon = e3 / (pi[:, None] * root) - 0.5 * e2 / (pi[:, None] * root)
        scaled = epsilon / root[:, None]
        rotation = -(scaled - scaled.mT) / (1.0 / pi[:, None] + 1.0 / pi)
        inside = 0.5 * e2 / pi + root[:, None] * rotation / root - distinct / pi
        kappa = 1.0 / (two * pi)
        inner = inside.mT  # (n, h, g)
        loss = inner.sum(2) + y / (one * pi)
        inner = inner - torch.diag_embed(loss)
        moved = distinct / pi + inner.mT  # G dB, (n, g, h)
        shares = y / one - pi - moved @ pi
        return y, inner, kappa, shares - pi * shares.sum(1, keepdim=True)


def _square_counts(rows: Tensor) -> Tensor:
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
) -> tuple[SpectralTopics, Tensor, Tensor]:
    """Topics, and those of bootstrap samples of documents, matched to them.

    Args:
        source: word counts in memory.
        k: number of topics.
        generator: random stream.
        draws: number of bootstrap samples.
        method: of the diagonalisation.
        concentration: as in :func:`spectral`.

    Returns:
        The topics; weights of each draw, (draws, k); probabilities, (draws, k, b).
    """
    found = spectral(source, k, generator, method=method, concentration=concentration)
    weights, topics = [], []
    for _ in range(draws):
        order = torch.randint(source.n_rows, (source.n_rows,), generator=generator, device=generator.device)
        drawn = source.take(order.to(source.rows.device))
        replicate = spectral(drawn, k, generator, method=method, concentration=concentration)
        place = match_topics(found.probabilities, replicate.probabilities)
        weights.append(replicate.weights[place])
        topics.append(replicate.unprojected[place])
    return found, torch.stack(weights), torch.stack(topics)


TILE_VALUES = 1 << 18
"""Products of pairs of columns in memory at once."""


def estimate_spherical_clusters(
    rows: Array, weight: Array, k: int, generator: Generator
) -> tuple[Array, Array, float]:
    """Weights (k,), means (k, d) and variance of spherical clusters (Hsu and Kakade 2013); weights sum to one."""
    n, d = rows.shape
    if k > d or n <= d:
        raise SpectralError(
            f"Moments identify at most {min(n - 1, d)} clusters in {n} rows of {d} columns, not {k}."
        )
    mean = weight @ rows
    variances = np.linalg.eigvalsh((rows - mean).T @ ((rows - mean) * weight[:, None]))
    noise = float(variances[: d - k + 1].mean())
    size = float(np.sqrt(max(variances[-1], 1e-300)))
    x = np.column_stack([rows - mean, np.full(n, size)])
    unit = np.append(np.ones(d), 0.0)
    second = x.T @ (x * weight[:, None]) - noise * np.diag(unit)
    values, axes = np.linalg.eigh(second)
    values, axes = values[-k:], axes[:, -k:]
    if values[0] <= 1e-9 * values[-1]:
        raise SpectralError(f"The second moments identify fewer than {k} clusters.")
    whiten = axes / np.sqrt(values)
    y = x @ whiten
    third = _third_moment(y, weight)
    plane, centre = whiten.T @ (unit[:, None] * whiten), weight @ y
    third -= noise * sum(np.einsum(f"a,bc->{order}", centre, plane) for order in ("abc", "bac", "bca"))
    directions = (axes * np.sqrt(values)) @ diagonalise_jointly(third, generator)  # columns sqrt(pi) (mu, c)
    if np.abs(directions[-1]).min() < 1e-6 * size:
        raise SpectralError(f"The third moments identify fewer than {k} clusters.")
    share = (directions[-1] / size) ** 2
    return share / share.sum(), (directions[:-1] / directions[-1] * size).T + mean, max(noise, 0.0)


def _third_moment(y: Array, weight: Array) -> Array:
    """Third moment of rows (n, k), (k, k, k), as a matrix product on tiles."""
    n, k = y.shape
    moment, step = np.zeros((k, k * k)), max(1, TILE_VALUES // (k * k))
    for start in range(0, n, step):
        tile = y[start : start + step]
        pairs = (tile[:, :, None] * tile[:, None, :]).reshape(len(tile), -1)
        moment += (tile * weight[start : start + step, None]).T @ pairs
    return moment.reshape(k, k, k)


def compute_spherical_responsibilities(rows: Array, weight: Array, k: int, generator: Generator) -> Array:
    """Responsibilities (k, n) under :func:`estimate_spherical_clusters`, with the same arguments."""
    share, mean, noise = estimate_spherical_clusters(rows, weight, k, generator)
    distance = np.square(mean).sum(1)[:, None] - 2.0 * mean @ rows.T  # up to a term common to all clusters
    joint_density = np.log(np.maximum(share, 1e-300))[:, None] - 0.5 * distance / max(noise, 1e-12)
    return np.asarray(softmax(joint_density, axis=0))


PSEUDO_COUNT = 0.5
"""Pseudo-counts per word, distributed by frequency: a word of estimated probability 0 is rare, not impossible."""


def mixture_from_topics(topics: SpectralTopics, template: Multinomial) -> Mixture[Sums]:
    """The multinomial mixture with these topics, smoothed so that every word is possible in every topic."""
    documents = topics.documents
    mean = documents.mean / documents.scale
    share = topics.weights.clamp(min=1.0 / documents.total)
    words = (share * documents.words)[:, None]
    b = len(mean)
    smooth = (words * topics.probabilities + PSEUDO_COUNT * b * (mean + 1e-3 / b)) / (
        words + PSEUDO_COUNT * b * 1.001
    )
    smooth = smooth / smooth.sum(1, keepdim=True)
    family = Multinomial(smooth, template.total, template.smoothing)
    return Mixture((share / share.sum()).log(), family)


def start_topics(
    source: Source, template: Multinomial, generator: Generator
) -> tuple[Mixture[Sums], tuple[str, ...]]:
    """Topics from moments as a start of EM, and notes on corrections."""
    topics = spectral(source, len(template.probability), generator)
    return mixture_from_topics(topics, template), topics.notes


def fit_topics(source: Source, template: Multinomial, generator: Generator) -> Fit[Mixture[Sums]]:
    """Fit topics of word counts from moments, as many as the template has, and compute their likelihood."""
    model, notes = start_topics(source, template, generator)
    outcome = run(em(source), EMState(model), max_iter=1)
    state = EMState(model, outcome.state.path)
    outcome = replace(outcome, state=state, events=[*notes, *outcome.events], converged=True)
    return unstandardise(outcome, source, source, coordinates(source, "none"), "none")


def estimate_topic_errors(source: Source, k: int, generator: Generator) -> dict[str, Tensor]:
    """Standard errors by name, with topics ordered as by :func:`fit_topics` with the same generator."""
    errors = spectral_errors(spectral(source, k, generator))
    return {"weights": errors.weights, "probabilities": errors.probabilities}
