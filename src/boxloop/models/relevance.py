r"""Automatic relevance: the prior of Bayesian factor analysis, and the turn of the factors that suits it best.

The prior ties loadings to the noise of their column, so that it is conjugate and speaks of signal-to-noise ratios:

.. math:: \tau_j \sim \mathrm{Gamma}(a, b_j), \qquad \alpha_l \sim \mathrm{Gamma}(a_0, b_0), \qquad
          F_{jl} \mid \tau_j, \alpha_l \sim N\big(0, (\tau_j \alpha_l)^{-1}\big), \qquad
          c_j \mid \tau_j \sim N\big(c^0_j, (\tau_j \beta)^{-1}\big)

Shape and rate. A factor that the rows do not ask for has a large :math:`\alpha_l`, and its loadings vanish (Bishop
1999; Ghahramani and Beal 2000; Zhao and Yu 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from torch import Tensor

from boxloop.distributions import InverseGamma
from boxloop.tree import Tree


@dataclass(frozen=True)
class RelevancePrior(Tree):
    r"""Prior of Bayesian factor analysis with automatic relevance.

    Args:
        centre: c^0, prior means of the columns, (d,).
        noise_rate: b, (d,).
        noise_shape: a; more than 1, so that noise variances have a mean.
        strength: beta, how many rows the prior mean of a column is worth.
        relevance_shape: a_0.
        relevance_rate: b_0.

    Example:
        >>> import torch
        >>> RelevancePrior.around(torch.zeros(2), torch.tensor([1.0, 4.0])).noise_rate
        tensor([0.2500, 1.0000])
    """

    centre: Tensor
    noise_rate: Tensor
    noise_shape: float = 1.5
    strength: float = 0.01
    relevance_shape: float = 1e-3
    relevance_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.noise_shape <= 1.0:
            raise ValueError(f"noise_shape must be more than 1, got {self.noise_shape}")
        if min(self.strength, self.relevance_shape, self.relevance_rate) <= 0.0:
            raise ValueError("strength, relevance_shape and relevance_rate must be positive")

    @classmethod
    def around(
        cls, mean: Tensor, variance: Tensor, *, relevance_shape: float = 1e-3, relevance_rate: float = 1e-3
    ) -> Self:
        r"""The default, in units of each column's variance v: :math:`\psi_j \sim \mathrm{IG}(3/2, v_j / 4)`.

        It is that of :class:`boxloop.distributions.priors.FactorPrior`: the noise has its prior mean at half
        of the variance of
        its column, and does not vanish. Columns are worth a hundredth of a row at their mean.
        """
        return cls(mean, 0.25 * variance, relevance_shape=relevance_shape, relevance_rate=relevance_rate)

    def shape(self, d: int) -> float:
        """Shape of the law of every relevance precision, whatever the rows."""
        return self.relevance_shape + 0.5 * d

    def noise_law(self) -> InverseGamma:
        """Of noise variances, (d,)."""
        return InverseGamma(torch.full_like(self.noise_rate, self.noise_shape), self.noise_rate)

    def relevance_law(self) -> InverseGamma:
        r"""Of :math:`1 / \alpha_l`, (1,)."""
        one = torch.ones_like(self.noise_rate[:1])
        return InverseGamma(self.relevance_shape * one, self.relevance_rate * one)

    def affine(self, origin: Tensor, scale: Tensor) -> Self:
        """The prior of the models of ``origin + scale * x``."""
        return type(self)(
            origin + scale * self.centre,
            scale.square() * self.noise_rate,
            self.noise_shape,
            self.strength,
            self.relevance_shape,
            self.relevance_rate,
        )


class Turn(NamedTuple):
    """u = (z, 1) becomes T u, coefficients f become T^-T f: ``forward`` is T, ``back`` its inverse, (k + 1, k + 1)."""

    forward: Tensor
    back: Tensor


def best_turn(inner: Tensor, energy: Tensor, d: int, prior: RelevancePrior) -> Turn:
    r"""The affine change of factors that raises the evidence bound most, in closed form.

    Factors :math:`z \to A (z + b)` with loadings :math:`F \to F A^{-1}` and means :math:`c \to c - F b` leave the fit
    as it is, but not the priors (parameter expansion: Luttinen and Ilin 2010). With the relevances at their best for
    every A, :math:`M = \sum_i E[z z^\top]` about the best b and :math:`G = \sum_j E[\tau_j f_j f_j^\top]`, the bound is

    .. math:: (n - d) \log |A| - \tfrac12 \mathrm{tr}\, A M A^\top
              - (a_0 + \tfrac d2) \sum_l \log\big(b_0 + \tfrac12 (A^{-\top} G A^{-1})_{ll}\big)

    up to a constant. Its maximum makes both matrices diagonal (the sum of logarithms is Schur-concave in the diagonal,
    so that a rotation does best which diagonalises; and convex in log-eigenvalues, so that by Horn's inequality the
    eigenvectors of both do best together): :math:`A = \mathrm{diag}(t)^{1/2} Q^\top R^{-1}` with
    :math:`M = n R R^\top`, :math:`R^\top G R = Q\, \mathrm{diag}(g)\, Q^\top` and t the positive root of
    :math:`2 b_0 n t^2 + (n g - 2 b_0 (n - d)) t = g (n + 2 a_0)`, near 1.

    Args:
        inner: :math:`\sum_i E[u u^\top]`, (k + 1, k + 1).
        energy: :math:`\sum_j E[\tau_j f_j f_j^\top]` of coefficients less the prior means, (k + 1, k + 1).
        d: columns.
        prior: of the relevances and the means.

    Returns:
        The turn, factors of most energy first.

    Example:
        >>> import torch
        >>> prior = RelevancePrior.around(torch.zeros(3), torch.ones(3))
        >>> inner = torch.diag(torch.tensor([4.0, 4.0, 1.0])).double()
        >>> turn = best_turn(inner, torch.diag(torch.tensor([9.0, 1.0, 1.0])).double(), 3, prior)
        >>> turn.forward.diagonal().round(decimals=2)
        tensor([0.5000, 0.5000, 1.0000], dtype=torch.float64)
    """
    n, k = inner[-1, -1], len(inner) - 1
    pull = prior.strength * energy[:k, :k]
    pull.diagonal().add_(n)
    shift = torch.linalg.solve(pull, prior.strength * energy[:k, k] - inner[:k, k])
    cross = inner[:k, k][:, None] * shift
    centred = inner[:k, :k] + cross + cross.mT + n * shift[:, None] * shift
    root = torch.linalg.cholesky(centred / n)
    sizes, axes = torch.linalg.eigh(root.mT @ energy[:k, :k] @ root)
    sizes, axes = sizes.flip(0).clamp(min=0.0), axes.flip(1)
    plain = torch.linalg.solve_triangular(root.mT, axes, upper=True).mT
    sign = torch.where(plain.diagonal() < 0.0, -1.0, 1.0)
    stretch = _scales(sizes, n, d, prior).sqrt() * sign
    forward, back = (torch.eye(k + 1, dtype=inner.dtype, device=inner.device) for _ in range(2))
    forward[:k, :k] = stretch[:, None] * plain
    forward[:k, k] = forward[:k, :k] @ shift
    back[:k, :k] = root @ axes / stretch
    back[:k, k] = -shift
    return Turn(forward, back)


def _scales(sizes: Tensor, n: Tensor, d: int, prior: RelevancePrior) -> Tensor:
    """Best squared scale of each factor: the positive root of a quadratic, without cancellation."""
    square = 2.0 * prior.relevance_rate * n
    linear = n * sizes - 2.0 * prior.relevance_rate * (n - d)
    constant = sizes * (n + 2.0 * prior.relevance_shape)
    root = (linear.square() + 4.0 * square * constant).sqrt()
    return torch.where(linear > 0.0, 2.0 * constant / (linear + root), (root - linear) / (2.0 * square))
