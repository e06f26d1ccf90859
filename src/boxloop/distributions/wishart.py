"""The Wishart law and its inverse: roots, constants, divergences."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from boxloop.numeric import normal, safe_cholesky
from boxloop.tree import Tree

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


@dataclass(frozen=True)
class InverseWishart(Tree):
    r"""Laws of covariances.

    .. math:: p(\Sigma) \propto |\Sigma|^{-(\nu + d + 1)/2} \exp(-\tfrac12 \mathrm{tr}\, \Psi \Sigma^{-1})

    What a bound asks for in every round, of the law and of its prior, is worked out once.

    Args:
        dof: nu, more than d - 1, (...).
        scale: Psi, (..., d, d).
        name: of the scale, for the error where it is not positive definite.

    Example:
        >>> import torch
        >>> law = InverseWishart(torch.tensor([4.0]), torch.eye(2)[None])
        >>> law.divergence(law)
        tensor([0.])
    """

    dof: Tensor
    scale: Tensor
    name: str = "the scale of component"

    @cached_property
    def root(self) -> Tensor:
        """Cholesky factor C of the scale, (..., d, d)."""
        return safe_cholesky(self.scale, self.name)

    @cached_property
    def log_det(self) -> Tensor:
        """Log-determinant of the scale, (...)."""
        return 2.0 * self.root.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    @cached_property
    def _halves(self) -> Tensor:
        """(nu - j) / 2 for j = 0, ..., d - 1, (..., d)."""
        steps = torch.arange(self.scale.shape[-1], dtype=self.dof.dtype, device=self.dof.device)
        return 0.5 * (self.dof[..., None] - steps)

    @cached_property
    def _log_gamma(self) -> Tensor:
        return torch.lgamma(self._halves).sum(-1)

    @cached_property
    def _digamma(self) -> Tensor:
        return torch.digamma(self._halves).sum(-1)

    def log_constant(self) -> Tensor:
        r"""Log-normaliser Z, (...).

        .. math:: \log Z = \tfrac{\nu}{2} (d \log 2 - \log |\Psi|) + \log \Gamma_d(\nu / 2)
        """
        d = self.scale.shape[-1]
        gamma = self._log_gamma + 0.25 * d * (d - 1) * LOG_PI
        return 0.5 * self.dof * (d * math.log(2.0) - self.log_det) + gamma

    def expected_log_precision(self) -> Tensor:
        r"""What :math:`E[-\tfrac12 \log |\Sigma|]` adds to that of :math:`\Psi / \nu`, (...).

        .. math:: \tfrac12 \left( \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right) + d \log \frac2\nu \right)
        """
        return 0.5 * (self._digamma + self.scale.shape[-1] * (2.0 / self.dof).log())

    def divergence(self, prior: InverseWishart) -> Tensor:
        r"""Kullback-Leibler divergence from :math:`IW(\nu_0, C_0 C_0^\top)`, one for all or one for each, (...).

        .. math:: \tfrac{\nu_0}{2} \log \frac{|\Psi|}{|\Psi_0|} + \log \frac{\Gamma_d(\nu_0 / 2)}{\Gamma_d(\nu / 2)}
                  + \frac{\nu - \nu_0}{2} \sum_{j < d} \psi\left( \frac{\nu - j}{2} \right)
                  - \frac{\nu}{2} (d - |C^{-1} C_0|^2)
        """
        trace = torch.linalg.solve_triangular(self.root, prior.root, upper=False).square().sum((-2, -1))
        size = prior.dof * (self.log_det - prior.log_det) + (self.dof - prior.dof) * self._digamma
        fit = self.dof * (self.scale.shape[-1] - trace)
        return prior._log_gamma - self._log_gamma + 0.5 * (size - fit)
