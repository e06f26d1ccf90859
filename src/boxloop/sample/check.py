r"""Whether a kernel leaves a law as it is, and whether it is reversible.

.. math:: \pi P = \pi, \qquad \pi(dx) P(x, dy) = \pi(dy) P(y, dx)

Document 002, definitions 1.4 and 1.5. On a finite space both are matrices, and the check is exact. Elsewhere chains
begin at exact draws of the law and make a step: then every function has the same mean at both ends, and an
antisymmetric function of both ends has mean zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Generator, Tensor

from boxloop.chain import Chains, Kernel, advance
from boxloop.numeric import RandomState, generator, single_threaded

ROUNDING = 1e-12
"""Largest error of an exact check that rounding may cause."""

Functions = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class KernelCheck:
    """What a check found.

    Args:
        invariance: largest error of the law after a step; exact: of a probability; else: a z-score.
        reversibility: largest error of detailed balance; exact: of a probability; else: a z-score.
        limit: what the errors may be by rounding or by chance.
        exact: whether they are errors of probabilities rather than z-scores.
        tests: z-scores that were looked at; 0 when exact.
    """

    invariance: float
    reversibility: float
    limit: float
    exact: bool
    tests: int = 0

    @property
    def invariant(self) -> bool:
        """Whether the kernel leaves the law as it is, as far as the check can see."""
        return self.invariance <= self.limit

    @property
    def reversible(self) -> bool:
        """Whether it is in detailed balance, as far as the check can see."""
        return self.reversibility <= self.limit

    def __str__(self) -> str:
        kind = "error" if self.exact else f"largest of {self.tests} |z|"
        return (
            f"{'invariant' if self.invariant else 'NOT invariant'} ({kind} {self.invariance:.2g}), "
            f"{'reversible' if self.reversible else 'NOT reversible'} ({kind} {self.reversibility:.2g}), "
            f"limit {self.limit:.2g}"
        )


@single_threaded
def check_reversible(
    kernel: Kernel,
    law: Tensor | Callable[[int, Generator], Tensor],
    *,
    states: Tensor | None = None,
    moves: Sequence[tuple[Any, float]] | None = None,
    functions: Functions | None = None,
    chains: int = 20_000,
    steps: int = 1,
    level: float = 1e-3,
    random_state: RandomState = 0,
    device: torch.device | str = "cpu",
) -> KernelCheck:
    """Check a kernel, one's own or another's.

    Args:
        kernel: what is checked.
        law: on a finite space the probability of each state, (s,); else ``(n, stream) -> exact draws (n, d)``.
        states: the positions of a finite space, (s, d).
        moves: of a finite space: every item of noise that a step may get, with its probability. For a kernel with a
            ratio an item is the proposal's part alone; acceptance is put in exactly.
        functions: positions (n, d) -> (n, f), whose means are compared; columns, their squares and products of
            neighbours when omitted. They should be bounded or have light tails.
        chains: independent chains of a check by chance.
        steps: of each chain, in a check by chance.
        level: chance that a right kernel fails, in a check by chance.
        random_state: seed or generator.
        device: where chains move; ``law`` is given a stream there.

    Returns:
        A :class:`KernelCheck`: ``invariant``, ``reversible``, and the errors behind them.

    Example:
        >>> import torch
        >>> from boxloop.sample import MALA, Target, check_reversible
        >>> kernel = MALA(scale=1.0).kernel(Target(lambda x: -0.5 * (x * x).sum(1)))
        >>> exact = lambda n, stream: torch.randn(n, 2, generator=stream).double()
        >>> check = check_reversible(kernel, exact)
        >>> check.invariant, check.reversible
        (True, True)
    """
    if isinstance(law, Tensor):
        if states is None or moves is None:
            raise ValueError("a finite space needs its states and the moves of the kernel's noise")
        return _exact(transition(kernel, states, moves), law)
    stream = generator(random_state, device)
    with torch.no_grad():
        start = kernel.init(law(chains, stream))
        path = advance(kernel, start, steps, stream)
    describe = functions or default_functions
    here, there = describe(start.position).double(), describe(path.chains.position).double()
    moved = z_scores(there - here)
    turned = z_scores(antisymmetric(here, there))
    tests = len(moved) + len(turned)
    limit = float(stats.norm.isf(0.5 * level / tests))
    return KernelCheck(float(moved.max()), float(torch.cat([moved, turned]).max()), limit, False, tests)


def transition(kernel: Kernel, states: Tensor, moves: Sequence[tuple[Any, float]]) -> Tensor:
    """The matrix of a kernel on a finite space, (s, s), by running its step on every state with every move.

    Args:
        kernel: with moves that lead from states to states.
        states: (s, d).
        moves: items of noise with their probabilities, which sum to one.
    """
    total = sum(probability for _, probability in moves)
    if abs(total - 1.0) > ROUNDING:
        raise ValueError(f"the probabilities of the moves must sum to one, and sum to {total!r}")
    start = kernel.init(states)
    found = torch.zeros(len(states), len(states), dtype=torch.float64, device=states.device)
    always = torch.full_like(start.log_density, -torch.inf)
    rows = torch.arange(len(states), device=states.device)
    for item, probability in moves:
        after, info = kernel.step(start, item if kernel.chance is None else (item, always))
        chance = torch.ones_like(found[0])
        if kernel.chance is not None:
            assert info.log_ratio is not None
            chance = kernel.chance(info.log_ratio).double().nan_to_num(nan=0.0)
        ends = torch.where(chance > 0, _places(after, states), rows)
        found[rows, ends] += probability * chance
        found[rows, rows] += probability * (1.0 - chance)
    return found


def _places(chains: Chains, states: Tensor) -> Tensor:
    """Which state each chain is at; a state that is none of them is an error."""
    apart = (chains.position[:, None] - states).abs().amax(2)
    nearest, place = apart.min(1)
    known = (nearest < 1e-9) | torch.isnan(nearest) | torch.isneginf(chains.log_density)
    if not bool(known.all()):
        raise ValueError(
            f"a move leads to {chains.position[~known][0].tolist()}, which is not among the states"
        )
    return place


def _exact(matrix: Tensor, law: Tensor) -> KernelCheck:
    weight = law.double() / law.sum()
    flow = weight[:, None] * matrix
    invariance = float((flow.sum(0) - weight).abs().max())
    return KernelCheck(invariance, float((flow - flow.T).abs().max()), ROUNDING, True)


def default_functions(position: Tensor) -> Tensor:
    """Columns, their squares, and products of neighbouring columns."""
    neighbours = position[:, :-1] * position[:, 1:]
    return torch.cat([position, position.square(), neighbours], 1)


def antisymmetric(here: Tensor, there: Tensor) -> Tensor:
    """Functions of both ends, (n, f) each, that change sign when the ends change places."""
    crossed = here * there.roll(1, 1) - there * here.roll(1, 1)
    return torch.cat([crossed, (there - here) ** 3], 1)


def z_scores(rows: Tensor) -> Tensor:
    """|mean| of each column in units of its standard error; 0 for a column of zeros."""
    error = rows.std(0) / np.sqrt(len(rows))
    mean = rows.mean(0)
    return torch.where(error > 0, mean.abs() / error, torch.where(mean == 0, 0.0, torch.inf))
