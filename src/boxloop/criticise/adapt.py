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
from sklearn.base import BaseEstimator, MetaEstimatorMixin
from sklearn.decomposition import PCA, FactorAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.distributions import Distribution as TorchDistribution

from boxloop.criticise.distributions import distribution_law, repeated
from boxloop.data import on_device, open_source
from boxloop.distributions import Categorical, DiagonalGaussian, FullGaussian, SphericalGaussian, TiedGaussian
from boxloop.models import FactorModel, Mixture
from boxloop.numeric import generator
from boxloop.types import Distribution, LatentModel, Source


@runtime_checkable
class Modelled(Protocol):
    """A fitted estimator that keeps its model."""

    model_: Any


@runtime_checkable
class Search(Protocol):
    """A fitted search over estimators that keeps the one it chose."""

    best_estimator_: Any


@runtime_checkable
class Preparing(Protocol):
    """An estimator that checks or changes rows before its model sees them."""

    def _prepare(self, source: Source) -> Source:
        """Rows as the model has them."""


@runtime_checkable
class AnyModel(LatentModel, Protocol):
    """A model of any make, told by its methods."""


@runtime_checkable
class AnyLaw(Distribution, Protocol):
    """A law of any make, told by its methods."""


@dataclass(frozen=True)
class Pair:
    """A prior and a function from latent values to laws.

    Args:
        law: of z.
        likelihood: z (m, k) -> m laws.
    """

    law: Distribution
    likelihood: Callable[[Tensor], Distribution]

    def prior(self) -> Distribution:
        """The law of z."""
        return self.law

    def emission(self, z: Tensor) -> Distribution:
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


def chosen_estimator(given: object) -> object:
    """The estimator that a fitted search chose; anything else as it is.

    Example:
        >>> from boxloop import GaussianMixture, Select
        >>> search = Select(GaussianMixture(), {"n_components": [1]}, cv=2)
        >>> chosen_estimator(search.fit([[0.0], [1.0], [2.0], [3.0]]))
        GaussianMixture(random_state=0)
    """
    return given.best_estimator_ if isinstance(given, Search) else given


def open_rows(model: object, X: Any, sample_weight: Any = None, device: torch.device | str = "cpu") -> Source:
    """Rows as the model of a fitted estimator has them: checked, and cut where ``binarize`` says so.

    Args:
        model: as the user gave it.
        X: rows.
        sample_weight: one non-negative weight a row.
        device: of the model.

    Example:
        >>> from boxloop import BernoulliMixture
        >>> fitted = BernoulliMixture(binarize=1.5).fit([[1.0], [2.0]])
        >>> next(open_rows(fitted, [[3.0], [0.0]]).chunks())[0]
        tensor([[1.],
                [0.]], dtype=torch.float64)
    """
    source = on_device(open_source(as_rows(X), sample_weight), torch.device(device))
    judged = chosen_estimator(model)
    return judged._prepare(source) if isinstance(judged, Preparing) else source


def as_model(given: object, emission: Callable[[Tensor], object] | None = None) -> LatentModel:
    """A model from whatever has a prior and an emission.

    Args:
        given: a boxloop model or fitted estimator; a search (``Select``), for the ``best_estimator_`` that it chose; a
            fitted scikit-learn ``GaussianMixture``, ``BayesianGaussianMixture``, ``FactorAnalysis`` or ``PCA``; a
            fitted hmmlearn ``GaussianHMM`` (its rows in the long run, which depend on one another: their gaps have no
            errors); a ``torch.distributions`` object; or, with ``emission``, a prior: a law, a ``torch.distributions``
            object, or a number k of standard normal latent columns.
        emission: z (m, k) -> a law, a ``torch.distributions`` object, or ``(mean, variance)`` as a decoder gives. A
            ``torch.nn.Module``, or a method of one, is given z in the precision and on the device of its parameters.

    Returns:
        An object with ``prior()`` and ``emission(z)``.

    Raises:
        TypeError: not a model that is known.
        NotFittedError: an estimator that is not fitted.
        ValueError: a model without a density, or distributions whose batch is not one for each row of z.

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
    if isinstance(given, Search):
        return as_model(given.best_estimator_)
    if isinstance(given, Modelled):
        return as_model(given.model_)
    if isinstance(given, TorchDistribution):
        device = _one(distribution_law(given), "a distribution of rows").mean.device
        one = Categorical(torch.zeros(1, 1, dtype=torch.float64, device=device))
        return Pair(one, lambda z: repeated(given, len(z)))
    _check_fitted(given)
    if isinstance(given, (GaussianMixture, BayesianGaussianMixture)):
        return _mixture(given)
    if isinstance(given, FactorAnalysis):
        return _factors(given.mean_, given.components_.T, given.noise_variance_)
    if isinstance(given, PCA):
        return _pca(given)
    if type(given).__module__.startswith("hmmlearn"):
        return _hmm(given)
    name = type(given).__name__
    if hasattr(given, "refit") and not given.refit:
        raise TypeError(f"cannot take {name} as a model: with refit=False it keeps no fitted best_estimator_")
    if isinstance(given, MetaEstimatorMixin) and hasattr(given, "estimator_"):
        raise TypeError(f"cannot take {name} as a model: give the estimator inside it, .estimator_")
    raise TypeError(f"cannot take {name} as a model: it needs prior() and emission(z), or emission=")


def _decoder(emission: Callable[[Tensor], object]) -> Callable[[Tensor], Distribution]:
    """A function from z to laws; a network's numbers come in its own precision and go in that of z."""
    owner = getattr(emission, "__self__", emission)
    weight = next(owner.parameters(), None) if isinstance(owner, torch.nn.Module) else None

    def laws(z: Tensor) -> Distribution:
        found: Any = emission(z if weight is None else z.to(weight))
        if isinstance(found, tuple) and weight is not None:
            found = tuple(part.to(z) for part in found)
        law = _law(found)
        if len(law.mean) != len(z):
            raise ValueError(
                f"emission(z) gave {len(law.mean)} distributions for {len(z)} rows of z: one for each is needed, of "
                "batch shape (m, d), or (m,) with an event of d columns"
            )
        return law

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


