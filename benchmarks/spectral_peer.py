"""The peer of the spectral benchmark: moments as dense matrices of words by words, and one random direction."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy import sparse
from scipy.sparse.linalg import eigsh

from boxloop.data import SparseSource
from boxloop.fit import DocumentMoments, find_largest_eigenvalues
from boxloop.numeric import diagonalise_jointly, generator


def scipy_counts(source: SparseSource) -> sparse.csr_array:
    rows = source.rows
    parts = (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy())
    return sparse.csr_array(parts, shape=tuple(rows.shape))


@dataclass(frozen=True)
class Dense:
    """Unbiased moments of distinct words: M2 as a b x b matrix, and M3 times a direction as another."""

    counts: sparse.csr_array
    falling: np.ndarray

    @classmethod
    def of(cls, counts: sparse.csr_array) -> Dense:
        length = counts.sum(1)
        return cls(counts, np.stack([length * (length - 1), length * (length - 1) * (length - 2)]))

    def _products(self, weight: np.ndarray) -> np.ndarray:
        return (self.counts.T @ sparse.diags_array(weight) @ self.counts).toarray()

    def pairs(self) -> np.ndarray:
        heavy = 1.0 / (self.falling[0] * self.counts.shape[0])
        found = self._products(heavy)
        np.fill_diagonal(found, found.diagonal() - self.counts.T @ heavy)
        return found

    def triples(self, direction: np.ndarray) -> np.ndarray:
        heavy = 1.0 / (self.falling[1] * self.counts.shape[0])
        along = heavy * (self.counts @ direction)
        alike = self._products(heavy)
        found = self._products(along)
        found -= direction[:, None] * alike
        found -= alike * direction
        own = 2.0 * direction * (self.counts.T @ heavy) - self.counts.T @ along
        np.fill_diagonal(found, found.diagonal() + own)
        return found


def dense_topics(counts: sparse.csr_array, k: int, seed: int) -> np.ndarray:
    """Topics (k, b): whiten by the k largest eigenvalues of M2, then the eigenvectors of one random slice of M3."""
    made = Dense.of(counts)
    pair = made.pairs()
    values, vectors = eigsh(pair, k, which="LA")
    whitener = vectors / np.sqrt(values)
    direction = whitener @ np.random.default_rng(seed).normal(size=k)
    _, turn = np.linalg.eigh(whitener.T @ made.triples(direction) @ whitener)
    columns = (vectors * np.sqrt(values)) @ turn
    columns = np.maximum(columns / columns.sum(0), 0.0)
    return (columns / columns.sum(0)).T


def moments_apart(source: SparseSource, seed: int = 0) -> float:
    """Largest difference between our moments and the peer's, times the same thin matrices, relative to their size."""
    thin = np.random.default_rng(seed).normal(size=(source.n_columns, 4))
    along = np.array([0.3, -1.0, 0.5, 0.2])
    peer = Dense.of(scipy_counts(source))
    ours = DocumentMoments.measure(source, "documents", scaled=False)
    _, pair, triple = ours.project_moments(torch.from_numpy(thin))
    theirs = thin.T @ peer.pairs() @ thin, thin.T @ peer.triples(thin @ along) @ thin
    mine = pair.numpy(), triple.numpy() @ along
    return float(max(np.abs(a - b).max() / np.abs(b).max() for a, b in zip(mine, theirs, strict=True)))


@dataclass(frozen=True)
class Whitened:
    """The third moment of some documents in whitened coordinates, (k, k, k), and the way back to words."""

    tensor: np.ndarray
    back: np.ndarray

    @classmethod
    def of(cls, source: SparseSource, k: int, seed: int) -> Whitened:
        made = DocumentMoments.measure(source)
        _, basis = find_largest_eigenvalues(made, k, generator(seed))
        _, pair, triple = made.project_moments(basis)
        values, axes = torch.linalg.eigh(pair)
        whitener = axes / values.sqrt()
        tensor = torch.einsum("abc,ag,bh,cj->ghj", triple, whitener, whitener, whitener)
        back = (basis @ (axes * values.sqrt())) / made.scale[:, None]
        return cls(tensor.numpy(), back.numpy())

    def topics(self, turn: np.ndarray) -> torch.Tensor:
        columns = self.back @ turn
        columns = np.maximum(columns / columns.sum(0), 0.0)
        return torch.from_numpy((columns / columns.sum(0)).T.copy())

    def joint(self) -> np.ndarray:
        return diagonalise_jointly(self.tensor, generator(0))
