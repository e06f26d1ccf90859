"""Laws on a finite set."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from boxloop.numeric import covariance as forms
from boxloop.tree import Tree


@dataclass(frozen=True)
class Categorical(Tree):
    """m laws on {0, ..., k-1}; a draw is an index in one column.

    Args:
        log_weight: normalised log-probabilities, (m, k).

    Example:
        >>> import torch
        >>> Categorical(torch.tensor([[0.25, 0.75]]).log()).mean
        tensor([[0.7500]])
    """

    log_weight: Tensor

    @property
    def support(self) -> Tensor:
        """All values, (k,): expectations over them are exact."""
        return torch.arange(self.log_weight.shape[1], device=self.log_weight.device)

    @property
    def mean(self) -> Tensor:
        """Mean index, (m, 1)."""
        return self.log_weight.exp() @ self.support.to(self.log_weight.dtype)[:, None]

    def covariance(self) -> forms.Diagonal:
        """Variance of the index, (m, 1)."""
        square = self.support.to(self.log_weight.dtype).square()
        return forms.Diagonal(self.log_weight.exp() @ square[:, None] - self.mean.square())

    def log_prob(self, rows: Tensor) -> Tensor:
        """Log-probability of each index, (m, n) for rows (n, 1) or (n,)."""
        return self.log_weight[:, rows.reshape(-1).long()]

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, 1) indices."""
        return torch.multinomial(self.log_weight.exp(), n, replacement=True, generator=generator)[..., None]
