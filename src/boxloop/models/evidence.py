"""Parts of an evidence bound: what every autoencoder adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from boxloop.tree import Tree


@dataclass(frozen=True)
class Bound(Tree):
    """The two parts of the evidence lower bound of each row, in nats.

    Args:
        reconstruction: E log p(x|z) under q(z|x), (n,).
        divergence: KL(q(z|x) || p(z)), (n,).

    Example:
        >>> import torch
        >>> Bound(torch.tensor([-3.0]), torch.tensor([1.0])).value(beta=0.5)
        tensor([-3.5000])
    """

    reconstruction: Tensor
    divergence: Tensor

    def value(self, beta: float | Tensor = 1.0) -> Tensor:
        """Reconstruction less beta times the divergence, (n,): the evidence lower bound where beta is 1."""
        return self.reconstruction - beta * self.divergence


def log_guess(log_variance: Tensor, noise: Tensor) -> Tensor:
    """log q(z|x) at z = mean + deviation * noise, (M, n)."""
    return -0.5 * (noise.square() + log_variance + math.log(2 * math.pi)).sum(-1)
