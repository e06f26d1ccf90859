r"""AdamW on one vector, and what trainers by gradient share: rates, clipping, streams that a restart finds again.

.. math:: m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \quad
    \theta_t = \theta_{t-1} - \alpha_t \left( \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon}
    + \lambda \theta_{t-1} \right)

Kingma and Ba (2015), with the weight decay of Loshchilov and Hutter (2019), apart from the gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.tree import Tree

FIRST, SECOND, TINY = 0.9, 0.999, 1e-8
"""Adam's two memories, and what keeps it from dividing by zero."""

PATIENCE = 10
"""Steps in a row that may be refused before a fit gives up."""


@dataclass(frozen=True)
class Constant:
    """The same learning rate at every update.

    Example:
        >>> Constant(0.1)(7)
        0.1
    """

    rate: float

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return self.rate


@dataclass(frozen=True)
class Cooling:
    r"""Learning rates that fall to zero, :math:`\alpha_t = \tfrac{\alpha}{2} (1 + \cos \pi t / T)`.

    Args:
        rate: the first.
        rounds: T.

    Example:
        >>> [round(Cooling(0.1, 10)(t), 3) for t in (0, 5, 10)]
        [0.1, 0.05, 0.0]
    """

    rate: float
    rounds: int

    def __call__(self, t: int) -> float:
        """Rate of update t."""
        return 0.5 * self.rate * (1.0 + math.cos(math.pi * min(t / max(self.rounds, 1), 1.0)))


@dataclass(frozen=True)
class Warming:
    r"""Weights that rise to their full value, :math:`\alpha_t = \alpha \min(1, (t - a)_+ / T)`.

    Args:
        weight: the last.
        rounds: T.
        after: a, updates without any.

    Example:
        >>> [Warming(0.5, 10, after=10)(t) for t in (0, 10, 15, 20, 30)]
        [0.0, 0.0, 0.25, 0.5, 0.5]
    """

    weight: float
    rounds: int
    after: int = 0

    def __call__(self, t: int) -> float:
        """Weight at update t."""
        return self.weight * min(max(t - self.after, 0) / max(self.rounds, 1), 1.0)


@dataclass(frozen=True)
class Adam(Tree):
    """The running means that AdamW keeps.

    Args:
        first: of the gradient, (p,).
        second: of its square, (p,).

    Example:
        >>> import torch
        >>> start = torch.tensor([1.0, -2.0])
        >>> _, moved = Adam.start(start).step(start, torch.tensor([5.0, -0.1]), t=1, rate=0.1)
        >>> moved  # the first step has the length of the rate, whatever the gradient's
        tensor([ 0.9000, -1.9000])
    """

    first: Tensor
    second: Tensor

    @classmethod
    def start(cls, point: Tensor) -> Adam:
        """Before the first gradient of these parameters."""
        zero = torch.zeros_like(point)
        return cls(zero, zero)

    def step(
        self,
        point: Tensor,
        gradient: Tensor,
        t: int | Tensor,
        rate: float | Tensor,
        decay: float = 0.0,
    ) -> tuple[Adam, Tensor]:
        """The means and the parameters after one update.

        Args:
            point: parameters, (p,).
            gradient: of what is to be lowered, (p,).
            t: number of this update, from 1.
            rate: learning rate.
            decay: weight decay; a step shrinks the parameters by ``rate * decay``.
        """
        first = torch.lerp(self.first, gradient, 1.0 - FIRST)
        second = torch.addcmul(SECOND * self.second, gradient, gradient, value=1.0 - SECOND)
        move = torch.div(first, second.sqrt().div_((1.0 - SECOND**t) ** 0.5).add_(TINY))
        kept = point * (1.0 - rate * decay) if decay else point
        return Adam(first, second), kept - move.mul_(rate / (1.0 - FIRST**t))


def clipped(gradient: Tensor, limit: float, norm: Tensor | None = None) -> Tensor:
    """The gradient, shortened to ``limit`` where it is longer; nothing waits for the device.

    Args:
        gradient: (p,).
        limit: largest norm.
        norm: of the gradient, where it is known.

    Example:
        >>> import torch
        >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
        tensor([0.6000, 0.8000])
    """
    norm = gradient.norm() if norm is None else norm
    return gradient * (torch.full_like(norm, limit) / norm).clamp(max=1.0)


def joined(parameters: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector, (p,)."""
    return torch.cat([value.reshape(-1) for value in parameters])


def parted(point: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inverse of :func:`joined`, in the shapes of ``like``; differentiable."""
    parts = torch.split(point, [value.numel() for value in like])
    return tuple(part.reshape(value.shape) for part, value in zip(parts, like, strict=True))


def resumed(state: Tensor, device: torch.device) -> Generator:
    """A generator that goes on from a state that was kept."""
    stream = Generator(device)
    stream.set_state(state)
    return stream


def stream_at(seed: int, *place: int, device: torch.device | str = "cpu") -> Generator:
    """The stream of one place in a fit: it needs no state, so a restart finds it again, on any device.

    Example:
        >>> import torch
        >>> one, same, other = (torch.rand((), generator=stream_at(3, t)) for t in (5, 5, 6))
        >>> bool(one == same), bool(one == other)
        (True, False)
    """
    mixed = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return Generator(device).manual_seed(int(mixed >> np.uint64(1)))
