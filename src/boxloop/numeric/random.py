"""Explicit random streams, and random numbers that depend on a place or a row alone.

Global seeds are neither read nor set.
"""

from __future__ import annotations

import secrets

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor
from torch.quasirandom import SobolEngine

Words = NDArray[np.uint64]

SOBOL_SEED = 20160412
"""Of the points that every score uses."""

DIGITS = float(1 << 52)
"""Of numbers in the unit interval that have a middle which float64 can hold."""

GOLDEN = -0x61C8864680B583EB
"""2^64 over the golden ratio, as a signed number: multiples of it are spread over all words."""

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


def scrambled(place: Words, key: int) -> Words:
    """A random 64-bit word for each place, in any order: SplitMix64 (Steele, Lea and Flood 2014).

    Example:
        >>> import numpy as np
        >>> scrambled(np.arange(1, dtype=np.uint64), 0)
        array([16294208416658607535], dtype=uint64)
    """
    with np.errstate(over="ignore"):
        word = (place + np.uint64(key % 2**64) * np.uint64(0xD1342543DE82EF95) + np.uint64(1)) * np.uint64(
            0x9E3779B97F4A7C15
        )
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ (word >> np.uint64(31)))


def sobol_points(draws: int, columns: int) -> Tensor:
    """Scrambled Sobol points (draws, k) in the unit cube, always the same."""
    return SobolEngine(columns, scramble=True, seed=SOBOL_SEED).draw(draws, dtype=torch.float64)


def sobol_normal_nodes(points: Tensor, rows: Tensor) -> Tensor:
    """Standard normal nodes (draws, n, k) for rows (n, d): the points, their digits flipped by a mask of each row.

    A digital shift (L'Ecuyer and Lemieux 2002). One set of nodes for all rows would give them one error, which no mean
    over rows makes smaller; a stream of random numbers would make a row's score depend on the rows before it.
    """
    whole = (points * DIGITS).long()[:, None] ^ (hash_rows(rows, points.shape[1]) * DIGITS).long()
    return torch.special.ndtri((whole.double() + 0.5) / DIGITS)


def hash_rows(rows: Tensor, columns: int) -> Tensor:
    """Numbers (n, k) in [0, 1) that depend on each row alone, and look random: whole-number arithmetic, so that they
    are the same on every device and in every batch.

    Example:
        >>> import torch
        >>> hash_rows(torch.tensor([[1.0], [2.0], [1.0]]), 2)
        tensor([[0.5527, 0.8119],
                [0.7459, 0.6583],
                [0.5527, 0.8119]], dtype=torch.float64)
    """
    bits = (rows.double() + 0.0).view(torch.int64)  # + 0.0: there is one zero
    place = torch.arange(1, rows.shape[1] + 1, device=rows.device)
    each = _mix_bits(bits + place * GOLDEN).sum(1)
    code = torch.arange(1, columns + 1, device=rows.device)
    whole = _mix_bits(each[:, None] + code * GOLDEN)
    return ((whole >> 12) & ((1 << 52) - 1)).double() / DIGITS


def _mix_bits(word: Tensor) -> Tensor:
    """Steele, Lea and Flood (2014), the finaliser of SplitMix: every bit of a word depends on every other."""
    word = (word ^ ((word >> 30) & ((1 << 34) - 1))) * -0x40A7B892E31B1A47
    word = (word ^ ((word >> 27) & ((1 << 37) - 1))) * -0x6B2FB644ECCEEE15
    return word ^ ((word >> 31) & ((1 << 33) - 1))
