"""Bayesian mixtures by the components they use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from boxloop.estimators import BayesianGaussianMixture
from boxloop.models import Mixture
from boxloop.report.columns import Array

SMALL = 10
"""Rows from which on a component counts as a group."""


def criticised(estimator: Any) -> Any:
    """What of a fitted estimator is held against the rows.

    Of a Bayesian mixture, the components in use at their expected parameters: how these err is known from the rows
    fitted to. Its predictive law has tails that the prior gave it, in components that no row belongs to, and these make
    the errors of its moments infinite.
    """
    if not isinstance(estimator, BayesianGaussianMixture):
        return estimator
    used = torch.from_numpy(np.flatnonzero(estimator.active_))
    weight = estimator.model_.log_weight[used]
    family = estimator.model_.family
    tied = estimator.covariance_type == "tied"
    few = replace(family, mean=family.mean[used]) if tied else family.map(lambda leaf: leaf[used])
    return Mixture(weight - weight.logsumexp(0), few)


@dataclass(frozen=True)
class ComponentsInUse:
    """What of a fitted estimator is held against the rows, with the digest of the rows of its fit."""

    model_: Any
    training_digest_: str | None


def small(estimator: Any) -> Any:
    """Which components of a Bayesian mixture are in use by fewer than :data:`SMALL` rows, (k,)."""
    return estimator.active_ & (estimator.model_.counts.numpy() < SMALL)


def without_small(estimator: Any) -> Mixture[Any] | None:
    """The predictive law of a Bayesian mixture without its small components; None where it has none, or no others.

    A few rows far from all others get a component of their own: in judging which rows are strange they must not vouch
    for one another.
    """
    if not isinstance(estimator, BayesianGaussianMixture):
        return None
    kept = estimator.active_ & ~small(estimator)
    if not small(estimator).any() or not kept.any():
        return None
    places, whole = torch.from_numpy(np.flatnonzero(kept)), estimator.model_.predictive
    weight = whole.log_weight[places]
    return Mixture(weight - weight.logsumexp(0), whole.family.map(lambda leaf: leaf[places]))


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
