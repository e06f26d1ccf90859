"""Topics of real text: newsgroups where they are at hand, else documents drawn with more spread than the model's."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from sklearn.metrics import adjusted_rand_score

from boxloop.data import SparseSource, documents, sparse_source
from boxloop.distributions import Multinomial
from boxloop.estimators import FitWarning, MultinomialMixture
from boxloop.fit import Plan, spectral, topic_mixture
from boxloop.models import Mixture
from boxloop.numeric import generator
from papers.topic_recovery import RIVALS

Counts = NDArray[np.float64]
ROUNDS = 300
ARMS: dict[str, dict[str, Any]] = {
    "spectral": {"method": "spectral"},
    "spectral + EM": {"init_params": "spectral"},
    "EM, default starts": {},
    "EM, random starts": {"init_params": "random_from_data"},
}


@dataclass(frozen=True)
class Text:
    """Word counts with the labels of their authors, to fit and to judge."""

    name: str
    real: bool
    train: Counts
    test: Counts
    train_labels: NDArray[np.int64]
    test_labels: NDArray[np.int64]

    @property
    def k(self) -> int:
        """Number of labels."""
        return len(np.unique(self.train_labels))


def load(folder: Path | None, *, quick: bool, seed: int) -> list[Text]:
    """The newsgroups of a folder, or a stand-in."""
    found = []
    if folder is not None and (folder / "news20_w1000.npz").exists():
        with np.load(folder / "news20_w1000.npz") as file:
            found.append(
                Text(
                    "20 newsgroups, 1000 words chosen with the labels",
                    True,
                    file["train_counts"].astype(np.float64),
                    file["test_counts"].astype(np.float64),
                    file["train_labels"].astype(np.int64),
                    file["test_labels"].astype(np.int64),
                )
            )
    if folder is not None and (folder / "news20_w100.npz").exists():
        with np.load(folder / "news20_w100.npz") as file:
            rows, label = file["documents"].astype(np.float64), file["labels"].astype(np.int64)
        found.append(_split("4 newsgroups, presence of 100 words", True, rows, label, seed))
    if not found:
        return [stand_in(1_500 if quick else 10_000, seed)]
    return [_first(text, 1_500) for text in found] if quick else found


def _first(text: Text, n: int) -> Text:
    """So many rows of each part, at random."""
    one, two = (np.random.default_rng(0).permutation(len(part))[:n] for part in (text.train, text.test))
    return Text(
        f"{text.name}, {n} documents",
        text.real,
        text.train[one],
        text.test[two],
        text.train_labels[one],
        text.test_labels[two],
    )


def _split(name: str, real: bool, rows: Counts, label: NDArray[np.int64], seed: int) -> Text:
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = round(0.7 * len(rows))
    train, test = order[:cut], order[cut:]
    return Text(name, real, rows[train], rows[test], label[train], label[test])


def stand_in(n: int, seed: int) -> Text:
    """Documents of unequal length whose words come in bursts: each has a law of its own, near that of its topic."""
    topics = documents(8, 120, generator(seed), concentration=0.5)
    rng = np.random.default_rng(seed)
    label = rng.choice(8, size=n, p=topics.weights.numpy())
    law = rng.standard_gamma(30.0 * topics.probabilities.numpy()[label]) + 1e-9
    rows = rng.multinomial(rng.integers(3, 40, size=n), law / law.sum(1, keepdims=True)).astype(np.float64)
    return _split("drawn documents with bursts of words (no newsgroups)", False, rows, label, seed)


def perplexity(model: Mixture[Any], source: SparseSource) -> float:
    """Inverse of the geometric mean of a word's probability, its document's other words being known."""
    expected = source.reduce(model.expect)
    return float((-expected.log_likelihood / source.rows.values().sum()).exp())


def compared(text: Text, starts: int, seeds: int, progress: Callable[[str], None]) -> dict[str, Any]:
    """Every arm: adjusted Rand index and perplexity of the documents held out, likelihood of the others, seconds."""
    train, test = (sparse_source(sparse.csr_array(rows)) for rows in (text.train, text.test))
    told: dict[str, Any] = {}
    for name, words in ARMS.items():
        told[name] = []
        for seed in range(starts if "random" in name else seeds):
            progress(f"{text.name}: {name}, {seed + 1}")
            begin = time.perf_counter()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FitWarning)
                fit = MultinomialMixture(text.k, random_state=seed, max_iter=ROUNDS, **words).fit(train)
            seconds = time.perf_counter() - begin
            told[name].append(
                {
                    "rand": float(adjusted_rand_score(text.test_labels, fit.predict(test))),
                    "perplexity": perplexity(fit.model_, test),
                    "train": perplexity(fit.model_, train),
                    "seconds": seconds,
                    "rounds": fit.n_iter_,
                }
            )
    told["rivals"] = {name: _rival(text.k, train, test, name) for name in RIVALS}
    return told


def _rival(k: int, train: SparseSource, test: SparseSource, name: str) -> dict[str, float]:
    """One diagonaliser on text: how much of the third moment it leaves, and perplexity before and after EM."""
    method, scaled = RIVALS[name]
    found = spectral(train, k, generator(0), method=method, scaled=scaled)
    template = Multinomial(torch.full((k, train.n_columns), 1.0 / train.n_columns, dtype=torch.float64))
    model = topic_mixture(found, template)
    after = Plan(max_rounds=ROUNDS).run(train, model, generator(0)).state.best
    return {
        "left": found.residual,
        "perplexity": perplexity(model, test),
        "after EM": perplexity(after, test),
    }
