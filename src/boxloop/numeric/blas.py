"""Matrix products on whichever BLAS is faster."""

from __future__ import annotations

from itertools import pairwise, product as product_of
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import blas
from torch import Tensor

Array = NDArray[Any]


SMALL_WORK = 1_000_000
"""OpenBLAS multiplies matrices of at most this many multiplications in place, without packing them first."""

STRIP, NARROW = 12, 256
"""Columns of a strip of a symmetric product, and the widest table that is cut into them."""

STRIP_VALUES = 1 << 19
"""Values that all strips read while they are in cache."""

BLOCK_VALUES = 1 << 20
"""Values of a product that is made and used block by block."""


def product(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right`` for two matrices.

    On the CPU, outside autograd, the product runs through NumPy's BLAS on the same memory, and a long dimension is
    cut into blocks small enough for kernels that do not pack their operands: quicker than torch's product, and than
    NumPy's own, for the long and narrow products of an EM iteration.
    """
    if not _runs_on_numpy(left, right):
        return left @ right
    a, b = left.numpy(), right.numpy()
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch's products
        return torch.from_numpy(_blocked(a, b, np.empty((a.shape[0], b.shape[1]), dtype=a.dtype)))


def lower_product(lower: Tensor, right: Tensor, strips: int = 4) -> Tensor:
    """``lower @ right`` for (d, d + e) with zeros above the diagonal that ends in its last corner.

    Args:
        lower: row i is zero after column i + e.
        right: (d + e, n).
        strips: rows are taken in so many strips, each without the columns that are zero in it; four of them do
            62% of the arithmetic.
    """
    if not _runs_on_numpy(lower, right):
        return lower @ right
    left, array = lower.numpy(), right.numpy()
    d, ahead = left.shape[0], left.shape[1] - left.shape[0]
    out = np.empty((d, array.shape[1]), dtype=left.dtype)
    edges = [d * i // strips for i in range(strips + 1)]
    with np.errstate(over="ignore", invalid="ignore"):  # as in torch's products
        for start, stop in pairwise(edges):
            _blocked(left[start:stop, : stop + ahead], array[: stop + ahead], out[start:stop])
    return torch.from_numpy(out)


def lower_norms(lower: Tensor, right: Tensor, strips: int = 5) -> Tensor:
    """Sum of squares of each column of ``lower[i] @ right``, for k matrices as in :func:`lower_product` at once.

    Args:
        lower: (k, d, d + e).
        right: (d + e, n).
        strips: as in :func:`lower_product`.

    Returns:
        (k, n). On the CPU the products live for one block of columns only.
    """
    if not _runs_on_numpy(lower, right):
        return torch.stack([(w @ right).square().sum(0) for w in lower])
    left, array = lower.numpy(), right.numpy()
    (k, d, inner), n = left.shape, array.shape[1]
    edges = [d * i // strips for i in range(strips + 1)]
    width = max(1, min(n, 1024, max(256, SMALL_WORK * strips // (d * inner))))
    group = max(1, min(k, BLOCK_VALUES // (d * width)))
    room, out = np.empty((group, d, width), dtype=left.dtype), np.empty((k, n), dtype=left.dtype)
    for column, member in product_of(range(0, n, width), range(0, k, group)):
        block, some = array[:, column : column + width], left[member : member + group]
        y = room[: len(some), :, : block.shape[1]]
        with np.errstate(over="ignore", invalid="ignore"):  # as in torch's products
            for start, stop in pairwise(edges):
                ends = stop + inner - d
                np.matmul(some[:, start:stop, :ends], block[:ends], out=y[:, start:stop])
        np.einsum("kin,kin->kn", y, y, out=out[member : member + group, column : column + width])
    return torch.from_numpy(out)


def _runs_on_numpy(left: Tensor, right: Tensor) -> bool:
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


def triangle(rows: Tensor) -> Tensor:
    """``rows.T @ rows`` on the CPU, right in the upper triangle only, at half the work of a product.

    A narrow table goes in strips of columns, block by block of rows, through the kernels that do not pack their
    operands: 83% of the processor's rate at a hundred columns, where BLAS's own symmetric product reaches 65%.
    """
    array = rows.numpy()  # in whichever order it is stored, so that nothing is copied
    n, d = array.shape
    if array.flags.c_contiguous and STRIP < d <= NARROW < n and torch.get_num_threads() == 1:
        step = STRIP_VALUES // d
        return torch.from_numpy(sum(_strips(array[i : i + step]) for i in range(0, n, step)))
    routine = blas.dsyrk if array.dtype == np.float64 else blas.ssyrk
    packed = routine(1.0, array.T) if array.flags.c_contiguous else routine(1.0, array, trans=1)
    return torch.from_numpy(packed)


def _strips(rows: Array) -> Array:
    n, d = rows.shape
    out = np.zeros((d, d), dtype=rows.dtype)
    for start in range(0, d, STRIP):
        some, on = slice(start, start + STRIP), slice(start, d)
        block = min(n, SMALL_WORK // (STRIP * (d - start)) // 8 * 8)
        whole = n // block * block
        blocks = rows[:whole].reshape(-1, block, d)
        np.matmul(blocks[:, :, some].transpose(0, 2, 1), blocks[:, :, on]).sum(0, out=out[some, on])
        out[some, on] += rows[whole:, some].T @ rows[whole:, on]
    return out


def scatter(rows: Tensor, centre: Tensor, share: Tensor, negligible: float = 0.0) -> tuple[Tensor, Tensor]:
    r"""Weighted first and second moments of the rows about k centres.

    .. math:: a_k = \sum_i r_{ki} (x_i - c_k), \qquad S_k = \sum_i r_{ki} (x_i - c_k)(x_i - c_k)^\top

    Args:
        rows: x, (n, d).
        centre: c, (k, d).
        share: r, (k, n), not negative.
        negligible: shares below this part of the largest may be left out; on the CPU they are not even read.

    Returns:
        a, (k, d), and S, (k, d, d).
    """
    if not _runs_on_numpy(rows, share):
        apart = [rows - c for c in centre]
        heavy = [z * r[:, None] for z, r in zip(apart, share, strict=True)]
        first = torch.stack([w.sum(0) for w in heavy])
        return first, torch.stack([w.mT @ z for w, z in zip(heavy, apart, strict=True)])
    table, middle, weight = rows.contiguous().numpy(), centre.numpy(), share.numpy()
    k, d = middle.shape
    first_, second_ = np.empty((k, d), dtype=table.dtype), np.empty((k, d, d), dtype=table.dtype)
    matters = weight > negligible * weight.max(initial=0.0)
    for member in range(k):
        index = np.flatnonzero(matters[member])
        z, w = table.take(index, axis=0), weight[member].take(index)
        z -= middle[member]
        np.matmul(w, z, out=first_[member])
        _blocked((z * w[:, None]).T, z, second_[member])
    return torch.from_numpy(first_), torch.from_numpy(second_)


def sparse_product(rows: Tensor, right: Tensor, *, transpose: bool = False) -> Tensor:
    """``rows @ right``, or ``rows.T @ right``, for rows in sparse CSR and a dense matrix.

    On the CPU through SciPy, on the same memory: torch's product with a transposed CSR matrix is forty times slower.
    """
    if rows.device.type != "cpu" or (torch.is_grad_enabled() and right.requires_grad):
        return (rows.mT if transpose else rows) @ right
    parts = (rows.values().numpy(), rows.col_indices().numpy(), rows.crow_indices().numpy())
    matrix = sparse.csr_array(parts, shape=(rows.shape[0], rows.shape[1]))
    return torch.from_numpy((matrix.T if transpose else matrix) @ right.numpy())
