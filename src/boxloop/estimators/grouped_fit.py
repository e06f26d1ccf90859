"""The fit of a model of groups: chains are warmed, an engine runs, a last stage measures errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from boxloop.average import Power, Running
from boxloop.chain import Kernel
from boxloop.fit import (
    AscentPlan,
    BurnIn,
    LogDensity,
    LouisErrors,
    MonteCarloPlan,
    MonteCarloState,
    NamedParameters,
    RefinementState,
    ascent_em,
    monte_carlo_em,
    newton_refine,
    warm_up,
)
from boxloop.loop import Observer, Outcome, run
from boxloop.models import BernoulliResponse, EffectSums, GroupedRows, PoissonResponse, RandomEffects
from boxloop.persist import CheckpointWriter, read_checkpoint
from boxloop.progress import ProgressBar
from boxloop.sample import RandomWalk, Target

Method = Literal["saem", "mcem"]
STATES: dict[str, type] = {
    kind.__name__: kind
    for kind in (MonteCarloState, Running, EffectSums, RandomEffects, BernoulliResponse, PoissonResponse)
}
LOOKS = 6
"""Most assessments of a fit."""


@dataclass(frozen=True)
class GroupPlan:
    """How groups are fitted.

    Args:
        method: ``saem`` or ``mcem``.
        chains: of each group.
        max_iter: most rounds.
        tol: of ``mcem``: gain in log-likelihood that is not worth another round.
        precision: wanted Monte Carlo error of a parameter beside its standard error.
        show: whether to draw a progress bar.
        checkpoint: file to save progress in and to resume from.
        fingerprint: what fit this is.
    """

    method: Method
    chains: int
    max_iter: int
    tol: float
    precision: float
    show: bool = False
    checkpoint: str | PathLike[str] | None = None
    fingerprint: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class GroupFit:
    """A fitted model with what is known of it; ``found`` is None if the fit was interrupted before."""

    model: RandomEffects
    outcome: Outcome[MonteCarloState[RandomEffects]]
    found: LouisErrors[RandomEffects] | None
    interrupted: bool

    @property
    def converged(self) -> bool:
        """Whether the last step was short: the score is zero within its error."""
        return not self.interrupted and self.found is not None and self.found.is_short


def random_walks(density: LogDensity, scale: Tensor, shape: Tensor) -> Kernel:
    """The kernel of every round."""
    return RandomWalk(scale=scale, metric=shape).kernel(Target(density))


def fit_groups(
    rows: GroupedRows,
    start: RandomEffects,
    plan: GroupPlan,
    stream: Generator,
    named: NamedParameters[RandomEffects],
) -> GroupFit:
    """Fit by Monte Carlo or stochastic-approximation EM, then measure errors.

    Args:
        rows: in standard coordinates.
        start: where to begin.
        plan: how.
        stream: randomness.
        named: parameters whose errors are wanted.
    """
    resume, observers = _watched(plan, stream.device)
    state = MonteCarloState.start(start, rows, plan.chains, stream)
    if resume is None:
        state = warm_up(state, rows, random_walks)
    step: Any = (
        ascent_em(rows, random_walks, AscentPlan(tol=plan.tol, draws=4 * plan.chains))
        if plan.method == "mcem"
        else monte_carlo_em(rows, random_walks, _approximation(plan))
    )
    outcome = run(step, state, max_iter=plan.max_iter, observers=observers, resume=resume)
    reached = replace(outcome.state, model=outcome.state.best)
    if outcome.interrupted:
        return GroupFit(reached.model, outcome, None, True)
    watch: list[Observer[Any]] = [ProgressBar(show=True).stage("errors")] if plan.show else []
    last = run(
        newton_refine(rows, random_walks, precision=plan.precision, named=named),
        RefinementState(reached),
        max_iter=LOOKS,
        observers=watch,
    )
    found = last.state.errors
    return GroupFit(last.state.state.model, outcome, found, last.interrupted)


def _approximation(plan: GroupPlan) -> MonteCarloPlan:
    """A quarter of the rounds forgets the start, the second half is smoothed."""
    return MonteCarloPlan(
        draws=lambda k: 2 * plan.chains,
        rate=BurnIn(plan.max_iter // 4, Power(0.7)),
        n_chains=plan.chains,
        smooth_after=plan.max_iter // 2,
    )


def _watched(plan: GroupPlan, device: torch.device) -> tuple[Outcome[Any] | None, list[Observer[Any]]]:
    observers: list[Observer[Any]] = [ProgressBar(show=True).stage(plan.method)] if plan.show else []
    if plan.checkpoint is None:
        return None, observers
    path, fingerprint = Path(plan.checkpoint), dict(plan.fingerprint or {})
    resume = read_checkpoint(path, STATES, fingerprint) if path.exists() else None
    if resume is not None:  # files are read onto the CPU, where the state of a generator stays
        resume = replace(resume, state=replace(resume.state.to(device), stream=resume.state.stream))
    return resume, [*observers, CheckpointWriter(path, fingerprint, seconds=10.0)]
