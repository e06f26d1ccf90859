"""Gaussian starts and precisions in scikit-learn's shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from boxloop.distributions import Family, FullGaussian, TiedGaussian
from boxloop.estimators.base import Array
from boxloop.models import Mixture


def precision_factor(family: Family[Any]) -> Array:
    """Upper Cholesky factors of the precisions, or inverse standard deviations, as scikit-learn keeps them."""
    if isinstance(family, FullGaussian | TiedGaussian):
        return np.asarray(family.whitener.mT.detach().cpu().numpy())
    return np.asarray(1.0 / np.sqrt(family.named()["covariances"].detach().cpu().numpy()))


def precision(family: Family[Any]) -> Array:
    """Inverse covariances, in the shape of the covariances."""
    half = precision_factor(family)
    return half @ np.swapaxes(half, -1, -2) if isinstance(family, FullGaussian | TiedGaussian) else half**2


def given_mixture(
    weights: Any, means: Any, precisions: Any, template: Family[Any], covariance_type: str
) -> Mixture[Any]:
    """A mixture from weights, means and precisions given by a user.

    Args:
        weights: (k,), non-negative, summing to one.
        means: (k, d).
        precisions: in the shape of the covariance type.
        template: a family of the right kind, for its shapes and floor.
        covariance_type: ``full``, ``tied``, ``diag`` or ``spherical``.
    """
    like = template.mean
    k, d = like.shape
    shapes = {"full": (k, d, d), "tied": (d, d), "diag": (k, d), "spherical": (k,)}
    weight = _checked("weights_init", weights, (k,))
    mean = _checked("means_init", means, (k, d))
    inverse = _checked("precisions_init", precisions, shapes[covariance_type])
    if (weight < 0).any() or not np.isclose(weight.sum(), 1.0):
        raise ValueError("weights_init must be non-negative and sum to 1")
    if covariance_type in ("full", "tied"):
        _check_definite(inverse)
    family: Any = type(template)
    centre = torch.from_numpy(mean).to(like.device)
    if covariance_type in ("diag", "spherical"):
        if (inverse <= 0).any():
            raise ValueError("precisions_init must be positive")
        variance = torch.from_numpy(1.0 / inverse).to(like.device)
        variance = variance if covariance_type == "diag" else variance[:, None]
        law = family(centre, variance, template.floor)  # type: ignore[attr-defined]
    else:
        law = family.of(centre, torch.linalg.inv(torch.from_numpy(inverse)).to(like.device))
        law = family(law.mean, law.factor, template.floor)  # type: ignore[attr-defined]
    return Mixture(torch.from_numpy(weight).to(like.device).log(), law)


def completed(
    model: Mixture[Any], weights: Any, means: Any, precisions: Any, covariance_type: str
) -> Mixture[Any]:
    """A mixture with the parts that a user gave, and those of ``model`` for parts that are None.

    Where means are given, the members of ``model`` are matched to them, so that each mean gets the covariance of the
    cluster nearest to it. scikit-learn leaves that to chance.
    """
    if means is not None:
        places = _checked("means_init", means, tuple(model.family.mean.shape))
        spread = model.moments()[1].diagonal().sqrt().cpu().numpy()
        _, order = linear_sum_assignment(cdist(places / spread, model.family.mean.cpu().numpy() / spread))
        index = torch.from_numpy(order).to(model.log_weight.device)
        model = Mixture(model.log_weight[index], model.family.select(index))
    return given_mixture(
        model.log_weight.exp().cpu().numpy() if weights is None else weights,
        model.family.mean.cpu().numpy() if means is None else means,
        precision(model.family) if precisions is None else precisions,
        model.family,
        covariance_type,
    )


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} should have the shape {shape}, but got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds a value that is not finite")
    return array


def _check_definite(precision: Array) -> None:
    try:
        np.linalg.cholesky(precision)
    except np.linalg.LinAlgError as error:
        raise ValueError("precisions_init must be positive definite") from error
    if not np.allclose(precision, np.swapaxes(precision, -1, -2)):
        raise ValueError("precisions_init must be symmetric")
