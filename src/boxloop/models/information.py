r"""Free parameters as one vector, score and observed information of any model, closed-form errors of factor analysis.

The score is a by-product of EM: :math:`\nabla \ell(\theta) = \nabla_{\theta'} Q(\theta' \mid \theta)` at
:math:`\theta' = \theta`. Its central differences give the observed information :math:`-\nabla^2 \ell` (Oakes 1999)
through ``expect`` alone, so missing values, weights and streams of rows need nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from boxloop.types import Source

STEP = 1e-5


def flatten(free: Mapping[str, Tensor]) -> Tensor:
    """Free parameters as one vector, in order of their names' appearance."""
    return torch.cat([value.reshape(-1) for value in free.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inverse of :func:`flatten`."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for part, (name, value) in zip(parts, like.items(), strict=True)}


def likelihood_and_score(
    model: Any, source: Source, free: Mapping[str, Tensor], point: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-likelihood of all rows, less the base measure, and its gradient by Fisher's identity: one E step."""
    expected = source.reduce(model.with_free_parameters(unflatten(point, free)).expect)
    moving = point.clone().requires_grad_()
    with torch.enable_grad():
        level = model.with_free_parameters(unflatten(moving, free)).expected_log_likelihood(
            expected.statistics
        )
        (gradient,) = torch.autograd.grad(level, moving)
    return expected.log_likelihood, gradient


def observed_information(model: Any, source: Source, free: Mapping[str, Tensor], point: Tensor) -> Tensor:
    """Observed information of all rows, (q, q): two passes for every parameter."""
    hessian = -central_differences(lambda v: likelihood_and_score(model, source, free, v)[1], point)
    return 0.5 * (hessian + hessian.mT)


def central_differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Derivative of each output by central differences, (*outputs, q)."""
    columns = []
    for step in torch.diag(STEP * point.abs().clamp(min=1.0)):
        columns.append((function(point + step) - function(point - step)) / (2.0 * step.sum()))
    return torch.stack(columns, dim=-1)


def jacobian(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Derivative of each output with respect to the point, (*outputs, p)."""
    moving = point.clone().requires_grad_()
    with torch.enable_grad():
        output = function(moving)
        rows = [torch.autograd.grad(value, moving, retain_graph=True)[0] for value in output.reshape(-1)]
    return torch.stack(rows).reshape(*output.shape, len(point))


def derivatives_by_unit(
    function: Callable[[Tensor], Tensor], point: Tensor, weight: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs (n,), the gradient of each, (n, p), and the second derivative of their weighted sum, (p, p)."""
    moving = point.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = function(moving)
        share = (torch.ones_like(value) if weight is None else weight).detach().clone().requires_grad_()
        total = share @ value
        if not value.requires_grad:  # it does not depend on the point
            zero = value.new_zeros(len(value), len(point))
            return value, zero, value.new_zeros(len(point), len(point))
        (gradient,) = torch.autograd.grad(total, moving, create_graph=True)
        # The gradient is linear in the shares: its derivative in them is that of every output, in p passes, not n.
        by_unit, curvature = [], []
        for one in gradient:
            first, second = torch.autograd.grad(one, (share, moving), retain_graph=True, allow_unused=True)
            by_unit.append(torch.zeros_like(share) if first is None else first)
            curvature.append(torch.zeros_like(moving) if second is None else second)
    return value.detach(), torch.stack(by_unit, dim=1), torch.stack(curvature)


class FactorErrors(NamedTuple):
    """Standard errors of means (d,), loadings (d, k) and logarithms of noise variances (d,)."""

    mean: Tensor
    loadings: Tensor
    log_noise: Tensor


def factor_standard_errors(
    loadings: Tensor, noise: Tensor, present: Tensor, prior_rate: Tensor
) -> FactorErrors:
    r"""Standard errors of a factor model with :math:`F^\top \Psi^{-1} F` diagonal, by the inverse of the expected
    information.

    With :math:`s_j = f_j / \sqrt{\psi_j}`, U orthonormal axes of these rows, :math:`P = I - U U^\top` and
    :math:`\theta_r - 1` the eigenvalues of :math:`\sum_j s_j s_j^\top`, the information on the logarithms of the
    noise is :math:`H_{ij} = \tfrac n2 P_{ij}^2 + [i = j]\, b_j / \psi_j` (Lawley and Maxwell 1971, *Factor Analysis
    as a Statistical Method*, chapter 5), with b the rate of an inverse gamma prior. The error of a loading is that
    for known noise (Anderson 1963) and :math:`J_r H^{-1} J_r^\top`, :math:`J_r = \partial f_r / \partial \log \psi`.

    Deviation: values are taken to be missing completely at random. Errors are then right to 5% for one factor, and too
    small for more, by half the share of missing values with two factors and all of it with three.
    """
    n = present.max()
    part = (present / n).clamp(min=1e-12)
    axes, root, turn = torch.linalg.svd(loadings * (part / noise).sqrt()[:, None], full_matrices=False)
    square = root.square()
    theta = 1.0 + square
    complement = torch.eye(len(noise), dtype=noise.dtype, device=noise.device) - axes @ axes.mT
    # Where column j is present its own value counts in full, the others only as often as they are.
    lost = 1.0 / (1.0 + (1.0 - part) / part * axes.square().sum(1))
    own = lost * present.sqrt()
    information = 0.5 * own[:, None] * complement.square() * own
    information.diagonal().add_(prior_rate / noise)
    covariance = torch.cholesky_inverse(torch.linalg.cholesky(information))
    # Two factors of equal size turn freely: an angle between them errs by one radian at most.
    gap = theta[:, None] - theta
    least = (theta[:, None] * theta / n).sqrt()
    gap = torch.where(gap < 0.0, -1.0, 1.0) * gap.abs().clamp(min=least)
    angle = (theta[:, None] * theta / gap.square()).fill_diagonal_(0.0)
    lean = ((theta[:, None] + theta) / gap).fill_diagonal_(0.0)
    errors = torch.empty_like(axes)
    for r, u in enumerate(axes.mT):
        known = square[r] * (axes.square() @ angle[r]) + theta[r] / square[r] * complement.diagonal()
        known = known + theta[r].square() / (2.0 * square[r]) * u.square()
        moved = torch.diag(u) - (axes * lean[r]) @ (axes * u[:, None]).mT
        moved = moved - (theta[r] + 1.0) / square[r] * complement * u
        slope = 0.5 * root[r] * moved - 0.5 * theta[r] / root[r] * u[:, None] * u.square()
        errors[:, r] = noise / part * (known / n + ((slope @ covariance) * slope).sum(1))
    variance = noise + loadings.square().sum(1)
    return FactorErrors(
        (variance / present).sqrt(), (errors @ turn.square()).sqrt(), covariance.diagonal().sqrt()
    )
