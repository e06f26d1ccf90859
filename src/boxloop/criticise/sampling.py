"""Rows from any latent-variable model, in memory that does not grow with them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Generator, Tensor

from boxloop.types import LatentModel

BLOCK = 4096


@runtime_checkable
class Sampler(Protocol):
    """A model with a sampler of its own."""

    def sample(self, n: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """n rows and what is behind them."""


def sample_rows(model: LatentModel, n: int, generator: Generator) -> Tensor:
    """n independent rows (n, d) in random order, in float64."""
    if isinstance(model, Sampler):
        rows, _ = model.sample(n, generator)
        return rows[torch.randperm(n, generator=generator, device=generator.device).to(rows.device)].double()
    prior = model.prior()
    parts = []
    for start in range(0, n, BLOCK):
        z = prior.draw(min(BLOCK, n - start), generator)[0]
        parts.append(model.emission(z).draw(1, generator)[:, 0])
    return torch.cat(parts).double()
