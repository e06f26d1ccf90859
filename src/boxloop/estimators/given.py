"""Gaussian starts and precisions in scikit-learn's shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import linalg

from boxloop.estimators.base import Array
from boxloop.laws.family import Family
from boxloop.models import Mixture


def precision_factor(covariances: Array, covariance_type: str) -> Array:
    """Upper Cholesky factors of the precisions, or inverse standard deviations, as scikit-learn keeps them."""
    if covariance_type in ("diag", "spherical"):
        return np.asarray(1.0 / np.sqrt(covariances))
    eye = np.eye(covariances.shape[-1])
    stack = covariances if covariance_type == "full" else covariances[None]
    factors = np.stack(
        [linalg.solve_triangular(linalg.cholesky(c, lower=True), eye, lower=True).T for c in stack]
    )
    return factors if covariance_type == "full" else factors[0]


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
    precision = _checked("precisions_init", precisions, shapes[covariance_type])
    if (weight < 0).any() or not np.isclose(weight.sum(), 1.0):
        raise ValueError("weights_init must be non-negative and sum to 1")
    family: Any = type(template)
    centre = torch.from_numpy(mean).to(like.device)
    if covariance_type in ("diag", "spherical"):
        if (precision <= 0).any():
            raise ValueError("precisions_init must be positive")
        variance = torch.from_numpy(1.0 / precision).to(like.device)
        variance = variance if covariance_type == "diag" else variance[:, None]
        law = family(centre, variance, template.floor)  # type: ignore[attr-defined]
    else:
        law = family.of(centre, torch.linalg.inv(torch.from_numpy(precision)).to(like.device))
        law = family(law.mean, law.factor, template.floor)  # type: ignore[attr-defined]
    return Mixture(torch.from_numpy(weight).to(like.device).log(), law)


def _checked(name: str, value: Any, shape: tuple[int, ...]) -> Array:
    array = np.array(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} should have the shape {shape}, but got {array.shape}")
    return array
