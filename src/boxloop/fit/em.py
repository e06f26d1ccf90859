r"""Expectation-maximisation: expect, average, solve.

One round of batch EM is ``solve(reduce(expect))``. The accelerated round is SQUAREM (Varadhan and Roland 2008)
applied to the averaged statistics rather than to the parameters: trees add and scale, so it serves every model. An
extrapolation is kept only if the likelihood rises; otherwise the plain step stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

from boxloop.asking import ask, hopes_for, hoping, told
from boxloop.data import find_array
from boxloop.fit.ahead import Hopeful
from boxloop.numeric import ConditionError, generator, normal
from boxloop.run import Round
from boxloop.tree import Tree
from boxloop.types import ExpectationModel, Expected, Source

LONGEST = 100.0
"""Longest extrapolation: beyond it a step gains little and multiplies rounding errors."""

SHAKEN = 8.0 * torch.finfo(torch.float64).eps
"""Relative error that rounding may leave in a sum over rows."""

SHAKES = 4
"""How often statistics are shaken to see what rounding does."""

M = TypeVar("M", bound=ExpectationModel[Any])
Step = Callable[["EMState[M]"], Round["EMState[M]"]]

Objective = Callable[[Any, Expected[Any]], float]
"""(model, what its E step added up over all rows) -> the number that the model's M step cannot lower."""

SINGULAR = (ConditionError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]
"""What a model raises when a matrix of its own cannot be factored."""


@dataclass(frozen=True)
class EMState(Tree, Generic[M]):
    """A model and the averaged statistics that led to it.

    ``path`` ends with those of ``best``; acceleration looks at earlier ones too. When the model came from an
    extrapolation, ``safe`` is the plain step to return to unless the objective reaches ``bar``.
    """

    model: M
    path: tuple[Any, ...] = ()
    safe: M | None = None
    bar: float = -torch.inf

    @property
    def statistics(self) -> Any:
        """The averages behind ``best``; None before the first round."""
        return self.path[-1] if self.path else None

    @property
    def best(self) -> M:
        """The model to keep if the loop ends here: never an extrapolation that no pass has confirmed."""
        return self.model if self.safe is None else self.safe


def mean_log_likelihood(model: Any, expected: Expected[Any]) -> float:
    """Log-likelihood per unit weight, less the base measure: what EM climbs."""
    return told(expected.log_likelihood / expected.weight)


def em(source: Source, objective: Objective = mean_log_likelihood) -> Step[M]:
    """Batch EM: one pass over the rows a round.

    Args:
        source: rows in standard coordinates.
        objective: what the rounds climb; :func:`boxloop.fit.variational.elbo` where ``solve`` is that of a
            conjugate posterior.

    Returns:
        A step for :func:`boxloop.run.run`; its objective is that of the model it was given.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.models import Mixture
        >>> from boxloop.run import run
        >>> rows = torch.tensor([[-2.0], [-1.9], [1.9], [2.0]], dtype=torch.float64)
        >>> start = DiagonalGaussian(torch.tensor([[-1.0], [1.0]]).double(), torch.ones(2, 1).double(), 1e-6)
        >>> model = Mixture(torch.tensor([0.5, 0.5]).double().log(), start)
        >>> outcome = run(em(ArraySource(rows)), EMState(model), max_rounds=50, tol=1e-9, monotone=True)
        >>> outcome.state.model.family.mean[:, 0]
        tensor([-1.9500,  1.9500], dtype=torch.float64)
    """

    def step(state: EMState[M]) -> Round[EMState[M]]:
        expected: Expected[Any] = source.reduce(state.model.expect)
        return _onward(state.model, expected, objective(state.model, expected))

    return Hopeful(step, _on_gpu(source), partial(_rounding, source, objective))


