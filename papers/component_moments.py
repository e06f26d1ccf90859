"""Moments of a mixture by its components, so that any number of nodes costs no more than counting them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.models import Mixture
from boxloop.numeric import gram


@dataclass(frozen=True)
class Components:
    """Moments of each component, from which an estimate by m nodes follows by counting them."""

    weight: Tensor
    mean: Tensor
    second: Tensor

    @classmethod
    def of(cls, model: Mixture[Any]) -> Components:
        """Of a fitted mixture; k matrices (d, d)."""
        mean = model.family.mean
        law = model.emission(model.prior().support)
        return cls(model.log_weight.exp(), mean, law.covariance().dense() + mean[:, :, None] * mean[:, None])

    def moments(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """First and second moment when components come at these shares."""
        return share @ self.mean, torch.tensordot(share, self.second, 1)

    def forward(self, m: int, stream: Generator) -> tuple[Tensor, Tensor]:
        """The document's estimate with m nodes: a node's law is that of its component."""
        drawn = torch.multinomial(self.weight, m, replacement=True, generator=stream)
        return self.moments(torch.bincount(drawn, minlength=len(self.weight)).to(torch.float64) / m)


def data_moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eq. 7."""
    mean, n = rows.mean(0), len(rows)
    return mean, (gram(rows) - n * mean[:, None] * mean) / (n - 1) + mean[:, None] * mean


def apart(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Norms of the differences of both moments."""
    return float((one[0] - other[0]).norm()), float((one[1] - other[1]).norm())
