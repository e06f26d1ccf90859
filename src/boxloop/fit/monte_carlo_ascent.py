r"""Monte Carlo EM whose error decides: a step is taken once it is known to go up (Caffo, Jank and Jones 2005).

By lemma 2.1 of document 002 a step that raises Q raises the likelihood. Monte Carlo EM only sees an estimate

.. math:: \Delta = \frac1m \sum_j \log \frac{p_{\theta'}(x, z_j)}{p_\theta(x, z_j)}, \qquad z_j \sim p_\theta(z \mid x)

so the step is taken when :math:`\Delta - c\,\sigma_\Delta > 0`; otherwise there are more draws. The next round begins
with as many as would have shown this step with the same confidence twice over. The fit ends when
:math:`\Delta + c\,\sigma_\Delta` is below a tolerance: what is left to gain is known to be small.

The error comes from copies: the chains of a unit never meet, so the spread of their means needs no model of the
autocorrelation and no length of a batch, and it is summed over units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, TypeVar

import torch
from torch import Tensor

from boxloop.average import Running
from boxloop.chain import Path
from boxloop.fit.monte_carlo_walk import Kernels, MonteCarloState, SampledModel, Walk
from boxloop.loop import Iteration

M = TypeVar("M", bound=SampledModel)


@dataclass(frozen=True)
class AscentPlan:
    """How sure a step must be.

    Args:
        tol: stop when the upper bound of the gain in log-likelihood is below it.
        confidence: of each bound, one-sided.
        draws: for each unit in the first round.
        growth: by which share draws grow while a step is in doubt.
        most: draws a unit and round, at which a step is taken in doubt, and the doubt noted.
        discard: steps of every chain at the start of a round that are not averaged.
    """

    tol: float = 1e-2
    confidence: float = 0.9
    draws: int = 32
    growth: float = 0.5
    most: int = 20_000
    discard: int = 2

    def __post_init__(self) -> None:
        if not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence must lie between 0.5 and 1, got {self.confidence}")
        if not self.tol > 0.0 or not self.growth > 0.0:
            raise ValueError("tol and growth must be positive")
        if not 1 <= self.draws <= self.most:
            raise ValueError(f"draws must lie between 1 and most={self.most}, got {self.draws}")


def ascent_em(
    rows: Any, kernels: Kernels, plan: AscentPlan
) -> Callable[[MonteCarloState[M]], Iteration[MonteCarloState[M]]]:
    """Monte Carlo EM with as many draws as each step needs.

    A step that certainly goes *down* (the M step may be one Newton step, which can overshoot) is halved: statistics
    half way between the old ones and the new.

    Args:
        rows: what the model's ``log_joint`` takes.
        kernels: makes a kernel for a log-density.
        plan: when to believe a step.

    Returns:
        A step for :func:`boxloop.loop.run`, which ends the loop itself; its objective is that of
        :func:`boxloop.fit.monte_carlo.monte_carlo_em`.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import GroupedRows
        >>> from boxloop.models.random_effects import PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.loop import run
        >>> from boxloop.sample.random_walk import RandomWalk
        >>> from boxloop.sample.target import Target
        >>> one = torch.ones(300, 1).double()
        >>> counts = torch.poisson(torch.full((300,), 4.0), generator=generator(0))
        >>> rows = GroupedRows.of(counts, one, one, torch.arange(300) // 6)
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), PoissonResponse())
        >>> start = MonteCarloState.start(model, rows, 8, generator(1))
        >>> outcome = run(ascent_em(rows, kernels, AscentPlan(tol=0.1)), start, max_iter=50)
        >>> outcome.converged, outcome.state.gain + 1.29 * outcome.state.error < 0.1
        (True, True)
    """
    bar = NormalDist().inv_cdf(plan.confidence)

    def step(state: MonteCarloState[M]) -> Iteration[MonteCarloState[M]]:
        if state.copies < 2:
            raise ValueError("the error of a step needs at least 2 chains a unit")
        walk = Walk(state, rows, kernels)
        walk.discard(plan.discard)
        seen: list[Path] = []
        rate, more = 1.0, math.ceil(max(state.draws, plan.draws) / walk.copies)
        while True:
            seen += walk.extend(more)
            average = _mixed(state.average, walk.statistics, rate)
            gain, error = _gain(walk, average, seen)
            worse = gain + bar * error < 0.0 and state.average.count > 0
            small = gain + bar * error < plan.tol
            doubtful = not worse and not small and walk.steps * walk.copies >= plan.most
            if not worse and (gain - bar * error > 0.0 or small or doubtful):
                break
            rate, more = (0.5 * rate, 0) if worse else (rate, math.ceil(plan.growth * walk.steps))
        after = walk.state_after(Running(average, state.average.count + 1))
        doubt = 2.0 * bar * error / gain if gain > 0.0 else 1.0
        wanted = walk.steps * walk.copies * min(doubt, plan.most) ** 2
        draws = int(min(max(state.draws, plan.draws, wanted), plan.most))
        events = (f"a step could not be told from noise with {plan.most} draws a unit",) if doubtful else ()
        return Iteration(
            replace(after, draws=draws, gain=gain, error=error),
            walk.objective,
            events,
            final=small,
        )

    return step


def _mixed(old: Running[Any], fresh: Any, rate: float) -> Any:
    return fresh if old.value is None or rate == 1.0 else old.value * (1.0 - rate) + fresh * rate


def _gain(walk: Walk[M], statistics: Any, seen: Sequence[Path]) -> tuple[float, float]:
    """By how much solving statistics raises Q on the draws, summed over units, and the error of that.

    Where the M step changes the coordinates of latent values, draws change with them: Q is that of the larger model.
    """
    model = walk.state.model.solve(statistics)
    total = torch.zeros(walk.units, walk.copies, dtype=torch.float64, device=seen[0].position.device)
    for path in seen:
        _, z = walk.state.model.carry(statistics, walk.together(path.position))
        there = model.log_joint(walk.rows, z).reshape(walk.units, -1, walk.copies)
        here = path.log_density.reshape(-1, walk.units, walk.copies).sum(0)
        total += there.sum(1) - here
    mean = total / walk.steps
    return float(mean.mean(1).sum()), float(copies_error(mean).sum().sqrt())


def copies_error(mean: Tensor) -> Tensor:
    """Variance of the mean over copies, (units, copies) -> (units,)."""
    return mean.var(1) / mean.shape[1]
