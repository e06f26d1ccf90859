r"""A law over the parameters of factor analysis, and what it predicts.

.. math:: x_j = f_j^\top u + \epsilon_j, \quad u = (z, 1), \quad z \sim N(0, I), \qquad
          f_j \mid \tau_j \sim N(m_j, V_j / \tau_j), \quad \tau_j \sim \mathrm{Gamma}(a_j, b_j)

Given its factors a new row has independent columns, each of Student's law with :math:`2 a_j` degrees of freedom, centre
:math:`m_j^\top u` and squared scale :math:`(b_j / a_j)(1 + u^\top V_j u)`. So draws are exact, and so are the moments
of a row:

.. math:: E[x] = m_c, \qquad \mathrm{Cov}(x) = M M^\top + \mathrm{diag}(\psi), \quad
          \psi_j = \frac{b_j}{a_j - 1} (1 + \mathrm{tr}\, V_j).

Its density has no closed form; :mod:`boxloop.models.predictive_density` has an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.distributions import DiagonalGaussian
from boxloop.models.expected_linear import ExpectedLinear
from boxloop.numeric import covariance as forms, normal
from boxloop.tree import Tree


@dataclass(frozen=True)
class FactorLaw(Tree):
    """Independent normal-gamma laws of the columns' coefficients and noise precisions; see the module."""

    coefficients: Tensor
    spread: Tensor
    shape: Tensor
    rate: Tensor

    @property
    def mean(self) -> Tensor:
        """Expected mean of a row, (d,)."""
        return self.coefficients[:, -1]

    @property
    def loadings(self) -> Tensor:
        """Expected loadings, (d, k)."""
        return self.coefficients[:, :-1]

    @property
    def noise(self) -> Tensor:
        """Expected noise variances, (d,)."""
        return self.rate / (self.shape - 1.0)

    @property
    def psi(self) -> Tensor:
        """What expected loadings leave of the variances of a new row, (d,): the noise, and what is not known."""
        return self.noise * (1.0 + self.spread.diagonal(dim1=-2, dim2=-1).sum(-1))

    @property
    def noise_precision(self) -> Tensor:
        """Expected noise precisions, (d,)."""
        return self.shape / self.rate

    def deviations(self) -> dict[str, Tensor]:
        """Those of q: mean (d,), components (k, d), noise_variance (d,). The last may be infinite; see ``errors``."""
        own = self.noise[:, None] * self.spread.diagonal(dim1=-2, dim2=-1)
        excess = (self.shape - 2.0).clamp(min=0.0)
        return {
            "mean": own[:, -1].sqrt(),
            "components": own[:, :-1].mT.sqrt(),
            "noise_variance": self.noise / excess.sqrt(),
        }

    def expected(self) -> ExpectedLinear:
        """What the law of the factors needs to know."""
        log_precision = torch.digamma(self.shape) - self.rate.log()
        return ExpectedLinear(self.coefficients, self.spread, self.noise_precision, log_precision)

    def posterior(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (n, k) and covariance (n, k, k) of the factors given each row, under q."""
        return self.expected().posterior(rows)

    def prior(self) -> DiagonalGaussian:
        """Standard normal factors."""
        zero = self.coefficients.new_zeros(1, self.loadings.shape[1])
        return DiagonalGaussian(zero, zero + 1.0)

    def emission(self, z: Tensor) -> DiagonalGaussian:
        """The laws of x given factors z, (m, k): Gaussians with the mean and variance of Student's laws."""
        mean, variance = self.given(z)
        return DiagonalGaussian(mean, variance * (self.shape / (self.shape - 1.0)))

    def given(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Centre and squared scale of x given factors, both (m, d)."""
        u = torch.cat([z, z.new_ones(len(z), 1)], dim=1)
        if len(self.spread) == 1:
            reach = ((u @ self.spread[0]) * u).sum(1, keepdim=True)
        else:
            reach = (u[:, :, None] * u[:, None, :]).flatten(1) @ self.spread.flatten(1).mT
        return u @ self.coefficients.mT, (1.0 + reach) / self.noise_precision

    def moments(self) -> tuple[Tensor, forms.LowRank]:
        """Exact mean (d,) and covariance of a new row."""
        return self.mean, forms.LowRank(self.loadings[None], self.psi[None])

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n new rows (n, d) with their factors (n, k); every row has parameters of its own draw."""
        z = self.prior().draw(n, generator)[0]
        mean, scale = self.given(z)
        precision = self._gamma(n, generator) / self.shape
        return mean + (scale / precision).sqrt() * normal(tuple(mean.shape), generator, mean.dtype), z

    def draw(self, n: int, generator: Generator) -> tuple[Tensor, Tensor, Tensor]:
        """n draws of the parameters: means (n, d), loadings (n, d, k), noise variances (n, d)."""
        d, size = self.coefficients.shape
        noise = self.rate / self._gamma(n, generator)
        root = torch.linalg.cholesky(self.spread)
        steps = normal((n, d, size), generator, self.rate.dtype)
        steps = steps @ root[0].mT if len(root) == 1 else (root @ steps[..., None])[..., 0]
        drawn = self.coefficients + noise.sqrt()[..., None] * steps
        return drawn[..., -1], drawn[..., :-1], noise

    def _gamma(self, n: int, stream: Generator) -> Tensor:
        """Gamma draws of unit rate, (n, d)."""
        shape = self.shape.expand(n, len(self.rate)).contiguous()
        return torch._standard_gamma(shape, generator=stream)

    def named(self) -> dict[str, Tensor]:
        """Expected parameters under their public names."""
        return {"mean": self.mean, "components": self.loadings.mT, "noise_variance": self.noise}
