"""The Wishart law and its inverse: roots, constants, divergences."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from boxloop.numeric import normal

LOG_PI = math.log(math.pi)


def wishart_root(dof: Tensor, d: int, stream: Generator, *, flipped: bool = False) -> Tensor:
    r"""Lower triangular T with :math:`T T^\top \sim W(\nu, I)`: Bartlett's decomposition.

    .. math:: T_{ii}^2 \sim \chi^2_{\nu - i}, \quad i = 0, \dots, d - 1, \qquad T_{ij} \sim N(0, 1), \quad j < i

    Args:
        dof: nu, more than d - 1, (m,).
        d: columns.
        stream: randomness; it is advanced.
        flipped: return T such that :math:`U = T^\top` has :math:`U U^\top \sim W(\nu, I)` instead.

    Returns:
        (m, d, d).

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> wishart_root(torch.tensor([5.0]), 2, generator(0)).shape
        torch.Size([1, 2, 2])
    """
    steps = torch.arange(d, dtype=dof.dtype, device=dof.device)
    degrees = dof[:, None] - (steps.flip(0) if flipped else steps)
    lower = torch.tril(normal((len(dof), d, d), stream, dof.dtype), -1)
    lower.diagonal(dim1=-2, dim2=-1).copy_(
        (2.0 * torch._standard_gamma(0.5 * degrees, generator=stream)).sqrt()
    )
    return lower


def wishart_log_constant(dof: Tensor, root: Tensor) -> Tensor:
    r"""Log-normaliser Z of :math:`IW(\nu, \Psi)` with :math:`\Psi = C C^\top`, (...).

    .. math:: \log Z = \tfrac{\nu}{2} (d \log 2 - \log |\Psi|) + \log \Gamma_d(\nu / 2)

    Args:
        dof: nu, (...).
        root: C, (..., d, d).
    """
    d = root.shape[-1]
    gamma = torch.lgamma(_halves(dof, d)).sum(-1) + 0.25 * d * (d - 1) * LOG_PI
    return 0.5 * dof * (d * math.log(2.0) - log_det(root)) + gamma


def expected_log_precision(dof: Tensor, d: int) -> Tensor:
    r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of :math:`\Psi / \nu`, (...).

    .. math:: \tfrac12 \left( \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right) + d \log \frac2\nu \right)
    """
    return 0.5 * (torch.digamma(_halves(dof, d)).sum(-1) + d * (2.0 / dof).log())


def wishart_divergence(dof: Tensor, root: Tensor, prior_dof: Tensor, prior_root: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence of :math:`IW(\nu, C C^\top)` from :math:`IW(\nu_0, C_0 C_0^\top)`, (...).

    .. math:: \log \frac{Z_0}{Z} - \frac{\nu - \nu_0}{2} E[\log |\Sigma|] - \frac{\nu}{2} (d - |C^{-1} C_0|^2)

    Example:
        >>> import torch
        >>> dof, root = torch.tensor([4.0]), torch.eye(2)[None]
        >>> wishart_divergence(dof, root, dof, root)
        tensor([0.])
    """
    d = root.shape[-1]
    log_size = log_det(root) - d * math.log(2.0) - torch.digamma(_halves(dof, d)).sum(-1)
    shape = torch.broadcast_shapes(root.shape, prior_root.shape)
    trace = torch.linalg.solve_triangular(root.expand(shape), prior_root.expand(shape), upper=False)
    constant = wishart_log_constant(prior_dof, prior_root) - wishart_log_constant(dof, root)
    return constant - 0.5 * ((dof - prior_dof) * log_size + dof * (d - trace.square().sum((-2, -1))))


def log_det(root: Tensor) -> Tensor:
    """Log-determinant of the matrix with this Cholesky factor, (...)."""
    return 2.0 * root.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _halves(dof: Tensor, d: int) -> Tensor:
    """(nu - j) / 2 for j = 0, ..., d - 1, (..., d)."""
    return 0.5 * (dof[..., None] - torch.arange(d, dtype=dof.dtype, device=dof.device))
