"""Mixtures by the components that hold rows enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from boxloop.distributions import TiedGaussian
from boxloop.estimators import BayesianGaussianMixture, MixtureEstimator
from boxloop.models import Mixture
from boxloop.report.columns import Array

SMALL = 10
"""Rows from which on a component counts as a group."""
RARE = 0.05
"""Share of the rows from which on a component counts as a group, however few these are; not of Bayesian mixtures."""


def criticised(estimator: Any) -> Any:
    """What of a fitted estimator is held against the rows.

    Of a Bayesian mixture, the components in use at their expected parameters: how these err is known from the rows
    fitted to. Its predictive law has tails that the prior gave it, in components that no row belongs to, and these make
    the errors of its moments infinite.
    """
    if not isinstance(estimator, BayesianGaussianMixture):
        return estimator
    return _part(estimator.model_, estimator.active_)


@dataclass(frozen=True)
class ComponentsInUse:
    """What of a fitted estimator is held against the rows, with the digest of the rows of its fit."""

    model_: Any
    training_digest_: str | None


def small(estimator: Any, n_rows: int) -> NDArray[np.bool_]:
    """Which components of a fitted mixture are in use by so few rows that these may be outliers, (k,).

    Args:
        estimator: the mixture.
        n_rows: that it was fitted to.
    """
    if isinstance(estimator, BayesianGaussianMixture):
        held: NDArray[np.bool_] = estimator.active_ & (estimator.model_.counts.numpy() < SMALL)
        return held
    return np.asarray(estimator.weights_) * n_rows < min(SMALL, RARE * n_rows)


def without_small(estimator: Any, n_rows: int) -> Mixture[Any] | None:
    """The distribution of a fitted mixture without its small components; None where it has none, or no others.

    A few rows far from all others get a component of their own: in judging which rows are outliers they must not vouch
    for one another. Of a Bayesian mixture it is the predictive distribution.
    """
    if not isinstance(estimator, MixtureEstimator):
        return None
    few = small(estimator, n_rows)
    bayesian = isinstance(estimator, BayesianGaussianMixture)
    kept = (estimator.active_ if bayesian else np.ones(len(few), dtype=bool)) & ~few
    if not few.any() or not kept.any():
        return None
    return _part(estimator.model_.predictive if bayesian else estimator.model_, kept)


def _part(mixture: Mixture[Any], kept: NDArray[np.bool_]) -> Mixture[Any]:
    """Some of the components, by their weights."""
    places = torch.from_numpy(np.flatnonzero(kept))
    family: Any = mixture.family
    weight = mixture.log_weight[places]
    if isinstance(family, TiedGaussian):  # one covariance for all
        few = replace(family, mean=family.mean[places])
    else:
        few = family.map(lambda leaf: leaf[places])
    return Mixture(weight - weight.logsumexp(0), few)


def components(estimator: Any, rows: Any) -> tuple[Array, Array, Array, Any]:
    """Weights (k,), means (k, d) and covariances (k, d, d) of a Gaussian mixture, and the component of each row."""
    share = estimator.predict_proba(rows)
    if isinstance(estimator, BayesianGaussianMixture):
        model, share = criticised(estimator), share[:, estimator.active_]
    else:
        model = estimator.model_
    weights, covariances = np.exp(model.log_weight.numpy()), model.family.covariance().dense().numpy()
    whole = np.broadcast_to(covariances, (len(weights), *covariances.shape[1:]))
    return weights, model.family.mean.numpy(), whole, share.argmax(1)
