"""How well topics are recovered: from moments of the law itself, from drawn documents, and by EM from many starts."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from boxloop.data import SparseSource, Topics, documents, sparse_source
from boxloop.estimators import FitWarning, MultinomialMixture
from boxloop.fit import (
    DIAGONALISERS,
    DocumentMoments,
    largest_eigenvalues,
    match_topics,
    project_to_simplex,
    spectral,
    spectral_errors,
)
from boxloop.numeric import generator, normal, spawn

TOPICS, WORDS, LENGTH, CONCENTRATION = 5, 50, 10, 0.2
"""The problem of document 001 as it is made here: topics are drawn from a Dirichlet law of this concentration."""
RANDOM = ("random", "random_from_data")
"""Starts of EM that look at no more than chance: random shares of every document, or random documents as topics."""
LEVELS = {"50%": 0.67449, "80%": 1.28155, "90%": 1.64485, "95%": 1.95996, "99%": 2.57583}
"""Half width of a Gaussian interval in standard errors."""
DOCUMENT = "document: one direction"
RIVALS = {
    f"{method}, {'scaled' if scaled else 'unscaled'}": (method, scaled)
    for method in DIAGONALISERS
    for scaled in (True, False)
}
"""Ways to make the third moment diagonal, the default first."""
CASES = {
    "five topics": (5, 50, 100_000, 10, 0.2),
    "few documents": (5, 50, 2_000, 10, 0.2),
    "documents of three words": (5, 50, 50_000, 3, 0.2),
    "topics alike": (5, 50, 100_000, 10, 1.0),
    "many topics": (20, 200, 50_000, 20, 0.2),
    "many topics, alike": (15, 100, 50_000, 20, 1.0),
}
"""Number of topics, vocabulary, documents, words in each, and concentration."""


def errors(truth: Tensor, found: Any) -> Tensor:
    """L1 distance of every true topic from the one found for it, (k,)."""
    found = torch.as_tensor(found)
    return (found[match_topics(truth, found)] - truth).abs().sum(1)


def every_document(topics: Topics) -> SparseSource:
    """All documents of three words with their probabilities as weights: moments over them are those of the law."""
    b = topics.probabilities.shape[1]
    words = torch.combinations(torch.arange(b), 3, with_replacement=True)
    alike = (words.diff(dim=1) == 0).sum(1)
    orders = torch.tensor([6.0, 3.0, 1.0], dtype=torch.float64)[alike]
    weight = orders * (topics.weights @ topics.probabilities[:, words].prod(2))
    n = len(words)
    place = (np.arange(n).repeat(3), words.reshape(-1).numpy())
    return sparse_source(sparse.csr_array((np.ones(3 * n), place), shape=(n, b)), weight.numpy())


def same_word(topics: Topics, seed: int) -> Tensor:
    """What the lemma of document 001 gives with its moments as written, :math:`E[x_1 x_1^T]` and so on; (k, b).

    They are diagonal, since a word agrees with itself.
    """
    k, b = topics.probabilities.shape
    mean = topics.weights @ topics.probabilities
    direction = normal((b,), generator(seed))
    return _by_eigenvectors(torch.diag(mean), torch.diag(mean * direction), k)


def _by_eigenvectors(pair: Tensor, slice_: Tensor, k: int) -> Tensor:
    """The lemma: eigenvectors of :math:`U^T Y U (U^T X U)^{-1}`, as laws of words (k, b)."""
    span = torch.linalg.eigh(pair)[1][:, -k:]
    inner = (span.mT @ slice_ @ span) @ torch.linalg.inv(span.mT @ pair @ span)
    return _laws(span @ torch.linalg.eig(inner)[1].real)


def _laws(columns: Tensor) -> Tensor:
    """Columns as laws: signs and sums, then the nearest points of the simplex."""
    size = columns.abs().sum(0)
    total = columns.sum(0)
    return project_to_simplex((columns / torch.where(total.abs() < 1e-6 * size, size, total)).mT)


def one_direction(source: SparseSource, k: int, seed: int) -> Tensor:
    """The document's procedure on moments of distinct words: one random direction, no whitening; (k, b)."""
    stream = generator(seed)
    made = DocumentMoments.measure(source, "documents", scaled=False)
    _, basis = largest_eigenvalues(made, k, stream)
    _, pair, triple = made.project_moments(basis)
    slice_ = triple @ (basis.mT @ normal((len(basis),), stream))
    return _laws(basis @ torch.linalg.eig(slice_ @ torch.linalg.inv(pair))[1].real)


