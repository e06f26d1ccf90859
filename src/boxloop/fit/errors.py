r"""Standard errors of fitted parameters from the observed information.

The score is a by-product of EM: :math:`\nabla \ell(\theta) = \nabla_{\theta'} Q(\theta' \mid \theta)` at
:math:`\theta' = \theta`. Its central differences give the observed information :math:`-\nabla^2 \ell` (Oakes 1999)
through ``expect`` alone, so missing values, weights and streams of rows need nothing special.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from boxloop.models import flatten, jacobian, observed_information, unflatten
from boxloop.numeric import single_threaded
from boxloop.types import Source

FLAT = 1e-7
"""Smallest curvature of a direction, relative to its parameters, that central differences distinguish from 0."""
DULL = 1e-9
"""Smallest information per unit of weight: below it a parameter rests at a bound (a rate or a probability of zero)."""


@dataclass(frozen=True)
class ParameterErrors:
    """Covariance of the free parameters and standard errors of the named ones.

    Args:
        covariance: (p, p), of the flattened free parameters.
        errors: one tensor of standard errors for each public parameter, NaN where the likelihood is flat or the
            parameter is at a bound.
    """

    covariance: Tensor
    errors: Mapping[str, Tensor]


@single_threaded
def standard_errors(
    model: Any, source: Source, named: Callable[[Any], Mapping[str, Tensor]] | None = None
) -> ParameterErrors:
    r"""Standard errors at a maximum of the likelihood.

    .. math:: \widehat{\mathrm{Cov}}(\hat\theta) = N (N^\top I_{obs} N)^{-1} N^\top

    where N spans the directions that the model's constraints leave free (all of them for a mixture; those that keep
    :math:`F^\top \Psi^{-1} F` diagonal for a factor model, whose loadings are otherwise free to rotate). Public
    parameters follow by the delta method. Every free parameter is measured in units of its own error, so that what is
    flat does not depend on scales.

    Args:
        model: a fitted model (canonical, if it has constraints).
        source: the rows it was fitted to, in the model's coordinates.
        named: parameters whose errors are wanted, as a differentiable function of the model; by default its own.

    Example:
        >>> import torch
        >>> from boxloop.data import ArraySource
        >>> from boxloop.distributions import Poisson
        >>> from boxloop.models import Mixture
        >>> rows = torch.full((100, 1), 4.0, dtype=torch.float64)
        >>> model = Mixture(torch.zeros(1).double(), Poisson(torch.tensor([[4.0]]).double()))
        >>> standard_errors(model, ArraySource(rows)).errors["means"]  # sqrt(4 / 100)
        tensor([[0.2000]], dtype=torch.float64)
    """
    free = model.free_parameters()
    point = flatten(free)
    observed = observed_information(model, source, free, point)
    dull = observed.diagonal() <= DULL * source.reduce(model.expect).weight
    unit = torch.where(dull, 1.0, observed.diagonal()).rsqrt()
    scaled = torch.where(dull | dull[:, None], 0.0, observed * unit * unit[:, None])
    basis = _find_free_directions(model, free, point, unit)
    values, vectors = torch.linalg.eigh(basis.mT @ scaled @ basis)
    good = values > FLAT
    half = unit[:, None] * (basis @ (vectors[:, good] / values[good].sqrt()))
    flat = unit[:, None] * (basis @ vectors[:, ~good])
    errors = {}
    for name, slope in differentiate_named(named or (lambda m: m.named_parameters()), model, point).items():
        error = (slope @ half).square().sum(-1).sqrt()
        blind = (slope @ flat).norm(dim=-1) > 1e-4 * (slope * unit).norm(dim=-1)
        errors[name] = torch.where(blind, torch.nan, error)
    return ParameterErrors(half @ half.mT, errors)


def differentiate_named(
    named: Callable[[Any], Mapping[str, Tensor]], model: Any, point: Tensor
) -> dict[str, Tensor]:
    """Jacobian of each named parameter in the free ones, at a point near the model."""
    free = model.free_parameters()

    def evaluate(vector: Tensor, name: str) -> Tensor:
        return named(model.with_free_parameters(unflatten(vector, free)))[name]

    return {name: jacobian(partial(evaluate, name=name), point) for name in named(model)}


def _find_free_directions(model: Any, free: Mapping[str, Tensor], point: Tensor, unit: Tensor) -> Tensor:
    """Directions, in the given units, along which the model's constraints stay met; orthonormal columns."""
    constraints = model.with_free_parameters(free).identification_constraints()
    if constraints.numel() == 0:
        return torch.eye(len(point), dtype=point.dtype, device=point.device)
    slope = jacobian(
        lambda v: model.with_free_parameters(unflatten(v, free)).identification_constraints(), point
    )
    _, size, right = torch.linalg.svd(slope * unit)
    return right[int((size > 1e-10 * size[0]).sum()) :].mT
