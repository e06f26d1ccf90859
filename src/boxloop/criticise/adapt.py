r"""Anything with a prior and an emission, as a model.

A fitted estimator of scikit-learn, of hmmlearn or of this library, a pair of ``torch.distributions``, or a decoder: all
of them are :math:`p(z)` and :math:`p(x \mid z)`, and so can be criticised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from torch import Generator, Tensor
from torch.distributions import Distribution

from boxloop.laws import Categorical, DiagonalGaussian, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import covariance as forms
from boxloop.types import LatentModel, Law


@runtime_checkable
class Modelled(Protocol):
    """A fitted estimator that keeps its model."""

    model_: Any


@runtime_checkable
class AnyModel(LatentModel, Protocol):
    """A model of any make, told by its methods."""


@dataclass(frozen=True)
class DistributionLaw:
    """A batch of ``torch.distributions`` as a law.

    Args:
        distribution: batch shape (m,) and event shape (d,), or batch shape (m, d) of independent columns.
        columns: d.
    """

    distribution: Distribution
    columns: int

    @property
    def mean(self) -> Tensor:
        """(m, d)."""
        return self.distribution.mean.reshape(-1, self.columns)

    def covariance(self) -> forms.Dense | forms.Diagonal:
        """Full where the distribution has a covariance matrix, else its variances."""
        if isinstance(self.distribution, torch.distributions.MultivariateNormal):
            return forms.Dense(self.distribution.covariance_matrix.reshape(-1, self.columns, self.columns))
        return forms.Diagonal(self.distribution.variance.reshape(-1, self.columns))

    def log_prob(self, rows: Tensor) -> Tensor:
        """(m, n)."""
        value = self.distribution.log_prob(rows[:, None] if self._batched() else rows)
        joint = value.sum(-1) if value.dim() > 1 and value.shape[-1] == self.columns else value
        return joint.reshape(len(rows), -1).mT

    def _batched(self) -> bool:
        return len(self.distribution.batch_shape) + len(self.distribution.event_shape) > 1

    def draw(self, n: int, generator: Generator) -> Tensor:
        """(m, n, d). The distribution draws from torch's global stream, seeded here and put back."""
        with torch.random.fork_rng(devices=[]):
            torch.random.set_rng_state(generator.get_state())
            drawn = self.distribution.sample((n,))
            generator.set_state(torch.random.get_rng_state())
        return drawn.reshape(n, -1, self.columns).transpose(0, 1)


@dataclass(frozen=True)
class Pair:
    """A prior and a function from latent values to laws.

    Args:
        law: of z.
        likelihood: z (m, k) -> m laws.
    """

    law: Law
    likelihood: Callable[[Tensor], Law]

    def prior(self) -> Law:
        """The law of z."""
        return self.law

    def emission(self, z: Tensor) -> Law:
        """The laws of x given z."""
        return self.likelihood(z)


def as_rows(X: Any) -> Any:
    """Images (n, H, W) or (n, C, H, W), as an autoencoder takes them, as rows (n, d); all else as it is.

    Example:
        >>> import numpy as np
        >>> as_rows(np.zeros((5, 8, 8))).shape
        (5, 64)
    """
    return X.reshape(len(X), -1) if isinstance(X, np.ndarray | Tensor) and X.ndim > 2 else X


def as_model(given: object, emission: Callable[[Tensor], object] | None = None) -> LatentModel:
    """A model from whatever has a prior and an emission.

    Args:
        given: a boxloop model or fitted estimator; a fitted scikit-learn ``GaussianMixture``,
            ``BayesianGaussianMixture``, ``FactorAnalysis`` or ``PCA``; a fitted hmmlearn ``GaussianHMM`` (its rows in
            the long run); or, with ``emission``, a prior: a law, a ``torch.distributions`` object, or a number k of
            standard normal latent columns.
        emission: z (m, k) -> a law, a ``torch.distributions`` object, or ``(mean, variance)`` as a decoder gives. A
            ``torch.nn.Module``, or a method of one, is given z in the precision and on the device of its parameters.

    Returns:
        An object with ``prior()`` and ``emission(z)``.

    Example:
        >>> import torch
        >>> model = as_model(2, lambda z: (z @ torch.ones(2, 3).double(), torch.ones(len(z), 3).double()))
        >>> model.emission(torch.zeros(1, 2).double()).mean
        tensor([[0., 0., 0.]], dtype=torch.float64)
    """
    if emission is not None:
        return Pair(_prior(given), _decoder(emission))
    if isinstance(given, AnyModel):
        return given
    if isinstance(given, Modelled):
        return as_model(given.model_)
    if isinstance(given, (GaussianMixture, BayesianGaussianMixture)):
        return _mixture(given)
    if isinstance(given, FactorAnalysis):
        return _factors(given.mean_, given.components_.T, given.noise_variance_)
    if isinstance(given, PCA):
        return _pca(given)
    if type(given).__module__.startswith("hmmlearn"):
        return _hmm(given)
    raise TypeError(
        f"cannot take {type(given).__name__} as a model: it needs prior() and emission(z), or emission="
    )


