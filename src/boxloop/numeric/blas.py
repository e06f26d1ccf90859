"""Matrix products on whichever BLAS is faster."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

Array = NDArray[Any]


SMALL_WORK = 1_000_000
"""OpenBLAS multiplies matrices of at most this many multiplications in place, without packing them first."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for two matrices.

    On the CPU, outside autograd, the product runs through NumPy's BLAS on the same memory, and a long dimension is
    cut into blocks small enough for kernels that do not pack their operands: quicker than torch's product, and than
    NumPy's own, for the long and narrow products of an EM round.
    """
    if not _plain(left, right):
        return left @ right
    a, b = left.numpy(), right.numpy()
    return torch.from_numpy(_blocked(a, b, np.empty((a.shape[0], b.shape[1]), dtype=a.dtype)))


def lower_product(lower: Tensor, right: Tensor, strips: int = 4) -> Tensor:
    """``lower @ right`` for (d, d + e) with zeros above the diagonal that ends in its last corner.

    Args:
        lower: row i is zero after column i + e.
        right: (d + e, n).
        strips: rows are taken in so many strips, each without the columns that are zero in it; four of them do
            62% of the arithmetic.
    """
    if not _plain(lower, right):
        return lower @ right
    left, array = lower.numpy(), right.numpy()
    d, ahead = left.shape[0], left.shape[1] - left.shape[0]
    out = np.empty((d, array.shape[1]), dtype=left.dtype)
    edges = [d * i // strips for i in range(strips + 1)]
    for start, stop in pairwise(edges):
        _blocked(left[start:stop, : stop + ahead], array[: stop + ahead], out[start:stop])
    return torch.from_numpy(out)


def _plain(left: Tensor, right: Tensor) -> bool:
    tracked = torch.is_grad_enabled() and (left.requires_grad or right.requires_grad)
    return not tracked and left.device.type == "cpu"


def _blocked(left: Array, right: Array, out: Array) -> Array:
    (m, inner), n = left.shape, right.shape[1]
    short = m * inner * n // max(m, inner, n, 1)
    widest = SMALL_WORK // 64 if torch.get_num_threads() == 1 else 1000  # wider ones gain more from threads
    long = max(inner, n)
    count = -(-short * long // SMALL_WORK) if 0 < short <= widest else 1
    if m >= long or count < 2:
        return np.matmul(left, right, out=out)
    block = long // count // 8 * 8
    whole = long // block * block
    if inner > n:  # a long sum: add up the blocks
        blocks = left[:, :whole].reshape(m, -1, block).transpose(1, 0, 2)
        np.matmul(blocks, right[:whole].reshape(-1, block, n)).sum(0, out=out)
        return np.add(out, left[:, whole:] @ right[whole:], out=out)
    blocks = right[:, :whole].reshape(inner, -1, block).transpose(1, 0, 2)  # many columns: block by block
    np.matmul(left, blocks, out=out[:, :whole].reshape(m, -1, block).transpose(1, 0, 2))
    np.matmul(left, right[:, whole:], out=out[:, whole:])
    return out


def square_norms(matrix: Tensor) -> Tensor:
    """Sum of squares of each column, (d, n) -> (n,), in one pass where possible."""
    if not _plain(matrix, matrix):
        return matrix.square().sum(0)
    array = matrix.numpy()
    return torch.from_numpy(np.einsum("ij,ij->j", array, array))


def sparse_product(rows: Tensor, right: Tensor, *, transpose: bool = False) -> Tensor:
    """``rows @ right``, or ``rows.T @ right``, for rows in sparse CSR and a dense matrix.

    On the CPU through SciPy, on the same memory: torch's product with a transposed CSR matrix is forty times slower.
    """
    if rows.device.type != "cpu" or (torch.is_grad_enabled() and right.requires_grad):
        return (rows.mT if transpose else rows) @ right
    parts = (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy())
    matrix = sparse.csr_array(parts, shape=(rows.shape[0], rows.shape[1]))
    return torch.from_numpy((matrix.T if transpose else matrix) @ right.numpy())
