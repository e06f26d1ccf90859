r"""Monte Carlo EM: the averages of the E step are taken over Markov chains, one latent value at a time.

.. math:: \hat s_k = \frac1m \sum_{j=1}^m t(x, z_j), \quad z_j \sim p_{\theta_{k-1}}(z \mid x), \qquad
          s_k = s_{k-1} + \gamma_k (\hat s_k - s_{k-1}), \qquad \theta_k = \mathrm{solve}(s_k)

Document 002, section 2.6 (which it leaves empty). The rate and the number of draws decide what this is: rate 1 and a
growing m is Monte Carlo EM (Wei and Tanner 1990), rate 1 and m = 1 stochastic EM (which never settles), a falling rate
with few draws stochastic-approximation EM (Delyon, Lavielle and Moulines 1999; Kuhn and Lavielle 2004).
Caffo, Jank and Jones (2005),
:mod:`boxloop.fit.monte_carlo_ascent`, let the Monte Carlo error choose m.

Every unit (a group of rows, or one row) has chains of its own, and all of them move together. They persist: a round
starts where the last one ended, since its law is nearly that of the new model. Only the *density* stored with a
position is wrong once parameters have changed, so ``kernel.init`` evaluates it again. Every round has a kernel that is
fixed before it starts; between rounds the scale of each unit's proposals moves towards the acceptance that is best.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from boxloop.average import Power, Schedule
from boxloop.fit.monte_carlo_walk import Kernels, MonteCarloState, SampledModel, Walk
from boxloop.loop import Iteration

M = TypeVar("M", bound=SampledModel)


@dataclass(frozen=True)
class BurnIn:
    """Rate 1 for some rounds, so that the start is forgotten; then another schedule from its beginning.

    Example:
        >>> [BurnIn(2, Power(1.0))(t) for t in (1, 2, 3, 4)]
        [1.0, 1.0, 1.0, 0.5]
    """

    rounds: int
    then: Schedule = field(default_factory=lambda: Power(0.7))

    def __call__(self, t: int) -> float:
        """Rate of round t."""
        return 1.0 if t <= self.rounds else self.then(t - self.rounds)


def squares(k: int) -> int:
    """k² draws in round k."""
    return k * k


@dataclass(frozen=True)
class MonteCarloPlan:
    """How the averages are taken.

    Args:
        draws: number of draws for each unit in round k = 1, 2, ..., all its chains together.
        rate: step of round k: 1 replaces the averages whole.
        copies: chains a unit.
        discard: steps of every chain at the start of a round that are not averaged.
        persistent: whether chains go on where they were; otherwise every round starts at draws from the prior.
        smooth_after: round after which the path of the averages is itself averaged (Polyak and Ruppert); None never.
    """

    draws: Callable[[int], int] = squares
    rate: Schedule = field(default_factory=lambda: Power(0.0))
    copies: int = 1
    discard: int = 0
    persistent: bool = True
    smooth_after: int | None = None

    def steps(self, k: int) -> int:
        """Steps of every chain in round k."""
        return max(1, math.ceil(self.draws(k) / self.copies))


def warmed(
    state: MonteCarloState[M], rows: Any, kernels: Kernels, rounds: int = 15, steps: int = 10
) -> MonteCarloState[M]:
    """Move the chains of a new state to where they belong, and tune their scales, before any parameter changes.

    Draws from the prior may have a very small likelihood (a rate is the exponential of an effect), and averages over
    them would ruin the first M step.
    """
    for number in range(1, rounds + 1):
        walk = Walk(state, rows, kernels)
        walk.extend(steps)
        state = replace(
            state,
            position=walk.chains.position,
            log_scale=walk.log_scale(number),
            stream=walk.stream.get_state(),
            spent=state.spent + walk.spent,
        )
    return state


def monte_carlo_em(
    rows: Any, kernels: Kernels, plan: MonteCarloPlan
) -> Callable[[MonteCarloState[M]], Iteration[MonteCarloState[M]]]:
    """Monte Carlo EM, or stochastic-approximation EM: expect by chains, average, solve.

    Args:
        rows: what the model's ``log_joint`` takes.
        kernels: makes a kernel for a log-density; engines do not import one another, so it is passed.
        plan: draws and rates.

    Returns:
        A step for :func:`boxloop.loop.run`. Its objective is the mean log-joint of a unit under its own model, which
        is no likelihood: it need not rise.

    Example:
        >>> import torch
        >>> from boxloop.models.random_effects import GroupedRows
        >>> from boxloop.models.random_effects import PoissonResponse, RandomEffects
        >>> from boxloop.numeric import generator
        >>> from boxloop.loop import run
        >>> from boxloop.sample.random_walk import RandomWalk
        >>> from boxloop.sample.target import Target
        >>> one = torch.ones(400, 1).double()
        >>> rows = GroupedRows.of((torch.arange(400) // 4 % 5).double(), one, one, torch.arange(400) // 4)
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> model = RandomEffects(torch.zeros(1).double(), torch.eye(1).double(), PoissonResponse(), shared=(0,))
        >>> start = warmed(MonteCarloState.start(model, rows, 4, generator(1)), rows, kernels)
        >>> plan = MonteCarloPlan(draws=lambda k: 8, rate=BurnIn(20), copies=4)  # stochastic approximation
        >>> outcome = run(monte_carlo_em(rows, kernels, plan), start, max_iter=60)
        >>> rate = (outcome.state.model.coefficients + outcome.state.model.covariance[0] / 2).exp()
        >>> bool(1.8 < rate < 2.7)  # of groups whose counts are 0 to 4, so 2 on average
        True
    """

    def step(state: MonteCarloState[M]) -> Iteration[MonteCarloState[M]]:
        if state.copies != plan.copies:
            raise ValueError(f"the plan has {plan.copies} chains a unit, the state {state.copies}")
        walk = Walk(state, rows, kernels, plan.persistent)
        walk.discard(plan.discard)
        walk.extend(plan.steps(state.round + 1))
        average = state.average.update(walk.statistics, plan.rate)
        after = walk.state_after(average)
        if plan.smooth_after is not None and after.round > plan.smooth_after:
            after = replace(after, smooth=state.smooth.update(after.average.value, Power(1.0)))
        return Iteration(after, walk.objective)

    return step