def _decoder(emission: Callable[[Tensor], object]) -> Callable[[Tensor], Law]:
    """A function from z to laws; a network's numbers come in its own precision and go in that of z."""
    owner = getattr(emission, "__self__", emission)
    weight = next(owner.parameters(), None) if isinstance(owner, torch.nn.Module) else None
    if weight is None:
        return lambda z: _law(emission(z))

    def laws(z: Tensor) -> Law:
        found: Any = emission(z.to(weight))
        return _law(tuple(part.to(z) for part in found) if isinstance(found, tuple) else found)

    return laws


def _tensor(value: Any) -> Tensor:
    return torch.as_tensor(np.ascontiguousarray(value), dtype=torch.float64)


def _mixture(fitted: Any) -> Mixture[Any]:
    mean, covariance = _tensor(fitted.means_), _tensor(fitted.covariances_)
    family: Any
    if fitted.covariance_type == "full":
        family = FullGaussian.of(mean, covariance)
    elif fitted.covariance_type == "tied":
        family = TiedGaussian(mean, torch.linalg.cholesky(covariance))
    elif fitted.covariance_type == "diag":
        family = DiagonalGaussian(mean, covariance)
    else:
        family = SphericalGaussian(mean, covariance[:, None])
    return Mixture(_tensor(fitted.weights_).log(), family)


def _pca(fitted: Any) -> FactorModel:
    """Tipping and Bishop's model. Whitening does not change the law of the rows, though it does ``PCA.score``."""
    noise = max(float(fitted.noise_variance_), 0.0)
    if noise == 0.0:
        raise ValueError("this PCA keeps every component and leaves no noise: it has no density")
    spread = np.maximum(fitted.explained_variance_ - noise, 0.0)
    loadings = fitted.components_.T * np.sqrt(spread)
    return _factors(fitted.mean_, loadings, np.full(len(fitted.mean_), noise))


def _factors(mean: Any, loadings: Any, noise: Any) -> FactorModel:
    return FactorModel(_tensor(mean), _tensor(loadings), _tensor(noise))


def _hmm(fitted: Any) -> Mixture[Any]:
    """Rows in the long run: a mixture by the stationary law of the states."""
    values, vectors = np.linalg.eig(np.asarray(fitted.transmat_).T)
    stationary = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    stationary = stationary / stationary.sum()
    mean, covariance = _tensor(fitted.means_), _tensor(fitted.covars_)
    return Mixture(_tensor(stationary).log(), FullGaussian.of(mean, covariance))


def _prior(given: object) -> Law:
    if isinstance(given, int):
        zero = torch.zeros(1, given, dtype=torch.float64)
        return DiagonalGaussian(zero, zero + 1.0)
    if isinstance(given, torch.distributions.Categorical):
        return Categorical(given.logits.reshape(1, -1).to(torch.float64))
    if isinstance(given, torch.distributions.Normal):
        mean, spread = (v.reshape(1, -1) for v in (given.mean, given.stddev))
        return DiagonalGaussian(mean, spread.square())
    if isinstance(given, torch.distributions.Independent) and isinstance(
        given.base_dist, torch.distributions.Normal
    ):
        return _prior(given.base_dist)
    if isinstance(given, Distribution):
        return DistributionLaw(given, int(given.mean.shape[-1]) if given.mean.dim() else 1)
    return _law(given)


def _law(given: Any) -> Law:
    if isinstance(given, tuple):
        mean, variance = given
        return DiagonalGaussian(mean, variance.expand_as(mean))
    if isinstance(given, torch.distributions.Independent) and isinstance(
        given.base_dist, torch.distributions.Normal
    ):
        given = given.base_dist
    if isinstance(given, torch.distributions.Normal) and given.mean.dim() == 2:
        return DiagonalGaussian(given.mean, given.variance)
    if isinstance(given, torch.distributions.MultivariateNormal) and given.mean.dim() == 2:
        return FullGaussian(given.mean, given.scale_tril)
    if isinstance(given, Distribution):
        return DistributionLaw(given, int(given.mean.shape[-1]))
    law: Law = given
    return law
