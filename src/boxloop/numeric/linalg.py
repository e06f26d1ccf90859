"""Dense linear algebra: products on whichever BLAS is faster, factors with floors, low-rank identities.

No explicit inverse of a d x d matrix.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise, product as product_of
from typing import Any, cast

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


def gram(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """``rows.T @ diag(weight) @ rows``, (d, d), at half the work of a product; weights must not be negative."""
    if weight is not None and not bool((weight == 1.0).all()):
        rows = rows * weight.sqrt()[:, None]
    if torch.is_grad_enabled() and rows.requires_grad:
        function: Any = _GramFunction
        return cast(Tensor, function.apply(rows))
    return mirrored(upper_gram(rows))


class _GramFunction(torch.autograd.Function):
    """Half a product forward, one product backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        ctx.save_for_backward(rows)
        return mirrored(upper_gram(rows.detach()))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (rows,) = ctx.saved_tensors
        return cast(Tensor, rows @ (gradient + gradient.mT))


def upper_gram(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """The same, right in the upper triangle only: sums of them need one :func:`mirrored` at the end.

    A narrow table goes in strips of columns, block by block of rows, through the kernels that do not pack their
    operands: 83% of the processor's rate at a hundred columns, where BLAS's own symmetric product reaches 65%.
    """
    if weight is not None and not bool((weight == 1.0).all()):
        rows = rows * weight.sqrt()[:, None]
    if rows.device.type != "cpu" or not rows.shape[1]:  # BLAS complains of a triangle without columns
        return rows.mT @ rows
    array = rows.numpy()  # in whichever order it is stored, so that nothing is copied
    n, d = array.shape
    if array.flags.c_contiguous and STRIP < d <= NARROW < n and torch.get_num_threads() == 1:
        step = STRIP_VALUES // d
        return torch.from_numpy(sum(_multiply_strips(array[i : i + step]) for i in range(0, n, step)))
    routine = blas.dsyrk if array.dtype == np.float64 else blas.ssyrk
    packed = routine(1.0, array.T) if array.flags.c_contiguous else routine(1.0, array, trans=1)
    return torch.from_numpy(packed)


def _multiply_strips(rows: Array) -> Array:
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


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle; off the CPU it is whole already."""
    if upper.device.type != "cpu":
        return upper
    return torch.triu(upper) + torch.triu(upper, 1).mT


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


class ConditionError(ValueError):
    """A matrix that must be positive definite is not, and no floor was allowed."""


def safe_cholesky(matrix: Tensor, what: str = "covariance") -> Tensor:
    """Lower Cholesky factors of (..., d, d), or an error that names the member that failed."""
    factor, info = torch.linalg.cholesky_ex(matrix)
    if bool(info.any()):
        bad = torch.nonzero(info.reshape(-1))[0].item()
        raise ConditionError(f"{what} {bad} is not positive definite")
    return factor


def floor_covariance(matrix: Tensor, floor: float) -> tuple[Tensor, Tensor]:
    r"""The nearest admissible covariance in likelihood: eigenvalues clipped at ``floor``.

    .. math:: \arg\max_{\Sigma \succeq \epsilon I} \; -\log|\Sigma| - \mathrm{tr}(\Sigma^{-1} S)
              = U \max(\Lambda, \epsilon) U^\top, \qquad S = U \Lambda U^\top

    This is the exact M step under the constraint, so EM stays monotone; adding :math:`\epsilon I` is not.

    Args:
        matrix: (..., d, d) symmetric.
        floor: smallest admissible eigenvalue.

    Returns:
        The clipped matrices and, (...,) boolean, which were changed.
    """
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    _, info = torch.linalg.cholesky_ex(matrix - floor * eye)
    low = info != 0
    if not bool(low.any()):
        return matrix, low
    values, vectors = torch.linalg.eigh(matrix[low])
    clipped = (vectors * values.clamp(min=floor)[..., None, :]) @ vectors.mT
    fixed = matrix.clone()
    fixed[low] = 0.5 * (clipped + clipped.mT)
    return fixed, low


@lru_cache(maxsize=64)
def pack_index(d: int) -> tuple[Tensor, Tensor]:
    """Row and column of each entry of a packed upper triangle: (0,0), (0,1), ..., (1,1), ..."""
    index = torch.triu_indices(d, d)
    return index[0], index[1]


@lru_cache(maxsize=64)
def _find_packed_places(d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Where a packed entry lies in a flat d x d matrix, and where an entry of the matrix lies among the packed.

    Kept on each device: a copy in every iteration would make the host wait for a GPU.
    """
    i, j = pack_index(d)
    place = torch.empty(d, d, dtype=torch.int64)
    place[i, j] = place[j, i] = torch.arange(len(i))
    return (i * d + j).to(device), place.reshape(-1).to(device)


def pack(matrix: Tensor) -> Tensor:
    """Upper triangle of (..., d, d) as (..., d(d+1)/2)."""
    flat = matrix.reshape(*matrix.shape[:-2], -1)
    places, _ = _find_packed_places(matrix.shape[-1], matrix.device)
    return flat.gather(-1, places.expand(*flat.shape[:-1], -1))  # quicker than index_select


def unpack(packed: Tensor, d: int) -> Tensor:
    """Symmetric (..., d, d) from its packed upper triangle."""
    _, places = _find_packed_places(d, packed.device)
    return packed.gather(-1, places.expand(*packed.shape[:-1], -1)).reshape(*packed.shape[:-1], d, d)


def log_factor(factor: Tensor) -> Tensor:
    """A lower Cholesky factor (..., d, d) as free numbers (..., d(d+1)/2): the diagonal enters by its log."""
    logs = factor.diagonal(dim1=-2, dim2=-1).log()
    return pack((torch.tril(factor, -1) + torch.diag_embed(logs)).mT)


def from_log_factor(packed: Tensor, d: int) -> Tensor:
    """The lower Cholesky factor of :func:`log_factor`."""
    matrix = unpack(packed, d)
    return torch.tril(matrix, -1) + torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1).exp())


def has_missing(values: Tensor) -> bool:
    """Whether any value is NaN; one pass, no temporary of the size of the values."""
    return bool(torch.isnan(values.sum()))


def column_signs(columns: Tensor) -> Tensor:
    """+1 or -1 for each of k columns (n, k): what makes its largest entry positive.

    Factorisations leave the sign of a column open; with this one it is the same on every machine.

    Example:
        >>> import torch
        >>> column_signs(torch.tensor([[1.0, 2.0], [-3.0, 1.0]]))
        tensor([-1.,  1.])
    """
    largest = columns.gather(0, columns.abs().argmax(0, keepdim=True))[0]
    return torch.where(largest < 0.0, -1.0, 1.0).to(columns)


def column_means(rows: Tensor) -> Tensor:
    """``rows.mean(0)``; on a GPU as a product, which is quicker than a sum down the columns."""
    if rows.device.type == "cpu":
        return rows.mean(0)
    return rows.new_full((len(rows),), 1.0 / max(len(rows), 1)) @ rows


def woodbury(loadings: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    r"""Cholesky factor of :math:`I + F^\top \Psi^{-1} F` and :math:`\log|F F^\top + \Psi|`.

    Args:
        loadings: F, (d, k).
        noise: diagonal of Psi, (d,).
    """
    scaled = loadings / noise[:, None]
    inner = scaled.mT @ loadings
    inner.diagonal().add_(1.0)
    factor = torch.linalg.cholesky(inner)
    return factor, 2.0 * factor.diagonal().log().sum() + noise.log().sum()
