"""Markov kernels over many chains at once, and the one way to move them.

A kernel is a few pure functions. Randomness is an argument like any other: ``noise`` draws that of a whole block of
steps in a few calls, and ``step`` is a function of the chains and of one step's noise alone. The same step can thus
be replayed, compiled, captured in a CUDA graph, or checked on every state of a finite space.

Axes: c chains, d columns of a position. The rows of a table may be chains too: the posteriors of n rows' latent
values are n chains that never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

NOISE = 1 << 17
"""Numbers of noise drawn at once: a block of steps stays in the cache."""

LONGEST = 256
"""Most steps whose noise is drawn at once."""


class Chains(NamedTuple):
    """Positions of c chains, with what is stored so that a step never evaluates it twice."""

    position: Tensor  # (c, d)
    log_density: Tensor  # (c,)
    auxiliary: tuple[Tensor, ...] = ()  # gradients, random numbers of an estimate, ..., (c, ...) each


class Info(NamedTuple):
    """Diagnostics of a step."""

    log_ratio: Tensor | None = None  # of Metropolis, (c,); None for a step that is never refused
    detail: Any = None  # anything an adaptation of this kernel wants to see


class Kernel(NamedTuple):
    """A Markov kernel as pure functions.

    Example:
        >>> import torch
        >>> from boxloop.numeric import generator
        >>> def step(chains, move):
        ...     return Chains(chains.position + move, chains.log_density), Info()
        >>> walk = Kernel(
        ...     init=lambda position: Chains(position, torch.zeros(len(position))),
        ...     noise=lambda chains, n, stream: torch.randn((n, *chains.position.shape), generator=stream),
        ...     step=step,
        ... )
        >>> path = advance(walk, walk.init(torch.zeros(3, 2)), 10, generator(0))
        >>> path.position.shape, bool((path.chains.position == path.position[-1]).all())
        (torch.Size([10, 3, 2]), True)
    """

    init: Callable[[Tensor], Chains]  # positions (c, d) -> chains; the only density without a move
    noise: Callable[[Chains, int, Generator], Sequence[Any]]  # (chains, n, stream) -> an item per step
    step: Callable[[Chains, Any], tuple[Chains, Info]]  # (chains, item) -> (chains, info)
    chance: Callable[[Tensor], Tensor] | None = None  # log-ratio -> chance of acceptance; None: 1


class Noise(Sequence[Any]):
    """The randomness of n steps as whole blocks, tensors (n, ...) or sequences: an item is the same place of each.

    Example:
        >>> import torch
        >>> [tuple(part.shape) for part in Noise(torch.zeros(5, 3, 2), torch.zeros(5, 3))[0]]
        [(3, 2), (3,)]
    """

    def __init__(self, *parts: Tensor | Sequence[Any]) -> None:
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def __getitem__(self, place: Any) -> Any:
        return tuple(part[place] for part in self.parts)

    def __iter__(self) -> Iterator[Any]:
        return zip(*(part.unbind() if isinstance(part, Tensor) else part for part in self.parts), strict=True)


class Path(NamedTuple):
    """Positions after each of n steps."""

    chains: Chains  # after the last step
    position: Tensor  # after each, (n, c, d)
    log_density: Tensor  # (n, c)
    log_ratio: Tensor | None  # of each proposal, (n, c); None for a kernel that refuses none
    details: tuple[Any, ...]  # of each step, (n,)


def advance(kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
    """Move all chains by a number of steps, at least 1; the stream is advanced."""
    block = choose_block_length(chains)
    record = _PathRecorder()
    for done in range(0, steps, block):
        chains = record.add(kernel, chains, kernel.noise(chains, min(block, steps - done), stream))
    return record.join(chains)


def choose_block_length(chains: Chains) -> int:
    """Steps whose noise and positions are in the cache together."""
    return max(1, min(LONGEST, NOISE // max(1, chains.position.numel())))


def advance_with_noise(kernel: Kernel, chains: Chains, noise: Iterable[Any]) -> Path:
    """Move all chains by one step for each item of noise."""
    record = _PathRecorder()
    return record.join(record.add(kernel, chains, noise))


class _PathRecorder:
    """The parts of a path, collected step by step."""

    def __init__(self) -> None:
        self.position: list[Tensor] = []
        self.log_density: list[Tensor] = []
        self.log_ratio: list[Tensor] = []
        self.details: list[Any] = []

    def add(self, kernel: Kernel, chains: Chains, noise: Iterable[Any]) -> Chains:
        """Step through a block of noise."""
        step = kernel.step
        for item in noise:
            chains, info = step(chains, item)
            self.position.append(chains.position)
            self.log_density.append(chains.log_density)
            self.details.append(info.detail)
            if info.log_ratio is not None:
                self.log_ratio.append(info.log_ratio)
        return chains

    def join(self, chains: Chains) -> Path:
        """All of it, in whole tensors."""
        ratios = torch.stack(self.log_ratio) if self.log_ratio else None
        position, log_density = torch.stack(self.position), torch.stack(self.log_density)
        return Path(chains, position, log_density, ratios, tuple(self.details))


def join_paths(paths: Sequence[Path]) -> Path:
    """Consecutive paths as one."""
    ratios = [path.log_ratio for path in paths if path.log_ratio is not None]
    return Path(
        paths[-1].chains,
        torch.cat([path.position for path in paths]),
        torch.cat([path.log_density for path in paths]),
        torch.cat(ratios) if ratios else None,
        tuple(detail for path in paths for detail in path.details),
    )
