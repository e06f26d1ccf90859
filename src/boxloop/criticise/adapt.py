r"""Anything with a prior and an emission, as a model.

A fitted estimator of scikit-learn, of hmmlearn or of this library, a pair of ``torch.distributions``, or a decoder: all
of them are :math:`p(z)` and :math:`p(x \mid z)`, and so can be criticised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.distributions import Distribution as TorchDistribution

from boxloop.criticise.torch_distributions import from_torch, repeat_batch
from boxloop.data import on_device, open_source
from boxloop.distributions import Categorical, DiagonalGaussian, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator
from boxloop.types import Distribution, LatentModel, Source


@dataclass(frozen=True)
class PriorAndEmission:
    """A prior and a function from latent values z (m, k) to m distributions, as a model."""

    latent: Distribution
    likelihood: Callable[[Tensor], Distribution]

    def prior(self) -> Distribution:
        return self.latent

    def emission(self, z: Tensor) -> Distribution:
        return self.likelihood(z)


def open_rows_for_model(
    model: object, X: Any, sample_weight: Any = None, device: torch.device | str = "cpu"
) -> Source:
    """Rows as the model of a fitted estimator has them: checked, and cut where ``binarize`` says so."""
    if isinstance(X, np.ndarray | Tensor) and X.ndim > 2:  # images, as an autoencoder takes them
        X = X.reshape(len(X), -1)
    source = open_source(X, sample_weight)
    device = torch.device(device)
    if device.type != "cpu":
        source = on_device(source, device)
    prepare = getattr(getattr(model, "best_estimator_", model), "_prepare_rows", None)
    return source if prepare is None else prepare(source)


def as_model(model: object, emission: Callable[[Tensor], object] | None = None) -> LatentModel:
    """A model from whatever has a prior and an emission.

    Args:
        model: a boxloop model or fitted estimator; a search (``ModelSearchCV``), for its ``best_estimator_``; a fitted
            scikit-learn ``GaussianMixture``, ``BayesianGaussianMixture``, ``FactorAnalysis`` or ``PCA``; a fitted
            hmmlearn ``GaussianHMM`` (its rows in the long run, which depend on one another: their gaps have no errors);
            a ``torch.distributions`` object; or, with ``emission``, a prior: a distribution, a ``torch.distributions``
            object, or a number k of standard normal latent columns.
        emission: z (m, k) -> a distribution, a ``torch.distributions`` object, or ``(mean, variance)`` as a decoder
            gives. A ``torch.nn.Module``, or a method of one, is given z in the precision and on the device of its
            parameters.

    Returns:
        An object with ``prior()`` and ``emission(z)``.

    Raises:
        TypeError: not a model of a known kind.
        NotFittedError: an estimator that is not fitted.
        ValueError: a model without a density, or distributions whose batch is not one for each row of z.

    Example:
        >>> import torch
        >>> model = as_model(2, lambda z: (z @ torch.ones(2, 3).double(), torch.ones(len(z), 3).double()))
        >>> model.emission(torch.zeros(1, 2).double()).mean
        tensor([[0., 0., 0.]], dtype=torch.float64)
    """
    if emission is not None:
        return PriorAndEmission(_to_prior(model), _make_emission(emission))
    if isinstance(model, LatentModel):
        return model
    for name in ("best_estimator_", "model_"):  # of a fitted search, of a fitted estimator
        if hasattr(model, name):
            return as_model(getattr(model, name))
    if isinstance(model, TorchDistribution):
        device = _check_single_distribution(from_torch(model), "a distribution of rows").mean.device
        one = Categorical(torch.zeros(1, 1, dtype=torch.float64, device=device))
        return PriorAndEmission(one, lambda z: repeat_batch(model, len(z)))
    if isinstance(model, BaseEstimator) and callable(getattr(model, "fit", None)):
        check_is_fitted(model, msg="this %(name)s is not fitted yet: call fit first")
    if isinstance(model, (GaussianMixture, BayesianGaussianMixture)):
        return _from_sklearn_mixture(model)
    if isinstance(model, FactorAnalysis):
        return _make_factor_model(model.mean_, model.components_.T, model.noise_variance_)
    if isinstance(model, PCA):
        return _from_sklearn_pca(model)
    if type(model).__module__.startswith("hmmlearn"):
        return _from_hmmlearn(model)
    name = type(model).__name__
    if hasattr(model, "refit") and not model.refit:
        raise TypeError(f"cannot take {name} as a model: with refit=False it has no best_estimator_")
    if isinstance(model, MetaEstimatorMixin) and hasattr(model, "estimator_"):
        raise TypeError(f"cannot take {name} as a model: pass its .estimator_")
    raise TypeError(
        f"cannot take {name} as a model: a model has prior() and emission(z), or is a prior with emission="
    )


def _make_emission(emission: Callable[[Tensor], object]) -> Callable[[Tensor], Distribution]:
    """A function from z to distributions; a network computes in its own precision, the result has that of z."""
    owner = getattr(emission, "__self__", emission)
    weight = next(owner.parameters(), None) if isinstance(owner, torch.nn.Module) else None

    def emission_at(z: Tensor) -> Distribution:
        value: Any = emission(z if weight is None else z.to(weight))
        if isinstance(value, tuple) and weight is not None:
            value = tuple(part.to(z) for part in value)
        distribution = _to_distribution(value, "emission(z)")
        if len(distribution.mean) != len(z):
            raise ValueError(
                f"emission(z) gave {len(distribution.mean)} distributions for {len(z)} rows of z: it must give one for "
                "each, of batch shape (m, d), or (m,) with an event of d columns"
            )
        return distribution

    return emission_at


def _to_tensor(value: Any) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(value), dtype=torch.float64)


def _from_sklearn_mixture(fitted: Any) -> Mixture[Any]:
    mean, covariance = _to_tensor(fitted.means_), _to_tensor(fitted.covariances_)
    family: Any
    match fitted.covariance_type:
        case "full":
            family = FullGaussian.from_covariance(mean, covariance)
        case "tied":
            family = TiedGaussian(mean, torch.linalg.cholesky(covariance))
        case "diag":
            family = DiagonalGaussian(mean, covariance)
        case _:
            family = SphericalGaussian(mean, covariance[:, None])
    return Mixture(_to_tensor(fitted.weights_).log(), family)


def _from_sklearn_pca(fitted: Any) -> FactorModel:
    """Tipping and Bishop's model. Whitening changes ``PCA.score``, not the distribution of the rows."""
    noise = max(float(fitted.noise_variance_), 0.0)
    if noise == 0.0:
        raise ValueError("this PCA has as many components as columns and leaves no noise: it has no density")
    loadings = fitted.components_.T * np.sqrt(np.maximum(fitted.explained_variance_ - noise, 0.0))
    return _make_factor_model(fitted.mean_, loadings, np.full(len(fitted.mean_), noise))