def accelerated_em(source: Source, objective: Objective = mean_log_likelihood) -> Step[M]:
    """EM with guarded SQUAREM extrapolation of the statistics: every third round is a bold one."""

    def step(state: EMState[M]) -> Round[EMState[M]]:
        try:
            expected: Expected[Any] = source.reduce(state.model.expect)
        except SINGULAR:
            if state.safe is None:
                raise
            return Round(EMState(state.safe, state.path), state.bar, rejected=True)
        height = objective(state.model, expected)
        if state.safe is not None:
            return _confirmed(state, state.safe, expected, height)
        mean, events = _averaged(state.model, expected)
        model = state.model.solve(mean)
        path = (mean,) if events else (*state.path, mean)
        if len(path) < 3:
            return Round(EMState(model, path), height, events)
        bold = extrapolate(model, path)
        if bold is None:
            return Round(EMState(model, (mean,)), height)
        return Round(EMState(bold, (mean,), safe=model, bar=height), height)

    return Hopeful(step, _on_gpu(source), partial(_rounding, source, objective))


def _on_gpu(source: Source) -> bool:
    array = find_array(source)
    return array is not None and array.rows.device.type == "cuda"


def _rounding(source: Source, objective: Objective, state: EMState[M]) -> float:
    """How far the objective of a model moves with its last digits and those of the statistics it was solved from.

    Twice the range of a few trials, a pass each: where a covariance is nearly singular, its smallest eigenvalue is
    known to no more digits than these leave of it; and a row that is far larger than the others multiplies the last
    digits of what it is modelled by.
    """
    if state.statistics is None:
        return 0.0
    heights = []
    for trial in range(SHAKES):
        shaken = partial(_shaken, stream=generator(trial))
        try:
            solved: Any = state.best.solve(state.statistics.map(shaken))
            model = solved.map(shaken)
            heights.append(float(objective(model, source.reduce(model.expect))))
        except SINGULAR:
            return torch.inf
    return 2.0 * (max(heights) - min(heights))


def _shaken(leaf: Tensor, stream: torch.Generator) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    return leaf * (1.0 + SHAKEN * normal(tuple(leaf.shape), stream, leaf.dtype).to(leaf.device))


def _averaged(model: M, expected: Expected[Any]) -> tuple[Any, tuple[str, ...]]:
    statistics, events = model.repair(expected.statistics)
    return statistics * (1.0 / expected.weight), events


def _confirmed(state: EMState[M], safe: M, expected: Expected[Any], height: float) -> Round[EMState[M]]:
    """The round after an extrapolation: on from it where the objective has risen, else back to the safe step.

    In hope both are made, and the device chooses: a third of all extrapolations fall, too many to be a surprise.
    """
    back = Round(EMState(safe, state.path), state.bar, rejected=True)
    kept: Any = (height >= state.bar) & (height < torch.inf)
    if not hopes_for(kept):
        return _onward(state.model, expected, height) if kept else back
    with hoping() as watch:
        on = _onward(state.model, expected, height)
    if watch.doubts:
        ask(torch.stack(watch.doubts).any() & kept)
    if on.events:
        ask(kept)  # they change what follows
    chosen = on.state.map(lambda here, there: torch.where(kept, here, there), back.state)
    return Round(chosen, told(torch.where(kept, height, state.bar)), rejected=cast(bool, ~kept))


def _onward(model: M, expected: Expected[Any], height: float) -> Round[EMState[M]]:
    mean, events = _averaged(model, expected)
    return Round(EMState(model.solve(mean), (mean,)), height, events)


def extrapolate(model: M, path: tuple[Any, ...]) -> M | None:
    first, second, third = path
    move = second - first
    bend = (third - second) - move
    length = (move.dot(move) / bend.dot(bend).clamp(min=1e-300)).sqrt()
    if not ask(length > 1.0, usual=True):
        return None
    length = length.clamp(max=LONGEST)
    try:
        bold = model.solve(first + move * (2.0 * length) + bend * (length * length))
    except SINGULAR:
        return None
    return bold if bold.is_finite() else None
