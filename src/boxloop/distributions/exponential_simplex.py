"""Exponential families of kinds and of their shares: one of k, and weights that add up to one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.distributions.exponential import ExponentialFamily, only
from boxloop.distributions.multinomial import Multinomial
from boxloop.loop import Iteration, run

NEAR = 1e-10
"""How far the sum of a row of shares may be from one."""


@dataclass(frozen=True)
class CategoricalFamily(ExponentialFamily):
    r"""One of k kinds, as a row of zeros and a one: T(x) = x, h = 1.

    .. math:: A = \log \sum_j e^{\eta_j}

    All kinds are treated alike, so the natural parameter is known only up to a constant that is added to all of it;
    :class:`boxloop.distributions.exponential_vector.MultinomialFamily` leaves out the last kind instead.

    Args:
        n_kinds: k.

    Example:
        >>> import torch
        >>> family = CategoricalFamily(3)
        >>> family.parameters(family.fit([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1]]))
        {'probability': tensor([0.2500, 0.2500, 0.5000], dtype=torch.float64)}
    """

    n_kinds: int

    def statistic(self, rows: Tensor) -> Tensor:
        """x."""
        return rows

    def log_base(self, rows: Tensor) -> Tensor:
        """Zero on rows of zeros and a single one."""
        inside = ((rows == 0) | (rows == 1)).all(1) & (rows.sum(1) == 1)
        return torch.where(inside, 0.0, -math.inf).to(rows.dtype)

    def log_partition(self, natural: Tensor) -> Tensor:
        """log sum exp eta."""
        return torch.logsumexp(natural, dim=0)

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``probability`` (k,)."""
        return torch.as_tensor(parameters["probability"], dtype=torch.float64).log()

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``probability``."""
        return {"probability": natural.softmax(0)}

    def from_mean(self, mean: Tensor) -> Tensor:
        """log mean."""
        return mean.log()

    def law(self, natural: Tensor) -> Multinomial:
        """A :class:`boxloop.distributions.Multinomial` of one thing a row."""
        return Multinomial(natural.softmax(0)[None], 1)

    def from_law(self, law: Multinomial) -> Tensor:
        """The natural parameter of a law of one member, of one thing a row."""
        if law.total != 1:
            raise ValueError(f"the law counts {law.total} things a row, the family 1")
        return only(law.probability, self.n_kinds).log()


@dataclass(frozen=True)
class DirichletFamily(ExponentialFamily):
    r"""Shares of k kinds: :math:`\eta = a`, T(x) = log x, :math:`h(x) = \prod_j 1/x_j` over the first k - 1 shares.

    .. math:: A = \sum_j \log \Gamma(a_j) - \log \Gamma\Big(\sum_j a_j\Big)

    The mean of T has no closed inverse: Newton's method solves
    :math:`\mathrm{digamma}(a_j) - \mathrm{digamma}(\sum_i a_i) = E[\log x_j]`.

    Args:
        n_kinds: k.

    Example:
        >>> import torch
        >>> family = DirichletFamily(3)
        >>> natural = family.natural({"concentration": [0.5, 1.0, 4.0]})
        >>> family.from_mean(family.mean(natural)).round(decimals=10)
        tensor([0.5000, 1.0000, 4.0000], dtype=torch.float64)
    """

    n_kinds: int

    def statistic(self, rows: Tensor) -> Tensor:
        """log x."""
        return rows.log()

    def log_base(self, rows: Tensor) -> Tensor:
        """- sum log x on positive shares that add up to one."""
        inside = (rows > 0).all(1) & ((rows.sum(1) - 1.0).abs() < NEAR)
        return torch.where(inside, -torch.where(rows > 0, rows, 1.0).log().sum(1), -math.inf)

    def log_partition(self, natural: Tensor) -> Tensor:
        """sum log Gamma(a_j) - log Gamma(sum a_j)."""
        return torch.lgamma(natural).sum() - torch.lgamma(natural.sum())

    def natural(self, parameters: Mapping[str, Any]) -> Tensor:
        """From ``concentration`` (k,)."""
        return torch.as_tensor(parameters["concentration"], dtype=torch.float64)

    def parameters(self, natural: Tensor) -> dict[str, Tensor]:
        """``concentration``."""
        return {"concentration": natural}

    def from_mean(self, mean: Tensor) -> Tensor:
        r"""Newton's method on the concave likelihood, halved where it would fall (Minka 2000).

        The curvature is a diagonal and a constant, :math:`-\mathrm{diag}(\psi'(a_j)) + \psi'(\sum a_j)`, so a step
        costs k operations.
        """
        if not bool(torch.logsumexp(mean, 0) < -1e-14):  # the mean of logs is below the log of means
            return torch.full_like(mean, math.nan)

        def height(a: Tensor) -> Tensor:
            return a @ mean - self.log_partition(a)

        def step(a: Tensor) -> Iteration[Tensor]:
            slope = mean - torch.digamma(a) + torch.digamma(a.sum())
            diagonal, common = torch.polygamma(1, a), torch.polygamma(1, a.sum())
            shared = (slope / diagonal).sum() / (1.0 / common - (1.0 / diagonal).sum())
            move = (slope + shared) / diagonal
            near = bool(slope @ move < 1e-6)  # where Newton converges, and heights differ by rounding alone
            for _ in range(60):
                if bool((a + move > 0).all()) and (near or bool(height(a + move) >= height(a))):
                    break
                move = 0.5 * move
            return Iteration(a + move, 0.0, final=bool((move.abs() <= 1e-14 * a).all()))

        return run(step, torch.ones_like(mean), max_iter=200).state

    def law(self, natural: Tensor) -> None:
        """None: mixtures have no use for it yet."""
