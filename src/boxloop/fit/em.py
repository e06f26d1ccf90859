r"""Expectation-maximisation: expect, average, solve.

One iteration of batch EM is ``solve(reduce(expect))``. The accelerated iteration is SQUAREM (Varadhan and Roland 2008)
applied to the averaged statistics rather than to the parameters: trees add and scale, so it serves every model. An
extrapolation is kept only if the likelihood rises; otherwise the plain step stands.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from boxloop.loop import Iteration
from boxloop.numeric import ConditionError, generator, normal
from boxloop.tree import Tree
from boxloop.types import ExpectationModel, Expected, Source

LONGEST = 100.0
"""Longest extrapolation: beyond it a step gains little and multiplies rounding errors."""

PERTURBATION = 8.0 * torch.finfo(torch.float64).eps
"""Relative error that rounding may leave in a sum over rows."""

PERTURBATIONS = 4
"""How often statistics are perturbed to see what rounding does."""

M = TypeVar("M", bound=ExpectationModel[Any])
Step = Callable[["EMState[M]"], Iteration["EMState[M]"]]

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
        """The averages behind ``best``; None before the first iteration."""
        return self.path[-1] if self.path else None

    @property
    def best(self) -> M:
        """The model to keep if the loop ends here: never an extrapolation that no pass has confirmed."""
        return self.model if self.safe is None else self.safe


def mean_log_likelihood(model: Any, expected: Expected[Any]) -> float:
    """Log-likelihood per unit weight, less the base measure: what EM climbs."""
    return float(expected.log_likelihood / expected.weight)


def em(source: Source, objective: Objective = mean_log_likelihood) -> Step[M]:
    """Batch EM: one pass over the rows an iteration.

    Args:
        source: rows in standard coordinates.
        objective: what the iterations climb; :func:`boxloop.fit.variational.elbo` where ``solve`` is that of a
            conjugate posterior.

    Returns:
        A step for :func:`boxloop.loop.run`; its objective is that of the model it was given.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.distributions import DiagonalGaussian
        >>> from boxloop.models import Mixture
        >>> from boxloop.loop import run
        >>> rows = torch.tensor([[-2.0], [-1.9], [1.9], [2.0]], dtype=torch.float64)
        >>> start = DiagonalGaussian(torch.tensor([[-1.0], [1.0]]).double(), torch.ones(2, 1).double(), 1e-6)
        >>> model = Mixture(torch.tensor([0.5, 0.5]).double().log(), start)
        >>> outcome = run(em(ArraySource(rows)), EMState(model), max_iter=50, tol=1e-9, monotone=True)
        >>> outcome.state.model.family.mean[:, 0]
        tensor([-1.9500,  1.9500], dtype=torch.float64)
    """

    def step(state: EMState[M]) -> Iteration[EMState[M]]:
        expected: Expected[Any] = source.reduce(state.model.expect)
        model, mean, events = _solve(state.model, expected)
        return Iteration(EMState(model, (mean,)), objective(state.model, expected), events)

    return step


def accelerated_em(source: Source, objective: Objective = mean_log_likelihood) -> Step[M]:
    """EM with guarded SQUAREM extrapolation of the statistics: every third iteration is a bold one."""

    def step(state: EMState[M]) -> Iteration[EMState[M]]:
        try:
            expected: Expected[Any] = source.reduce(state.model.expect)
        except SINGULAR:
            if state.safe is None:
                raise
            return Iteration(EMState(state.safe, state.path), state.bar, rejected=True)
        height = objective(state.model, expected)
        if state.safe is not None and not state.bar <= height < torch.inf:
            return Iteration(EMState(state.safe, state.path), state.bar, rejected=True)
        model, mean, events = _solve(state.model, expected)
        path = (*state.path, mean) if state.safe is None and not events else (mean,)
        if len(path) < 3:
            return Iteration(EMState(model, path), height, events)
        bold = extrapolate(model, path)
        if bold is None:
            return Iteration(EMState(model, (mean,)), height)
        return Iteration(EMState(bold, (mean,), safe=model, bar=height), height)

    return step


def rounding_error(state: EMState[Any], source: Source, objective: Objective = mean_log_likelihood) -> float:
    """How far rounding may move the objective of a state, for ``rounding`` of :func:`boxloop.loop.run`.

    The model is solved and scored again with perturbed last digits, a pass over the rows each time; twice the range of
    its objectives counts. Where a covariance is nearly singular, its smallest eigenvalue is known to few digits, and a
    row far larger than the others multiplies the last digits of its mean.

    Args:
        state: whose objective it is.
        source: rows in standard coordinates.
        objective: what EM climbs.
    """
    if state.statistics is None:
        return 0.0
    heights = []
    for trial in range(PERTURBATIONS):
        perturb = partial(_perturb, stream=generator(trial))
        try:
            model = state.best.solve(state.statistics.map(perturb)).map(perturb)
            heights.append(objective(model, source.reduce(model.expect)))
        except SINGULAR:
            return torch.inf
    return 2.0 * (max(heights) - min(heights))


def _perturb(leaf: Tensor, stream: torch.Generator) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    return leaf * (1.0 + PERTURBATION * normal(tuple(leaf.shape), stream, leaf.dtype).to(leaf.device))


def _solve(model: M, expected: Expected[Any]) -> tuple[M, Any, tuple[str, ...]]:
    """M step: the next model, the averaged statistics behind it, and what had to be repaired in them."""
    statistics, events = model.repair_statistics(expected.statistics)
    mean = statistics * (1.0 / expected.weight)
    return model.solve(mean), mean, events


def extrapolate(model: M, path: tuple[Any, ...]) -> M | None:
    first, second, third = path
    move = second - first
    bend = (third - second) - move
    length = (move.dot(move) / bend.dot(bend).clamp(min=1e-300)).sqrt()
    if not bool(length > 1.0):
        return None
    length = length.clamp(max=LONGEST)
    try:
        bold = model.solve(first + move * (2.0 * length) + bend * (length * length))
    except SINGULAR:
        return None
    return bold if bold.is_finite() else None
