"""Markov kernels over many chains at once, and the one way to move them.

A kernel is a few pure functions. Randomness is an argument like any other: ``noise`` draws that of a whole block of
steps in a few calls, and ``step`` is a function of the chains and of one step's noise alone. The same step can thus
be replayed, compiled, captured in a CUDA graph, or checked on every state of a finite space.

Axes: c chains, d columns of a position. The rows of a table may be chains too: the posteriors of n rows' latent
values are n chains that never meet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

NOISE = 1 << 17
"""Numbers of noise drawn at once: a block of steps stays in the cache."""

LONGEST = 256
"""Most steps whose noise is drawn at once."""


class Chains(NamedTuple):
    """Where c chains are.

    Args:
        position: (c, d).
        log_density: stored with the position, (c,): a step never evaluates it twice.
        kept: what else belongs to a position: its gradient, the random numbers behind a pseudo-marginal estimate.
            Each has a leading axis of c.
    """

    position: Tensor
    log_density: Tensor
    kept: tuple[Tensor, ...] = ()


class Info(NamedTuple):
    """What a step says about itself, apart from where it led.

    Args:
        log_ratio: log of the Metropolis ratio of the proposal, (c,); None for a step that is never refused.
        detail: anything an adaptation of this kernel wants to see.
    """

    log_ratio: Tensor | None = None
    detail: Any = None


class Kernel(NamedTuple):
    """A Markov kernel as pure functions.

    Args:
        init: positions (c, d) -> :class:`Chains`; the only place where a log-density is evaluated without a move.
        noise: (chains, n, stream) -> the randomness of n steps, one item each. A step that draws from laws of its
            own may be given the stream itself, n times.
        step: (chains, item) -> (:class:`Chains`, :class:`Info`).
        chance: log-ratio -> chance of acceptance; None for a kernel that refuses nothing.

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

    init: Callable[[Tensor], Chains]
    noise: Callable[[Chains, int, Generator], Sequence[Any]]
    step: Callable[[Chains, Any], tuple[Chains, Info]]
    chance: Callable[[Tensor], Tensor] | None = None


class Path(NamedTuple):
    """Where a block of n steps led.

    Args:
        chains: after the last step.
        position: after each, (n, c, d).
        log_density: (n, c).
        info: of each, (n,).
    """

    chains: Chains
    position: Tensor
    log_density: Tensor
    info: tuple[Info, ...]

    @property
    def log_ratio(self) -> Tensor | None:
        """Of each proposal, (n, c); None for a kernel that refuses none."""
        ratios = [info.log_ratio for info in self.info if info.log_ratio is not None]
        return torch.stack(ratios) if ratios else None


def advance(kernel: Kernel, chains: Chains, steps: int, stream: Generator) -> Path:
    """Move all chains by a number of steps.

    Args:
        kernel: how.
        chains: from where.
        steps: at least 1.
        stream: randomness; it is advanced.

    Returns:
        The path, every step of it.
    """
    visited: list[Chains] = []
    said: list[Info] = []
    block = max(1, min(LONGEST, NOISE // max(1, chains.position.numel())))
    while len(visited) < steps:
        for item in kernel.noise(chains, min(block, steps - len(visited)), stream):
            chains, info = kernel.step(chains, item)
            visited.append(chains)
            said.append(info)
    position = torch.stack([where.position for where in visited])
    return Path(chains, position, torch.stack([where.log_density for where in visited]), tuple(said))