def _make_factor_model(mean: Any, loadings: Any, noise: Any) -> FactorModel:
    return FactorModel(_to_tensor(mean), _to_tensor(loadings), _to_tensor(noise))


class StationaryMixture(Mixture[Any]):
    """The stationary distribution of the rows of a hidden Markov model, which are not independent."""


DEPENDENT = "rows of a hidden Markov model depend on one another"


def check_independent_rows(model: LatentModel, what: str) -> None:
    """Refuse a computation that is right for independent rows only."""
    if isinstance(model, StationaryMixture):
        raise ValueError(
            f"{DEPENDENT}: {what} of independent rows, and would reject true "
            "models. mega(..., draws=0) gives the gaps alone; a model with equal rows of transmat_ has independent rows"
        )


def _from_hmmlearn(fitted: Any) -> Mixture[Any]:
    """The stationary distribution of a row: a mixture by the stationary distribution of the states."""
    name = type(fitted).__name__
    if name != "GaussianHMM":
        raise TypeError(f"cannot take {name} as a model: of hmmlearn, only GaussianHMM is supported")
    if any(getattr(fitted, part, None) is None for part in ("transmat_", "means_", "covars_")):
        raise NotFittedError(f"this {name} is not fitted yet: call fit first")
    change = np.asarray(fitted.transmat_, dtype=np.float64)
    values, vectors = np.linalg.eig(change.T)
    if (np.abs(values - 1.0) < 1e-10).sum() > 1:
        raise ValueError(
            f"{name}: transmat_ has states that never reach one another, and so no unique stationary distribution"
        )
    stationary = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    weights = _to_tensor(np.maximum(stationary / stationary.sum(), 0.0))
    family = FullGaussian.from_covariance(_to_tensor(fitted.means_), _to_tensor(fitted.covars_))
    independent = bool(np.ptp(change, axis=0).max() <= 1e-12)
    return (Mixture if independent else StationaryMixture)(weights.log(), family)


def _to_prior(value: object) -> Distribution:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 1:
            raise ValueError(f"a prior of standard normal columns needs at least 1 of them, got {value}")
        zero = torch.zeros(1, value, dtype=torch.float64)
        return DiagonalGaussian(zero, zero + 1.0)
    if isinstance(value, torch.distributions.Categorical):
        return Categorical(value.logits.reshape(1, -1).to(torch.float64))
    return _check_single_distribution(_to_distribution(value, "the prior"), "the prior")


def check_distribution(value: object, what: str) -> Distribution:
    """A distribution, or an error that names what was given for it."""
    if isinstance(value, Tensor) or not isinstance(value, Distribution):
        raise TypeError(
            f"{what} is {type(value).__name__}: a torch.distributions object, an object with mean, covariance(), "
            "log_prob and draw, or for emissions a pair of tensors (mean, variance) is needed"
        )
    return value


def check_column_count(model: LatentModel, columns: int) -> None:
    """Refuse rows of another number of columns than the model's."""
    prior = model.prior()
    expected = model.emission(prior.draw(1, generator(0, prior.mean.device))[0]).mean.shape[-1]
    if expected != columns:
        raise ValueError(f"the model has {expected} columns, the rows have {columns}")


def _check_single_distribution(distribution: Distribution, what: str) -> Distribution:
    if len(distribution.mean) != 1:
        raise ValueError(
            f"{what} must be one distribution over its columns, got a batch of {len(distribution.mean)}: give batch "
            "shape (d,) of independent columns, or batch shape () with an event of d columns"
        )
    return distribution


def _to_distribution(value: Any, what: str) -> Distribution:
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, Tensor) for part in value):
        mean, variance = value
        return DiagonalGaussian(mean, variance.expand_as(mean))
    if isinstance(value, TorchDistribution):
        return from_torch(value)
    return check_distribution(value, what)
