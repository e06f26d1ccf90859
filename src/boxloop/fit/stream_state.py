"""All that a factor stream knows, and how it learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from boxloop.average import Schedule
from boxloop.tree import Tree

Variant = Literal["exact", "paper"]


@dataclass(frozen=True)
class StreamSettings:
    """How a stream learns; the arguments of :meth:`FactorStream.start`."""

    schedule: Schedule
    warmup: int
    variant: Variant
    refresh: int
    expand: bool
    floor: float

    def __post_init__(self) -> None:
        if self.variant not in ("exact", "paper"):
            raise ValueError(f"variant must be 'exact' or 'paper', got {self.variant!r}")
        if self.warmup < 2 or self.refresh < 1:
            raise ValueError(f"need warmup >= 2 and refresh >= 1, got {self.warmup} and {self.refresh}")
        if self.variant == "paper" and self.refresh > 1:
            raise ValueError("the paper's variant computes psi anew for every vector: refresh must be 1")
        if not 0.0 <= self.floor < 1.0:
            raise ValueError(f"floor is a share of each column's variance, in [0, 1), got {self.floor}")

    def together(self, count: int) -> int:
        """Vectors that share a pass after ``count`` of them: a power of two, up to ``refresh`` and a quarter of all."""
        if count <= self.warmup or count < 8:
            return 1
        return min(self.refresh, 1 << ((count // 4).bit_length() - 1))


@dataclass(frozen=True)
class StreamState(Tree):
    r"""All that a stream knows. Long tensors are updated in place; small ones are float64 on the CPU.

    Args:
        rows: U over the b deviations of the last observation, or the gaps of b vectors to the mean before them,
            (K + b, D).
        mean: running mean c, (D,).
        square: running mean of squared deviations s, (D,).
        noise: psi as the last E step used it, (D,).
        start: initial loadings while they are held beside the running A, (K, D), else None.
        gathered: vectors that wait for others, to share a pass with them, (n, D).
        basis: B with :math:`A^\top = B U`, lower triangular, (K, K).
        latent: running mean of :math:`\Sigma + m m^\top` (paper: of :math:`m m^\top`), (K, K).
        turn: P with :math:`F^\top = P U`, (K, K).
        update: what times ``rows`` makes the next U, (K, K + b).
        count: observations learned from; a mini-batch is one.
        settings: how it learns.
    """

    rows: Tensor
    mean: Tensor
    square: Tensor
    noise: Tensor
    start: Tensor | None
    gathered: Tensor
    basis: Tensor
    latent: Tensor
    turn: Tensor
    update: Tensor
    count: int
    settings: StreamSettings

    @property
    def rank(self) -> int:
        """K."""
        return len(self.basis)


def unchanged(rank: int, batch: int) -> Tensor:
    """The update that leaves U as it is, (K, K + b)."""
    return torch.eye(rank, rank + batch, dtype=torch.float64)
