"""Parts of an evidence bound: what every autoencoder adds up."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from boxloop.tree import Tree

SCORE_SEED = 20160412
"""Of the points that every score uses."""

DIGITS = float(1 << 52)
"""Of numbers in the unit interval that have a middle which float64 can hold."""

GOLDEN = -0x61C8864680B583EB
"""2^64 over the golden ratio, as a signed number: multiples of it are spread over all words."""


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


def score_points(draws: int, columns: int) -> Tensor:
    """Scrambled Sobol points (draws, k) in the unit cube, always the same."""
    return SobolEngine(columns, scramble=True, seed=SCORE_SEED).draw(draws, dtype=torch.float64)


def score_noise(points: Tensor, rows: Tensor) -> Tensor:
    """Standard normal nodes (draws, n, k) for rows (n, d): the points, their digits flipped by a mask of each row.

    One set of nodes for all rows would give them one error, which no mean over rows makes smaller; a stream of random
    numbers would make a row's score depend on the rows before it. The mask depends on the row's own values, and a net
    whose digits are flipped is as even as before: a digital shift. L'Ecuyer and Lemieux (2002), "Recent advances in
    randomized quasi-Monte Carlo methods".
    """
    whole = (points * DIGITS).long()[:, None] ^ (row_shifts(rows, points.shape[1]) * DIGITS).long()
    return torch.special.ndtri((whole.double() + 0.5) / DIGITS)


def row_shifts(rows: Tensor, columns: int) -> Tensor:
    """Numbers (n, k) in [0, 1) that depend on each row alone, and look random: whole-number arithmetic, so that they
    are the same on every device and in every batch.

    Example:
        >>> import torch
        >>> row_shifts(torch.tensor([[1.0], [2.0], [1.0]]), 2)
        tensor([[0.5527, 0.8119],
                [0.7459, 0.6583],
                [0.5527, 0.8119]], dtype=torch.float64)
    """
    bits = (rows.double() + 0.0).view(torch.int64)  # + 0.0: there is one zero
    place = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    each = _mixed(bits + place * GOLDEN).sum(1)
    code = torch.arange(1, columns + 1, device=rows.device)
    whole = _mixed(each[:, None] + code * GOLDEN)
    return ((whole >> 12) & ((1 << 52) - 1)).double() / DIGITS


def _mixed(word: Tensor) -> Tensor:
    """Steele, Lea and Flood (2014), the finaliser of SplitMix: every bit of a word depends on every other."""
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * -0x40A7B892E31B1A47
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * -0x6B2FB644ECCEEE15
    return word ^ ((word >> 31) & ((1 << 33) - 1))
