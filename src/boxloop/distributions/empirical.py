"""Empirical distributions, known by their draws alone, and point masses.

A model without a closed form can still be criticised by what it produces. Its latent variable is then the row itself:
the prior is :class:`Empirical`, the emission :class:`PointMasses`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class Empirical(Tree):
    r"""One distribution, known by N independent draws of it.

    .. math:: E[g(x)] \approx \frac1N \sum_i g(x_i), \qquad \text{error } \mathrm{sd}(g) / \sqrt N

    Whoever averages over the draws must count that error: they are not the distribution, only a sample of it.

    Args:
        rows: (N, d), independent of one another: one from each chain, not many from one.

    Example:
        >>> import torch
        >>> distribution = Empirical(torch.tensor([[0.0], [2.0]]))
        >>> distribution.mean, distribution.draw(3, torch.Generator()).shape
        (tensor([[1.]]), torch.Size([1, 3, 1]))
    """

    rows: Tensor

    @property
    def mean(self) -> Tensor:
        """Of the draws, (1, d)."""
        return self.rows.mean(0, keepdim=True)

    def covariance(self) -> forms.Dense:
        """Of the draws, (1, d, d)."""
        centred = self.rows - self.mean
        return forms.Dense((centred.mT @ centred / len(centred))[None])

    def log_prob(self, rows: Tensor) -> Tensor:
        """Refused: draws have no density."""
        raise ValueError("An empirical distribution has no density: it is known by its draws alone.")

    def draw(self, n: int, generator: Generator) -> Tensor:
        """n of the draws with replacement, (1, n, d): a bootstrap, exact as N grows."""
        place = torch.randint(len(self.rows), (n,), generator=generator, device=generator.device)
        return self.rows[place.to(self.rows.device)][None]


@dataclass(frozen=True)
class PointMasses(Tree):
    """m distributions that each put all their weight on one row.

    Args:
        mean: the rows, (m, d).

    Example:
        >>> import torch
        >>> PointMasses(torch.tensor([[1.0, 2.0]])).draw(2, torch.Generator())
        tensor([[[1., 2.],
                 [1., 2.]]])
    """

    mean: Tensor

    def covariance(self) -> forms.Diagonal:
        """Zero."""
        return forms.Diagonal(torch.zeros_like(self.mean))

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log of the weight at each row, (m, n): 0 on the point, else minus infinity."""
        there = (self.mean[:, None] == rows).all(-1)
        return torch.where(there, 0.0, -torch.inf).to(self.mean.dtype)

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d), each point n times."""
        return self.mean[:, None].expand(-1, n, -1)
