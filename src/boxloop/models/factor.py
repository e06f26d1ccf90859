r"""Factor analysis: a noise variance for every column.

.. math:: x = c + F z + \epsilon, \qquad z \sim N(0, I), \quad \epsilon \sim N(0, \mathrm{diag}(\psi_1, \dots, \psi_d))

Document 004, sections 2.1 and 4.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from torch import Tensor

from boxloop.models.linear import LinearGaussian


@dataclass(frozen=True)
class FactorModel(LinearGaussian):
    """A Gaussian whose covariance is low rank plus diagonal.

    Args:
        mean: c, (d,).
        loadings: F, (d, k).
        noise: psi, (d,).
        floor: smallest noise variance that ``solve`` may return.
        expand: use the parameter-expanded M step; ``False`` is the plain step of document 004.

    Example:
        >>> import torch
        >>> model = FactorModel(torch.zeros(3), torch.ones(3, 1), torch.ones(3))
        >>> model.moments()[1].diagonal()
        tensor([[2., 2., 2.]])
    """

    def fitted_noise(self, residual: Tensor, present: Tensor) -> Tensor:
        """One variance a column (document 004, eq. 4.31)."""
        return residual / present

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The model of ``origin + scale * x``."""
        mean, loadings = origin + scale * self.mean, scale[:, None] * self.loadings
        return type(self)(mean, loadings, scale.square() * self.noise, self.floor, self.expand)
