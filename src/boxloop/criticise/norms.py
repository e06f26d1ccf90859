"""Norms of a gap: how far a model is from the data in one number. Beaulac (2023), section 5.1."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from boxloop.numeric import single_threaded


def entrywise(gap: Tensor, order: float = 2.0) -> Tensor:
    r"""Entrywise norm of a gap, :math:`(\sum_{ij} |M_{ij}|^q)^{1/q}` (eq. 13); order 2 is the Frobenius norm (eq. 14).

    Args:
        gap: a vector or a matrix.
        order: q, at least 1; ``inf`` is the largest entry.

    Example:
        >>> import torch
        >>> entrywise(torch.tensor([[3.0, 0.0], [0.0, 4.0]]))
        tensor(5.)
    """
    if not order >= 1.0:
        raise ValueError(f"order must be at least 1, got {order}")
    return torch.linalg.vector_norm(_check_gap(gap), order)


@single_threaded
def schatten(gap: Tensor, order: float = 2.0) -> Tensor:
    """The vector norm of the singular values of a symmetric matrix; of a vector, its Euclidean length.

    Deviation: singular values are *absolute* eigenvalues; Beaulac (2023) leaves the absolute value out.

    Example:
        >>> import torch
        >>> schatten(torch.diag(torch.tensor([3.0, -4.0])), 1.0)
        tensor(7.)
    """
    if not order >= 1.0:
        raise ValueError(f"order must be at least 1, got {order}")
    gap = _check_gap(gap)
    if gap.dim() == 1:
        return torch.linalg.vector_norm(gap)
    return torch.linalg.vector_norm(torch.linalg.eigvalsh(gap), order)


@single_threaded
def operator(gap: Tensor, tol: float = 1e-9, max_iter: int = 1000) -> tuple[Tensor, Tensor]:
    r"""Largest absolute eigenvalue of a symmetric matrix, and its vector, by power iteration on the square.

    The square has no sign to flip between, so two eigenvalues :math:`\pm\lambda` do no harm to the value.

    Args:
        gap: (d, d), symmetric; a vector has its length for norm.
        tol: relative change of the value at which to stop.
        max_iter: most iterations.

    Returns:
        The norm, and the unit direction (d,) along which the gap is largest.

    Example:
        >>> import torch
        >>> value, direction = operator(torch.tensor([[1.0, 2.0], [2.0, 1.0]]).double())
        >>> value, direction.abs()
        (tensor(3.0000, dtype=torch.float64), tensor([0.7071, 0.7071], dtype=torch.float64))
    """
    gap = _check_gap(gap)
    if gap.dim() == 1:
        size = torch.linalg.vector_norm(gap)
        return size, gap / size.clamp(min=1e-300)
    column = int(gap.square().sum(0).argmax())
    nudge = torch.linspace(1e-3, 2e-3, len(gap), dtype=gap.dtype, device=gap.device)
    v = gap[:, column] + nudge * gap.abs().max()
    last = gap.new_zeros(())
    for _ in range(max_iter):
        size = torch.linalg.vector_norm(v)
        if not bool(size > 0):
            return gap.new_zeros(()), torch.zeros_like(v)
        v = v / size
        image = gap @ v
        value = torch.linalg.vector_norm(image)
        v = gap @ image
        if bool((value - last).abs() <= tol * value):
            break
        last = value
    return value, v / torch.linalg.vector_norm(v).clamp(min=1e-300)


def _check_gap(gap: object) -> Tensor:
    """A vector or a square matrix of real numbers."""
    value = gap if isinstance(gap, Tensor) else torch.as_tensor(np.asarray(gap, dtype=np.float64))
    square = value.dim() == 2 and value.shape[0] == value.shape[1]
    if not (value.dim() == 1 or square) or not value.numel() or value.is_complex():
        raise ValueError(
            f"a gap must be a vector or a square matrix of real numbers, got shape {tuple(value.shape)}"
        )
    return value
