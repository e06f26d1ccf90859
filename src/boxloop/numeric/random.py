"""Explicit random streams. Global seeds are neither read nor set."""

from __future__ import annotations

import secrets

import numpy as np
import torch
from torch import Generator, Tensor

RandomState = int | np.random.RandomState | np.random.Generator | Generator | None


def seed(random_state: RandomState) -> int:
    """An integer seed from whatever scikit-learn or PyTorch users pass as ``random_state``.

    A stateful object is advanced, so two calls with the same object differ; ``None`` asks the operating system.
    """
    if random_state is None:
        return secrets.randbits(62)
    if isinstance(random_state, Generator):
        return int(torch.randint(2**62, (), generator=random_state, device=random_state.device))
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**62))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31 - 1))
    if isinstance(random_state, (int, np.integer)) and int(random_state) >= 0:
        return int(random_state)
    raise ValueError(
        f"random_state must be None, a non-negative integer or a random generator, got {random_state!r}"
    )


def generator(random_state: RandomState, device: torch.device | str = "cpu") -> Generator:
    """A torch generator of its own, seeded by ``random_state``.

    Example:
        >>> import torch
        >>> bool(torch.rand(1, generator=generator(3)) == torch.rand(1, generator=generator(3)))
        True
    """
    return Generator(device).manual_seed(seed(random_state))


def spawn(parent: Generator, n: int) -> list[Generator]:
    """Split n independent streams off ``parent``."""
    return [generator(parent, parent.device) for _ in range(n)]


def normal(shape: tuple[int, ...], stream: Generator, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal draws on the stream's device."""
    return torch.randn(shape, generator=stream, dtype=dtype, device=stream.device)
