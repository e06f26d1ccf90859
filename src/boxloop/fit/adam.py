r"""AdamW on one vector, schedules of rates, clipping of gradients, and reproducible random generators.

.. math:: m_t = \beta_1 m_{t-1} + (1 - \beta_1) g_t, \quad v_t = \beta_2 v_{t-1} + (1 - \beta_2) g_t^2, \quad
    \theta_t = \theta_{t-1} - \alpha_t \left( \frac{m_t / (1 - \beta_1^t)}{\sqrt{v_t / (1 - \beta_2^t)} + \epsilon}
    + \lambda \theta_{t-1} \right)

Kingma and Ba (2015), with the decoupled weight decay of Loshchilov and Hutter (2019).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator, Tensor

from boxloop.tree import Tree

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8
"""Decay rates of Adam's two means, and the constant that avoids division by zero."""

PATIENCE = 10
"""Consecutive refused steps after which a fit fails."""


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
    r"""Cosine schedule of learning rates, :math:`\alpha_t = \tfrac{\alpha}{2} (1 + \cos \pi t / T)`.

    Args:
        rate: initial rate.
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
    r"""Linear warm-up of a weight, :math:`\alpha_t = \alpha \min(1, (t - a)_+ / T)`.

    Args:
        weight: final weight.
        rounds: T.
        after: a, updates with weight 0.

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
    """Running means of AdamW.

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
        """The state before the first gradient."""
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
        """Means and parameters after one update.

        Args:
            point: parameters, (p,).
            gradient: of the loss, (p,).
            t: number of this update, from 1.
            rate: learning rate.
            decay: weight decay; a step shrinks the parameters by ``rate * decay``.
        """
        first = torch.lerp(self.first, gradient, 1.0 - BETA1)
        second = torch.addcmul(BETA2 * self.second, gradient, gradient, value=1.0 - BETA2)
        move = torch.div(first, second.sqrt().div_((1.0 - BETA2**t) ** 0.5).add_(EPSILON))
        decayed = point * (1.0 - rate * decay) if decay else point
        return Adam(first, second), decayed - move.mul_(rate / (1.0 - BETA1**t))


def clip_gradient(gradient: Tensor, limit: float, norm: Tensor | None = None) -> Tensor:
    """The gradient, scaled down to norm ``limit`` if longer, without synchronisation.

    Args:
        gradient: (p,).
        limit: largest norm.
        norm: of the gradient, if it is known.

    Example:
        >>> import torch
        >>> clip_gradient(torch.tensor([3.0, 4.0]), 1.0)
        tensor([0.6000, 0.8000])
    """
    norm = gradient.norm() if norm is None else norm
    return gradient * (torch.full_like(norm, limit) / norm).clamp(max=1.0)


def flatten_parameters(parameters: Sequence[Tensor]) -> Tensor:
    """Tensors as one vector, (p,)."""
    return torch.cat([value.reshape(-1) for value in parameters])


def unflatten_parameters(point: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The inverse of :func:`flatten_parameters`, in the shapes of ``like``; differentiable."""
    parts = torch.split(point, [value.numel() for value in like])
    return tuple(part.reshape(value.shape) for part, value in zip(parts, like, strict=True))


def restore_generator(state: Tensor, device: torch.device) -> Generator:
    """A generator that continues from a saved state."""
    stream = Generator(device)
    stream.set_state(state)
    return stream


def generator_at(seed: int, *place: int, device: torch.device | str = "cpu") -> Generator:
    """The generator of one position in a fit: reproducible after a restart without saved state, on any device.

    Example:
        >>> import torch
        >>> one, same, other = (torch.rand((), generator=generator_at(3, t)) for t in (5, 5, 6))
        >>> bool(one == same), bool(one == other)
        (True, False)
    """
    mixed = np.random.SeedSequence(seed, spawn_key=place).generate_state(1, np.uint64)[0]
    return Generator(device).manual_seed(int(mixed >> np.uint64(1)))
