r"""Exponential families as objects: natural parameter, statistic, log-partition, and all that follows from them.

.. math:: p_\eta(x) = h(x) \exp(\langle \eta, T(x) \rangle - A(\eta))

(document 002, appendix A, "Exponential models"). The gradient of A is the mean of T and its second derivative the
covariance, both by autograd; maximum likelihood matches the mean of T, and the Kullback-Leibler divergence is the
Bregman divergence of A. Here a family has one law at a time; those of :mod:`boxloop.distributions` have k, for
mixtures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.data import open_source
from boxloop.tree import Tree
from boxloop.types import Law


@dataclass(frozen=True)
class MeanSums(Tree):
    """Summed statistics (p,), weight, and rows outside the support."""

    statistic: Tensor
    weight: Tensor
    outside: Tensor


@dataclass(frozen=True)
class ExponentialFamily(ABC):
    r"""One family, :math:`\{p_\eta\}`; the natural parameter, a vector (p,), is an argument of every method."""

    @abstractmethod
    def statistic(self, rows: Tensor) -> Tensor:
        """T, (n, d) to (n, p)."""

    @abstractmethod
    def log_base(self, rows: Tensor) -> Tensor:
        """log h, (n,); minus infinity outside the support."""

    @abstractmethod
    def log_partition(self, natural: Tensor) -> Tensor:
        """A, a number; differentiable twice."""

    @abstractmethod
    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """Usual parameters to natural ones, (p,)."""

    @abstractmethod
    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """Natural parameters to the usual ones, by name."""

    @abstractmethod
    def from_mean(self, mean: Tensor) -> Tensor:
        """Mean of T to the natural parameter: the inverse of the gradient of A."""

    @abstractmethod
    def law(self, natural: Tensor) -> Law | None:
        """The same distribution in :mod:`boxloop.distributions`, of one member; None where there is none."""

    def mean(self, natural: Tensor) -> Tensor:
        r""":math:`E_\eta[T(X)] = \nabla A(\eta)`, (p,)."""
        return self._mean(natural)[1]

    def covariance(self, natural: Tensor) -> Tensor:
        r""":math:`\mathrm{Cov}_\eta[T(X)] = \nabla^2 A(\eta)`, (p, p): also the information of one row on eta."""
        here, mean = self._mean(natural, keep=True)
        rows = [torch.autograd.grad(one, here, retain_graph=True, allow_unused=True)[0] for one in mean]
        return torch.stack([torch.zeros_like(here) if row is None else row for row in rows]).detach()

    def _mean(self, natural: Tensor, keep: bool = False) -> tuple[Tensor, Tensor]:
        """Where the gradient was taken, and the gradient; differentiable on demand, or where the parameter is."""
        here = natural if natural.requires_grad else natural.detach().clone().requires_grad_()
        keep = keep or natural.requires_grad
        with torch.enable_grad():
            (mean,) = torch.autograd.grad(self.log_partition(here), here, create_graph=keep)
        return here, mean

    def log_prob(self, natural: Tensor, rows: Tensor) -> Tensor:
        """Log-density of each row, (n,)."""
        base = self.log_base(rows)
        inside = torch.isfinite(base)
        # Outside the support T may not be finite; there the density is zero whatever it is.
        value = torch.where(inside[:, None], self.statistic(rows), 0.0) @ natural
        return value - self.log_partition(natural) + base

    def divergence(self, natural: Tensor, other: Tensor) -> Tensor:
        r"""Kullback-Leibler divergence from one member to another.

        .. math:: KL(p_\eta \| p_{\eta'}) = A(\eta') - A(\eta) - \langle \eta' - \eta, \nabla A(\eta) \rangle
        """
        gap = self.log_partition(other) - self.log_partition(natural)
        return gap - (other - natural) @ self.mean(natural)

    def fit(self, X: object, sample_weight: object = None) -> Tensor:
        r"""Maximum likelihood: the natural parameter with :math:`\nabla A(\hat\eta) = \frac1n \sum_i T(x_i)`.

        Args:
            X: any table that :func:`boxloop.data.open_source` opens.
            sample_weight: one weight a row, or the name of a column.

        Returns:
            The natural parameter, (p,).

        Raises:
            ValueError: a row outside the support, or a mean of T that no member of the family has.
        """

        def tile(rows: Tensor, weight: Tensor) -> MeanSums:
            outside = (~torch.isfinite(self.log_base(rows)) & (weight > 0)).sum()
            statistic = torch.where((weight > 0)[:, None], self.statistic(rows), 0.0)
            return MeanSums(weight @ statistic, weight.sum(), outside)

        sums = open_source(X, sample_weight).reduce(tile)
        if int(sums.outside):
            raise ValueError(f"{int(sums.outside)} row(s) lie outside the support of {type(self).__name__}")
        mean = sums.statistic / sums.weight
        natural = self.from_mean(mean)
        if not bool(torch.isfinite(natural).all()):
            raise ValueError(
                f"the mean statistic {mean.tolist()} is at the edge of {type(self).__name__}: "
                "the likelihood has no maximum"
            )
        return natural


def only(value: Tensor, columns: int = 1) -> Tensor:
    """The one line of (1, columns)."""
    if value.shape != (1, columns):
        raise ValueError(f"a law of one member and {columns} column(s) is needed, not {tuple(value.shape)}")
    return value[0]
