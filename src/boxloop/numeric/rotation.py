r"""Orthogonal axes: rotations that make loadings easy to read, and axes that diagonalise a symmetric tensor.

A tensor :math:`T = \sum_h \lambda_h\, v_h \otimes v_h \otimes v_h` with orthonormal :math:`v_h` has slices
:math:`T(I, I, \eta) = V \,\mathrm{diag}(\lambda_h v_h^\top \eta)\, V^\top` that share their axes. With noise in T no
axes serve all slices; the three ``diagonalise`` functions differ in which compromise they make.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from boxloop.numeric.random import normal


def varimax(loadings: Tensor, power: float = 1.0, max_iter: int = 500, tol: float = 1e-10) -> Tensor:
    r"""The rotation T, (k, k), that maximises the orthomax criterion of ``loadings @ T`` (Kaiser 1958).

    .. math:: \sum_{k} \left[ \sum_j l_{jk}^4 - \frac{\gamma}{d} \Big( \sum_j l_{jk}^2 \Big)^2 \right]

    ``power`` is gamma: 1 is varimax, 0 quartimax. Columns of ``loadings @ T`` are in order of their length, their
    largest entries positive.
    """
    d, k = loadings.shape
    turn = torch.eye(k, dtype=loadings.dtype, device=loadings.device)
    for _ in range(max_iter):
        turned = loadings @ turn
        slope = turned**3 - (power / d) * turned * turned.square().sum(0)
        left, _, right = torch.linalg.svd(loadings.mT @ slope)
        turn, last = left @ right, turn
        if float((turn - last).abs().max()) < tol:
            break
    turned = loadings @ turn
    sign = torch.sign(turned.gather(0, turned.abs().argmax(0, keepdim=True)))
    order = torch.argsort(turned.square().sum(0), descending=True, stable=True)
    return (turn * torch.where(sign == 0, 1.0, sign))[:, order]


Array = NDArray[np.float64]
Diagonaliser = Callable[[Array, Generator], Array]

TRIES = 100
"""Random directions from which the one with the widest gap is taken."""
SWEEPS = 100
"""Most sweeps over all pairs of axes; a dozen do."""
STARTS, POWERS = 20, 100
"""Random starts of each power iteration, and its length."""


def diagonalise_widest_gap(tensor: Array, generator: Generator) -> Array:
    """Eigenvectors of one slice: of many random directions, that with the widest gap between eigenvalues."""
    k = len(tensor)
    directions = normal((TRIES, k), generator).cpu().numpy()
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    values, vectors = np.linalg.eigh(np.einsum("abc,tc->tab", tensor, directions))
    gaps = np.diff(values, axis=1).min(1, initial=np.inf)
    return np.asarray(vectors[gaps.argmax()])


def diagonalise_jointly(tensor: Array, generator: Generator) -> Array:
    """All slices at once: the rotation with the least squares off the diagonals, by Jacobi rotations.

    Cardoso and Souloumiac (1996), from the axes of :func:`diagonalise_widest_gap`.
    """
    axes = diagonalise_widest_gap(tensor, generator)
    k = len(axes)
    slices = np.einsum("abc,ag,bh->cgh", tensor, axes, axes)
    for _ in range(SWEEPS):
        turned = 0.0
        for p in range(k - 1):
            for q in range(p + 1, k):
                turned = max(turned, abs(_rotate_pair(slices, axes, p, q)))
        if turned < 1e-12:
            break
    return axes


def _rotate_pair(slices: Array, axes: Array, p: int, q: int) -> float:
    """Turn axes p and q, in place, so that the entries between them are least; the sine of the angle."""
    apart, between = slices[:, p, p] - slices[:, q, q], 2.0 * slices[:, p, q]
    on, off = float(apart @ apart - between @ between), 2.0 * float(apart @ between)
    angle = 0.5 * np.arctan2(off, on + np.hypot(on, off))
    c, s = float(np.cos(angle)), float(np.sin(angle))
    turn = np.array([[c, -s], [s, c]])
    pair = [p, q]
    axes[:, pair] = axes[:, pair] @ turn
    slices[:, :, pair] = slices[:, :, pair] @ turn
    slices[:, pair, :] = turn.T @ slices[:, pair, :]
    return s


def diagonalise_by_powers(tensor: Array, generator: Generator) -> Array:
    """One axis after another by power iterations ``v <- T(I, v, v)``, the best of many starts, then deflation.

    Anandkumar, Ge, Hsu, Kakade and Telgarsky (2014), algorithm 1. The axes found are made orthonormal at the end.
    """
    k = len(tensor)
    left, axes = tensor.copy(), np.zeros((k, k))
    for h in range(k):
        v = _iterate_powers(left, normal((STARTS, k), generator).cpu().numpy())
        axes[:, h] = v
        left -= np.einsum("abc,a,b,c->", left, v, v, v) * np.einsum("a,b,c->abc", v, v, v)
    outer, _, inner = np.linalg.svd(axes)
    return np.asarray(outer @ inner)


def _iterate_powers(tensor: Array, starts: Array) -> Array:
    """The unit vector with the largest T(v, v, v) that power iterations reach."""
    v = starts
    for _ in range(POWERS):
        v = np.einsum("abc,tb,tc->ta", tensor, v, v)
        v /= np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-300)
    return np.asarray(v[np.einsum("abc,ta,tb,tc->t", tensor, v, v, v).argmax()])