def exact(seed: int) -> dict[str, float]:
    """Worst column error with the moments of the law itself; with those that the document writes, the mean."""
    topics = documents(TOPICS, WORDS, generator(seed), concentration=CONCENTRATION)
    source = every_document(topics)
    found: dict[str, float] = {}
    for name, (method, scaled) in RIVALS.items():
        fit = spectral(source, TOPICS, generator(seed), method=method, scaled=scaled)
        found[name] = float(errors(topics.probabilities, fit.probabilities).max())
    found[DOCUMENT] = float(errors(topics.probabilities, one_direction(source, TOPICS, seed)).max())
    found["same word"] = float(errors(topics.probabilities, same_word(topics, seed)).mean())
    return found


def by_em(source: SparseSource, k: int, start: str, seed: int) -> MultinomialMixture:
    """EM from one kind of start."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # a bad start may end in a topic that nobody writes about
        return MultinomialMixture(k, init_params=start, random_state=seed, max_iter=300).fit(source)


def recovered(seed: int, n: int, starts: int) -> dict[str, Any]:
    """One problem: column errors (k,) of every estimate; of random starts, those of each."""
    topics, source = _problem(seed, n)
    truth = topics.probabilities
    found = spectral(source, TOPICS, generator(seed))
    told: dict[str, Any] = {
        "spectral": errors(truth, found.probabilities).tolist(),
        "spectral + EM": errors(truth, by_em(source, TOPICS, "spectral", seed).probabilities_).tolist(),
        "default starts": errors(truth, by_em(source, TOPICS, "auto", seed).probabilities_).tolist(),
    }
    for kind in RANDOM:
        fits = [by_em(source, TOPICS, kind, 1000 * seed + i) for i in range(starts)]
        told[kind] = [errors(truth, fit.probabilities_).tolist() for fit in fits]
    return told


def _problem(seed: int, n: int) -> tuple[Topics, SparseSource]:
    one, two = spawn(generator(seed), 2)
    topics = documents(TOPICS, WORDS, one, concentration=CONCENTRATION)
    return topics, topics.source(n, LENGTH, two)


def against_n(seed: int, sizes: Sequence[int]) -> dict[str, list[float]]:
    """Mean column error of one problem as documents are added, by moments and by EM from there."""
    told: dict[str, list[float]] = {"spectral": [], "spectral + EM": [], DOCUMENT: []}
    for n in sizes:
        topics, source = _problem(seed, n)
        found = spectral(source, TOPICS, generator(seed))
        told["spectral"].append(float(errors(topics.probabilities, found.probabilities).mean()))
        fit = by_em(source, TOPICS, "spectral", seed)
        told["spectral + EM"].append(float(errors(topics.probabilities, fit.probabilities_).mean()))
        alone = one_direction(source, TOPICS, seed)
        told[DOCUMENT].append(float(errors(topics.probabilities, alone).mean()))
    return told


def slopes(values: Sequence[Sequence[float]], sizes: Sequence[int]) -> tuple[float, float]:
    """Slope of log error against log n, a line for every problem: their mean and its standard error."""
    x = np.log(np.asarray(sizes, dtype=np.float64))
    each = np.polyfit(x, np.log(np.asarray(values)).T, 1)[0]
    return float(each.mean()), float(each.std() / max(len(each) - 1, 1) ** 0.5)


def covered(seed: int, n: int) -> dict[str, list[float]]:
    """One problem: share of intervals that hold the truth, at each of the levels, for words and for weights."""
    topics, source = _problem(seed, n)
    found = spectral(source, TOPICS, generator(seed))
    spread = spectral_errors(found)
    place = match_topics(topics.probabilities, found.unprojected)
    away = {
        "words": (found.unprojected[place] - topics.probabilities) / spread.probabilities[place],
        "weights": (found.weights[place] - topics.weights) / spread.weights[place],
    }
    rare = topics.probabilities < 0.05 / WORDS
    away["rare words"] = away["words"][rare]
    return {
        name: [float((z.abs() < half).double().mean()) for half in LEVELS.values()]
        for name, z in away.items()
    }


def rivals(case: str, seed: int, shrink: int = 1) -> dict[str, tuple[float, float]]:
    """Mean column error and seconds of every diagonaliser, scaled or not, and of the document's procedure."""
    k, b, n, length, concentration = CASES[case]
    one, two = spawn(generator(seed), 2)
    topics = documents(k, b, one, concentration=concentration)
    source = topics.source(n // shrink, length, two)
    told = {}
    for name, (method, scaled) in RIVALS.items():
        begin = time.perf_counter()
        found = spectral(source, k, generator(seed), method=method, scaled=scaled)
        seconds = time.perf_counter() - begin
        told[name] = (float(errors(topics.probabilities, found.probabilities).mean()), seconds)
    begin = time.perf_counter()
    loss = float(errors(topics.probabilities, one_direction(source, k, seed)).mean())
    told[DOCUMENT] = (loss, time.perf_counter() - begin)
    return told
