r"""Probabilistic principal components: one noise variance for all columns.

.. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon \sim N(0, \sigma^2 I)

Tipping and Bishop (1999). With complete rows the maximum is closed form: with eigenvalues
:math:`\lambda_1 \ge \dots \ge \lambda_d` and eigenvectors U of the covariance,
:math:`\sigma^2 = \frac{1}{d - k} \sum_{j > k} \lambda_j` and :math:`F = U_k (\Lambda_k - \sigma^2 I)^{1/2}`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from boxloop.models.linear import LinearGaussian


@dataclass(frozen=True)
class PrincipalModel(LinearGaussian):
    """A Gaussian whose covariance is low rank plus a multiple of the identity.

    Args:
        mean: c, (d,).
        loadings: F, (d, k).
        noise: sigma^2, (1,).
        floor: smallest noise variance that ``solve`` may return.
        expand: use the parameter-expanded M step.

    Example:
        >>> import torch
        >>> covariance = torch.diag(torch.tensor([3.0, 1.0, 1.0]))
        >>> PrincipalModel.closed_form(torch.zeros(3), covariance, 1).noise
        tensor([1.])
    """

    def fitted_noise(self, residual: Tensor, present: Tensor) -> Tensor:
        """The residual averaged over all values present, (1,)."""
        return (residual.sum() / present.expand_as(residual).sum())[None]

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``; the noise stays isotropic only under one common scale."""
        if bool((scale - scale[0]).abs().max() > 1e-12 * scale[0].abs()):
            raise ValueError("isotropic noise stays isotropic only when all columns share one scale")
        mean, loadings = origin + scale * self.mean, scale[:, None] * self.loadings
        return type(self)(mean, loadings, scale[0].square() * self.noise, self.floor, self.expand)

    @classmethod
    def closed_form(cls, mean: Tensor, covariance: Tensor, k: int, floor: float = 0.0) -> Self:
        """The maximum-likelihood model of a mean (d,) and a covariance (d, d) with divisor n."""
        d = mean.shape[0]
        values, vectors = torch.linalg.eigh(covariance)
        values, vectors = values.flip(0), vectors.flip(1)
        noise = values[k:].mean() if k < d else values.new_zeros(())
        noise = noise.clamp(min=floor)
        loadings = vectors[:, :k] * (values[:k] - noise).clamp(min=0.0).sqrt()
        return cls(mean, loadings, noise[None], floor)
