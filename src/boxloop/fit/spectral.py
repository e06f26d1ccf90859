r"""Mixtures of documents from moments: no starts, no rounds, no local optimum.

With topics :math:`\beta_h` of weight :math:`\pi_h`, distinct words of a document have

.. math:: M_2 = \sum_h \pi_h \beta_h \beta_h^\top, \qquad M_3 = \sum_h \pi_h\, \beta_h \otimes \beta_h \otimes \beta_h.

W whitens: :math:`W^\top M_2 W = I` on the span of the k largest *signed* eigenvalues. Then
:math:`v_h = \sqrt{\pi_h}\, W^\top \beta_h` are orthonormal, and the slices of
:math:`M_3(W, W, W) = \sum_h \pi_h^{-1/2} v_h^{\otimes 3}` are diagonal in them. Document 001; Anandkumar, Hsu and
Kakade (2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment, nnls
from torch import Generator, Tensor

from boxloop.fit.documents import Documents, SpectralError, Weighting
from boxloop.numeric import (
    Diagonaliser,
    diagonalise_by_powers,
    diagonalise_jointly,
    diagonalise_widest_gap,
    normal,
    single_threaded,
)
from boxloop.types import Source

Array = NDArray[np.float64]
Method = Literal["joint", "gap", "power"]

DIAGONALISERS: dict[Method, Diagonaliser] = {
    "joint": diagonalise_jointly,
    "gap": diagonalise_widest_gap,
    "power": diagonalise_by_powers,
}
EXTRA, POWER_STEPS = 10, 2
"""Columns beyond k of the random matrix that finds the span, and how often it is multiplied again."""


NOISY = 0.03
"""Share of the third moment off its diagonal from which some topics are likely noise."""


@dataclass(frozen=True)
class Spectral:
    """Topics found from moments.

    Args:
        weights: pi, (k,), in falling order.
        probabilities: of each word in each topic, (k, b), on the simplex.
        unprojected: the same before negative entries were taken away; rows sum to one.
        spectrum: the largest signed eigenvalues of the scaled pair moment, (k + some,).
        left: share of the squares of the whitened third moment that no k topics account for.
        documents: what they were found from.
        notes: what had to be mended.
    """

    weights: Tensor
    probabilities: Tensor
    unprojected: Tensor
    spectrum: Tensor
    left: float
    documents: Documents
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
) -> Spectral:
    """Topics of documents by the method of moments.

    Args:
        source: word counts (n, b), sparse or dense; documents of fewer than 3 words are skipped.
        k: number of topics.
        generator: for the random matrix that finds the span of the topics, and for directions.
        weighting: how much a document counts; see :meth:`Documents.of`.
        method: how the third moment is made diagonal: ``joint`` (all slices at once), ``gap`` (one slice, of the
            direction with the widest gap), ``power`` (the tensor power method).
        scaled: divide each word by the root of its frequency first; otherwise noise in frequent words decides.
        concentration: 0 for one topic a document; else the sum of the Dirichlet parameters from which each document
            draws its shares of the topics (latent Dirichlet allocation), and ``weights`` are mean shares.

    Raises:
        SpectralError: fewer than k independent moments.

    Example:
        >>> import torch
        >>> from boxloop.data import documents
        >>> from boxloop.numeric import generator
        >>> problem = documents(2, 20, generator(0))
        >>> found = spectral(problem.source(20_000, 10, generator(1)), 2, generator(2))
        >>> place = match(problem.probabilities, found.probabilities)
        >>> bool((found.probabilities[place] - problem.probabilities).abs().sum(1).max() < 0.05)
        True
    """
    b = source.n_columns
    if k > b:
        raise SpectralError(f"{k} topics over {b} words: there cannot be more topics than words")
    if not concentration >= 0.0:
        raise ValueError(f"concentration={concentration} must not be negative")
    documents = Documents.of(source, weighting, scaled=scaled, concentration=concentration)
    notes = [f"{documents.skipped} documents of fewer than 3 words skipped"] if documents.skipped else []
    spectrum, basis = largest(documents, k, generator)
    mean, pair, triple = documents.projected(basis)
    values, axes = torch.linalg.eigh(0.5 * (pair + pair.mT))
    least = 1e-10 * spectrum[0].clamp(min=1e-300)
    positive = int((spectrum > least).sum())
    if positive < k or bool(values[0] <= least):
        raise SpectralError(
            f"the pair moments of these documents have {positive} positive eigenvalues: "
            f"{k} topics cannot be told apart, {positive} at most"
        )
    whitener = axes / values.sqrt()
    tensor = torch.einsum("abc,ag,bh,cj->ghj", triple, whitener, whitener, whitener).cpu().numpy()
    turn = DIAGONALISERS[method](tensor, generator)
    left = _left(tensor, turn)
    if left > NOISY:
        notes.append(f"{left:.0%} of the third moment is that of no topics: there may be fewer than {k}")
    dewhitener = axes * values.sqrt() @ torch.from_numpy(turn).to(axes)
    columns = basis @ dewhitener / documents.scale[:, None]
    weights, unprojected, more = _scaled(columns, mean, documents.scale)
    probabilities = to_simplex(unprojected)
    order = weights.argsort(descending=True, stable=True)
    return Spectral(
        weights[order], probabilities[order], unprojected[order], spectrum, left, documents, (*notes, *more)
    )


def _left(tensor: Array, axes: Array) -> float:
    """Share of a tensor's squares off its diagonal in these axes."""
    sizes = np.einsum("abc,ah,bh,ch->h", tensor, axes, axes, axes)
    return float(max(1.0 - (sizes @ sizes) / max(np.square(tensor).sum(), 1e-300), 0.0))


def largest(documents: Documents, k: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The largest signed eigenvalues of the pair moment (k + some,), and a basis (b, k) of the first k vectors' span.

    Random range finder with power steps (Halko, Martinsson and Tropp 2011, algorithm 4.4); the products of the last
    step give the eigenvalues and, being one step on, the better vectors.
    """
    width = min(len(documents.scale), k + EXTRA)
    image = documents.pairs(normal((len(documents.scale), width), generator).to(documents.scale))
    for _ in range(POWER_STEPS):
        basis, _ = torch.linalg.qr(image)
        image = documents.pairs(basis)
    small = basis.mT @ image
    values, axes = torch.linalg.eigh(0.5 * (small + small.mT))
    vectors, _ = torch.linalg.qr(image @ axes.flip(1)[:, :k])
    return values.flip(0), vectors


def _scaled(columns: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, list[str]]:
    """Weights (k,) and topics (k, b) from their directions: signs, sums, and shares of the first moment."""
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


def to_simplex(points: Tensor) -> Tensor:
    """The nearest points whose entries are not negative and sum to one, row by row (Held, Wolfe and Crowder 1974)."""
    falling = points.sort(dim=1, descending=True).values
    over = falling.cumsum(1) - 1.0
    place = torch.arange(1, points.shape[1] + 1, device=points.device)
    kept = (falling - over / place > 0).sum(1, keepdim=True)
    level = over.gather(1, kept - 1) / kept
    found = (points - level).clamp(min=0.0)
    return found / found.sum(1, keepdim=True)


def match(reference: Tensor, found: Tensor) -> Tensor:
    """Which rows of ``found`` (k, b) are those of ``reference``: a permutation of least total L1 distance, (k,)."""
    cost = torch.cdist(reference.double(), found.double(), p=1.0)
    _, place = linear_sum_assignment(cost.cpu().numpy())
    return torch.from_numpy(place).to(found.device)
