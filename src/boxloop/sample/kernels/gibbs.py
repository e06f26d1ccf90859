r"""Gibbs sampling by blocks; a block without a known conditional distribution is moved by another algorithm.

.. math:: x_b \sim \pi(x_b \mid x_{-b}) \quad \text{for each block b in turn}

A block that is moved by Metropolis (Metropolis within Gibbs) compares joint densities. The joint density is stored:
consecutive blocks of this kind evaluate it once per proposal, and once more after a block that was drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor
from torch.distributions.constraints import Constraint

from boxloop.chain import Chains, Info, Kernel
from boxloop.sample.kernels.hmc import HMC
from boxloop.sample.kernels.mala import MALA
from boxloop.sample.kernels.metropolis import repeat_stream
from boxloop.sample.kernels.pseudo_marginal import PseudoMarginal
from boxloop.sample.kernels.random_walk import RandomWalk
from boxloop.sample.target import ParameterSpace, Target

Conditional = Callable[[dict[str, Tensor], Generator], Tensor]


@runtime_checkable
class SamplingAlgorithm(Protocol):
    """An algorithm: it makes a kernel for a target."""

    def kernel(self, target: Target) -> Kernel:
        """The kernel that leaves the target invariant."""


@dataclass(frozen=True, eq=False)
class Gibbs:
    r"""Gibbs sampling: blocks of named values, drawn or moved in turn.

    Args:
        blocks: for each name of the values, in the order of the sweep: a function that draws from its conditional
            distribution, ``(values, stream) -> new value (c, ...)``; or an algorithm with a given scale, such as
            ``RandomWalk(scale=0.5)``, as warm-up does not tune blocks.

    Reference:
        Geman and Geman (1984); Tierney (1994) for Metropolis within Gibbs.

    Example:
        >>> import torch
        >>> from boxloop.sample import sample_density
        >>> def draw_a(values, stream):  # two normal columns with correlation 1/2
        ...     return 0.5 * values["b"] + 0.75**0.5 * torch.randn(len(values["b"]), generator=stream)
        >>> def draw_b(values, stream):
        ...     return 0.5 * values["a"] + 0.75**0.5 * torch.randn(len(values["a"]), generator=stream)
        >>> start = {"a": torch.zeros(8), "b": torch.zeros(8)}
        >>> sweep = Gibbs({"a": draw_a, "b": draw_b})
        >>> draws = sample_density(None, start, sweep, draws=500, warmup=20, random_state=0)
        >>> bool(((draws["a"] * draws["b"]).mean() - 0.5).abs() < 0.1)
        True
    """

    blocks: Mapping[str, Conditional | SamplingAlgorithm]

    def kernel(self, target: Target) -> Kernel:
        """The sweep over all blocks. It leaves the target invariant, but is not reversible."""
        space = target.space
        if space is None:
            raise ValueError("Gibbs needs named values: start from a mapping of tensors")
        missing = set(space.parts) ^ set(self.blocks)
        if missing:
            raise ValueError(
                f"Gibbs needs one block for each value; {sorted(missing)[0]!r} is on one side only"
            )
        algorithms = {name: block for name, block in self.blocks.items() if not callable(block)}
        for name, block in algorithms.items():
            _check_block(name, block)

        def init(position: Tensor) -> Chains:
            return Chains(position, target.log_density(position))

        def step(chains: Chains, stream: Generator) -> tuple[Chains, Info]:
            stale, infos = False, []
            for name, block in self.blocks.items():
                if name in algorithms:
                    chains = init(chains.position) if stale else chains
                    chains, info = _move_block(space, target, name, algorithms[name], chains, stream)
                    stale = False
                    infos.append(info)
                else:
                    chains = _draw_block(space, name, block, chains, stream)  # type: ignore[arg-type]
                    stale = True
            return init(chains.position) if stale else chains, infos[0] if len(infos) == 1 else Info()

        chance = next(iter(algorithms.values())).kernel(target).chance if len(algorithms) == 1 else None
        return Kernel(init, repeat_stream, step, chance)


def _check_block(name: str, block: Any) -> None:
    if isinstance(block, PseudoMarginal):
        raise ValueError(
            f"block {name!r} is pseudo-marginal: other blocks move in between, so that its estimate cannot be stored"
        )
    if isinstance(block, RandomWalk | MALA | HMC) and block.scale is None:
        raise ValueError(f"block {name!r} needs a scale, as warm-up does not tune blocks: pass scale=")


def _draw_block(
    space: ParameterSpace, name: str, draw: Conditional, chains: Chains, stream: Generator
) -> Chains:
    values, _ = space.unpack(chains.position)
    part = space.parts[name]
    fresh = draw(values, stream)
    if not isinstance(fresh, Tensor):
        raise ValueError(f"the conditional of {name!r} returned {type(fresh).__name__}, not a tensor")
    if fresh.shape != values[name].shape:
        raise ValueError(
            f"the conditional of {name!r} returned shape {tuple(fresh.shape)}, not {tuple(values[name].shape)}"
        )
    free = fresh if part.transform is None else part.transform.inv(fresh)
    if part.support is not None:
        free = restrict_to_support(
            free, part.support.check(fresh), f"the conditional of {name!r}", part.support
        )
    position = chains.position.clone()
    position[:, part.columns] = free.reshape(len(position), -1)
    return chains._replace(position=position)


def restrict_to_support(free: Tensor, inside: Tensor, what: str, support: Constraint) -> Tensor:
    """Unconstrained numbers of values inside their support; transforms that clamp would map others to its bound."""
    if (
        free.device.type != "cpu"
    ):  # Raising would synchronise in every sweep; the draws report NaN at the end.
        return torch.where(inside.reshape(inside.shape + (1,) * (free.dim() - inside.dim())), free, torch.nan)
    if not bool(inside.all() | ~torch.isfinite(free).all()):
        raise ValueError(f"{what} returned values outside of its support, {support}")
    return free


def _move_block(
    space: ParameterSpace,
    target: Target,
    name: str,
    algorithm: SamplingAlgorithm,
    chains: Chains,
    stream: Generator,
) -> tuple[Chains, Info]:
    columns = space.parts[name].columns
    before, after = chains.position[:, : columns.start], chains.position[:, columns.stop :]
    block = algorithm.kernel(Target(lambda part: target.log_density(torch.cat([before, part, after], 1))))
    inside = Chains(chains.position[:, columns], chains.log_density)
    if not isinstance(algorithm, RandomWalk):  # other blocks have moved since any gradient was computed
        inside = block.init(inside.position)
    (item,) = block.noise(inside, 1, stream)
    inside, info = block.step(inside, item)
    return Chains(torch.cat([before, inside.position, after], 1), inside.log_density), info
