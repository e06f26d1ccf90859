"""Which engine fits, for how long, and who watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Generator

from boxloop.average import Power
from boxloop.fit.em import EMState, Objective, accelerated_em, em, mean_log_likelihood, rounding_error
from boxloop.fit.gradient import AscentState, gradient_ascent
from boxloop.fit.online import Batches, OnlinePlan, OnlineState, online_em
from boxloop.loop import Observer, Outcome, run
from boxloop.types import Source

Engine = Literal["em", "online", "gradient", "spectral"]
"""The last has no iterations: a model that knows it is fitted without a plan's loop."""


@dataclass(frozen=True)
class Plan:
    """How a fit iterates.

    Args:
        engine: ``em`` passes over all rows each iteration; ``online`` and ``gradient`` take one mini-batch.
        max_iter: most EM iterations, or passes over the rows.
        tol: EM stops when the mean log-likelihood of a row rises by less.
        accelerate: extrapolate (guarded SQUAREM); ``False`` is plain EM.
        finish: go to the very maximum where there is a quick way (factor analysis with vanishing noise). Not for the
            start of a stream: noise at its floor on few rows is hard to leave again.
        batch_size: rows of a mini-batch.
        observers: told of every iteration.
        resume: where an interrupted fit stood.
        dtype: precision of the passes over rows; parameters and sums stay in float64.
        objective: what EM's iterations climb.

    Example:
        >>> Plan(engine="online", max_iter=2).batch_size
        100
    """

    engine: Engine = "em"
    max_iter: int = 200
    tol: float = 1e-6
    accelerate: bool = True
    finish: bool = True
    batch_size: int = 100
    observers: Sequence[Observer[Any]] = ()
    resume: Outcome[Any] | None = None
    dtype: torch.dtype = torch.float64
    objective: Objective = mean_log_likelihood

    def run(
        self, source: Source, start: Any, generator: Generator, helped: Callable[[Any], Any] | None = None
    ) -> Outcome[Any]:
        """Iterate from a model in the source's coordinates; the outcome's state has the result as ``best``.

        ``helped`` may improve the accelerated step.
        """
        if self.engine == "em":
            engine = accelerated_em if self.accelerate else em
            step: Any = engine(source, self.objective)
            if self.accelerate and self.finish and helped is not None:
                step = helped(step)
            return run(
                step,
                EMState(start),
                max_iter=self.max_iter,
                tol=self.tol,
                monotone=self.dtype == torch.float64,
                rounding=rounding_error(source, self.objective),
                observers=self.observers,
                resume=self.resume,
            )
        batches = Batches(source, self.batch_size)
        iterations = self.max_iter * batches.per_epoch
        state: Any
        if self.engine == "online":
            # Half-power steps forget the start; averaging the last nine tenths of the path removes their noise.
            moves = OnlinePlan(Power(0.5), smooth_after=iterations // 10, smoothing=Power(1.0))
            step, state = online_em(batches, moves), OnlineState(start)
        else:
            step, state = (
                gradient_ascent(batches, Power(0.5, offset=100.0, scale=0.5)),
                AscentState.start(start),
            )
        return run(step, state, max_iter=iterations, observers=self.observers, resume=self.resume)
