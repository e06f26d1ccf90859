"""Dense linear algebra with floors, and the low-rank identities. No explicit inverse of a d x d matrix."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor

from boxloop.numeric.blas import triangle


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


def gram(rows: Tensor, weight: Tensor | None = None) -> Tensor:
    """``rows.T @ diag(weight) @ rows``, (d, d), at half the work of a product; weights must not be negative."""
    if weight is not None and not _has_unit_weights(weight):
        rows = rows * weight.sqrt()[:, None]
    if torch.is_grad_enabled() and rows.requires_grad:
        function: Any = _GramFunction
        return cast(Tensor, function.apply(rows))
    return mirrored(upper_gram(rows))


def _has_unit_weights(weight: Tensor) -> bool:
    return bool((weight == 1.0).all())


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
    """The same, right in the upper triangle only: sums of them need one :func:`mirrored` at the end."""
    if weight is not None and not _has_unit_weights(weight):
        rows = rows * weight.sqrt()[:, None]
    plain = rows.device.type == "cpu" and rows.shape[1]  # BLAS complains of a triangle without columns
    return triangle(rows) if plain else rows.mT @ rows


def mirrored(upper: Tensor) -> Tensor:
    """The symmetric matrix with this upper triangle; off the CPU it is whole already."""
    if upper.device.type != "cpu":
        return upper
    return torch.triu(upper) + torch.triu(upper, 1).mT


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
