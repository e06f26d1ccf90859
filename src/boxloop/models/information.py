r"""What rows say about a model's parameters: score, observed information, derivatives.

The score is a by-product of EM: :math:`\nabla \ell(\theta) = \nabla_{\theta'} Q(\theta' \mid \theta)` at
:math:`\theta' = \theta`. Its central differences give the observed information :math:`-\nabla^2 \ell` (Oakes 1999)
through ``expect`` alone, so missing values, weights and streams of rows need nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from boxloop.tree import unflatten
from boxloop.types import Source

STEP = 1e-5


def step_of(point: Tensor) -> Tensor:
    """A step of central differences for every parameter."""
    return STEP * point.abs().clamp(min=1.0)


def score(model: Any, source: Source, free: Mapping[str, Tensor], point: Tensor) -> Tensor:
    """Gradient of the log-likelihood of all rows at a point, by Fisher's identity."""
    return likelihood_and_score(model, source, free, point)[1]


def likelihood_and_score(
    model: Any, source: Source, free: Mapping[str, Tensor], point: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-likelihood of all rows, less the base measure, and its gradient: one E step."""
    expected = source.reduce(model.with_free(unflatten(point, free)).expect)
    moving = point.clone().requires_grad_()
    with torch.enable_grad():
        level = model.with_free(unflatten(moving, free)).complete(expected.statistics)
        (gradient,) = torch.autograd.grad(level, moving)
    return expected.log_likelihood, gradient


def information(model: Any, source: Source, free: Mapping[str, Tensor], point: Tensor) -> Tensor:
    """Observed information of all rows, (q, q): two passes for every parameter."""
    found = -differences(lambda v: score(model, source, free, v), point)
    return 0.5 * (found + found.mT)


def differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Derivative of each output by central differences, (*outputs, q)."""
    columns = []
    for step in torch.diag(step_of(point)):
        columns.append((function(point + step) - function(point - step)) / (2.0 * step.sum()))
    return torch.stack(columns, dim=-1)


def jacobian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Derivative of each output with respect to the point, (*outputs, p)."""
    moving = point.clone().requires_grad_()
    with torch.enable_grad():
        output = function(moving)
        rows = [torch.autograd.grad(value, moving, retain_graph=True)[0] for value in output.reshape(-1)]
    return torch.stack(rows).reshape(*output.shape, len(point))
