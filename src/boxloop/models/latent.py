r"""Priors of a code z: the standard normal law, or a mixture of normals that is learned with the networks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.distributions import DiagonalGaussian, NormalMixtureLaw
from boxloop.numeric import normal
from boxloop.tree import Tree
from boxloop.types import Law

HERMITE = 40
"""Nodes of Gauss and Hermite's rule where a divergence of one column has no closed form."""


class Latent(Protocol):
    """A prior of codes with k columns."""

    @property
    def columns(self) -> int:
        """k."""

    def law(self, like: Tensor) -> Law:
        """One member over k columns, on the device and in the precision of a tensor."""

    def log_density(self, z: Tensor) -> Tensor:
        """Log-density of every row of codes, (n,)."""

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor | None:
        """KL(q || prior) of n diagonal Gaussians (n, k) in closed form, (n,), or None where it has none."""

    def column_divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """KL of each column of q from the same column of the prior, (n, k)."""


@dataclass(frozen=True)
class StandardNormal(Tree):
    r""":math:`z \sim N(0, I_k)`.

    .. math:: \mathrm{KL}\left(N(\mu, \sigma^2) \,\|\, N(0, 1)\right)
              = \tfrac12 \left( \mu^2 + \sigma^2 - 1 - \log \sigma^2 \right)

    Args:
        columns: k.

    Example:
        >>> import torch
        >>> StandardNormal(2).divergence(torch.ones(1, 2), torch.zeros(1, 2))
        tensor([1.])
    """

    columns: int

    def __post_init__(self) -> None:
        _check_columns(self.columns)

    def law(self, like: Tensor) -> DiagonalGaussian:
        """Mean zero, variance one."""
        return DiagonalGaussian(like.new_zeros(1, self.columns), like.new_ones(1, self.columns))

    def log_density(self, z: Tensor) -> Tensor:
        """(n,). Nothing here waits for the device, as the law's ``log_prob`` may."""
        return -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)

    def divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """The columns' divergences added up, (n,)."""
        return self.column_divergence(mean, log_variance).sum(1)

    def column_divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """(n, k); expm1 keeps the digits of a column that is next to its prior."""
        return 0.5 * (mean.square() + torch.expm1(log_variance) - log_variance)


@dataclass(frozen=True)
class NormalMixture(Tree):
    r"""A learned prior, :math:`z \sim \sum_c \pi_c N(m_c, \mathrm{diag}(v_c))`.

    The divergence from it has no closed form: a bound estimates it from its own draws of z.

    Args:
        log_weight: (p,); any numbers, their softmax is pi.
        mean: (p, k).
        log_variance: (p, k).

    Example:
        >>> import torch
        >>> prior = NormalMixture.start(3, 2, torch.Generator())
        >>> prior.law(prior.mean).draw(5, torch.Generator()).shape
        torch.Size([1, 5, 2])
    """

    log_weight: Tensor
    mean: Tensor
    log_variance: Tensor

    def __post_init__(self) -> None:
        p = len(self.log_weight)
        if self.mean.shape != self.log_variance.shape or self.mean.dim() != 2 or len(self.mean) != p:
            raise ValueError(
                f"{p} weights need means and log-variances of shape ({p}, k), got {tuple(self.mean.shape)} and "
                f"{tuple(self.log_variance.shape)}"
            )

    @classmethod
    def start(
        cls, components: int, columns: int, generator: Generator, dtype: torch.dtype = torch.float64
    ) -> Self:
        """Equal weights; means and variances that make up a law near the standard normal one, members apart.

        Means are drawn with variance 3/4 and every member has variance 1/4.
        """
        _check_columns(columns)
        if components < 1:
            raise ValueError(f"a mixture needs at least one component, got {components}")
        mean = math.sqrt(0.75) * normal((components, columns), generator, dtype)
        zero = torch.zeros(components, dtype=dtype, device=generator.device)
        return cls(zero, mean, torch.full_like(mean, math.log(0.25)))

    @property
    def columns(self) -> int:
        """k."""
        return self.mean.shape[1]

    def law(self, like: Tensor) -> NormalMixtureLaw:
        """The mixture as one law."""
        members = DiagonalGaussian(self.mean.to(like), self.log_variance.to(like).exp())
        return NormalMixtureLaw(self.log_weight.to(like).log_softmax(0), members)

    def log_density(self, z: Tensor) -> Tensor:
        """(n,)."""
        return self.law(z).log_prob(z)[0]

    def divergence(self, mean: Tensor, log_variance: Tensor) -> None:
        """None: it is estimated from draws."""

    def column_divergence(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """(n, k), against the prior's marginal of each column, by Gauss and Hermite's rule.

        They do not add up to the divergence of z: the columns of a mixture depend on one another.
        """
        node, weight = (
            torch.as_tensor(part).to(mean) for part in np.polynomial.hermite_e.hermegauss(HERMITE)
        )
        weight = weight / math.sqrt(2 * math.pi)
        spread = (0.5 * log_variance).exp()
        total = torch.zeros_like(mean)
        for at, share in zip(node, weight, strict=True):
            total = total + share * self._marginal(mean + spread * at)
        return -0.5 * (log_variance + 1.0 + math.log(2 * math.pi)) - total

    def _marginal(self, z: Tensor) -> Tensor:
        """Log-density of every value under its own column of the mixture, (n, k)."""
        level = self.log_weight.to(z).log_softmax(0)[:, None, None]
        variance = self.log_variance.to(z)[:, None]
        square = (z - self.mean.to(z)[:, None]).square() * (-variance).exp()
        return (level - 0.5 * (square + variance + math.log(2 * math.pi))).logsumexp(0)


def _check_columns(columns: int) -> None:
    if columns < 1:
        raise ValueError(f"a code needs at least one column, got {columns}")
