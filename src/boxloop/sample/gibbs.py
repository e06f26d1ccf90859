r"""Gibbs sampling by blocks; a block without a conditional law of its own is moved by any other algorithm.

.. math:: x_b \sim \pi(x_b \mid x_{-b}) \quad \text{for each block b in turn}

A block that is moved by Metropolis (Metropolis within Gibbs) compares joint densities. The joint density is stored, so
that such blocks one after another evaluate it once a proposal; it is evaluated anew only after a block that was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.distributions.constraints import Constraint

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.hmc import HMC
from boxloop.sample.mala import MALA
from boxloop.sample.pseudo_marginal import PseudoMarginal
from boxloop.sample.random_walk import RandomWalk
from boxloop.sample.space import Space
from boxloop.sample.target import Target

Conditional = Callable[[dict[str, Tensor], Generator], Tensor]


@runtime_checkable
class Algorithm(Protocol):
    """Whatever makes a kernel of a target."""

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target's law as it is."""


@dataclass(frozen=True, eq=False)
class Gibbs:
    r"""Blocks of named values, drawn or moved in turn.

    Args:
        blocks: for each name of the values, in the order of the sweep: its conditional law, a function
            ``(values, stream) -> new value (c, ...)``; or an algorithm such as ``RandomWalk(scale=0.5)``, whose tuning
            must be given, since warm-up does not see inside a sweep.

    Reference:
        Geman and Geman (1984); Tierney (1994) for Metropolis within Gibbs.

    Example:
        >>> import torch
        >>> from boxloop.sample import sample
        >>> def draw_a(values, stream):  # two normal columns with correlation 1/2
        ...     return 0.5 * values["b"] + 0.75**0.5 * torch.randn(len(values["b"]), generator=stream)
        >>> def draw_b(values, stream):
        ...     return 0.5 * values["a"] + 0.75**0.5 * torch.randn(len(values["a"]), generator=stream)
        >>> start = {"a": torch.zeros(8), "b": torch.zeros(8)}
        >>> draws = sample(None, start, Gibbs({"a": draw_a, "b": draw_b}), draws=500, warmup=20, random_state=0)
        >>> bool(((draws["a"] * draws["b"]).mean() - 0.5).abs() < 0.1)
        True
    """

    blocks: Mapping[str, Conditional | Algorithm]

    def kernel(self, target: Target) -> Kernel:
        """The sweep over all blocks. It keeps the law, but is not reversible."""
        space = target.space
        if space is None:
            raise ValueError("Gibbs needs named values: start from a mapping of tensors")
        missing = set(space.parts) ^ set(self.blocks)
        if missing:
            raise ValueError(
                f"Gibbs needs one block for each value; {sorted(missing)[0]!r} is on one side only"
            )
        moved = {name: block for name, block in self.blocks.items() if not callable(block)}
        for name, block in moved.items():
            _check_block(name, block)

        def init(position: Tensor) -> Chains:
            return Chains(position, target.log_density(position))

        def noise(chains: Chains, n: int, stream: Generator) -> Sequence[Any]:
            return [stream] * n

        def step(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
            stale, said = False, []
            for name, block in self.blocks.items():
                if name in moved:
                    chains = init(chains.position) if stale else chains
                    chains, info = _moved(space, target, name, moved[name], chains, stream)
                    stale = False
                    said.append(info)
                else:
                    chains = _drawn(space, name, block, chains, stream)  # type: ignore[arg-type]
                    stale = True
            return init(chains.position) if stale else chains, said[0] if len(said) == 1 else Info()

        alone = next(iter(moved.values())).kernel(target).chance if len(moved) == 1 else None
        return Kernel(init, noise, step, alone)


def _check_block(name: str, block: Any) -> None:
    if isinstance(block, PseudoMarginal):
        raise ValueError(
            f"block {name!r} is pseudo-marginal: other blocks move in between, so that its estimate cannot be kept"
        )
    if isinstance(block, RandomWalk | MALA | HMC) and block.scale is None:
        raise ValueError(f"block {name!r} needs a scale: warm-up does not see inside a sweep")


def _drawn(space: Space, name: str, draw: Conditional, chains: Chains, stream: Generator) -> Chains:
    values, _ = space.unpack(chains.position)
    part = space.parts[name]
    fresh = draw(values, stream)
    if not isinstance(fresh, Tensor):
        raise ValueError(f"the conditional law of {name!r} gave {type(fresh).__name__}, not a tensor")
    if fresh.shape != values[name].shape:
        raise ValueError(
            f"the conditional law of {name!r} gave shape {tuple(fresh.shape)}, not {tuple(values[name].shape)}"
        )
    free = fresh if part.transform is None else part.transform.inv(fresh)
    if part.support is not None:
        free = restrict_to_support(
            free, part.support.check(fresh), f"the conditional law of {name!r}", part.support
        )
    position = chains.position.clone()
    position[:, part.place] = free.reshape(len(position), -1)
    return chains._replace(position=position)


def restrict_to_support(free: Tensor, inside: Tensor, law: str, support: Constraint) -> Tensor:
    """Numbers of values inside a support; maps with a clamp would take others for numbers at its bound.

    On a GPU, for which the host would wait in every sweep, others are NaN: what is not finite is told of in the end.
    """
    if free.device.type != "cpu":
        return torch.where(inside.reshape(inside.shape + (1,) * (free.dim() - inside.dim())), free, torch.nan)
    if not bool(inside.all() | ~torch.isfinite(free).all()):
        raise ValueError(f"{law} gave values outside of its support, {support}")
    return free


def _moved(
    space: Space, target: Target, name: str, algorithm: Algorithm, chains: Chains, stream: Generator
) -> tuple[Chains, Info]:
    place = space.parts[name].place
    before, after = chains.position[:, : place.start], chains.position[:, place.stop :]
    block = algorithm.kernel(Target(lambda part: target.log_density(torch.cat([before, part, after], 1))))
    inside = Chains(chains.position[:, place], chains.log_density)
    if not isinstance(algorithm, RandomWalk):  # a gradient is not stored: other blocks have moved since
        inside = block.init(inside.position)
    (item,) = block.noise(inside, 1, stream)
    inside, info = block.step(inside, item)
    return Chains(torch.cat([before, inside.position, after], 1), inside.log_density), info
