"""The last stage of a Monte Carlo fit: Newton steps on the likelihood until they are short and their errors small."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from boxloop.fit.monte_carlo_errors import FAR, Assessment, Named, assess
from boxloop.fit.monte_carlo_walk import Kernels, MonteCarloState, SampledModel
from boxloop.loop import Iteration
from boxloop.numeric import single_threaded

M = TypeVar("M", bound=SampledModel)


@dataclass(frozen=True)
class Refined(Generic[M]):
    """The loop of last steps: the fit so far, what is known of it, draws for the next look."""

    state: MonteCarloState[M]
    found: Assessment[M] | None = None
    draws: int = 1000


@single_threaded
def refine(
    rows: Any,
    kernels: Kernels,
    *,
    precision: float = 0.1,
    most: int = 20_000,
    named: Named[M] | None = None,
) -> Callable[[Refined[M]], Iteration[Refined[M]]]:
    """Assess, step, and assess again, until the step is short and the Monte Carlo error small.

    Args:
        rows: that were fitted.
        kernels: as in the fit.
        precision: wanted Monte Carlo error of every parameter beside its standard error.
        most: draws a unit for one assessment.
        named: as in :func:`assess`.

    Returns:
        A step for :func:`boxloop.loop.run`, final once both are reached, or cannot be: with ``most`` draws, or where
        the information is not positive. Its objective is minus the length of the step.

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
        >>> model = RandomEffects(torch.tensor([0.4]).double(), torch.eye(1).double(), PoissonResponse(), shared=(0,))
        >>> start = MonteCarloState.start(model, rows, 10, generator(0))
        >>> def kernels(density, scale, shape):
        ...     return RandomWalk(scale=scale, metric=shape).kernel(Target(density))
        >>> outcome = run(refine(rows, kernels, precision=0.05), Refined(start), max_iter=6)
        >>> outcome.converged, outcome.state.found.ratio < 0.05
        (True, True)
    """

    def step(last: Refined[M]) -> Iteration[Refined[M]]:
        found = assess(last.state, rows, kernels, last.draws, named=named)
        lost = math.isnan(found.step)
        sharp = not found.ratio > precision
        more = 4.0 if lost else 1.3 * (found.ratio / precision) ** 2
        # Far away, more draws would tell exactly where not to stay.
        enough = not lost and (sharp or found.step > FAR)
        draws = last.draws if enough else min(most, int(more * last.draws))
        settled = (sharp and found.near) or (last.draws == most and (lost or found.near))
        return Iteration(Refined(found.state, found, draws), -found.step, final=settled)

    return step
