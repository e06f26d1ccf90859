"""One round of sampling: some steps of warm-up with their tuning, or some draws."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Generator, Tensor

from boxloop.chain import Chains, Kernel, Path, advance
from boxloop.loop import Iteration
from boxloop.sample.adapt import Tuner, Tuning
from boxloop.sample.hmc import HMC
from boxloop.sample.movers import Mover
from boxloop.sample.target import Target, unvalidated
from boxloop.sample.trajectories import is_divergent
from boxloop.tree import Tree

BLOCK = 32
"""Draws of each chain in a round."""


@dataclass(frozen=True)
class Sampling(Tree):
    """Where sampling stands after a complete round; all that is needed to go on.

    Args:
        position: of the chains, (c, d).
        log_density: there, (c,).
        kept: what else belongs to the positions.
        stream: state of the random stream.
        tuning: of warm-up; None for an algorithm that is not tuned.
        steps: made so far, those of warm-up included.
        draws: positions, a block a round, each (n, c, d).
        densities: log-densities, each (n, c).
        accepted: sum of chances of acceptance of each chain since warm-up, (c,).
        refused: proposals of each chain since warm-up whose ratio was not a number, (c,).
        outside: those whose density was zero, (c,).
        diverging: whether a trajectory diverged on the way to each draw, a block a round, each (n, c).
    """

    position: Tensor
    log_density: Tensor
    kept: tuple[Tensor, ...]
    stream: Tensor
    tuning: Tuning | None
    steps: int
    draws: tuple[Tensor, ...]
    densities: tuple[Tensor, ...]
    accepted: Tensor
    refused: Tensor
    outside: Tensor
    diverging: tuple[Tensor, ...] = ()

    @property
    def chains(self) -> Chains:
        """As a kernel sees them."""
        return Chains(self.position, self.log_density, self.kept)

    @property
    def drawn(self) -> int:
        """Draws of each chain so far."""
        return sum(len(block) for block in self.draws)


@dataclass(frozen=True, eq=False)
class Plan:
    """How chains are moved.

    Args:
        algorithm: that makes kernels, or a finished kernel.
        target: of the chains.
        tuner: of the algorithm; None where nothing is tuned.
        warmup: steps.
        draws: of each chain.
        thin: steps from one draw to the next.
        stream: one generator, set to the state's own before each round.
        move: how a block of draws is run.
        ready: the kernel of the draws, once there are any.
    """

    algorithm: Any
    target: Target
    tuner: Tuner | None
    warmup: int
    draws: int
    thin: int
    stream: Generator
    move: Mover = advance
    ready: dict[int, Kernel] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """Of the whole, for the loop."""
        return -(-self.warmup // self.pause) - (-self.draws // BLOCK)

    @property
    def pause(self) -> int:
        """Steps in a round of warm-up."""
        return BLOCK if self.tuner is None else self.tuner.block

    def begin(self, position: Tensor) -> Sampling:
        """The state before the first step."""
        tuning = None if self.tuner is None else self.tuner.begin()
        chains = self.kernel(tuning, 0).init(position)
        zeros = torch.zeros(len(position), dtype=torch.float64, device=position.device)
        none = torch.zeros_like(zeros, dtype=torch.int64)
        return Sampling(*chains, self.stream.get_state(), tuning, 0, (), (), zeros, none, none)

    def tuned(self, tuning: Tuning | None, done: int) -> Any:
        """The algorithm after so many steps."""
        return self.algorithm if self.tuner is None or tuning is None else self.tuner.tuned(tuning, done)

    def kernel(self, tuning: Tuning | None, done: int) -> Kernel:
        """Its kernel."""
        algorithm = self.tuned(tuning, done)
        return algorithm if isinstance(algorithm, Kernel) else algorithm.kernel(self.target)

    def final_kernel(self, state: Sampling) -> Kernel:
        """The kernel of the draws: one object, so that what was compiled for it is found again."""
        if self.warmup not in self.ready:
            self.ready[self.warmup] = self.kernel(state.tuning, self.warmup)
        return self.ready[self.warmup]

    def step(self, state: Sampling) -> Iteration[Sampling]:
        """One round."""
        self.stream.set_state(state.stream)
        with torch.no_grad(), unvalidated():
            state = self._warmed(state) if state.steps < self.warmup else self._drawn(state)
        state = replace(state, stream=self.stream.get_state())
        return Iteration(state, objective=float(state.log_density.mean()))

    def _warmed(self, state: Sampling) -> Sampling:
        steps = min(self.pause, self.warmup - state.steps)
        kernel = self.kernel(state.tuning, state.steps)
        path = advance(kernel, state.chains, steps, self.stream)
        tuning, chains = state.tuning, path.chains
        if self.tuner is not None and tuning is not None:
            before = tuning.metric
            tuning = self.tuner.update(tuning, path, state.steps, judged(kernel, path)[0])
            if self.algorithm.keeps_slopes and tuning.metric is not before:
                chains = self.kernel(tuning, 0).init(chains.position)
        return replace(moved(state, chains, steps), tuning=tuning)

    def _drawn(self, state: Sampling) -> Sampling:
        count = min(BLOCK, self.draws - state.drawn)
        kernel = self.final_kernel(state)
        path = self.move(kernel, state.chains, count * self.thin, self.stream)
        chance, lost, outside = judged(kernel, path)
        return replace(
            moved(state, path.chains, count * self.thin),
            draws=(*state.draws, path.position[self.thin - 1 :: self.thin]),
            densities=(*state.densities, path.log_density[self.thin - 1 :: self.thin]),
            accepted=state.accepted + chance.sum(0),
            refused=state.refused + lost.sum(0),
            outside=state.outside + outside.sum(0),
            diverging=(*state.diverging, *self._diverging(path, count)),
        )

    def _diverging(self, path: Path, count: int) -> tuple[Tensor, ...]:
        """Of the draws of one round; nothing for an algorithm without trajectories."""
        if not isinstance(self.algorithm, HMC) or path.log_ratio is None:
            return ()
        return (is_divergent(path.log_ratio).reshape(count, self.thin, -1).any(1),)


def moved(state: Sampling, chains: Chains, steps: int) -> Sampling:
    """The state with its chains elsewhere, some steps on."""
    position, log_density, kept = chains
    return replace(state, position=position, log_density=log_density, kept=kept, steps=state.steps + steps)


def judged(kernel: Kernel, path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Chance of acceptance of each proposal, (n, c), whether its ratio was not a number, and whether it was zero.

    None that are certain.
    """
    log_ratio = path.log_ratio
    if log_ratio is None or kernel.chance is None:
        log_ratio = path.log_density.new_zeros(0, path.log_density.shape[1])
    lost, outside = torch.isnan(log_ratio), torch.isneginf(log_ratio)
    chance = log_ratio if kernel.chance is None else kernel.chance(log_ratio).masked_fill_(lost, 0.0)
    return chance.double(), lost, outside
