"""The chains of a Monte Carlo E step: what a model must offer, what is kept between rounds, and how a round moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from torch import Generator, Tensor

from boxloop.average import Power, Running
from boxloop.chain import Chains, Kernel, Path, advance
from boxloop.tree import Tree

LogDensity = Callable[[Tensor], Tensor]
Kernels = Callable[[LogDensity, Tensor, Tensor], Kernel]
"""From a log-density (c, q) -> (c,), scales (c, 1) and a factor (q, q) to the kernel whose proposals have them."""

BLOCK = 1 << 18
"""Numbers of positions that are summed at once."""
TUNING = Power(0.6)
"""How far the log of a scale moves in round k, for each unit of acceptance too many; times 2."""


class SampledModel(Protocol):
    """A model of units whose latent values are drawn. ``z`` holds m values a unit, (units m, q), a unit's together."""

    def log_joint(self, rows: Any, z: Tensor) -> Tensor:
        """Log-density of each unit's rows together with each of its latent values, (units m,)."""

    def statistics(self, rows: Any, z: Tensor) -> Any:
        """A tree of complete-data statistics: means over the m draws, summed over units."""

    def solve(self, statistics: Any) -> Self:
        """M step."""

    def carry(self, statistics: Any, z: Tensor) -> tuple[Any, Tensor]:
        """Statistics and latent values in the coordinates of the solved model, where an M step changes them."""

    def follow(self, origin: Self, z: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
        """Latent values here that stand for z under ``origin``, and the log-volume of that change, (units m,).

        Any smooth change is right that is none at ``origin`` itself: (z, zeros) is. A good one makes scores vary
        little; it may use a rough posterior covariance of each unit's latent values, ``spread``, (units, q, q).
        """

    def draw(self, rows: Any, copies: int, stream: Generator) -> Tensor:
        """Latent values where chains may start, (units copies, q)."""

    def shape(self) -> Tensor:
        """Lower factor of the covariance that proposals should resemble, (q, q)."""

    def free(self) -> dict[str, Tensor]:
        """Parameters in which the likelihood is nearly quadratic; small changes of them are a model."""

    def with_free(self, free: dict[str, Tensor]) -> Self:
        """The model at other values of them; differentiable. ConditionError where there is none."""

    def named(self) -> dict[str, Tensor]:
        """Parameters under their public names."""


M = TypeVar("M", bound=SampledModel)


@dataclass(frozen=True)
class MonteCarloState(Tree, Generic[M]):
    """All that the next round needs, random numbers included.

    Args:
        model: the parameters.
        position: of all chains, (units copies, q), those of a unit together.
        log_scale: of each unit's proposals, (units,).
        stream: state of the random generator.
        average: averaged statistics.
        smooth: average of their path.
        round: rounds done.
        spent: steps of all chains of a unit so far.
        draws: that an adaptive round begins with.
        gain: by which the last round raised Q, where it was measured.
        error: of ``gain``, from the spread between copies.
    """

    model: M
    position: Tensor
    log_scale: Tensor
    stream: Tensor
    average: Running[Any] = field(default_factory=Running)
    smooth: Running[Any] = field(default_factory=Running)
    round: int = 0
    spent: int = 0
    draws: int = 0
    gain: float = math.nan
    error: float = math.nan

    @classmethod
    def start(cls, model: M, rows: Any, copies: int, stream: Generator) -> Self:
        """Chains at draws from the prior of latent values; ``stream`` is advanced."""
        position = model.draw(rows, copies, stream)
        first = math.log(2.4 / math.sqrt(position.shape[1]))
        scale = position.new_full((len(position) // copies,), first)
        return cls(model, position, scale, stream.get_state())

    @property
    def copies(self) -> int:
        """Chains a unit."""
        return len(self.position) // len(self.log_scale)

    @property
    def best(self) -> M:
        """The model of the smoothed path where there is one."""
        return self.model if self.smooth.value is None else self.model.solve(self.smooth.value)


class Walk(Generic[M]):
    """The chains of one round: a kernel that does not change, and sums over what it visits."""

    def __init__(
        self, state: MonteCarloState[M], rows: Any, kernels: Kernels, persistent: bool = True
    ) -> None:
        self.state, self.rows = state, rows
        self.units, self.copies = len(state.log_scale), state.copies
        self.stream = Generator(state.position.device)
        self.stream.set_state(state.stream)
        scale = state.log_scale.exp().repeat_interleave(self.copies)[:, None]
        self.kernel = kernels(lambda z: state.model.log_joint(rows, z), scale, state.model.shape())
        place = state.position if persistent else state.model.draw(rows, self.copies, self.stream)
        self.chains: Chains = self.kernel.init(place)
        self.spent = 0
        self.steps = 0
        self.level = 0.0
        self.accepted: Tensor | None = None
        self.sums: Any = None

    def paths(self, steps: int) -> Iterator[Path]:
        """Move on by ``steps`` in blocks that fit in memory."""
        block = max(1, BLOCK // self.chains.position.numel())
        while steps > 0:
            path = advance(self.kernel, self.chains, min(block, steps), self.stream)
            self.chains = path.chains
            self.spent += len(path.position) * self.copies
            steps -= len(path.position)
            yield path

    def discard(self, steps: int) -> None:
        """Move on without a look."""
        for _ in self.paths(steps):
            pass

    def extend(self, steps: int) -> list[Path]:
        """Move on and average what is seen; return the paths."""
        seen = []
        for path in self.paths(steps):
            length = len(path.position)
            fresh = self.state.model.statistics(self.rows, self.together(path.position)) * float(length)
            self.sums = fresh if self.sums is None else self.sums + fresh
            self.level += float(path.log_density.sum()) / self.copies
            if path.log_ratio is not None:
                chance = path.log_ratio.nan_to_num(nan=-math.inf).clamp(max=0.0).exp()
                more = chance.reshape(length, self.units, -1).mean(2).sum(0)
                self.accepted = more if self.accepted is None else self.accepted + more
            self.steps += length
            seen.append(path)
        return seen

    def together(self, position: Tensor) -> Tensor:
        """Positions (t, units copies, q) as t copies draws of every unit, a unit's together."""
        q = position.shape[-1]
        return position.reshape(-1, self.units, self.copies, q).transpose(0, 1).reshape(-1, q)

    @property
    def statistics(self) -> Any:
        """Means over all that was seen."""
        return self.sums * (1.0 / self.steps)

    @property
    def objective(self) -> float:
        """Mean log-joint of a unit: Q of the model given itself."""
        return self.level / (self.steps * self.units)

    def log_scale(self, number: int) -> Tensor:
        """Scales after the number-th round: up where too much was accepted, as they were if nothing is ever refused."""
        if self.accepted is None:
            return self.state.log_scale
        return self.state.log_scale + 2.0 * TUNING(number) * (self.accepted / self.steps - self.goal)

    @property
    def goal(self) -> float:
        """The acceptance that is best: 0.44 in one column, 0.234 in many (Roberts, Gelman and Gilks 1997)."""
        q = self.chains.position.shape[1]
        return 0.44 if q == 1 else 0.35 if q < 5 else 0.234

    def state_after(self, average: Running[Any]) -> MonteCarloState[M]:
        """The state that the next round starts from: the M step on averaged statistics."""
        old = self.state
        carried, position = old.model.carry(average.value, self.chains.position)
        return replace(
            old,
            model=old.model.solve(average.value),
            position=position,
            log_scale=self.log_scale(old.round + 1),
            stream=self.stream.get_state(),
            average=Running(carried, average.count),
            round=old.round + 1,
            spent=old.spent + self.spent,
        )