class LongRun(Mixture[Any]):
    """The mixture that each row of a hidden Markov model follows in the long run; its rows are not independent."""


DEPENDENT = "rows of a hidden Markov model depend on one another"


def check_independent(model: LatentModel, what: str) -> None:
    """Refuse what holds for independent rows only."""
    if isinstance(model, LongRun):
        raise ValueError(
            f"{DEPENDENT}: {what} of independent rows, and would reject true "
            "models. mega(..., draws=0) gives the gaps alone; a model with equal rows of transmat_ has independent rows"
        )


def _hmm(fitted: Any) -> Mixture[Any]:
    """Rows in the long run: a mixture by the stationary distribution of the states."""
    name = type(fitted).__name__
    if name != "GaussianHMM":
        raise TypeError(f"cannot take {name} as a model: of hmmlearn, GaussianHMM is known")
    if any(getattr(fitted, part, None) is None for part in ("transmat_", "means_", "covars_")):
        raise NotFittedError(f"this {name} is not fitted yet: call fit before it is judged as a model")
    change = np.asarray(fitted.transmat_, dtype=np.float64)
    values, vectors = np.linalg.eig(change.T)
    if (np.abs(values - 1.0) < 1e-10).sum() > 1:
        raise ValueError(
            f"{name}: transmat_ has states that never reach one another: no one distribution in the long run"
        )
    stationary = np.real(vectors[:, np.argmin(np.abs(values - 1.0))])
    weights = _tensor(np.maximum(stationary / stationary.sum(), 0.0))
    family = FullGaussian.of(_tensor(fitted.means_), _tensor(fitted.covars_))
    independent = bool(np.ptp(change, axis=0).max() <= 1e-12)
    return (Mixture if independent else LongRun)(weights.log(), family)


def _check_fitted(given: object) -> None:
    """Raise NotFittedError for an estimator that is not fitted, of scikit-learn, of hmmlearn or of this library."""
    if isinstance(given, BaseEstimator) and callable(getattr(given, "fit", None)):
        check_is_fitted(given, msg="this %(name)s is not fitted yet: call fit before it is judged as a model")


def _prior(given: object) -> Distribution:
    if isinstance(given, int) and not isinstance(given, bool):
        if given < 1:
            raise ValueError(f"a prior of standard normal columns needs at least 1 of them, got {given}")
        zero = torch.zeros(1, given, dtype=torch.float64)
        return DiagonalGaussian(zero, zero + 1.0)
    if isinstance(given, torch.distributions.Categorical):
        return Categorical(given.logits.reshape(1, -1).to(torch.float64))
    return _one(_law(given, "the prior"), "the prior")


def check_law(given: object, what: str) -> Distribution:
    """A law, or an error that says what was given for it."""
    if isinstance(given, Tensor) or not isinstance(given, AnyLaw):
        raise TypeError(
            f"{what} is {type(given).__name__}: a torch.distributions object, a law with mean, covariance(), "
            "log_prob and draw, or for emissions a pair of tensors (mean, variance) is needed"
        )
    return given


def check_columns(model: LatentModel, columns: int) -> None:
    """Refuse rows of another number of columns than the model's, where its emissions tell it."""
    expected = model.emission(model.prior().draw(1, generator(0, model.prior().mean.device))[0]).mean.shape[
        -1
    ]
    if expected != columns:
        raise ValueError(f"the model has {expected} columns, the rows have {columns}")


def _one(law: Distribution, what: str) -> Distribution:
    if len(law.mean) != 1:
        raise ValueError(
            f"{what} must be one distribution over its columns, got a batch of {len(law.mean)}: give batch shape (d,) "
            "of independent columns, or batch shape () with an event of d columns"
        )
    return law


def _law(given: Any, what: str = "emission(z)") -> Distribution:
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(part, Tensor) for part in given):
        mean, variance = given
        return DiagonalGaussian(mean, variance.expand_as(mean))
    if isinstance(given, TorchDistribution):
        return distribution_law(given)
    return check_law(given, what)
