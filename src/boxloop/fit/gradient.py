r"""Gradient engines: stochastic ascent on the log-likelihood, and generalised EM by a partial M step.

By Fisher's identity :math:`\nabla \log p(x) = E[\nabla \log p(x, z) \mid x]` (Brownlie 2021, eq. 4.3), so the two share
their gradient; they differ in what they must do with it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from boxloop.average import Schedule
from boxloop.fit.em import EMState
from boxloop.loop import Iteration
from boxloop.models import flatten, unflatten
from boxloop.tree import Tree
from boxloop.types import Source

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class AscentState(Tree):
    """A model with the running moments of its gradient (Adam; Kingma and Ba 2015)."""

    model: Any
    first: Tensor
    second: Tensor
    count: int = 0

    @classmethod
    def start(cls, model: Any) -> AscentState:
        """From a model with free parameters, with no gradient seen yet."""
        zero = torch.zeros_like(flatten(model.free_parameters()))
        return cls(model, zero, zero)

    @property
    def statistics(self) -> None:
        """None: a gradient keeps no averages."""

    @property
    def best(self) -> Any:
        """The current model."""
        return self.model


def gradient_ascent(
    batches: Callable[[int], Batch], rate: Schedule, *, adaptive: bool = True
) -> Callable[[AscentState], Iteration[AscentState]]:
    r"""Stochastic gradient ascent on the mean log-likelihood, by autograd, for any model with ``log_prob``.

    .. math:: \theta_t = \theta_{t-1} + \alpha_t \nabla_\theta \frac{\sum_i w_i \log p_\theta(x_i)}{\sum_i w_i}

    Brownlie (2021), Algorithm 1 (with ``adaptive=False``, a constant rate and batches of one), over free parameters, so
    that every step is a valid model.

    Args:
        batches: the mini-batch of update t.
        rate: step size of update t = 1, 2, ...
        adaptive: scale each coordinate by Adam's moments; ``False`` is the plain gradient.
    """

    def step(state: AscentState) -> Iteration[AscentState]:
        rows, weight = batches(state.count)
        free = state.model.free_parameters()
        point = flatten(free).requires_grad_()
        density = state.model.with_free_parameters(unflatten(point, free)).log_prob(rows)
        objective = (density * weight).sum() / weight.sum()
        (gradient,) = torch.autograd.grad(objective, point)
        t = state.count + 1
        move, first, second = gradient, state.first, state.second
        if adaptive:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient.square()
            move = (first / (1 - 0.9**t)) / ((second / (1 - 0.999**t)).sqrt() + 1e-8)
        with torch.no_grad():
            model = state.model.with_free_parameters(unflatten(point.detach() + rate(t) * move, free))
        return Iteration(AscentState(model, first, second, t), float(objective.detach()))

    return step


def generalised_em(
    source: Source, *, halvings: int = 30
) -> Callable[[EMState[Any]], Iteration[EMState[Any]]]:
    """EM whose M step only has to raise Q: one gradient step on it, halved until Q rises.

    For models whose ``solve`` is dear or absent. The likelihood is monotone all the same (Le Corff, remark 2.5).
    """

    def step(state: EMState[Any]) -> Iteration[EMState[Any]]:
        model = state.model
        expected = source.reduce(model.expect)
        mean = expected.statistics * (1.0 / expected.weight)
        free = model.free_parameters()
        point = flatten(free).requires_grad_()
        level = model.with_free_parameters(unflatten(point, free)).expected_log_likelihood(mean)
        (gradient,) = torch.autograd.grad(level, point)
        objective = float(expected.log_likelihood / expected.weight)
        length = 1.0
        for _ in range(halvings):
            moved = model.with_free_parameters(unflatten(point.detach() + length * gradient, free))
            if bool(moved.expected_log_likelihood(mean) > level.detach()):
                return Iteration(EMState(moved), objective)
            length *= 0.5
        return Iteration(state, objective, final=True)

    return step
