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
    r"""One distribution, known by N independent draws of it: averages over them err by :math:`\mathrm{sd}(g) / \sqrt
    N`."""

    rows: Tensor  # (N, d), independent of one another: one from each chain, not many from one

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
    """m distributions that each put all their weight on one row."""

    mean: Tensor  # the rows, (m, d)

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
